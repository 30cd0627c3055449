package compat;

import java.nio.file.Path;

/** {@link KillNineWorkload} with transactional writers on a stream that scales. */
final class TransactionKillNineWorkload {
    private TransactionKillNineWorkload() {}

    public static void main(String[] arguments) throws Exception {
        new KillNineWorkload(Path.of(arguments[0]), true).runToTheEnd();
    }
}
