package compat;

import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.ClientConfig;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.impl.StreamSegments;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;

/** The client's own controller stub: the way to the calls its public factories do not offer. */
final class ControllerAccess implements AutoCloseable {
    final ScheduledExecutorService executor = Executors.newScheduledThreadPool(2);
    final Controller controller;

    ControllerAccess(ClientConfig config) {
        controller =
                new ControllerImpl(
                        ControllerImplConfig.builder().clientConfig(config).build(), executor);
    }

    @Override
    public void close() {
        controller.close();
        executor.shutdownNow();
    }

    Set<Long> currentSegments(String scope, String stream) throws Exception {
        Set<Long> ids = new TreeSet<>();
        for (Segment segment : current(scope, stream).getSegments()) {
            ids.add(segment.getSegmentId());
        }
        return ids;
    }

    /** The id of the segment that owns this place of the key space. */
    long currentSegment(String scope, String stream, double place) throws Exception {
        return current(scope, stream).getSegmentForKey(place).getSegmentId();
    }

    private StreamSegments current(String scope, String stream) throws Exception {
        return controller.getCurrentSegments(scope, stream).get(30, TimeUnit.SECONDS);
    }

    /** Replaces the segments which own these places by the ranges, and waits until that is done. */
    void scale(String scope, String stream, List<Double> places, Map<Double, Double> ranges)
            throws Exception {
        StreamSegments current = current(scope, stream);
        List<Long> sealed =
                places.stream()
                        .map(place -> current.getSegmentForKey(place).getSegmentId())
                        .toList();
        boolean scaled =
                controller
                        .scaleStream(Stream.of(scope, stream), sealed, ranges, executor)
                        .getFuture()
                        .get(60, TimeUnit.SECONDS);
        assertTrue(scaled, "scale of " + sealed + " to " + ranges);
    }
}
