package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.control.impl.ControllerFailureException;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.Stream;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

/**
 * Writers and readers ride through manual splits and merges of a stream's segments: nothing lost,
 * nothing doubled, order per key kept across every scale.
 */
@Api("scaling")
class ScaleTest {
    private static final int WRITER_COUNT = 2;
    private static final int READER_COUNT = 2;
    private static final int KEYS_PER_WRITER = 10;

    @RegisterExtension final TestScope scope = new TestScope();

    private final OrderCheck order = new OrderCheck();
    private final AtomicBoolean writing = new AtomicBoolean(true);
    private final AtomicInteger writtenCount = new AtomicInteger();
    private final AtomicInteger writersDone = new AtomicInteger();

    @Test
    @Timeout(180)
    void writersAndReadersRideThroughSplitsAndMerges() throws Exception {
        String stream = scope.createStream(1);
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                ControllerAccess controller = new ControllerAccess(scope.config)) {
            new Parallel()
                    .add(WRITER_COUNT, number -> writeUntilTold(stream, number))
                    .add(READER_COUNT, number -> readToTheEnd(group, number))
                    .add(() -> scaleFiveTimes(controller, stream))
                    .run();
        }
        assertEquals(writtenCount.get(), order.count());
        System.out.println(writtenCount.get() + " events written and read across five scales");

        // A group that starts at the head reads all six epochs in order.
        OrderCheck again = new OrderCheck();
        scope.readAll(stream, writtenCount.get()).values().forEach(again::accept);
        assertEquals(writtenCount.get(), again.count());
    }

    @Test
    void anIdleWriterFindsTheSuccessorsAtItsNextEvent() throws Exception {
        String stream = scope.createStream(1);
        try (EventStreamWriter<String> writer = scope.writer(stream);
                ControllerAccess controller = new ControllerAccess(scope.config)) {
            writer.writeEvent("a", OrderCheck.event("a", 0)).get(10, TimeUnit.SECONDS);
            scale(controller, stream, List.of(0.5), Map.of(0.0, 0.3, 0.3, 1.0));
            writer.writeEvent("a", OrderCheck.event("a", 1)).get(10, TimeUnit.SECONDS);
            scale(controller, stream, List.of(0.1, 0.9), Map.of(0.0, 1.0));
            writer.writeEvent("a", OrderCheck.event("a", 2)).get(10, TimeUnit.SECONDS);
            // The client is still telling its other segments' writers of the scale, and a close in
            // the middle of that can loop for ever, whatever the server does.
            pause();
        }
        assertEquals(List.of("a:0", "a:1", "a:2"), scope.readAll(stream, 3).values());
    }

    @Test
    void rangesThatDoNotFitTheSealedSegmentsAreAnError() throws Exception {
        String stream = scope.createStream(2);
        try (ControllerAccess controller = new ControllerAccess(scope.config)) {
            long lower = controller.currentSegment(scope.name, stream, 0.25);
            assertScaleFails(controller, stream, lower, Map.of(0.0, 0.2, 0.3, 0.5));
            assertScaleFails(controller, stream, lower, Map.of(0.0, 0.6));
            assertScaleFails(controller, stream, lower, Map.of(0.0, 0.4));
            assertEquals(2, controller.currentSegments(scope.name, stream).size());
        }
    }

    @Test
    void aScaleWhoseConditionsDoNotHoldIsNotStarted() throws Exception {
        String stream = scope.createStream(2);
        try (ControllerAccess controller = new ControllerAccess(scope.config)) {
            Set<Long> segments = controller.currentSegments(scope.name, stream);
            assertFalse(
                    startScale(controller, stream, segments, Map.of(0.0, 1.0)),
                    "fewer segments than the stream's scaling policy asks for");
            assertFalse(
                    startScale(controller, stream, List.of(77L), Map.of(0.0, 0.5)),
                    "a segment which is not there");
            assertEquals(segments, controller.currentSegments(scope.name, stream));
        }
    }

    @Test
    void aMissingStreamCannotBeScaled() {
        try (ControllerAccess controller = new ControllerAccess(scope.config)) {
            Stream missing = Stream.of(scope.name, "missing");
            assertThrows(
                    ExecutionException.class,
                    () -> controller.controller
                            .startScale(missing, List.of(0L), Map.of(0.0, 1.0))
                            .get(30, TimeUnit.SECONDS));
        }
    }

    private void assertScaleFails(
            ControllerAccess controller, String stream, long sealed, Map<Double, Double> ranges) {
        ExecutionException failed =
                assertThrows(
                        ExecutionException.class,
                        () -> startScale(controller, stream, List.of(sealed), ranges));
        assertInstanceOf(ControllerFailureException.class, failed.getCause());
    }

    private boolean startScale(
            ControllerAccess controller,
            String stream,
            Collection<Long> sealed,
            Map<Double, Double> ranges)
            throws Exception {
        return controller.controller
                .startScale(Stream.of(scope.name, stream), List.copyOf(sealed), ranges)
                .get(30, TimeUnit.SECONDS);
    }

    private void scaleFiveTimes(ControllerAccess controller, String stream) throws Exception {
        try {
            pause();
            scale(controller, stream, List.of(0.5), Map.of(0.0, 0.25, 0.25, 0.5, 0.5, 1.0));
            pause();
            scale(controller, stream, List.of(0.9), Map.of(0.5, 0.75, 0.75, 1.0));
            pause();
            scale(controller, stream, List.of(0.3, 0.6), Map.of(0.25, 0.75));
            pause();
            scale(controller, stream, List.of(0.1, 0.5, 0.9), Map.of(0.0, 1.0));
            pause();
            scale(
                    controller,
                    stream,
                    List.of(0.5),
                    Map.of(0.0, 0.1, 0.1, 0.2, 0.2, 0.7, 0.7, 1.0));
            pause();
            assertEquals(4, controller.currentSegments(scope.name, stream).size());
        } finally {
            writing.set(false);
        }
    }

    private static void pause() throws InterruptedException {
        Thread.sleep(1500);
    }

    /** Replaces the segments which own the given places of the key space by the given ranges. */
    private void scale(
            ControllerAccess controller,
            String stream,
            List<Double> places,
            Map<Double, Double> ranges)
            throws Exception {
        controller.scale(scope.name, stream, places, ranges);
    }

    private void writeUntilTold(String stream, int writerNumber) throws Exception {
        Semaphore inFlight = new Semaphore(500);
        AtomicInteger failedCount = new AtomicInteger();
        try (EventStreamWriter<String> writer = scope.writer(stream)) {
            for (int sequence = 0; writing.get(); sequence++) {
                for (int number = 0; number < KEYS_PER_WRITER; number++) {
                    String key = "key-" + writerNumber + "-" + number;
                    assertTrue(inFlight.tryAcquire(30, TimeUnit.SECONDS), "acks stopped");
                    writtenCount.incrementAndGet();
                    writer.writeEvent(key, OrderCheck.event(key, sequence))
                            .whenComplete(
                                    (done, error) -> {
                                        failedCount.addAndGet(error == null ? 0 : 1);
                                        inFlight.release();
                                    });
                }
                Thread.sleep(5);
            }
            writer.flush();
        }
        assertEquals(0, failedCount.get(), "failed writes");
        writersDone.incrementAndGet();
    }

    private void readToTheEnd(ReaderGroup group, int readerNumber) {
        try (EventStreamReader<String> reader = scope.reader(group, "reader-" + readerNumber)) {
            Deadline quiet = new Deadline(2);
            Deadline stalled = new Deadline(60);
            while (writersDone.get() < WRITER_COUNT
                    || order.count() < writtenCount.get()
                    || !quiet.passed()) {
                String event = reader.readNextEvent(TestScope.READ_TIMEOUT_MS).getEvent();
                if (event != null) {
                    order.accept(event);
                    quiet = new Deadline(2);
                    stalled = new Deadline(60);
                }
                // A reader may rightly own no segment while the other one makes progress.
                assertFalse(
                        stalled.passed() && order.count() < writtenCount.get(),
                        () -> "stalled after " + order.count() + " of " + writtenCount.get());
            }
        }
    }
}
