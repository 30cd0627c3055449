package compat;

import static org.junit.jupiter.api.Assertions.assertTrue;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.NoSuchFileException;
import java.nio.file.Path;

/**
 * Ends a server of a store with kill -9; its supervisor starts it again.
 *
 * <p>The system property {@code compat.processes} names the directory of the servers' process ids.
 */
final class Kills {
    static final String STORE = "segment-store-0";
    static final String CONTROLLER = "controller";

    private Kills() {}

    /** kill -9; returns once another process has taken its place. */
    private static void kill(String victim) throws Exception {
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

    /** Runs the work in a thread of its own, and the kill when a third of a second of it is over. */
    static void during(String victim, Parallel.Task work) throws Exception {
        new Parallel()
                .add(work)
                .add(
                        () -> {
                            Thread.sleep(300);
                            kill(victim);
                        })
                .run();
    }
}
