package segstore.controller;

import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.nio.ByteBuffer;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;
import segstore.load.Latencies;

/** Works about single streams. */
final class StreamWorks {
    private static final int EVENT_BYTES = 100;
    private static final long SETTLE_MILLIS = 2_000;

    private final Clients clients;
    private Stream aged;

    StreamWorks(Clients clients) {
        this.clients = clients;
    }

    void addTo(Map<String, ControllerDriver.Work> works) {
        works.put("create", this::create);
        works.put("large", this::large);
        works.put("scale", this::scale);
        works.put("epochs", this::epochs);
        works.put("first", this::first);
    }

    /** Creates streams, one after the other. */
    private Map<String, Object> create(Arguments arguments) {
        Latencies latencies = new Latencies();
        for (int i = 0; i < arguments.count("count"); i++) {
            long began = System.nanoTime();
            clients.createStream(clients.newName("create"), arguments.count("segments"));
            latencies.record(System.nanoTime() - began);
        }
        return Map.of("latency_ms", Latencies.summary(List.of(latencies)));
    }

    /** A stream of many segments: created, all of them replaced because its policy wants one less, sealed and deleted. */
    private Map<String, Object> large(Arguments arguments) throws Exception {
        int segments = arguments.count("segments");
        String name = clients.newName("large");
        Map<String, Object> out = new LinkedHashMap<>();
        long began = System.nanoTime();
        Stream stream = clients.createStream(name, segments);
        out.put("create_seconds", Clients.seconds(began));
        began = System.nanoTime();
        expect(clients.streams.updateStream(Clients.SCOPE, name, Clients.fixed(segments - 1)), "updated");
        out.put("replace_seconds", Clients.seconds(began));
        expect(clients.activeSegments(stream).size() == segments - 1, "scaled");
        began = System.nanoTime();
        expect(clients.streams.sealStream(Clients.SCOPE, name), "sealed");
        expect(clients.streams.deleteStream(Clients.SCOPE, name), "deleted");
        out.put("delete_seconds", Clients.seconds(began));
        return out;
    }

    private static void expect(boolean holds, String what) {
        if (!holds) {
            throw new IllegalStateException("the stream was not " + what);
        }
    }

    /** One writer at a rate while its stream goes from one segment to four; the stall is the longest time to an acknowledgement. */
    private Map<String, Object> scale(Arguments arguments) throws Exception {
        Latencies stalls = new Latencies();
        Latencies scales = new Latencies();
        for (int i = 0; i < arguments.count("count"); i++) {
            Stream stream = clients.createStream(clients.newName("scale"), 1);
            Latencies latencies = new Latencies();
            Flow flow = new Flow(stream, arguments.count("rate"), latencies);
            Thread writer = new Thread(flow, "writer");
            writer.start();
            Thread.sleep(SETTLE_MILLIS);
            latencies.take();
            long began = System.nanoTime();
            expect(clients.scale(stream, clients.activeSegments(stream), Clients.even(4)), "scaled");
            scales.record(System.nanoTime() - began);
            Thread.sleep(SETTLE_MILLIS);
            flow.stopping = true;
            writer.join();
            if (flow.failure.get() != null) {
                throw new IllegalStateException(flow.failure.get());
            }
            stalls.record(latencies.take().getMaxValue());
        }
        return Map.of("stall_ms", Latencies.summary(List.of(stalls)), "scale_ms", Latencies.summary(List.of(scales)));
    }

    /** Events at a rate until it is stopped; each is waited for at the end. */
    private final class Flow implements Runnable {
        private final Stream stream;
        private final long pauseNanos;
        private final Latencies latencies;
        private final AtomicReference<Throwable> failure = new AtomicReference<>();
        private volatile boolean stopping;

        Flow(Stream stream, int rate, Latencies latencies) {
            this.stream = stream;
            this.pauseNanos = 1_000_000_000L / rate;
            this.latencies = latencies;
        }

        @Override
        public void run() {
            try (EventStreamWriter<ByteBuffer> writer = clients.factory.createEventWriter(
                    stream.getStreamName(), new ByteBufferSerializer(), EventWriterConfig.builder().build())) {
                long due = System.nanoTime();
                for (int i = 0; !stopping; i++) {
                    long sent = System.nanoTime();
                    writer.writeEvent(Integer.toString(i), ByteBuffer.allocate(EVENT_BYTES)).whenComplete((nothing, problem) -> {
                        latencies.record(System.nanoTime() - sent);
                        if (problem != null) {
                            failure.compareAndSet(null, problem);
                        }
                    });
                    due += pauseNanos;
                    TimeUnit.NANOSECONDS.sleep(Math.max(0, due - System.nanoTime()));
                }
                writer.flush();
            } catch (InterruptedException | RuntimeException e) {
                failure.compareAndSet(null, e);
            }
        }
    }

    /** Scales a stream of one segment to one segment, again and again; how long the first and the last took. */
    private Map<String, Object> epochs(Arguments arguments) throws Exception {
        if (aged == null) {
            aged = clients.createStream(clients.newName("aged"), 1);
        }
        Latencies latencies = new Latencies();
        long began = System.nanoTime();
        for (int i = 0; i < arguments.count("count"); i++) {
            long scaleBegan = System.nanoTime();
            expect(clients.scale(aged, clients.activeSegments(aged), Clients.even(1)), "scaled");
            latencies.record(System.nanoTime() - scaleBegan);
        }
        return Map.of("seconds", Clients.seconds(began), "latency_ms", Latencies.summary(List.of(latencies)));
    }

    /** How long the first answer about that stream takes. Something else is asked before, until the server is reached again. */
    private Map<String, Object> first(Arguments arguments) throws Exception {
        Clients.wait(clients.controller.checkScopeExists(Clients.SCOPE));
        long began = System.nanoTime();
        int segments = clients.activeSegments(aged).size();
        return Map.of("seconds", Clients.seconds(began), "segments", segments);
    }
}
