package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.StreamConfiguration;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

/**
 * A stream gets more segments under load and fewer when it is gone, while it is written and read.
 * The server has to measure in seconds what it usually measures in minutes.
 */
@Api("scaling by load")
class AutoScaleTest {
    private static final int KEYS = 20;

    @RegisterExtension final TestScope scope = new TestScope();

    private final OrderCheck order = new OrderCheck();
    private final AtomicInteger pauseMs = new AtomicInteger(10);
    private final AtomicBoolean writing = new AtomicBoolean(true);
    private final AtomicBoolean written = new AtomicBoolean();
    private final AtomicInteger count = new AtomicInteger();

    @Test
    @Timeout(100)
    void aStreamGrowsUnderLoadAndShrinksWithoutIt() throws Exception {
        String stream = create(ScalingPolicy.byEventRate(100, 2, 1));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                ControllerAccess controller = new ControllerAccess(scope.config)) {
            new Parallel()
                    .add(() -> write(stream))
                    .add(2, number -> read(group, number))
                    .add(() -> followTheLoad(controller, stream))
                    .run();
        }
        assertEquals(count.get(), order.count());
    }

    @Test
    @Timeout(60)
    void bytesAreARateToo() throws Exception {
        String stream = create(ScalingPolicy.byDataRate(10, 2, 1));
        try (ControllerAccess controller = new ControllerAccess(scope.config);
                EventStreamWriter<String> writer = scope.writer(stream)) {
            String event = "x".repeat(10_000);
            Deadline late = new Deadline(40);
            while (controller.currentSegments(scope.name, stream).size() < 2) {
                assertTrue(!late.passed(), "100 KB/s split no segment of 10 KB/s");
                writer.writeEvent("a", event).get(10, TimeUnit.SECONDS);
                Thread.sleep(100);
            }
            // The client may still be telling its segments' writers of the scale.
            Thread.sleep(1500);
        }
    }

    @Test
    @Timeout(60)
    void aFixedStreamStaysAsItIs() throws Exception {
        String stream = scope.createStream(1);
        try (ControllerAccess controller = new ControllerAccess(scope.config)) {
            for (int second = 0; second < 8; second++) {
                scope.write(stream, "a", TestScope.numbered("a:", 1000 * second, 1000 * second + 1000));
                Thread.sleep(1000);
            }
            assertEquals(1, controller.currentSegments(scope.name, stream).size());
        }
    }

    private String create(ScalingPolicy policy) {
        String stream = TestScope.unique("stream");
        scope.streams.createStream(
                scope.name, stream, StreamConfiguration.builder().scalingPolicy(policy).build());
        return stream;
    }

    private void followTheLoad(ControllerAccess controller, String stream) throws Exception {
        try {
            Deadline late = new Deadline(40);
            while (controller.currentSegments(scope.name, stream).size() < 4) {
                assertTrue(!late.passed(), "not four segments after 40 s of load");
                Thread.sleep(200);
            }
            pauseMs.set(1000);
            late = new Deadline(50);
            while (controller.currentSegments(scope.name, stream).size() > 1) {
                assertTrue(!late.passed(), "not one segment after 50 s without load");
                Thread.sleep(200);
            }
            Thread.sleep(1500);
        } finally {
            writing.set(false);
        }
    }

    private void write(String stream) throws Exception {
        try (EventStreamWriter<String> writer = scope.writer(stream)) {
            for (int sequence = 0; writing.get(); sequence++) {
                for (int number = 0; number < KEYS; number++) {
                    String key = "key-" + number;
                    count.incrementAndGet();
                    writer.writeEvent(key, OrderCheck.event(key, sequence));
                }
                writer.flush();
                Thread.sleep(pauseMs.get());
            }
        }
        written.set(true);
    }

    private void read(ReaderGroup group, int number) {
        try (EventStreamReader<String> reader = scope.reader(group, "reader-" + number)) {
            Deadline quiet = new Deadline(2);
            while (!written.get() || order.count() < count.get() || !quiet.passed()) {
                String event = reader.readNextEvent(TestScope.READ_TIMEOUT_MS).getEvent();
                if (event != null) {
                    order.accept(event);
                    quiet = new Deadline(2);
                }
            }
        }
    }
}
