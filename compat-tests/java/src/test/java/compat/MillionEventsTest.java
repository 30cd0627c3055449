package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.Serializer;
import java.nio.ByteBuffer;
import java.util.Arrays;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicIntegerArray;
import java.util.concurrent.atomic.AtomicReference;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

/**
 * A million events of real text, a thousand routing keys, sixteen segments, four writers and two
 * readers: nothing lost, nothing doubled, nothing changed, nothing out of order per key.
 */
@Api("event writer and reader")
class MillionEventsTest {
    private static final int EVENT_COUNT = Integer.getInteger("compat.events", 1_000_000);
    private static final int KEY_COUNT = 1_000;
    private static final int SEGMENT_COUNT = 16;
    private static final int WRITER_COUNT = 4;
    private static final int READER_COUNT = 2;
    private static final int IN_FLIGHT_PER_WRITER = 10_000;

    @RegisterExtension final TestScope scope = new TestScope();

    private final AtomicInteger readCount = new AtomicInteger();
    private final AtomicIntegerArray nextSequence = new AtomicIntegerArray(KEY_COUNT);
    private LibraryText text;

    record KeyedEvent(int key, int sequence, byte[] text) {
        /** The event's place in the whole workload, which names the line of text it carries. */
        int index() {
            return sequence * KEY_COUNT + key;
        }
    }

    private static final Serializer<KeyedEvent> EVENTS =
            new Serializer<>() {
                @Override
                public ByteBuffer serialize(KeyedEvent event) {
                    return ByteBuffer.allocate(8 + event.text.length)
                            .putInt(event.key)
                            .putInt(event.sequence)
                            .put(event.text)
                            .flip();
                }

                @Override
                public KeyedEvent deserialize(ByteBuffer bytes) {
                    int key = bytes.getInt();
                    int sequence = bytes.getInt();
                    byte[] text = new byte[bytes.remaining()];
                    bytes.get(text);
                    return new KeyedEvent(key, sequence, text);
                }
            };

    @Test
    @Timeout(480)
    void everyEventArrivesOnceInOrderAndUnchanged() throws Exception {
        text = LibraryText.load(EVENT_COUNT);
        String stream = scope.createStream(SEGMENT_COUNT);
        long started = System.nanoTime();
        new Parallel().add(WRITER_COUNT, number -> writeShare(stream, number)).run();
        long written = System.nanoTime();
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            new Parallel().add(READER_COUNT, number -> readShare(group, number)).run();
        }
        long read = System.nanoTime();
        System.out.printf(
                "%d events: written in %.1f s, read in %.1f s%n",
                EVENT_COUNT, (written - started) / 1e9, (read - written) / 1e9);
        assertEquals(EVENT_COUNT, readCount.get());
        for (int key = 0; key < KEY_COUNT; key++) {
            int expected = (EVENT_COUNT - key + KEY_COUNT - 1) / KEY_COUNT;
            assertEquals(expected, nextSequence.get(key), "events of key " + key);
        }
    }

    private void writeShare(String stream, int writerNumber) throws Exception {
        // Half the writers share pooled connections, half own one per segment.
        EventWriterConfig config =
                EventWriterConfig.builder().enableConnectionPooling(writerNumber % 2 == 0).build();
        Semaphore inFlight = new Semaphore(IN_FLIGHT_PER_WRITER);
        AtomicReference<Throwable> failure = new AtomicReference<>();
        try (EventStreamWriter<KeyedEvent> writer =
                scope.clients.createEventWriter(stream, EVENTS, config)) {
            for (int index = 0; index < EVENT_COUNT; index++) {
                int key = index % KEY_COUNT;
                if (key % WRITER_COUNT != writerNumber) {
                    continue;
                }
                inFlight.acquire();
                KeyedEvent event = new KeyedEvent(key, index / KEY_COUNT, text.line(index));
                writer.writeEvent("key-" + key, event)
                        .whenComplete(
                                (done, error) -> {
                                    if (error != null) {
                                        failure.compareAndSet(null, error);
                                    }
                                    inFlight.release();
                                });
            }
            writer.flush();
        }
        assertNull(failure.get(), "a write failed");
    }

    private void readShare(ReaderGroup group, int readerNumber) throws Exception {
        try (EventStreamReader<KeyedEvent> reader =
                scope.clients.createReader(
                        "reader-" + readerNumber,
                        group.getGroupName(),
                        EVENTS,
                        ReaderConfig.builder().build())) {
            Deadline quiet = new Deadline(2);
            Deadline stalled = new Deadline(60);
            while (readCount.get() < EVENT_COUNT || !quiet.passed()) {
                EventRead<KeyedEvent> read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
                if (read.getEvent() != null) {
                    check(read.getEvent());
                    readCount.incrementAndGet();
                    quiet = new Deadline(2);
                    stalled = new Deadline(60);
                } else if (stalled.passed()) {
                    throw new AssertionError(
                            "nothing read for 60 s after " + readCount.get() + " events");
                }
            }
        }
    }

    private void check(KeyedEvent event) {
        int expected = nextSequence.getAndSet(event.key, event.sequence + 1);
        assertEquals(expected, event.sequence, "next event of key " + event.key);
        if (!Arrays.equals(text.line(event.index()), event.text)) {
            throw new AssertionError(
                    "event " + event.sequence + " of key " + event.key + " has another text");
        }
    }
}
