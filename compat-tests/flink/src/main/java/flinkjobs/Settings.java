package flinkjobs;

import io.pravega.connectors.flink.PravegaConfig;
import io.pravega.shared.security.auth.DefaultCredentials;
import java.net.URI;
import java.util.Properties;

/** What the tests say with {@code -Dflinkjobs.NAME=VALUE}. */
final class Settings {
    private static final Properties GIVEN = System.getProperties();

    private Settings() {}

    static String text(String name) {
        String value = GIVEN.getProperty("flinkjobs." + name);
        if (value == null) {
            throw new IllegalArgumentException("say -Dflinkjobs." + name + "=...");
        }
        return value;
    }

    static int number(String name) {
        return Integer.parseInt(text(name));
    }

    static URI controller() {
        return URI.create(text("controller"));
    }

    static String scope() {
        return text("scope");
    }

    /**
     * What jobs and clients connect with. A user's password is in the environment variable
     * FLINKJOBS_PASSWORD, and the authority's certificate is a file.
     */
    static PravegaConfig pravega() {
        PravegaConfig config =
                PravegaConfig.fromDefaults()
                        .withControllerURI(controller())
                        .withDefaultScope(scope());
        String user = GIVEN.getProperty("flinkjobs.user");
        if (user == null) {
            return config;
        }
        return config.withTrustStore(text("trustStore"))
                .withCredentials(new DefaultCredentials(System.getenv("FLINKJOBS_PASSWORD"), user));
    }
}
