package io.pravega.client.stream.impl;

import io.pravega.client.admin.impl.ReaderGroupManagerImpl.ReaderGroupStateInitSerializer;
import io.pravega.client.admin.impl.ReaderGroupManagerImpl.ReaderGroupStateUpdatesSerializer;
import io.pravega.client.segment.impl.Segment;
import io.pravega.client.state.InitialUpdate;
import io.pravega.client.state.Revision;
import io.pravega.client.state.Update;
import io.pravega.client.state.impl.RevisionImpl;
import io.pravega.client.state.impl.UpdateOrInit;
import io.pravega.client.state.impl.UpdateOrInitSerializer;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.impl.ReaderGroupState.AcquireSegment;
import io.pravega.client.stream.impl.ReaderGroupState.AddReader;
import io.pravega.client.stream.impl.ReaderGroupState.CheckpointReader;
import io.pravega.client.stream.impl.ReaderGroupState.CompactReaderGroupState;
import io.pravega.client.stream.impl.ReaderGroupState.CreateCheckpoint;
import io.pravega.client.stream.impl.ReaderGroupState.ReaderGroupStateInit;
import io.pravega.client.stream.impl.ReaderGroupState.ReleaseSegment;
import io.pravega.client.stream.impl.ReaderGroupState.RemoveReader;
import io.pravega.client.stream.impl.ReaderGroupState.SegmentCompleted;
import io.pravega.client.stream.impl.ReaderGroupState.UpdateDistanceToTail;
import io.pravega.client.stream.impl.ReaderGroupState.UpdatingConfig;
import java.lang.reflect.Constructor;
import java.nio.ByteBuffer;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.UUID;

/**
 * Writes the revisions of a reader group's state, a line each, with the readers that are online
 * behind it, and the positions. It is in the package of the library's state, whose changes no other package can make.
 */
public final class GroupRevisions {
    private static final UpdateOrInitSerializer<ReaderGroupState, Update<ReaderGroupState>,
            InitialUpdate<ReaderGroupState>> SERIALIZER = new UpdateOrInitSerializer<>(
                    new ReaderGroupStateUpdatesSerializer(), new ReaderGroupStateInitSerializer());
    private final StringJoiner lines = new StringJoiner(",\n", "\"group_revisions\": [\n", "\n]");
    private ReaderGroupState state;
    private int count;

    private GroupRevisions() {
    }

    public static String write() throws ReflectiveOperationException {
        GroupRevisions group = new GroupRevisions();
        Segment first = new Segment("scope", "stream", 0);
        Segment second = new Segment("scope", "stream", 1);
        Map<SegmentWithRange, Long> starts = new LinkedHashMap<>();
        starts.put(new SegmentWithRange(first, 0.0, 0.5), 0L);
        starts.put(new SegmentWithRange(second, 0.5, 1.0), 7L);
        ReaderGroupConfig config = ReaderGroupConfig.cloneConfig(
                ReaderGroupConfig.builder().stream(Stream.of("scope", "stream")).build(),
                new UUID(1, 2), 3);
        group.begin(new ReaderGroupStateInit(config, starts, Map.of(first, 1_000L), false));
        group.change(List.of(new AddReader("a")));
        group.change(List.of(new AddReader("the second"), new AcquireSegment("a", first),
                new CreateCheckpoint("checkpoint")));
        group.change(List.of(new UpdateDistanceToTail("a", 5, Map.of())));
        group.begin(new CompactReaderGroupState(group.state));
        Segment next = new Segment("scope", "stream", (1L << 32) + 2);
        group.change(List.of(new SegmentCompleted("a", new SegmentWithRange(first, 0.0, 0.5),
                Map.of(new SegmentWithRange(next, 0.0, 1.0), List.of(0L, 1L)))));
        group.change(List.of(new RemoveReader("a", Map.of(first, 12L)),
                new AddReader("\u00e4\u20ac")));
        group.change(List.of(new AcquireSegment("\u00e4\u20ac", second)));
        group.begin(new CompactReaderGroupState(group.state));
        group.change(List.of(new RemoveReader("the second", Map.of())));
        group.change(List.of(new RemoveReader("\u00e4\u20ac", Map.of(second, 9L))));
        group.begin(new ReaderGroupStateInit(config, starts, Map.of(), true));
        group.change(List.of(new AddReader("a"), new AddReader("b"),
                new AcquireSegment("a", first), new AcquireSegment("b", second)));
        group.change(List.of(new UpdateDistanceToTail("a", 5,
                Map.of(new SegmentWithRange(first, 0.0, 0.5), 30L))));
        group.change(List.of(new CreateCheckpoint("checkpoint"),
                new CheckpointReader("checkpoint", "a", Map.of(first, 40L)),
                new CreateCheckpoint("x_SILENT_"),
                new CheckpointReader("x_SILENT_", "b", Map.of(second, 50L))));
        group.begin(new CompactReaderGroupState(group.state));
        group.change(List.of(new ReleaseSegment("b", second, 60L)));
        group.change(List.of(new UpdatingConfig(true)));
        Stream stream = Stream.of("scope", "stream");
        Map<Segment, Long> end = Map.of(next, 77L);
        Map<Segment, Long> from = new LinkedHashMap<>();
        from.put(first, 20_000L);
        from.put(second, -1L);
        ReaderGroupConfig bounded = ReaderGroupConfig.cloneConfig(
                ReaderGroupConfig.builder().disableAutomaticCheckpoints()
                        .groupRefreshTimeMillis(1_234).maxOutstandingCheckpointRequest(7)
                        .retentionType(
                                ReaderGroupConfig.StreamDataRetention.AUTOMATIC_RELEASE_AT_LAST_CHECKPOINT)
                        .stream(stream, new StreamCutImpl(stream, from),
                                new StreamCutImpl(stream, end))
                        .build(),
                new UUID(1, 2), 4);
        Map<SegmentWithRange, Long> again = new LinkedHashMap<>();
        again.put(new SegmentWithRange(first, null), 20_000L);
        again.put(new SegmentWithRange(second, null), -1L);
        group.change(List.of(new ReaderGroupStateInit(bounded, again, end, false)));
        return group.lines.toString();
    }

    private void begin(InitialUpdate<ReaderGroupState> whole) throws ReflectiveOperationException {
        state = whole.create("scope/_RGgroup", revision());
        tell(InitialUpdate.class, whole);
    }

    private void change(List<Update<ReaderGroupState>> changes)
            throws ReflectiveOperationException {
        for (Update<ReaderGroupState> each : changes) {
            state = each.applyTo(state, revision());
        }
        tell(List.class, changes);
    }

    private Revision revision() {
        return RevisionImpl.fromString("scope/_RGgroup/0.#epoch.0:" + count++ + ":0");
    }

    @SuppressWarnings("unchecked")
    private void tell(Class<?> kind, Object value) throws ReflectiveOperationException {
        Constructor<?> constructor = UpdateOrInit.class.getDeclaredConstructor(kind);
        constructor.setAccessible(true);
        ByteBuffer written = SERIALIZER.serialize(
                (UpdateOrInit<ReaderGroupState>) constructor.newInstance(value));
        byte[] bytes = new byte[written.remaining()];
        written.get(bytes);
        StringJoiner readers = new StringJoiner(", ", "[", "]");
        for (String each : new TreeSet<>(state.getOnlineReaders())) {
            StringBuilder escaped = new StringBuilder();
            each.chars().forEach(letter -> escaped.append(letter < 128
                    ? String.valueOf((char) letter) : String.format("\\u%04x", letter)));
            readers.add("\"" + escaped + "\"");
        }
        Map<String, Long> positions = new TreeMap<>();
        state.getPositions().values().forEach(each -> each.forEach(
                (segment, offset) -> positions.put(segment.getSegment().getScopedName(), offset)));
        Map<String, Long> ends = new TreeMap<>();
        state.getEndSegments().forEach((segment, offset) -> ends.put(
                segment.getScopedName(), offset));
        lines.add(String.format("{\"readers\": %s, \"positions\": %s, \"unassigned\": %d,"
                        + " \"ends\": %s, \"generation\": %d, \"updating\": %b,"
                        + " \"bytes\": \"%s\"}",
                readers, object(positions), state.getNumberOfUnassignedSegments(), object(ends),
                state.getConfig().getGeneration(), state.isUpdatingConfig(),
                HexFormat.of().formatHex(bytes)));
    }

    private static String object(Map<String, Long> values) {
        StringJoiner joined = new StringJoiner(", ", "{", "}");
        values.forEach((name, value) -> joined.add("\"" + name + "\": " + value));
        return joined.toString();
    }
}
