package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.TruncatedDataException;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/**
 * Readers that wait long for each event. A reader of one segment may sleep out its whole time-out
 * beside data when a reply comes before it sleeps: these are counted, and judge no server.
 */
@Tag("race")
@Api("readers that wait long")
class ReaderRaceTest {
    private static final long LONG_MS = 5_000;
    private static final long SHORT_MS = 4_000;

    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void eachEventComesAtOnce() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 20));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            assertEquals(TestScope.numbered("a:", 0, 20), readQuickly(reader, 20));
        }
    }

    @Test
    void whatIsLeftComesAtOnceAfterATruncation() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        StreamCut cut = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", TestScope.numbered("a:", 10, 20));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            assertTrue(scope.streams.truncateStream(scope.name, stream, cut));
            try (EventStreamReader<String> reader = scope.reader(group, "reader")) {
                assertEquals(TestScope.numbered("a:", 10, 20), readQuickly(reader, 10));
            }
        }
    }

    @Test
    void theLastEventsOfASealedStreamComeAtOnce() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        assertTrue(scope.streams.sealStream(scope.name, stream));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            assertEquals(TestScope.numbered("a:", 0, 10), readQuickly(reader, 10));
        }
    }

    private static List<String> readQuickly(EventStreamReader<String> reader, int count) {
        List<String> events = new ArrayList<>();
        Deadline deadline = new Deadline(60);
        while (events.size() < count) {
            long started = System.nanoTime();
            try {
                EventRead<String> read = reader.readNextEvent(LONG_MS);
                if (read.getEvent() != null) {
                    events.add(read.getEvent());
                }
            } catch (TruncatedDataException once) {
                continue;
            }
            long ms = (System.nanoTime() - started) / 1_000_000;
            assertTrue(ms < SHORT_MS, "event " + events.size() + " after " + ms + " ms");
            assertTrue(!deadline.passed(), "read " + events);
        }
        return events;
    }
}
