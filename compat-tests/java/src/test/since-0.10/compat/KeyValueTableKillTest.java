package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;

import io.pravega.client.KeyValueTableFactory;
import io.pravega.client.admin.KeyValueTableManager;
import io.pravega.client.tables.ConditionalTableUpdateException;
import io.pravega.client.tables.Insert;
import io.pravega.client.tables.KeyValueTable;
import io.pravega.client.tables.KeyValueTableClientConfiguration;
import io.pravega.client.tables.KeyValueTableConfiguration;
import io.pravega.client.tables.Put;
import io.pravega.client.tables.TableKey;
import io.pravega.client.tables.Version;
import java.nio.ByteBuffer;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Key-value tables made, filled and counted in while the segment store or controller is killed. */
@Execution(ExecutionMode.CONCURRENT)
@Timeout(300)
class KeyValueTableKillTest {
    private static final int COUNT = 100;

    @Order(1)
    @RegisterExtension
    final Kills kills = new Kills();

    @Order(2)
    @RegisterExtension
    final TestScope scope = new TestScope();

    @ParameterizedTest
    @ValueSource(strings = {Kills.STORE, Kills.CONTROLLER})
    @Api("killed meanwhile: key-value table")
    void whatWasAcknowledgedIsThere(String victim) throws Exception {
        try (KeyValueTableManager tables = KeyValueTableManager.create(scope.config);
                KeyValueTableFactory factory =
                        KeyValueTableFactory.withScope(scope.name, scope.config)) {
            tables.createKeyValueTable(
                    scope.name,
                    "table",
                    KeyValueTableConfiguration.builder()
                            .partitionCount(2)
                            .primaryKeyLength(4)
                            .secondaryKeyLength(0)
                            .build());
            try (KeyValueTable table = open(factory)) {
                kills.during(victim, () -> fill(table));
            }
            try (KeyValueTable table = open(factory)) {
                for (int number = 0; number < COUNT; number++) {
                    assertEquals(number, value(table, number), "of key " + number);
                }
                assertEquals(COUNT, value(table, COUNT));
            }
        }
    }

    /** Inserts a key for each number, and counts them in another one by conditional updates. */
    private static void fill(KeyValueTable table) throws Exception {
        Version counted =
                table.update(new Insert(key(COUNT), number(0))).get(60, TimeUnit.SECONDS);
        for (int number = 0; number < COUNT; number++) {
            try {
                table.update(new Insert(key(number), number(number))).get(60, TimeUnit.SECONDS);
            } catch (ExecutionException repeated) {
                // The client sends an update again whose reply was lost, and finds its own.
                assertInstanceOf(ConditionalTableUpdateException.class, repeated.getCause());
            }
            try {
                counted =
                        table.update(new Put(key(COUNT), number(number + 1), counted))
                                .get(60, TimeUnit.SECONDS);
            } catch (ExecutionException repeated) {
                assertInstanceOf(ConditionalTableUpdateException.class, repeated.getCause());
                counted = table.get(key(COUNT)).get(60, TimeUnit.SECONDS).getVersion();
                assertEquals(number + 1, value(table, COUNT));
            }
            Thread.sleep(5);
        }
    }

    private static int value(KeyValueTable table, int key) throws Exception {
        return table.get(key(key)).get(60, TimeUnit.SECONDS).getValue().duplicate().getInt();
    }

    private static TableKey key(int number) {
        return new TableKey(number(number));
    }

    private static ByteBuffer number(int value) {
        return ByteBuffer.allocate(4).putInt(0, value);
    }

    private static KeyValueTable open(KeyValueTableFactory factory) {
        return factory.forKeyValueTable(
                "table", KeyValueTableClientConfiguration.builder().build());
    }
}
