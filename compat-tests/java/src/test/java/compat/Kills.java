package compat;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * Ends a server of a store with kill -9 while a test works; its supervisor starts it again.
 *
 * <p>The system property {@code compat.processes} names the directory of the servers' process ids.
 * Tests run side by side on one store, and one kill serves all that are at work at that moment.
 * While a test prepares or checks, nobody kills: work and the rest take turns ({@link Turns}).
 */
final class Kills implements BeforeEachCallback, AfterEachCallback {
    static final String STORE = "segment-store-0";
    static final String CONTROLLER = "controller";

    private static final Turns TURNS = new Turns();
    private static final Map<String, Server> SERVERS =
            Map.of(STORE, new Server(STORE), CONTROLLER, new Server(CONTROLLER));
    private static final long BEFORE_MS = 300;
    private static final long AT_WORK_MS = 100;

    private final Turns.Place place = TURNS.newPlace();

    @Override
    public void beforeEach(ExtensionContext context) {
        place.enter(Turns.Kind.CALM);
    }

    @Override
    public void afterEach(ExtensionContext context) {
        place.close();
    }

    /** Runs the work in a thread of its own, and a kill when some of it is done. */
    void during(String victim, Parallel.Task work) throws Exception {
        place.enter(Turns.Kind.AMONG_KILLS);
        try {
            long atWork = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(AT_WORK_MS);
            new Parallel()
                    .add(work)
                    .add(
                            () -> {
                                Thread.sleep(BEFORE_MS);
                                SERVERS.get(victim).killUnlessKilledSince(atWork);
                            })
                    .run();
        } finally {
            place.enter(Turns.Kind.CALM);
        }
    }

    /** A server that is killed. */
    private static final class Server {
        private final String name;
        private boolean killed;
        private long killedAtNanos;

        Server(String name) {
            this.name = name;
        }

        synchronized void killUnlessKilledSince(long nanos) throws Exception {
            if (!killed || killedAtNanos - nanos < 0) {
                killed = true;
                killedAtNanos = System.nanoTime();
                kill();
            }
        }

        /** kill -9; returns once another process has taken its place. */
        private void kill() throws Exception {
            Path file = Path.of(System.getProperty("compat.processes"), name + ".pid");
            String old = Files.readString(file).trim();
            ProcessHandle.of(Long.parseLong(old)).orElseThrow().destroyForcibly();
            Deadline deadline = new Deadline(60);
            while (read(file).equals(old) || read(file).isEmpty()) {
                assertTrue(!deadline.passed(), name + " does not come back");
                Thread.sleep(20);
            }
        }

        private static String read(Path file) throws IOException {
            try {
                return Files.readString(file).trim();
            } catch (NoSuchFileException notYet) {
                return "";
            }
        }
    }
}
