package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReaderGroupConfig.StreamDataRetention;
import io.pravega.client.stream.ReinitializationRequiredException;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Reader groups: checkpoints, resets, stream cuts, what is left to read, and their end. */
@Api("reader group")
class ReaderGroupTest {
    @RegisterExtension final TestScope scope = new TestScope();

    private final ScheduledExecutorService executor = Executors.newScheduledThreadPool(1);

    @AfterEach
    void stop() {
        executor.shutdownNow();
    }

    /** Events read, slowly, until the future is done, which needs readers that read. */
    private static List<String> readUntil(
            EventStreamReader<String> reader, CompletableFuture<?> future) throws Exception {
        List<String> events = new ArrayList<>();
        Deadline deadline = new Deadline(60);
        while (!future.isDone()) {
            EventRead<String> read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
            if (read.getEvent() != null) {
                events.add(read.getEvent());
            }
            Thread.sleep(5);
            assertFalse(deadline.passed(), "still waiting after 60 s");
        }
        return events;
    }

    private static List<String> read(EventStreamReader<String> reader, int count) {
        List<String> events = new ArrayList<>();
        Deadline deadline = new Deadline(30);
        while (events.size() < count) {
            String event = reader.readNextEvent(TestScope.READ_TIMEOUT_MS).getEvent();
            if (event != null) {
                events.add(event);
            }
            assertFalse(deadline.passed(), "read only " + events);
        }
        return events;
    }

    private ReaderGroupConfig withoutAutomaticCheckpoints(String stream) {
        return ReaderGroupConfig.builder()
                .stream(Stream.of(scope.name, stream))
                .disableAutomaticCheckpoints()
                .groupRefreshTimeMillis(500)
                .build();
    }

    @Test
    @Api("reader group: checkpoints, resets")
    void aGroupGoesBackToACheckpoint() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 3000));
        try (ReaderGroup group = scope.createGroup(withoutAutomaticCheckpoints(stream))) {
            int atCheckpoint;
            try (EventStreamReader<String> reader = scope.reader(group, "reader")) {
                CompletableFuture<Checkpoint> taken =
                        group.initiateCheckpoint("checkpoint", executor);
                List<String> before = readToCheckpoint(reader, "checkpoint");
                atCheckpoint = before.size();
                List<String> events = new ArrayList<>(before);
                events.addAll(readUntil(reader, taken));
                Checkpoint checkpoint = taken.get(30, TimeUnit.SECONDS);
                events.addAll(read(reader, 10));
                assertEquals(TestScope.numbered("a:", 0, events.size()), events);

                group.resetReaderGroup(
                        ReaderGroupConfig.builder()
                                .startFromCheckpoint(checkpoint)
                                .disableAutomaticCheckpoints()
                                .build());
                assertThrows(ReinitializationRequiredException.class, () -> read(reader, 3000));
            }
            try (EventStreamReader<String> reader = scope.reader(group, "again")) {
                assertEquals(
                        TestScope.numbered("a:", atCheckpoint, 3000),
                        TestScope.readAll(reader, 3000 - atCheckpoint).values());
            }
        }
    }

    private static List<String> readToCheckpoint(EventStreamReader<String> reader, String name)
            throws Exception {
        List<String> events = new ArrayList<>();
        Deadline deadline = new Deadline(60);
        while (true) {
            EventRead<String> read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
            if (read.isCheckpoint()) {
                assertEquals(name, read.getCheckpointName());
                return events;
            }
            if (read.getEvent() != null) {
                events.add(read.getEvent());
            }
            Thread.sleep(5);
            assertFalse(deadline.passed(), "no checkpoint after 60 s");
        }
    }

    @Test
    @Api("reader group: stream cuts")
    void streamCutsSayWhereTheReadersAre() throws Exception {
        String stream = scope.createStream(2);
        Stream full = Stream.of(scope.name, stream);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 3000));
        StreamCut cut;
        int readAtMost;
        try (ReaderGroup group = scope.createGroup(withoutAutomaticCheckpoints(stream));
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            read(reader, 10);
            CompletableFuture<Map<Stream, StreamCut>> cuts = group.generateStreamCuts(executor);
            readAtMost = 10 + readUntil(reader, cuts).size();
            cut = cuts.get(30, TimeUnit.SECONDS).get(full);
        }
        assertTrue(readAtMost < 3000, "the cut came too late to prove anything");
        ReaderGroupConfig fromCut = ReaderGroupConfig.builder().stream(full, cut).build();
        List<String> rest = scope.readAll(fromCut, 3000 - readAtMost).values();
        int from = 3000 - rest.size();
        assertTrue(from >= 10 && from <= readAtMost, "the cut is at event " + from);
        assertEquals(TestScope.numbered("a:", from, 3000), rest);
        ReaderGroupConfig upToCut =
                ReaderGroupConfig.builder().stream(full, StreamCut.UNBOUNDED, cut).build();
        assertEquals(TestScope.numbered("a:", 0, from), scope.readAll(upToCut, from).values());
    }

    /** The original fails: it looks for a segment that has begun, and finds none. */
    @Test
    @Api("reader group: stream cuts")
    void aCutAtTheEndOfASealedSegmentIsOneToBeginAtAndToTruncateAt() throws Exception {
        String stream = scope.createStream(1);
        Stream full = Stream.of(scope.name, stream);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        try (ControllerAccess controller = new ControllerAccess(scope.config)) {
            controller.scale(scope.name, stream, List.of(0.5), Map.of(0.0, 0.5, 0.5, 1.0));
        }
        scope.write(stream, "a", TestScope.numbered("a:", 10, 20));
        StreamCut cut;
        try (ReaderGroup group = scope.createGroup(withoutAutomaticCheckpoints(stream));
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            assertEquals(TestScope.numbered("a:", 0, 10), TestScope.readAll(reader, 10).values());
            CompletableFuture<Map<Stream, StreamCut>> cuts = group.generateStreamCuts(executor);
            readUntil(reader, cuts);
            cut = cuts.get(30, TimeUnit.SECONDS).get(full);
        }
        assertEquals(List.of(-1L), List.copyOf(cut.asImpl().getPositions().values()));
        ReaderGroupConfig fromCut =
                scope.groupConfig(stream).startFromStreamCuts(Map.of(full, cut)).build();
        assertEquals(TestScope.numbered("a:", 10, 20), scope.readAll(fromCut, 10).values());
        assertTrue(scope.streams.truncateStream(scope.name, stream, cut));
        // Each event is 3 bytes of text behind 8 bytes of header.
        StreamCut head = scope.info(stream).getHeadStreamCut();
        assertEquals(List.of(110L), List.copyOf(head.asImpl().getPositions().values()));
        assertEquals(TestScope.numbered("a:", 10, 20), scope.readAll(stream, 10).values());
    }

    @Test
    @Api("reader group: bounded")
    void aGroupWithBothEndsReadsNothingElse() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        StreamCut from = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", TestScope.numbered("a:", 10, 20));
        StreamCut to = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", TestScope.numbered("a:", 20, 30));
        ReaderGroupConfig bounded =
                ReaderGroupConfig.builder().stream(Stream.of(scope.name, stream), from, to).build();
        assertEquals(TestScope.numbered("a:", 10, 20), scope.readAll(bounded, 10).values());
    }

    @Test
    void oneGroupReadsManyStreams() throws Exception {
        String first = scope.createStream(2);
        String second = scope.createStream(1);
        scope.write(first, "a", TestScope.numbered("a:", 0, 20));
        scope.write(second, "b", TestScope.numbered("b:", 0, 20));
        ReaderGroupConfig both =
                scope.groupConfig(first).stream(Stream.of(scope.name, second)).build();
        OrderCheck order = new OrderCheck();
        scope.readAll(both, 40).values().forEach(order::accept);
        assertEquals(40, order.count());
    }

    @Test
    @Api("reader group: unread bytes")
    void theBytesLeftToReadAreCounted() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            // Each event is 3 bytes of text behind 8 bytes of header.
            assertEquals(110, group.getMetrics().unreadBytes());
            try (EventStreamReader<String> reader = scope.reader(group, "reader")) {
                TestScope.readAll(reader, 10);
                Deadline deadline = new Deadline(30);
                while (group.getMetrics().unreadBytes() != 0) {
                    // Positions are published with the automatic checkpoints.
                    reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
                    assertFalse(deadline.passed(), "unread after everything was read");
                }
            }
        }
    }

    @Test
    void aReaderClosedAtAPositionLeavesTheRestToOthers() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 20));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            EventStreamReader<String> first = scope.reader(group, "first");
            Position fourth = null;
            int count = 0;
            Deadline deadline = new Deadline(30);
            while (count < 10) {
                EventRead<String> read = first.readNextEvent(TestScope.READ_TIMEOUT_MS);
                count += read.getEvent() == null ? 0 : 1;
                if ("a:3".equals(read.getEvent())) {
                    fourth = read.getPosition();
                }
                assertFalse(deadline.passed(), "read only " + count);
            }
            first.closeAt(fourth);
            assertEquals(Set.of(), group.getOnlineReaders());
            try (EventStreamReader<String> second = scope.reader(group, "second")) {
                assertEquals(
                        TestScope.numbered("a:", 4, 20), TestScope.readAll(second, 16).values());
            }
        }
    }

    @Test
    @Api("reader group: stream cuts")
    void aGroupSaysWhichCutsItHasReadTo() throws Exception {
        String stream = scope.createStream(2);
        Stream full = Stream.of(scope.name, stream);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        scope.write(stream, "b", TestScope.numbered("b:", 0, 10));
        StreamCut tail = scope.info(stream).getTailStreamCut();
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            assertEquals(Set.of(full), group.getStreamCuts().keySet());
            assertNotEquals(tail, group.getStreamCuts().get(full));
            try (EventStreamReader<String> reader = scope.reader(group, "reader")) {
                TestScope.readAll(reader, 20);
                Deadline deadline = new Deadline(30);
                while (!group.getStreamCuts().equals(Map.of(full, tail))) {
                    // Positions are published with the automatic checkpoints.
                    reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
                    assertFalse(deadline.passed(), () -> "cuts: " + group.getStreamCuts());
                }
            }
            scope.write(stream, "a", List.of("a:10"));
            ReaderGroupConfig behind =
                    scope.groupConfig(stream)
                            .startFromStreamCuts(group.getStreamCuts())
                            .build();
            assertEquals(List.of("a:10"), scope.readAll(behind, 1).values());
        }
    }

    @Test
    void onlineReadersAndTheirSegmentsAreListed() {
        String stream = scope.createStream(4);
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> first = scope.reader(group, "first")) {
            try (EventStreamReader<String> second = scope.reader(group, "second")) {
                Deadline deadline = new Deadline(30);
                while (group.getReaderSegmentDistribution().getUnassignedSegments() > 0) {
                    first.readNextEvent(TestScope.READ_TIMEOUT_MS);
                    second.readNextEvent(TestScope.READ_TIMEOUT_MS);
                    assertFalse(deadline.passed(), "segments nobody reads");
                }
                assertEquals(
                        Map.of("first", 2, "second", 2),
                        group.getReaderSegmentDistribution().getReaderSegmentDistribution());
                assertEquals(Set.of("first", "second"), group.getOnlineReaders());
            }
            assertEquals(Set.of("first"), group.getOnlineReaders());
        }
    }

    @Test
    @Api("reader group: consumption-based retention")
    void subscribersAreListedReleaseDataAndLeave() throws Exception {
        String stream = scope.createStream(1);
        Stream full = Stream.of(scope.name, stream);
        ReaderGroupConfig subscriber =
                scope.groupConfig(stream)
                        .retentionType(StreamDataRetention.MANUAL_RELEASE_AT_USER_STREAMCUT)
                        .build();
        scope.write(stream, "a", TestScope.numbered("a:", 0, 20));
        try (ReaderGroup group = scope.createGroup(subscriber);
                ControllerAccess access = new ControllerAccess(scope.config)) {
            assertEquals(
                    List.of(scope.name + "/" + group.getGroupName()),
                    access.controller.listSubscribers(scope.name, stream).get());
            group.updateRetentionStreamCut(Map.of(full, scope.info(stream).getTailStreamCut()));
            scope.groups.deleteReaderGroup(group.getGroupName());
            assertEquals(
                    List.of(), access.controller.listSubscribers(scope.name, stream).get());
        }
    }
}
