package compat;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.impl.ByteArraySerializer;
import java.util.ArrayList;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Events of every size: whole, in order, to the byte; alone, in batches, and in many pieces. */
@Api("event writer: sizes and batches")
class LargeEventTest {
    private static final int MIB = 1 << 20;
    private static final EventWriterConfig NORMAL = EventWriterConfig.builder().build();

    @RegisterExtension final TestScope scope = new TestScope();

    /** An event's bytes follow from its place in the sequence and its length. */
    private static byte[] event(int number, int length) {
        byte[] bytes = new byte[length];
        new Random(31L * number + length).nextBytes(bytes);
        return bytes;
    }

    @Test
    void eventsUpToEightMebibytes() throws Exception {
        int[] lengths = {
            0, 1, MIB, 17, 2 * MIB + 3, 5_000_000, MIB - 8, 8 * MIB - 8, 8 * MIB, 100, 8 * MIB
        };
        writeAndReadBack(scope, lengths, NORMAL);
    }

    /** Writes an event of each length, reads them all, and compares. */
    static void writeAndReadBack(TestScope scope, int[] lengths, EventWriterConfig config)
            throws Exception {
        String stream = scope.createStream(2);
        try (EventStreamWriter<byte[]> writer =
                scope.clients.createEventWriter(stream, new ByteArraySerializer(), config)) {
            List<Future<Void>> acks = new ArrayList<>();
            for (int number = 0; number < lengths.length; number++) {
                acks.add(writer.writeEvent("key", event(number, lengths[number])));
            }
            for (Future<Void> ack : acks) {
                ack.get(60, TimeUnit.SECONDS);
            }
        }
        List<byte[]> read = readAll(scope, stream, lengths.length);
        for (int number = 0; number < lengths.length; number++) {
            assertEquals(lengths[number], read.get(number).length, "length of event " + number);
            assertArrayEquals(event(number, lengths[number]), read.get(number));
        }
    }

    @Test
    void aBatchArrivesWholeAndInOrder() throws Exception {
        String stream = scope.createStream(2);
        List<byte[]> small = new ArrayList<>();
        for (int number = 0; number < 500; number++) {
            small.add(event(number, 10 + number));
        }
        // Two events of nearly eight mebibytes make the longest batch a client sends.
        List<byte[]> wide = List.of(event(500, 8 * MIB - 8), event(501, 8 * MIB - 64));
        try (EventStreamWriter<byte[]> writer =
                scope.clients.createEventWriter(stream, new ByteArraySerializer(), NORMAL)) {
            writer.writeEvents("key", small).get(60, TimeUnit.SECONDS);
            writer.writeEvents("key", wide).get(60, TimeUnit.SECONDS);
            writer.writeEvents("key", List.of(event(502, 3))).get(60, TimeUnit.SECONDS);
        }
        List<byte[]> expected = new ArrayList<>(small);
        expected.addAll(wide);
        expected.add(event(502, 3));
        List<byte[]> read = readAll(scope, stream, expected.size());
        for (int number = 0; number < expected.size(); number++) {
            assertArrayEquals(expected.get(number), read.get(number), "event " + number);
        }
    }

    private static List<byte[]> readAll(TestScope scope, String stream, int count) {
        List<byte[]> events = new ArrayList<>();
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<byte[]> reader =
                        scope.clients.createReader(
                                "reader",
                                group.getGroupName(),
                                new ByteArraySerializer(),
                                ReaderConfig.builder().build())) {
            Deadline deadline = new Deadline(90);
            Deadline quiet = new Deadline(2);
            while (events.size() < count || !quiet.passed()) {
                byte[] event = reader.readNextEvent(TestScope.READ_TIMEOUT_MS).getEvent();
                if (event != null) {
                    events.add(event);
                    quiet = new Deadline(2);
                }
                assertTrue(
                        !deadline.passed(), "read " + events.size() + " of " + count + " events");
            }
        }
        assertEquals(count, events.size());
        return events;
    }
}
