package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.BadKeyVersionException;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.Version;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/**
 * Key-value tables as clients up to 0.9 know them: keys of any length, in families that lie in one
 * partition each. Servers from 0.10 on refuse to make a table whose keys have no length.
 */
@Api("key-value table")
class FamilyTableTest {
    private static final String FAMILY = "family";

    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void aTableTakesKeysOfAnyLengthInFamilies() throws Exception {
        try (KeyValueTableManager tables = KeyValueTableManager.create(scope.config);
                KeyValueTableFactory factory =
                        KeyValueTableFactory.withScope(scope.name, scope.config)) {
            KeyValueTableConfiguration configuration =
                    KeyValueTableConfiguration.builder().partitionCount(3).build();
            assertTrue(tables.createKeyValueTable(scope.name, "table", configuration));
            try (KeyValueTable<String, String> table =
                    factory.forKeyValueTable(
                            "table",
                            TestScope.TEXT,
                            TestScope.TEXT,
                            KeyValueTableClientConfiguration.builder().build())) {
                Version first = await(table.putIfAbsent(FAMILY, "key", "one"));
                assertRefused(table.putIfAbsent(FAMILY, "key", "two"));
                Version second = await(table.replace(FAMILY, "key", "two", first));
                assertRefused(table.remove(FAMILY, "key", first));
                await(table.putAll(FAMILY, Map.of("a longer key", "three").entrySet()));
                await(table.put("other family", "key", "of others"));
                assertEquals(
                        Map.of("key", "two", "a longer key", "three"),
                        Map.copyOf(table.getMapFor(FAMILY)));
                await(table.remove(FAMILY, "key", second));
                assertNull(await(table.get(FAMILY, "key")));
            }
            assertTrue(tables.deleteKeyValueTable(scope.name, "table"));
        }
    }

    private static <T> T await(CompletableFuture<T> future) throws Exception {
        return future.get(30, TimeUnit.SECONDS);
    }

    private static void assertRefused(CompletableFuture<?> future) {
        ExecutionException failure =
                assertThrows(ExecutionException.class, () -> future.get(30, TimeUnit.SECONDS));
        assertInstanceOf(BadKeyVersionException.class, failure.getCause());
    }
}
