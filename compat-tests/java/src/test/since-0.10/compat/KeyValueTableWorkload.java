package compat;

import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.Insert;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.TableEntry;
import io.pravega.client.tables.TableKey;
import io.pravega.client.tables.TableModification;
import io.pravega.client.tables.Version;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.List;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Updates a key-value table without end while somebody kills the server again and again, and looks
 * after each update that failed, and at the end, whether all that was acknowledged is there, once,
 * and every update whole. A program, not a test: {@code KeyValueTableWorkload DIRECTORY}. Another
 * thread makes, fills and deletes tables of one name meanwhile.
 *
 * <p>It ends once the file {@code DIRECTORY/stop} is there; until then it keeps {@code
 * DIRECTORY/acked}, the count of acknowledged updates. What breaks a promise ends it with a trace.
 */
final class KeyValueTableWorkload {
    private static final int UPDATER_COUNT = 4;
    private static final long SECONDS_PER_CALL = 120;
    private static final KeyValueTableConfiguration PAIRS =
            KeyValueTableConfiguration.builder()
                    .partitionCount(2)
                    .primaryKeyLength(4)
                    .secondaryKeyLength(4)
                    .build();

    private final Path directory;
    private final TestScope scope = new TestScope();
    private final AtomicLong acked = new AtomicLong();
    private KeyValueTableFactory factory;
    private KeyValueTableManager tables;

    private KeyValueTableWorkload(Path directory) {
        this.directory = directory;
    }

    public static void main(String[] arguments) throws Exception {
        new KeyValueTableWorkload(Path.of(arguments[0])).run();
        System.out.println("DONE");
        System.exit(0);
    }

    private void run() throws Exception {
        scope.open(TestScope.unique("tables"));
        factory = KeyValueTableFactory.withScope(scope.name, scope.config);
        tables = KeyValueTableManager.create(scope.config);
        tables.createKeyValueTable(scope.name, "pairs", PAIRS);
        System.out.println("STARTED");
        try {
            new Parallel()
                    .add(UPDATER_COUNT, this::updateUntilStopped)
                    .add(this::makeTablesUntilStopped)
                    .run();
        } catch (Throwable failed) {
            failed.printStackTrace(System.out);
            System.exit(1);
        }
        System.out.println(acked + " updates acknowledged");
    }

    private boolean isStopped() {
        return Files.exists(directory.resolve("stop"));
    }

    private synchronized void countAck() throws Exception {
        Path written = directory.resolve("acked.new");
        Files.writeString(written, Long.toString(acked.incrementAndGet()));
        Files.move(written, directory.resolve("acked"), StandardCopyOption.REPLACE_EXISTING);
    }

    private KeyValueTable open(String name) {
        return factory.forKeyValueTable(
                name, KeyValueTableClientConfiguration.builder().build());
    }

    private static ByteBuffer number(long value) {
        return ByteBuffer.allocate(4).putInt((int) value).flip();
    }

    private static TableKey key(int updater, int second) {
        return new TableKey(number(updater), number(second));
    }

    private static long value(TableEntry entry) {
        return entry == null ? 0 : entry.getValue().duplicate().getInt();
    }

    /** Two keys count together: every update is conditional on the one before it. */
    private void updateUntilStopped(int updater) throws Exception {
        try (KeyValueTable table = open("pairs")) {
            long last = 0;
            Version[] versions = {null, null};
            while (!isStopped()) {
                long next = last + 1;
                try {
                    List<Version> written =
                            table.update(
                                            List.of(
                                                    change(key(updater, 0), next, versions[0]),
                                                    change(key(updater, 1), next, versions[1])))
                                    .get(SECONDS_PER_CALL, TimeUnit.SECONDS);
                    written.toArray(versions);
                    last = next;
                    countAck();
                } catch (Exception unknown) {
                    // The reply was lost, or the client's own second try met the first one.
                    last = readPair(table, updater, last, next, versions);
                }
            }
            readPair(table, updater, last, last, versions);
        }
    }

    private static TableModification change(TableKey key, long value, Version version) {
        return version == null
                ? new Insert(key, number(value))
                : new Put(key, number(value), version);
    }

    private static long readPair(
            KeyValueTable table, int updater, long acked, long attempted, Version[] versions)
            throws Exception {
        List<TableEntry> pair =
                table.getAll(List.of(key(updater, 0), key(updater, 1)))
                        .get(SECONDS_PER_CALL, TimeUnit.SECONDS);
        long first = value(pair.get(0));
        long second = value(pair.get(1));
        if (first != second || (first != acked && first != attempted)) {
            throw new AssertionError(
                    "updater " + updater + " read " + first + " and " + second + ", acknowledged "
                            + acked + ", attempted " + attempted);
        }
        for (int index = 0; index < 2; index++) {
            TableEntry entry = pair.get(index);
            versions[index] = entry == null ? null : entry.getVersion();
        }
        return first;
    }

    /** A table made anew is empty, whatever its predecessor held. */
    private void makeTablesUntilStopped() throws Exception {
        while (!isStopped()) {
            tables.createKeyValueTable(scope.name, "passing", PAIRS);
            try (KeyValueTable table = open("passing")) {
                TableKey key = key(9, 9);
                TableEntry entry = table.get(key).get(SECONDS_PER_CALL, TimeUnit.SECONDS);
                if (entry != null) {
                    throw new AssertionError("a table made anew holds " + value(entry));
                }
                table.update(new Put(key, number(7))).get(SECONDS_PER_CALL, TimeUnit.SECONDS);
            }
            tables.deleteKeyValueTable(scope.name, "passing");
        }
    }
}
