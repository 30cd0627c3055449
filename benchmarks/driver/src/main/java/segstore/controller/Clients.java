package segstore.controller;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerFailureException;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import java.util.function.IntFunction;

/** The official clients of one controller, and the few things that all works need of them. */
final class Clients {
    static final String SCOPE = "benchmarks";
    private static final int THREADS = 8;
    private static final long ANSWER_SECONDS_MAX = 300;
    private static final long START_NANOS_MAX = 60_000_000_000L;
    private static final long RETRY_NANOS = 200_000_000L;
    private static final long POLL_NANOS = 1_000_000L;

    final ScheduledExecutorService executor = Executors.newScheduledThreadPool(THREADS, runnable -> {
        Thread thread = new Thread(runnable, "controller-client");
        thread.setDaemon(true);
        return thread;
    });
    final Controller controller;
    final StreamManager streams;
    final ReaderGroupManager groups;
    final EventStreamClientFactory factory;
    final BatchClientFactory batches;
    private final AtomicInteger names = new AtomicInteger();

    Clients(URI address) {
        ClientConfig config = ClientConfig.builder().controllerURI(address).build();
        controller = new ControllerImpl(ControllerImplConfig.builder().clientConfig(config).build(), executor);
        streams = StreamManager.create(config);
        createScope(SCOPE);
        groups = ReaderGroupManager.withScope(SCOPE, config);
        factory = EventStreamClientFactory.withScope(SCOPE, config);
        batches = BatchClientFactory.withScope(SCOPE, config);
    }

    /** A controller may accept before it can serve, and then fails what it is asked; that passes. */
    private void createScope(String scope) {
        long deadline = System.nanoTime() + START_NANOS_MAX;
        while (true) {
            try {
                streams.createScope(scope);
                createStream(newName("first"), 1);
                return;
            } catch (ControllerFailureException e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                LockSupport.parkNanos(RETRY_NANOS);
            }
        }
    }

    String newName(String prefix) {
        return prefix + "-" + names.incrementAndGet();
    }

    Stream createStream(String name, int segments) {
        if (!streams.createStream(SCOPE, name, fixed(segments))) {
            throw new IllegalStateException(name + " exists already");
        }
        return Stream.of(SCOPE, name);
    }

    static StreamConfiguration fixed(int segments) {
        return StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(segments)).build();
    }

    static <T> T wait(CompletableFuture<T> answer) throws Exception {
        return answer.get(ANSWER_SECONDS_MAX, TimeUnit.SECONDS);
    }

    List<Long> activeSegments(Stream stream) throws Exception {
        return wait(controller.getCurrentSegments(stream.getScope(), stream.getStreamName())).getSegments().stream()
                .map(Segment::getSegmentId).toList();
    }

    /** The active segment that owns this place of the key space. */
    long segmentAt(Stream stream, double place) throws Exception {
        return wait(controller.getCurrentSegments(stream.getScope(), stream.getStreamName())).getSegmentForKey(place).getSegmentId();
    }

    /**
     * Replaces these segments by the ranges, unless they are gone already. The client's own wait for a scale looks once a second; this one at
     * once, and again.
     */
    boolean scale(Stream stream, List<Long> sealed, Map<Double, Double> ranges) throws Exception {
        int epoch = 0;
        for (long id : activeSegments(stream)) {
            epoch = Math.max(epoch, (int) (id >>> 32));
        }
        if (!wait(controller.startScale(stream, sealed, ranges))) {
            return false;
        }
        while (!wait(controller.checkScaleStatus(stream, epoch))) {
            LockSupport.parkNanos(POLL_NANOS);
        }
        return true;
    }

    /** Even ranges over all keys. */
    static Map<Double, Double> even(int count) {
        Map<Double, Double> ranges = new TreeMap<>();
        for (int i = 0; i < count; i++) {
            ranges.put((double) i / count, i + 1 == count ? 1.0 : (double) (i + 1) / count);
        }
        return ranges;
    }

    static double seconds(long fromNanos) {
        return (System.nanoTime() - fromNanos) / 1e9;
    }

    /** Asks again and again, with this many requests under way, and waits for the last answer. */
    static <T> List<T> all(int count, int underWay, IntFunction<CompletableFuture<T>> request) throws Exception {
        Semaphore room = new Semaphore(underWay);
        List<CompletableFuture<T>> answers = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            room.acquire();
            CompletableFuture<T> answer = request.apply(i);
            answer.whenComplete((found, problem) -> room.release());
            answers.add(answer);
        }
        List<T> found = new ArrayList<>();
        for (CompletableFuture<T> answer : answers) {
            found.add(wait(answer));
        }
        return found;
    }
}
