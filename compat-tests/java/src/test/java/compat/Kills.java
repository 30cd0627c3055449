package compat;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.TimeUnit;

/**
 * Ends a server of a store with kill -9; its supervisor starts it again.
 *
 * <p>The system property {@code compat.processes} names the directory of the servers' process ids.
 * Tests run side by side: one kill serves all that are at work at that moment.
 */
final class Kills {
    static final String STORE = "segment-store-0";
    static final String CONTROLLER = "controller";

    private static final Map<String, Kills> OF =
            Map.of(STORE, new Kills(STORE), CONTROLLER, new Kills(CONTROLLER));
    private static final long BEFORE_MS = 300;
    private static final long AT_WORK_MS = 100;

    private final String victim;
    private boolean killed;
    private long killedAtNanos;

    private Kills(String victim) {
        this.victim = victim;
    }

    /** Runs the work in a thread of its own, and a kill when some of it is done. */
    static void during(String victim, Parallel.Task work) throws Exception {
        long atWork = System.nanoTime() + TimeUnit.MILLISECONDS.toNanos(AT_WORK_MS);
        new Parallel()
                .add(work)
                .add(
                        () -> {
                            Thread.sleep(BEFORE_MS);
                            OF.get(victim).killUnlessKilledSince(atWork);
                        })
                .run();
    }

    private synchronized void killUnlessKilledSince(long nanos) throws Exception {
        if (!killed || killedAtNanos - nanos < 0) {
            killed = true;
            killedAtNanos = System.nanoTime();
            kill();
        }
    }

    /** kill -9; returns once another process has taken its place. */
    private void kill() throws Exception {
        Path file = Path.of(System.getProperty("compat.processes"), victim + ".pid");
        String old = Files.readString(file).trim();
        ProcessHandle.of(Long.parseLong(old)).orElseThrow().destroyForcibly();
        Deadline deadline = new Deadline(60);
        while (read(file).equals(old) || read(file).isEmpty()) {
            assertTrue(!deadline.passed(), victim + " does not come back");
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
