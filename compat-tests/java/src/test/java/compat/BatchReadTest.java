package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.TruncatedDataException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** The batch client: a stream as a bounded set of segment ranges, read side by side. */
@Api("batch client")
class BatchReadTest {
    @RegisterExtension final TestScope scope = new TestScope();

    private BatchClientFactory batch;

    @BeforeEach
    void open() {
        batch = BatchClientFactory.withScope(scope.name, scope.config);
    }

    @AfterEach
    void close() {
        batch.close();
    }

    private List<SegmentRange> ranges(String stream, StreamCut from, StreamCut to) {
        List<SegmentRange> ranges = new ArrayList<>();
        Iterator<SegmentRange> segments =
                batch.getSegments(Stream.of(scope.name, stream), from, to).getIterator();
        segments.forEachRemaining(ranges::add);
        return ranges;
    }

    private List<String> read(List<SegmentRange> ranges) {
        List<String> events = new ArrayList<>();
        for (SegmentRange range : ranges) {
            try (SegmentIterator<String> iterator = batch.readSegment(range, TestScope.TEXT)) {
                iterator.forEachRemaining(events::add);
            }
        }
        return events;
    }

    @Test
    void everySegmentOfEveryEpochIsRead() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 50));
        try (ControllerAccess controller = new ControllerAccess(scope.config)) {
            controller.scale(scope.name, stream, List.of(0.5), Map.of(0.0, 0.5, 0.5, 1.0));
        }
        for (String key : List.of("b", "c", "d", "e")) {
            scope.write(stream, key, TestScope.numbered(key + ":", 0, 50));
        }
        List<SegmentRange> ranges = ranges(stream, StreamCut.UNBOUNDED, StreamCut.UNBOUNDED);
        assertEquals(3, ranges.size());
        OrderCheck order = new OrderCheck();
        read(ranges).forEach(order::accept);
        assertEquals(250, order.count());
    }

    @Test
    void onlyWhatLiesBetweenTwoCutsIsRead() throws Exception {
        String stream = scope.createStream(2);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        StreamCut from = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", TestScope.numbered("a:", 10, 20));
        StreamCut to = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", TestScope.numbered("a:", 20, 30));
        assertEquals(TestScope.numbered("a:", 10, 20), read(ranges(stream, from, to)));
    }

    @Test
    void aRangeTruncatedMeanwhileSaysSo() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        StreamCut cut = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", TestScope.numbered("a:", 10, 20));
        List<SegmentRange> ranges = ranges(stream, StreamCut.UNBOUNDED, StreamCut.UNBOUNDED);
        assertTrue(scope.streams.truncateStream(scope.name, stream, cut));
        assertThrows(TruncatedDataException.class, () -> read(ranges));
        assertEquals(
                TestScope.numbered("a:", 10, 20),
                read(ranges(stream, StreamCut.UNBOUNDED, StreamCut.UNBOUNDED)));
    }
}
