package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.TimeWindow;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

/**
 * Writers note times, and readers are told between which times they read. The server has to look at
 * the writers' marks every second or so.
 */
@Api("times and watermarks")
class WatermarkTest {
    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    @Timeout(60)
    void aReaderIsToldBetweenWhichTimesItReads() throws Exception {
        String stream = scope.createStream(2);
        try (EventStreamWriter<String> one = scope.writer(stream);
                EventStreamWriter<String> two = scope.writer(stream);
                ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            long upper = Long.MIN_VALUE;
            long lower = Long.MIN_VALUE;
            Deadline late = new Deadline(45);
            for (int round = 1; lower < 3000; round++) {
                assertTrue(!late.passed(), "no window after time 3000 in 45 s");
                one.writeEvent("a" + round, "x").get(10, TimeUnit.SECONDS);
                two.writeEvent("b" + round, "x").get(10, TimeUnit.SECONDS);
                one.noteTime(1000L * round);
                two.noteTime(1000L * round + 1);
                Thread.sleep(500);
                EventRead<String> read;
                do {
                    read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
                } while (read.getEvent() != null || read.isCheckpoint());
                TimeWindow window = reader.getCurrentTimeWindow(Stream.of(scope.name, stream));
                if (window.getLowerTimeBound() != null) {
                    assertTrue(window.getLowerTimeBound() >= lower, "times never go back");
                    // A round that comes between the two notes finds the second writer the slower.
                    assertTrue(window.getLowerTimeBound() % 1000 <= 1, "a writer's time");
                    lower = window.getLowerTimeBound();
                    assertTrue(lower <= 1000L * round);
                }
                if (window.getUpperTimeBound() != null) {
                    assertTrue(window.getUpperTimeBound() >= upper);
                    assertTrue(window.getUpperTimeBound() >= lower);
                    upper = window.getUpperTimeBound();
                }
            }
        }
    }

    @Test
    @Timeout(60)
    void timesGoOnAcrossAScale() throws Exception {
        String stream = scope.createStream(1);
        try (EventStreamWriter<String> writer = scope.writer(stream);
                ControllerAccess controller = new ControllerAccess(scope.config);
                ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            long first = noteUntilSeen(writer, reader, stream, 0);
            controller.scale(scope.name, stream, List.of(0.5), Map.of(0.0, 0.4, 0.4, 1.0));
            long second = noteUntilSeen(writer, reader, stream, first);
            assertTrue(second > first);
            // The client may still be telling its segments' writers of the scale.
            Thread.sleep(1500);
        }
    }

    @Test
    @Timeout(60)
    void withoutTimesThereIsNoWindow() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 5));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            assertEquals(5, TestScope.readAll(reader, 5).values().size());
            TimeWindow window = reader.getCurrentTimeWindow(Stream.of(scope.name, stream));
            assertNotNull(window);
            assertNull(window.getLowerTimeBound());
            assertNull(window.getUpperTimeBound());
        }
    }

    @Test
    @Timeout(90)
    void transactionsCommittedWithTimesMoveThem() throws Exception {
        String stream = scope.createStream(1);
        try (TransactionalEventStreamWriter<String> writer =
                        scope.clients.createTransactionalEventWriter(
                                "writer",
                                stream,
                                TestScope.TEXT,
                                EventWriterConfig.builder().build());
                ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            Deadline late = new Deadline(75);
            for (long time = 1; ; time++) {
                assertTrue(!late.passed(), "no window after " + time + " commits with times");
                Transaction<String> transaction = writer.beginTxn();
                transaction.writeEvent("k", "x");
                transaction.commit(1000 + time);
                Thread.sleep(400);
                Long lower = readToLowerBound(reader, stream);
                if (lower != null && lower > 1001) {
                    assertTrue(lower <= 1000 + time, "a time that nobody committed: " + lower);
                    return;
                }
            }
        }
    }

    @Test
    @Timeout(90)
    void aWriterNotesTheTimeOfItsClockByItself() throws Exception {
        String stream = scope.createStream(1);
        long start = System.currentTimeMillis();
        try (EventStreamWriter<String> writer =
                        scope.clients.createEventWriter(
                                stream,
                                TestScope.TEXT,
                                EventWriterConfig.builder().automaticallyNoteTime(true).build());
                ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            Deadline late = new Deadline(75);
            Long lower = null;
            while (lower == null) {
                assertTrue(!late.passed(), "no window after 75 s of notes");
                writer.writeEvent("k", "x").get(10, TimeUnit.SECONDS);
                Thread.sleep(400);
                lower = readToLowerBound(reader, stream);
            }
            assertTrue(lower >= start, "noted " + lower + " before " + start);
            assertTrue(lower <= System.currentTimeMillis(), "noted in the future: " + lower);
        }
    }

    /** Reads what there is; the lower bound of the times that the reader is between then. */
    private Long readToLowerBound(EventStreamReader<String> reader, String stream) {
        EventRead<String> read;
        do {
            read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
        } while (read.getEvent() != null || read.isCheckpoint());
        return reader.getCurrentTimeWindow(Stream.of(scope.name, stream)).getLowerTimeBound();
    }

    /** Writes, notes times and reads until the reader's lower bound is beyond a time. */
    private long noteUntilSeen(
            EventStreamWriter<String> writer,
            EventStreamReader<String> reader,
            String stream,
            long after)
            throws Exception {
        Deadline late = new Deadline(25);
        for (long time = after + 1; ; time++) {
            assertTrue(!late.passed(), "no window after " + after);
            for (int number = 0; number < 5; number++) {
                writer.writeEvent("k" + number, "x").get(10, TimeUnit.SECONDS);
            }
            writer.noteTime(time);
            Thread.sleep(400);
            Long lower = readToLowerBound(reader, stream);
            if (lower != null && lower > after) {
                return lower;
            }
        }
    }
}
