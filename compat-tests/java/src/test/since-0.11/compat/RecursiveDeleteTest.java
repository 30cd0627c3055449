package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.admin.KeyValueTableInfo;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.TableKey;
import java.nio.ByteBuffer;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Scopes are deleted with all that they contain. */
@Api("stream manager: recursive deletion")
class RecursiveDeleteTest {
    private static final KeyValueTableConfiguration TABLE =
            KeyValueTableConfiguration.builder()
                    .partitionCount(3)
                    .primaryKeyLength(8)
                    .secondaryKeyLength(4)
                    .build();

    @RegisterExtension final TestScope scope = new TestScope();

    private KeyValueTableManager tables;

    @BeforeEach
    void open() {
        tables = KeyValueTableManager.create(scope.config);
    }

    @AfterEach
    void close() {
        tables.close();
    }

    @Test
    void aScopeWithStreamsIsDeletedOnlyWhenAskedToDeleteThemToo() throws Exception {
        String name = TestScope.unique("full");
        scope.streams.createScope(name);
        scope.streams.createStream(name, "a", TestScope.fixed(1));
        scope.streams.createStream(name, "b", TestScope.fixed(2));
        assertThrows(IllegalStateException.class, () -> scope.streams.deleteScope(name));
        assertTrue(scope.streams.checkStreamExists(name, "a"));
        assertTrue(scope.streams.deleteScopeRecursive(name));
        assertFalse(scope.streams.checkScopeExists(name));
        assertFalse(scope.streams.checkStreamExists(name, "a"));
    }

    @Test
    void aScopeIsDeletedTogetherWithItsReaderGroups() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", List.of("a:0"));
        scope.readAll(stream, 1);
        assertTrue(scope.streams.deleteScopeRecursive(scope.name));
        assertFalse(scope.streams.checkScopeExists(scope.name));
        assertTrue(scope.streams.createScope(scope.name));
        String again = scope.createStream(1);
        scope.write(again, "a", List.of("a:1"));
        assertEquals(List.of("a:1"), scope.readAll(again, 1).values());
    }

    @Test
    void aScopeIsDeletedWithItsTables() throws Exception {
        String name = TestScope.unique("table");
        tables.createKeyValueTable(scope.name, name, TABLE);
        TableKey key = new TableKey(ByteBuffer.allocate(8), ByteBuffer.allocate(4));
        try (KeyValueTableFactory factory =
                        KeyValueTableFactory.withScope(scope.name, scope.config);
                KeyValueTable table =
                        factory.forKeyValueTable(
                                name, KeyValueTableClientConfiguration.builder().build())) {
            table.update(new Put(key, ByteBuffer.allocate(1))).get(30, TimeUnit.SECONDS);
        }
        scope.createStream(2);
        scope.createGroup(scope.groupConfig(scope.createStream(1)).build());
        // The original makes nothing in a scope any more once it refused to delete it.
        assertThrows(IllegalStateException.class, () -> scope.streams.deleteScope(scope.name));
        scope.streams.deleteScopeRecursive(scope.name);
        assertFalse(scope.streams.checkScopeExists(scope.name));
        scope.streams.createScope(scope.name);
        assertFalse(tables.listKeyValueTables(scope.name).hasNext());
    }

    @Test
    @SuppressWarnings("deprecation")
    void theOldWayToDeleteAScopeByForceLeavesNothing() throws Exception {
        tables.createKeyValueTable(scope.name, "table", TABLE);
        scope.createStream(2);
        scope.createGroup(scope.groupConfig(scope.createStream(1)).build());
        assertTrue(scope.streams.deleteScope(scope.name, true));
        assertFalse(scope.streams.checkScopeExists(scope.name));
        assertTrue(scope.streams.createScope(scope.name));
        assertFalse(scope.streams.listStreams(scope.name).hasNext());
        for (KeyValueTableInfo ignored :
                (Iterable<KeyValueTableInfo>) () -> tables.listKeyValueTables(scope.name)) {
            throw new AssertionError("a table is left");
        }
    }
}
