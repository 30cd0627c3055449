package segstore.load;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import java.util.function.BooleanSupplier;
import java.util.function.ToLongFunction;

/**
 * Loads one stream for a while and prints one JSON object on standard output.
 *
 * <ol>
 *   <li>An event counts in the second in which its ack, or the event itself, arrives; the warm-up is not counted.
 *   <li>After the measured seconds the producers stop, and everything sent is waited for, up to the drain time: what is missing
 *       then is reported as {@code unacknowledged} and {@code unread}, never hidden.
 *   <li>A server that hangs cannot hang the driver: every step after the load has a time limit.
 * </ol>
 */
public final class LoadDriver {
    private static final long JOIN_LIMIT_NANOS = 5_000_000_000L;
    private static final long CLEANUP_LIMIT_MILLIS = 10_000;
    private static final long BACKLOG_LIMIT_NANOS = 1_800_000_000_000L;

    private final Options options;
    private final Failures writeFailures = new Failures();
    private final Failures readFailures = new Failures();
    private final Failures cleanupFailures = new Failures();
    private final Target target;
    private final List<Target.Sender> senders = new ArrayList<>();
    private final List<Target.Receiver> receivers = new ArrayList<>();
    private final List<Producer> producers = new ArrayList<>();
    private final List<Consumer> consumers = new ArrayList<>();
    private final Map<String, Object> result = new LinkedHashMap<>();

    private LoadDriver(Options options) {
        this.options = options;
        this.target = target(options);
    }

    private static Target target(Options options) {
        if (options.kafka() != null) {
            return new KafkaTarget(options.kafka(), options.stream(), options.ownGroups(), options.lingerMillis(), options.batchBytes());
        }
        if (options.pulsar() != null) {
            return Target.ofPulsar(options.pulsar(), options.stream(), options.ownGroups(), options.lingerMillis(), options.batchBytes());
        }
        return new LoadStream(options.controller(), options.scope(), options.stream(),
                options.connectionPooling(), options.ownGroups(), options.scaleAbove());
    }

    public static void main(String[] arguments) throws InterruptedException {
        Options options;
        try {
            options = Options.parse(List.of(arguments));
        } catch (Options.UsageException | IllegalArgumentException e) {
            System.err.println(e.getMessage());
            System.err.print(Options.USAGE);
            System.exit(2);
            return;
        }
        try {
            System.out.println(Json.write(new LoadDriver(options).run()));
        } catch (RuntimeException e) {
            e.printStackTrace();
            System.err.println("load driver failed: " + e);
            Runtime.getRuntime().halt(1);
        }
        // Client threads that still wait for a server must not keep us.
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> run() throws InterruptedException {
        describe();
        open();
        Window window = new Window();
        List<Thread> threads = start(producers, "producer");
        if (options.backlog() == 0) {
            threads.addAll(start(consumers, "consumer"));
        }
        WarmUp warmUp = new WarmUp(options.warmupSeconds(), options.warmupSecondsMax(), options.warmupWindowSeconds());
        warmUp.run(() -> Latencies.median(producers.stream().map(p -> p.latencies).toList()));
        result.put("warmup", warmUp.summary());
        if (options.backlog() > 0) {
            result.put("backlog", writeBacklog());
            threads.addAll(start(consumers, "consumer"));
        }
        window.begin();
        window.measure();
        producers.forEach(Producer::stop);
        drain();
        consumers.forEach(Consumer::stop);
        join(threads);
        totals();
        close();
        return result;
    }

    private void describe() {
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("rate", options.rate());
        out.put("event_size", options.eventSize());
        out.put("segments", options.segments());
        out.put("producers", options.producers());
        out.put("consumers", options.consumers());
        out.put("keys", options.keys());
        out.put("warmup_seconds", options.warmupSeconds());
        out.put("seconds", options.seconds());
        out.put("read_timeout_ms", options.readTimeoutMillis());
        out.put("max_outstanding", options.outstandingMax());
        out.put("latency_from", options.latencyFrom().name().toLowerCase());
        out.put("warmup_seconds_max", options.warmupSecondsMax());
        out.put("connection_pooling", options.connectionPooling());
        out.put("own_groups", options.ownGroups());
        result.put("options", out);
    }

    private void open() {
        target.create(options.segments(), options.consumers());
        for (int i = 0; i < options.consumers(); i++) {
            Target.Receiver receiver = target.receiver(i);
            receivers.add(receiver);
            consumers.add(new Consumer(receiver, options, readFailures));
        }
        for (int i = 0; i < options.producers(); i++) {
            Target.Sender sender = target.sender(i);
            senders.add(sender);
            producers.add(new Producer(sender, options, i, writeFailures));
        }
    }

    /** Waits until the backlog is acknowledged; returns the latencies of the writers while nobody reads. */
    private Map<String, Object> writeBacklog() throws InterruptedException {
        producers.forEach(producer -> producer.latencies.take());
        long started = System.nanoTime();
        long deadline = started + BACKLOG_LIMIT_NANOS;
        await(deadline, () -> acknowledged() >= options.backlog() || writeFailures.count() > 0);
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("seconds", (System.nanoTime() - started) / 1e9);
        out.put("latency_ms", Latencies.summary(producers.stream().map(p -> p.latencies).toList()));
        return out;
    }

    /** Whether readers that were held are within a second of the writers. */
    private boolean haveCaughtUp() {
        return options.backlog() > 0 && acknowledged() - read() < options.rate();
    }

    private static List<Thread> start(List<? extends Runnable> all, String name) {
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < all.size(); i++) {
            threads.add(new Thread(all.get(i), name + "-" + i));
        }
        for (Thread thread : threads) {
            thread.setDaemon(true);
            thread.start();
        }
        return threads;
    }

    /** The measured seconds. */
    private final class Window {
        private long startNanos;
        private double startEpoch;
        private long startAcknowledged;
        private long startRead;
        private long startSent;
        private long startBlocked;
        private double startCpu;

        void begin() {
            producers.forEach(producer -> producer.latencies.take());
            consumers.forEach(consumer -> consumer.latencies.take());
            startAcknowledged = acknowledged();
            startRead = read();
            startSent = sent();
            startBlocked = sum(producers, producer -> producer.blockedNanos.get());
            startCpu = cpuSeconds();
            startEpoch = epochSeconds();
            startNanos = System.nanoTime();
        }

        void measure() throws InterruptedException {
            long endNanos = startNanos + (long) (options.seconds() * 1e9);
            List<Object> acknowledgedPerSecond = new ArrayList<>();
            List<Object> readPerSecond = new ArrayList<>();
            long acknowledgedBefore = startAcknowledged;
            long readBefore = startRead;
            for (long tick = 1; System.nanoTime() < endNanos && !haveCaughtUp(); tick++) {
                long until = Math.min(endNanos, startNanos + tick * 1_000_000_000L);
                sleepUntil(until);
                if (until - startNanos == tick * 1_000_000_000L) {
                    acknowledgedPerSecond.add(acknowledged() - acknowledgedBefore);
                    readPerSecond.add(read() - readBefore);
                    acknowledgedBefore = acknowledged();
                    readBefore = read();
                }
            }
            double elapsed = (System.nanoTime() - startNanos) / 1e9;
            long acknowledgedEvents = acknowledged() - startAcknowledged;
            long readEvents = read() - startRead;
            double cpu = cpuSeconds() - startCpu;

            Map<String, Object> span = new LinkedHashMap<>();
            span.put("start_epoch", startEpoch);
            span.put("end_epoch", epochSeconds());
            span.put("seconds", elapsed);
            result.put("window", span);
            Map<String, Object> publish = rates(acknowledgedEvents, elapsed);
            publish.put("sent", sent() - startSent);
            publish.put("blocked_seconds",
                    (sum(producers, producer -> producer.blockedNanos.get()) - startBlocked) / 1e9);
            publish.put("per_second", acknowledgedPerSecond);
            publish.put("latency_ms", Latencies.summary(producers.stream().map(p -> p.latencies).toList()));
            result.put("publish", publish);
            Map<String, Object> endToEnd = rates(readEvents, elapsed);
            endToEnd.put("per_second", readPerSecond);
            endToEnd.put("latency_ms", Latencies.summary(consumers.stream().map(c -> c.latencies).toList()));
            result.put("end_to_end", endToEnd);
            result.put("client_cpu_seconds", cpu);
        }

        private Map<String, Object> rates(long events, double elapsed) {
            Map<String, Object> out = new LinkedHashMap<>();
            out.put("events", events);
            out.put("events_per_second", events / elapsed);
            out.put("mb_per_second", events * (double) options.eventSize() / elapsed / 1e6);
            return out;
        }
    }

    /** A producer that is stuck inside the client is left behind: it is a daemon. */
    private static void join(List<Thread> threads) throws InterruptedException {
        long deadline = System.nanoTime() + JOIN_LIMIT_NANOS;
        for (Thread thread : threads) {
            long left = TimeUnit.NANOSECONDS.toMillis(deadline - System.nanoTime());
            thread.join(Math.max(1, left));
        }
    }

    private void drain() throws InterruptedException {
        long deadline = System.nanoTime() + (long) (options.drainSeconds() * 1e9);
        await(deadline, () -> sum(producers, Producer::outstanding) <= 0);
        if (!consumers.isEmpty()) {
            await(deadline, () -> read() >= acknowledged() * copies());
        }
    }

    private static void await(long deadline, BooleanSupplier done) throws InterruptedException {
        while (!done.getAsBoolean() && System.nanoTime() < deadline) {
            Thread.sleep(5);
        }
    }

    private void totals() {
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("sent", sent());
        out.put("acknowledged", acknowledged());
        out.put("failed", sum(producers, producer -> producer.failed.get()));
        out.put("unacknowledged", sum(producers, Producer::outstanding));
        out.put("read", read());
        out.put("unread", consumers.isEmpty() ? 0L : acknowledged() * copies() - read());
        out.put("wrong_size", sum(consumers, consumer -> consumer.wrongSize.get()));
        result.put("totals", out);
    }

    private void close() throws InterruptedException {
        // What is still under way fails when its stream goes: that is not the load's failure.
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("write", writeFailures.summary());
        out.put("read", readFailures.summary());
        Thread cleaner = new Thread(() -> {
            if (sum(producers, Producer::outstanding) == 0) {
                // With events outstanding, closing would wait for them.
                senders.forEach(sender -> attempt("close writer", sender::close));
            }
            receivers.forEach(receiver -> attempt("close reader", receiver::close));
            if (!options.keepStream()) {
                attempt("delete stream", () -> target.delete());
            }
            attempt("close clients", target::close);
        }, "cleaner");
        cleaner.setDaemon(true);
        cleaner.start();
        cleaner.join(CLEANUP_LIMIT_MILLIS);
        if (cleaner.isAlive()) {
            cleanupFailures.add("clean-up", new IllegalStateException("not done in time"));
        }
        out.put("cleanup", cleanupFailures.summary());
        result.put("errors", out);
    }

    private void attempt(String what, Runnable action) {
        try {
            action.run();
        } catch (RuntimeException e) {
            cleanupFailures.add(what, e);
        }
    }

    /** How many times each event is read. */
    private long copies() {
        return options.ownGroups() ? consumers.size() : 1;
    }

    private long sent() {
        return sum(producers, producer -> producer.sent.get());
    }

    private long acknowledged() {
        return sum(producers, producer -> producer.acknowledged.get());
    }

    private long read() {
        return sum(consumers, consumer -> consumer.read.get());
    }

    private static <T> long sum(List<T> items, ToLongFunction<T> number) {
        long total = 0;
        for (T item : items) {
            total += number.applyAsLong(item);
        }
        return total;
    }

    static double cpuSeconds() {
        var system = (com.sun.management.OperatingSystemMXBean)
                java.lang.management.ManagementFactory.getOperatingSystemMXBean();
        return system.getProcessCpuTime() / 1e9;
    }

    static double epochSeconds() {
        var now = java.time.Instant.now();
        return now.getEpochSecond() + now.getNano() / 1e9;
    }

    private static void sleepUntil(long nanos) throws InterruptedException {
        long left = nanos - System.nanoTime();
        if (left > 0) {
            TimeUnit.NANOSECONDS.sleep(left);
        }
    }
}
