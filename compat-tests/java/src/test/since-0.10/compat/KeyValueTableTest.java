package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.BadKeyVersionException;
import io.pravega.client.tables.ConditionalTableUpdateException;
import io.pravega.client.tables.Insert;
import io.pravega.client.tables.IteratorItem;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.KeyValueTableIterator;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.Remove;
import io.pravega.client.tables.TableEntry;
import io.pravega.client.tables.TableKey;
import io.pravega.client.tables.TableModification;
import io.pravega.client.tables.Version;
import io.pravega.common.util.AsyncIterator;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Comparator;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Key-value tables: every kind of update, versions, iterators, and tables' coming and going. */
@Api("key-value table")
class KeyValueTableTest {
    private static final int PRIMARY = 8;
    private static final int SECONDARY = 4;
    private static final KeyValueTableConfiguration PAIRS = table(3, PRIMARY, SECONDARY);

    @RegisterExtension final TestScope scope = new TestScope();

    private KeyValueTableManager tables;
    private KeyValueTableFactory factory;

    @BeforeEach
    void open() {
        tables = KeyValueTableManager.create(scope.config);
        factory = KeyValueTableFactory.withScope(scope.name, scope.config);
    }

    @AfterEach
    void close() {
        factory.close();
        tables.close();
    }

    private static KeyValueTableConfiguration table(int partitions, int primary, int secondary) {
        return KeyValueTableConfiguration.builder()
                .partitionCount(partitions)
                .primaryKeyLength(primary)
                .secondaryKeyLength(secondary)
                .build();
    }

    private KeyValueTable create(KeyValueTableConfiguration configuration) {
        String name = TestScope.unique("table");
        assertTrue(tables.createKeyValueTable(scope.name, name, configuration));
        return open(name);
    }

    private KeyValueTable open(String name) {
        return factory.forKeyValueTable(
                name, KeyValueTableClientConfiguration.builder().build());
    }

    private static <T> T await(CompletableFuture<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }

    private static <E extends Exception> void assertFails(
            Class<E> kind, CompletableFuture<?> future) {
        ExecutionException failure =
                assertThrows(ExecutionException.class, () -> future.get(30, TimeUnit.SECONDS));
        assertInstanceOf(kind, failure.getCause());
    }

    private static ByteBuffer number(long value, int length) {
        byte[] bytes = new byte[length];
        for (int index = length - 1; index >= 0; index--) {
            bytes[index] = (byte) value;
            value >>= 8;
        }
        return ByteBuffer.wrap(bytes);
    }

    private static TableKey key(long primary, long secondary) {
        return new TableKey(number(primary, PRIMARY), number(secondary, SECONDARY));
    }

    private static ByteBuffer text(String value) {
        return ByteBuffer.wrap(value.getBytes(StandardCharsets.UTF_8));
    }

    private static String text(TableEntry entry) {
        return entry == null
                ? null
                : StandardCharsets.UTF_8.decode(entry.getValue().duplicate()).toString();
    }

    private static byte[] bytes(TableKey key) {
        ByteBuffer all =
                ByteBuffer.allocate(
                        key.getPrimaryKey().remaining() + key.getSecondaryKey().remaining());
        return all.put(key.getPrimaryKey().duplicate())
                .put(key.getSecondaryKey().duplicate())
                .array();
    }

    private static <T> List<T> all(AsyncIterator<IteratorItem<T>> pages) throws Exception {
        List<T> found = new ArrayList<>();
        for (IteratorItem<T> page = await(pages.getNext());
                page != null;
                page = await(pages.getNext())) {
            found.addAll(page.getItems());
        }
        return found;
    }

    private static List<String> values(KeyValueTableIterator iterator) throws Exception {
        return all(iterator.entries()).stream().map(KeyValueTableTest::text).toList();
    }

    @Test
    void everyUnconditionalUpdateTakesEffect() throws Exception {
        try (KeyValueTable table = create(PAIRS)) {
            assertNull(await(table.get(key(1, 1))));
            Version first = await(table.update(new Put(key(1, 1), text("a"))));
            Version second = await(table.update(new Put(key(1, 1), text("b"))));
            assertNotEquals(first, second);
            TableEntry entry = await(table.get(key(1, 1)));
            assertEquals("b", text(entry));
            assertEquals(second, entry.getVersion());
            assertEquals(key(1, 1), entry.getKey());
            assertNull(await(table.update(new Remove(key(1, 1)))));
            assertNull(await(table.get(key(1, 1))));
            // Removing what is not there is fine as long as no version is given.
            await(table.update(new Remove(key(1, 1))));
        }
    }

    @Test
    void insertsAndVersionedUpdatesAreRefusedWhenTheKeyHasChanged() throws Exception {
        try (KeyValueTable table = create(PAIRS)) {
            Version inserted = await(table.update(new Insert(key(1, 1), text("a"))));
            assertFails(
                    BadKeyVersionException.class, table.update(new Insert(key(1, 1), text("x"))));
            Version updated = await(table.update(new Put(key(1, 1), text("b"), inserted)));
            assertFails(
                    BadKeyVersionException.class,
                    table.update(new Put(key(1, 1), text("x"), inserted)));
            assertFails(
                    BadKeyVersionException.class, table.update(new Remove(key(1, 1), inserted)));
            assertEquals("b", text(await(table.get(key(1, 1)))));
            await(table.update(new Remove(key(1, 1), updated)));
            // Ours says that there is no such key; the original that its version is another.
            assertFails(
                    ConditionalTableUpdateException.class,
                    table.update(new Put(key(1, 1), text("x"), updated)));
            assertFails(
                    ConditionalTableUpdateException.class,
                    table.update(new Remove(key(1, 1), updated)));
            assertNull(await(table.get(key(1, 1))));
            Version again = await(table.update(new Insert(key(1, 1), text("c"))));
            assertNotEquals(inserted, again);
            assertEquals("c", text(await(table.get(key(1, 1)))));
        }
    }

    @Test
    void aVersionSurvivesAsText() throws Exception {
        try (KeyValueTable table = create(PAIRS)) {
            Version version = await(table.update(new Insert(key(1, 1), text("a"))));
            Version restored = Version.fromString(version.toString());
            await(table.update(new Put(key(1, 1), text("b"), restored)));
            assertEquals("b", text(await(table.get(key(1, 1)))));
        }
    }

    @Test
    void updatesOfSeveralKeysHappenTogetherOrNotAtAll() throws Exception {
        try (KeyValueTable table = create(PAIRS)) {
            List<TableModification> inserts = new ArrayList<>();
            for (int number = 0; number < 50; number++) {
                inserts.add(new Insert(key(7, number), text("v" + number)));
            }
            List<Version> versions = await(table.update(inserts));
            assertEquals(50, versions.size());
            assertEquals(50, new HashSet<>(versions).size());
            // One of the keys exists: nothing of the second batch may be seen.
            assertFails(
                    BadKeyVersionException.class,
                    table.update(
                            List.of(
                                    new Insert(key(7, 100), text("new")),
                                    new Put(key(7, 1), text("changed")),
                                    new Insert(key(7, 2), text("x")))));
            assertNull(await(table.get(key(7, 100))));
            assertEquals("v1", text(await(table.get(key(7, 1)))));
            await(
                    table.update(
                            List.of(
                                    new Put(key(7, 0), text("w0"), versions.get(0)),
                                    new Put(key(7, 1), text("w1")),
                                    new Insert(key(7, 100), text("w100")))));
            List<TableKey> keys = List.of(key(7, 0), key(7, 1), key(7, 100), key(7, 2));
            List<String> found =
                    await(table.getAll(keys)).stream().map(KeyValueTableTest::text).toList();
            assertEquals(List.of("w0", "w1", "w100", "v2"), found);
            await(
                    table.update(
                            List.of(
                                    new Remove(key(7, 2), versions.get(2)),
                                    new Remove(key(7, 3), versions.get(3)))));
            assertEquals(49, all(table.iterator().forPrimaryKey(number(7, PRIMARY)).keys()).size());
            // What the client itself cannot do: keys of two primary keys in one update.
            assertThrows(
                    IllegalArgumentException.class,
                    () ->
                            table.update(
                                    List.of(
                                            new Put(key(7, 1), text("x")),
                                            new Put(key(8, 1), text("x")))));
        }
    }

    @Test
    void askingWhetherAKeyExistsChangesNothing() throws Exception {
        try (KeyValueTable table = create(PAIRS)) {
            assertFalse(await(table.exists(key(1, 1))));
            Version version = await(table.update(new Insert(key(1, 1), text("a"))));
            for (int round = 0; round < 3; round++) {
                assertTrue(await(table.exists(key(1, 1))));
                assertFalse(await(table.exists(key(1, 2))));
            }
            assertEquals(version, await(table.get(key(1, 1))).getVersion());
        }
    }

    @Test
    void valuesMayBeEmptyOrAsLargeAsAValueGets() throws Exception {
        try (KeyValueTable table = create(PAIRS)) {
            byte[] large = new byte[KeyValueTable.MAXIMUM_VALUE_LENGTH];
            new Random(7).nextBytes(large);
            List<TableKey> keys = new ArrayList<>();
            for (int number = 0; number < 20; number++) {
                keys.add(key(number, 0));
                await(table.update(new Put(key(number, 0), ByteBuffer.wrap(large))));
            }
            await(table.update(new Put(key(100, 0), ByteBuffer.allocate(0))));
            assertEquals(0, await(table.get(key(100, 0))).getValue().remaining());
            for (TableEntry entry : await(table.getAll(keys))) {
                assertEquals(ByteBuffer.wrap(large), entry.getValue());
            }
            assertThrows(
                    IllegalArgumentException.class,
                    () ->
                            table.update(
                                    new Put(
                                            key(1, 1),
                                            ByteBuffer.allocate(
                                                    KeyValueTable.MAXIMUM_VALUE_LENGTH + 1))));
        }
    }

    @Test
    void iteratorsOfAPrimaryKeyAreSortedAndBounded() throws Exception {
        try (KeyValueTable table = create(PAIRS)) {
            List<Integer> seconds = new ArrayList<>(List.of(0, 1, 2, 127, 128, 255, 256, 70000));
            for (int second : seconds) {
                await(table.update(new Put(key(5, second), text("s" + second))));
                await(table.update(new Put(key(6, second), text("other"))));
            }
            ByteBuffer five = number(5, PRIMARY);
            List<String> sorted = seconds.stream().map(second -> "s" + second).toList();
            for (int size : new int[] {1, 3, 8, 100}) {
                KeyValueTableIterator.Builder pages = table.iterator().maxIterationSize(size);
                assertEquals(sorted, values(pages.forPrimaryKey(five)));
            }
            // Both bounds are included, and need not exist.
            assertEquals(
                    List.of("s1", "s2", "s127", "s128"),
                    values(
                            table.iterator()
                                    .maxIterationSize(3)
                                    .forPrimaryKey(
                                            five, number(1, SECONDARY), number(128, SECONDARY))));
            assertEquals(
                    List.of("s2", "s127"),
                    values(
                            table.iterator()
                                    .forPrimaryKey(
                                            five, number(2, SECONDARY), number(127, SECONDARY))));
            assertEquals(
                    List.of(),
                    values(
                            table.iterator()
                                    .forPrimaryKey(
                                            five, number(3, SECONDARY), number(100, SECONDARY))));
            assertEquals(
                    List.of("s0", "s1", "s2", "s127", "s128", "s255"),
                    values(
                            table.iterator()
                                    .forPrimaryKey(five, ByteBuffer.wrap(new byte[] {0, 0, 0}))));
            assertEquals(
                    List.of(), values(table.iterator().forPrimaryKey(number(9, PRIMARY))));
        }
    }

    @Test
    void globalIteratorsSeeEveryPartitionInOrder() throws Exception {
        try (KeyValueTable table = create(table(4, PRIMARY, 0))) {
            Random random = new Random(3);
            TreeMap<Long, String> expected = new TreeMap<>(Long::compareUnsigned);
            List<CompletableFuture<Version>> updates = new ArrayList<>();
            for (int number = 0; number < 500; number++) {
                long primary = random.nextLong();
                expected.put(primary, "v" + primary);
                TableKey key = new TableKey(number(primary, PRIMARY));
                updates.add(table.update(new Put(key, text("v" + primary))));
            }
            for (CompletableFuture<Version> update : updates) {
                await(update);
            }
            List<TableEntry> found = all(table.iterator().maxIterationSize(37).all().entries());
            assertEquals(
                    new ArrayList<>(expected.values()),
                    found.stream().map(KeyValueTableTest::text).toList());
            List<byte[]> keys =
                    all(table.iterator().all().keys()).stream()
                            .map(KeyValueTableTest::bytes)
                            .toList();
            List<byte[]> sorted = new ArrayList<>(keys);
            sorted.sort(Comparator.comparing((byte[] key) -> key, Arrays::compareUnsigned));
            assertEquals(500, keys.size());
            assertEquals(sorted, keys);

            List<Long> primaries = new ArrayList<>(expected.keySet());
            long low = primaries.get(100);
            long high = primaries.get(299);
            assertEquals(
                    200,
                    values(table.iterator().forRange(number(low, PRIMARY), number(high, PRIMARY)))
                            .size());
            byte prefix = (byte) (low >>> 56);
            long withPrefix =
                    primaries.stream().filter(value -> (byte) (value >>> 56) == prefix).count();
            assertEquals(
                    withPrefix,
                    values(table.iterator().forPrefix(ByteBuffer.wrap(new byte[] {prefix})))
                            .size());
        }
    }

    @Test
    void iteratorsGoOnWhileKeysComeAndGo() throws Exception {
        try (KeyValueTable table = create(PAIRS)) {
            for (int number = 0; number < 60; number++) {
                await(table.update(new Put(key(1, number), text("v" + number))));
            }
            AsyncIterator<IteratorItem<TableEntry>> pages =
                    table.iterator().maxIterationSize(10).forPrimaryKey(number(1, PRIMARY))
                            .entries();
            Set<String> seen = new HashSet<>();
            await(pages.getNext()).getItems().forEach(entry -> seen.add(text(entry)));
            for (int number = 0; number < 30; number++) {
                await(table.update(new Remove(key(1, number))));
            }
            await(table.update(new Put(key(1, 60), text("v60"))));
            all(pages).forEach(entry -> seen.add(text(entry)));
            for (int number = 30; number <= 60; number++) {
                assertTrue(seen.contains("v" + number), "v" + number);
            }
        }
    }

    @Test
    void racingConditionalUpdatesLoseNothing() throws Exception {
        String name = TestScope.unique("table");
        tables.createKeyValueTable(scope.name, name, PAIRS);
        int rounds = 40;
        new Parallel()
                .add(
                        4,
                        number -> {
                            try (KeyValueTable table = open(name)) {
                                for (int round = 0; round < rounds; round++) {
                                    increment(table);
                                }
                            }
                        })
                .run();
        try (KeyValueTable table = open(name)) {
            assertEquals(Integer.toString(4 * rounds), text(await(table.get(key(1, 1)))));
        }
    }

    private static void increment(KeyValueTable table) throws Exception {
        while (true) {
            TableEntry entry = await(table.get(key(1, 1)));
            TableModification change =
                    entry == null
                            ? new Insert(key(1, 1), text("1"))
                            : new Put(
                                    key(1, 1),
                                    text(Integer.toString(Integer.parseInt(text(entry)) + 1)),
                                    entry.getVersion());
            try {
                await(table.update(change));
                return;
            } catch (ExecutionException failure) {
                assertInstanceOf(ConditionalTableUpdateException.class, failure.getCause());
            }
        }
    }

    @Test
    void randomUpdatesMatchAMapInMemory() throws Exception {
        Random random = new Random(11);
        Map<TableKey, String> expected = new HashMap<>();
        Map<TableKey, Version> versions = new HashMap<>();
        try (KeyValueTable table = create(PAIRS)) {
            for (int step = 0; step < 600; step++) {
                TableKey key = key(random.nextInt(5), random.nextInt(20));
                Version version = versions.get(key);
                String value = "v" + step;
                int kind = random.nextInt(4);
                if (kind == 0) {
                    await(
                            version == null
                                    ? table.update(new Remove(key))
                                    : table.update(new Remove(key, version)));
                    versions.remove(key);
                    expected.remove(key);
                } else {
                    TableModification change =
                            kind == 1
                                    ? new Put(key, text(value))
                                    : version == null
                                            ? new Insert(key, text(value))
                                            : new Put(key, text(value), version);
                    versions.put(key, await(table.update(change)));
                    expected.put(key, value);
                }
            }
            Map<TableKey, String> found = new HashMap<>();
            for (TableEntry entry : all(table.iterator().maxIterationSize(7).all().entries())) {
                found.put(entry.getKey(), text(entry));
                assertEquals(versions.get(entry.getKey()), entry.getVersion());
            }
            assertEquals(expected, found);
        }
    }

    @Test
    void tablesComeAndGo() throws Exception {
        Set<String> names = new HashSet<>();
        for (int number = 0; number < 3; number++) {
            String name = TestScope.unique("table");
            names.add(name);
            assertTrue(tables.createKeyValueTable(scope.name, name, PAIRS));
            assertFalse(tables.createKeyValueTable(scope.name, name, PAIRS));
        }
        // A stream and a table may share a name.
        String shared = names.iterator().next();
        scope.streams.createStream(scope.name, shared, TestScope.fixed(1));
        Set<String> listed = new HashSet<>();
        tables.listKeyValueTables(scope.name)
                .forEachRemaining(info -> listed.add(info.getKeyValueTableName()));
        assertEquals(names, listed);
        for (String name : names) {
            assertTrue(tables.deleteKeyValueTable(scope.name, name));
            assertFalse(tables.deleteKeyValueTable(scope.name, name));
        }
        assertFalse(tables.listKeyValueTables(scope.name).hasNext());
        assertTrue(scope.streams.checkStreamExists(scope.name, shared));
    }

    @Test
    void aTableMadeAnewShowsNothingOfTheEarlierOne() throws Exception {
        String name = TestScope.unique("table");
        tables.createKeyValueTable(scope.name, name, PAIRS);
        Version old;
        try (KeyValueTable table = open(name)) {
            old = await(table.update(new Insert(key(1, 1), text("old"))));
        }
        tables.deleteKeyValueTable(scope.name, name);
        tables.createKeyValueTable(scope.name, name, table(2, PRIMARY, SECONDARY));
        try (KeyValueTable table = open(name)) {
            assertNull(await(table.get(key(1, 1))));
            assertEquals(List.of(), all(table.iterator().all().keys()));
            assertThrows(
                    Exception.class, () -> await(table.update(new Put(key(1, 1), text("x"), old))));
            await(table.update(new Insert(key(1, 1), text("new"))));
            assertEquals("new", text(await(table.get(key(1, 1)))));
        }
    }
}
