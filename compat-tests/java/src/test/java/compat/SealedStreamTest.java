package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.InvalidStreamException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** A sealed stream takes no event more, and gives its readers all it has, up to its end. */
@Api("sealed streams")
class SealedStreamTest {
    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void aSealedStreamIsReadToItsEnd() throws Exception {
        String stream = scope.createStream(3);
        for (String key : List.of("a", "b", "c", "d")) {
            scope.write(stream, key, TestScope.numbered(key + ":", 0, 50));
        }
        assertFalse(scope.info(stream).isSealed());
        assertTrue(scope.streams.sealStream(scope.name, stream));
        assertTrue(scope.info(stream).isSealed());
        OrderCheck order = new OrderCheck();
        scope.readAll(stream, 200).values().forEach(order::accept);
        assertEquals(200, order.count());
    }

    @Test
    void aWriterOfASealedStreamFails() throws Exception {
        String stream = scope.createStream(1);
        try (EventStreamWriter<String> writer = scope.writer(stream)) {
            writer.writeEvent("a", "a:0").get(10, TimeUnit.SECONDS);
            assertTrue(scope.streams.sealStream(scope.name, stream));
            ExecutionException failed =
                    assertThrows(
                            ExecutionException.class,
                            () -> writer.writeEvent("a", "a:1").get(30, TimeUnit.SECONDS));
            assertInstanceOf(IllegalStateException.class, failed.getCause());
        }
        assertThrows(IllegalStateException.class, () -> scope.writer(stream).close());
        assertEquals(List.of("a:0"), scope.readAll(stream, 1).values());
    }

    @Test
    void eventsInFlightAtTheSealAreEitherAckedAndReadOrFailed() throws Exception {
        String stream = scope.createStream(2);
        List<String> acked = new ArrayList<>();
        List<String> failed = new ArrayList<>();
        try (EventStreamWriter<String> writer = scope.writer(stream)) {
            new Parallel()
                    .add(
                            () -> {
                                Thread.sleep(700);
                                assertTrue(scope.streams.sealStream(scope.name, stream));
                            })
                    .add(() -> writeUntilOneFails(writer, acked, failed))
                    .run();
        }
        assertFalse(failed.isEmpty());
        List<String> read = scope.readAll(stream, acked.size()).values();
        assertTrue(read.containsAll(acked), "an acked event is lost");
        OrderCheck order = new OrderCheck();
        read.forEach(order::accept);
    }

    private static void writeUntilOneFails(
            EventStreamWriter<String> writer, List<String> acked, List<String> failed) {
        Deadline deadline = new Deadline(60);
        for (int sequence = 0; !deadline.passed(); sequence++) {
            String event = OrderCheck.event("key-" + sequence % 7, sequence / 7);
            try {
                writer.writeEvent(OrderCheck.key(event), event).get(30, TimeUnit.SECONDS);
                acked.add(event);
            } catch (Exception sealed) {
                failed.add(event);
                return;
            }
        }
    }

    @Test
    void sealingTwiceIsFineAndSealingNothingIsAnError() {
        String stream = scope.createStream(1);
        assertTrue(scope.streams.sealStream(scope.name, stream));
        assertTrue(scope.streams.sealStream(scope.name, stream));
        assertThrows(
                InvalidStreamException.class,
                () -> scope.streams.sealStream(scope.name, "missing"));
    }
}
