package flinkjobs;

import io.pravega.connectors.flink.PravegaConfig;
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

    static PravegaConfig pravega() {
        return PravegaConfig.fromDefaults().withControllerURI(controller()).withDefaultScope(scope());
    }
}
