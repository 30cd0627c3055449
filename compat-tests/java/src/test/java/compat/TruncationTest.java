package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.control.impl.ControllerFailureException;
import io.pravega.client.segment.impl.NoSuchEventException;
import io.pravega.client.stream.EventPointer;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.TruncatedDataException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** A stream truncated at a cut begins there: for new readers, for readers under way, for all. */
@Api("truncation")
class TruncationTest {
    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void theHeadMovesToTheCut() throws Exception {
        String stream = scope.createStream(2);
        StreamCut head = scope.info(stream).getHeadStreamCut();
        StreamCut cut = null;
        for (int sequence = 0; sequence < 20; sequence++) {
            for (int key = 0; key < 5; key++) {
                scope.write(stream, "k" + key, List.of(OrderCheck.event("k" + key, sequence)));
            }
            if (sequence == 11) {
                cut = scope.info(stream).getTailStreamCut();
            }
        }
        assertEquals(head, scope.info(stream).getHeadStreamCut());
        assertTrue(scope.streams.truncateStream(scope.name, stream, cut));
        assertEquals(cut, scope.info(stream).getHeadStreamCut());

        List<String> read = scope.readAll(stream, 40).values();
        assertEquals(40, read.size());
        for (String event : read) {
            assertTrue(OrderCheck.sequence(event) >= 12, event);
        }
    }

    @Test
    void aReaderBehindTheCutIsToldOnceAndGoesOnAtTheCut() throws Exception {
        String stream = scope.createStream(1);
        // More than a reader buffers, so that it has to come back to the server after the cut.
        String filler = "x".repeat(100_000);
        List<String> events = TestScope.numbered(filler + ":", 0, 100);
        scope.write(stream, "a", events.subList(0, 60));
        StreamCut cut = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", events.subList(60, 100));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            assertEquals(events.get(0), next(reader));
            assertTrue(scope.streams.truncateStream(scope.name, stream, cut));
            List<String> buffered = new ArrayList<>();
            assertThrows(
                    TruncatedDataException.class,
                    () -> {
                        while (buffered.size() < 100) {
                            buffered.add(next(reader));
                        }
                    });
            assertTrue(buffered.size() < 59, "nothing was skipped");
            assertEquals(events.subList(1, 1 + buffered.size()), buffered);
            assertEquals(events.subList(60, 100), TestScope.readAll(reader, 40).values());
        }
    }

    @Test
    void aGroupThatStartsBehindTheCutIsToldOnceAndGoesOnAtTheCut() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 30));
        StreamCut cut = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", TestScope.numbered("a:", 30, 40));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            assertTrue(scope.streams.truncateStream(scope.name, stream, cut));
            try (EventStreamReader<String> reader = scope.reader(group, "reader")) {
                assertThrows(TruncatedDataException.class, () -> next(reader));
                assertEquals(
                        TestScope.numbered("a:", 30, 40), TestScope.readAll(reader, 10).values());
            }
        }
    }

    @Test
    void aPointerBehindTheCutFindsNoEvent() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        StreamCut cut = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", TestScope.numbered("a:", 10, 20));
        List<EventPointer> pointers = scope.readAll(stream, 20).pointers();
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            assertEquals("a:3", reader.fetchEvent(pointers.get(3)));
            assertTrue(scope.streams.truncateStream(scope.name, stream, cut));
            assertThrows(NoSuchEventException.class, () -> reader.fetchEvent(pointers.get(3)));
            assertEquals("a:10", reader.fetchEvent(pointers.get(10)));
        }
    }

    @Test
    void aCutBehindAScaleDropsTheOldSegmentsWhole() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        List<EventPointer> pointers = scope.readAll(stream, 10).pointers();
        try (ControllerAccess controller = new ControllerAccess(scope.config)) {
            controller.scale(scope.name, stream, List.of(0.5), Map.of(0.0, 0.5, 0.5, 1.0));
        }
        scope.write(stream, "a", TestScope.numbered("a:", 10, 20));
        StreamCut cut = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", TestScope.numbered("a:", 20, 30));
        assertTrue(scope.streams.truncateStream(scope.name, stream, cut));
        assertEquals(cut, scope.info(stream).getHeadStreamCut());
        assertEquals(TestScope.numbered("a:", 20, 30), scope.readAll(stream, 10).values());
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            assertThrows(NoSuchEventException.class, () -> reader.fetchEvent(pointers.get(0)));
        }
    }

    @Test
    void aReaderWhoseSegmentsAreGoneGoesOnInTheSuccessors() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                ControllerAccess controller = new ControllerAccess(scope.config)) {
            controller.scale(scope.name, stream, List.of(0.5), Map.of(0.0, 0.5, 0.5, 1.0));
            StreamCut cut = scope.info(stream).getTailStreamCut();
            scope.write(stream, "a", TestScope.numbered("a:", 10, 20));
            assertTrue(scope.streams.truncateStream(scope.name, stream, cut));
            try (EventStreamReader<String> reader = scope.reader(group, "reader")) {
                List<String> read = new ArrayList<>();
                Deadline deadline = new Deadline(60);
                while (read.size() < 10) {
                    assertFalse(deadline.passed(), "read only " + read);
                    try {
                        String event = reader.readNextEvent(TestScope.READ_TIMEOUT_MS).getEvent();
                        if (event != null) {
                            read.add(event);
                        }
                    } catch (TruncatedDataException expected) {
                        assertEquals(List.of(), read);
                    }
                }
                assertEquals(TestScope.numbered("a:", 10, 20), read);
            }
        }
    }

    @Test
    void theHeadDoesNotMoveBack() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        StreamCut earlier = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", TestScope.numbered("a:", 10, 20));
        StreamCut later = scope.info(stream).getTailStreamCut();
        assertTrue(scope.streams.truncateStream(scope.name, stream, later));
        assertThrows(
                ControllerFailureException.class,
                () -> scope.streams.truncateStream(scope.name, stream, earlier));
        assertEquals(later, scope.info(stream).getHeadStreamCut());
    }

    @Test
    void theSameCutTwiceIsFine() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        StreamCut cut = scope.info(stream).getTailStreamCut();
        assertTrue(scope.streams.truncateStream(scope.name, stream, cut));
        assertTrue(scope.streams.truncateStream(scope.name, stream, cut));
        scope.write(stream, "a", TestScope.numbered("a:", 10, 20));
        assertEquals(TestScope.numbered("a:", 10, 20), scope.readAll(stream, 10).values());
    }

    @Test
    void aMissingStreamCannotBeTruncated() throws Exception {
        String stream = scope.createStream(1);
        StreamCut cut = scope.info(stream).getTailStreamCut();
        assertThrows(
                IllegalArgumentException.class,
                () -> scope.streams.truncateStream(scope.name, "missing", cut));
    }

    private static String next(EventStreamReader<String> reader) {
        Deadline deadline = new Deadline(30);
        while (!deadline.passed()) {
            String event = reader.readNextEvent(TestScope.READ_TIMEOUT_MS).getEvent();
            if (event != null) {
                return event;
            }
        }
        throw new AssertionError("no event for 30 s");
    }
}
