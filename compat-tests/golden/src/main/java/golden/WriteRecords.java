package golden;

import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.impl.GroupRevisions;
import io.pravega.client.stream.impl.StreamCutImpl;
import io.pravega.common.util.ByteArraySegment;
import io.pravega.shared.controller.event.AutoScaleEvent;
import io.pravega.shared.controller.event.ControllerEvent;
import io.pravega.shared.controller.event.ControllerEventSerializer;
import io.pravega.shared.watermarks.SegmentWithRange;
import io.pravega.shared.watermarks.Watermark;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.StringJoiner;

/**
 * Writes one JSON file: requests for scaling, watermarks, texts of stream cuts, and revisions of a
 * reader group's state, a line each.
 */
public final class WriteRecords {
    private WriteRecords() {
    }

    public static void main(String[] arguments) throws Exception {
        StringJoiner events = new StringJoiner(",\n", "{\"auto_scale_events\": [\n", "\n],\n");
        for (AutoScaleEvent event : List.of(
                new AutoScaleEvent("s", "t", 0, AutoScaleEvent.UP, 0, 2, false, 0),
                new AutoScaleEvent("scope", "stream", (7L << 32) + 3, AutoScaleEvent.DOWN,
                        1_700_000_000_000L, 0, true, -5),
                new AutoScaleEvent("a.b-c", "d", Long.MAX_VALUE, AutoScaleEvent.UP,
                        Long.MIN_VALUE, 127, false, Long.MAX_VALUE),
                new AutoScaleEvent("a", "b", 1, AutoScaleEvent.UP, 1, 128, false, 1),
                new AutoScaleEvent("a", "b", 1, AutoScaleEvent.UP, 1, 0x3FFF, false, 1),
                new AutoScaleEvent("a", "b", 1, AutoScaleEvent.UP, 1, 0x4000, false, 1))) {
            events.add(String.format("{\"scope\": \"%s\", \"stream\": \"%s\", \"segment_id\": %d,"
                            + " \"direction\": %d, \"time_ms\": %d, \"splits\": %d, \"silent\": %b,"
                            + " \"request_id\": %d, \"bytes\": \"%s\"}",
                    event.getScope(), event.getStream(), event.getSegmentId(), event.getDirection(),
                    event.getTimestamp(), event.getNumOfSplits(), event.isSilent(),
                    event.getRequestId(), hex(event)));
        }
        StringJoiner marks = new StringJoiner(",\n", "\"watermarks\": [\n", "\n],\n");
        marks.add(watermark(0, 0, Map.of()));
        marks.add(watermark(Long.MIN_VALUE, Long.MAX_VALUE,
                Map.of(new SegmentWithRange(0, 0.0, 1.0), 12L)));
        Map<SegmentWithRange, Long> many = new LinkedHashMap<>();
        for (int number = 0; number < 130; number++) {
            many.put(new SegmentWithRange(number, number / 130.0, (number + 1) / 130.0),
                    1_000L * number);
        }
        marks.add(watermark(5, 7, many));
        StringJoiner cuts = new StringJoiner(",\n", "\"stream_cuts\": [\n", "\n],\n");
        cuts.add(streamCut("s", "t", Map.of(0L, 0L)));
        cuts.add(streamCut("scope", "a.b-c", Map.of((7L << 32) + 3, Long.MAX_VALUE)));
        Map<Long, Long> segments = new LinkedHashMap<>();
        for (long number = 0; number < 130; number++) {
            segments.put((number % 5 << 32) + number, 1_000L * number - 1);
        }
        cuts.add(streamCut("scope", "stream", segments));
        Files.writeString(Path.of(arguments[0]),
                events + marks.toString() + cuts + GroupRevisions.write() + "}\n",
                StandardCharsets.US_ASCII);
    }

    private static String hex(ControllerEvent event) {
        var buffer = new ControllerEventSerializer().toByteBuffer(event);
        byte[] bytes = new byte[buffer.remaining()];
        buffer.get(bytes);
        return HexFormat.of().formatHex(bytes);
    }

    private static String streamCut(String scope, String stream, Map<Long, Long> cut) {
        Map<Segment, Long> positions = new LinkedHashMap<>();
        StringJoiner told = new StringJoiner(", ", "{", "}");
        cut.forEach((segment, offset) -> {
            positions.put(new Segment(scope, stream, segment), offset);
            told.add(String.format("\"%d\": %d", segment, offset));
        });
        return String.format("{\"scope\": \"%s\", \"stream\": \"%s\", \"cut\": %s, \"text\": \"%s\"}",
                scope, stream, told, new StreamCutImpl(Stream.of(scope, stream), positions).asText());
    }

    private static String watermark(long lower, long upper, Map<SegmentWithRange, Long> cut)
            throws Exception {
        StringJoiner positions = new StringJoiner(", ", "[", "]");
        Watermark mark = Watermark.builder().lowerTimeBound(lower).upperTimeBound(upper)
                .streamCut(cut).build();
        // Its own order decides the bytes.
        mark.getStreamCut().forEach((segment, offset) -> positions.add(String.format(
                "[%d, %s, %s, %d]", segment.getSegmentId(), segment.getRangeLow(),
                segment.getRangeHigh(), offset)));
        ByteArraySegment bytes = new ByteArraySegment(mark.toByteBuf());
        return String.format("{\"lower\": %d, \"upper\": %d, \"cut\": %s, \"bytes\": \"%s\"}",
                lower, upper, positions, HexFormat.of().formatHex(bytes.getCopy()));
    }
}
