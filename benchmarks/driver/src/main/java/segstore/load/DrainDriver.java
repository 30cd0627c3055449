package segstore.load;

import java.net.URI;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Semaphore;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/**
 * Writes a backlog as fast as it can, or drains one that is there, and prints one JSON object on standard output.
 *
 * <ol>
 *   <li>Exactly the events that were asked for are written and acknowledged, or it fails.
 *   <li>Draining is counted from before the first read until the last event has come. Events that are too many, or of another size, are failures.
 *   <li>A server that hangs cannot hang it: who started it ends it.
 * </ol>
 */
public final class DrainDriver {
    private static final String USAGE =
            "usage: ... DrainDriver write|read pravega|kafka|pulsar ADDRESS STREAM SEGMENTS EVENTS EVENT_SIZE CONSUMERS [STREAM EVENTS]\n"
                    + "  read drains the second stream first, to be warm\n";
    private static final long OUTSTANDING_BYTES = 64L << 20;
    private static final int OUTSTANDING_EVENTS_MAX = 100_000;
    private static final long READ_TIMEOUT_MILLIS = 100;
    private static final int KEY_COUNT = 1_000;
    private static final String SCOPE = "benchmarks";

    private final String protocol;
    private final String address;
    private final int segments;
    private final int eventSize;
    private final int consumers;

    private DrainDriver(String protocol, String address, int segments, int eventSize, int consumers) {
        this.protocol = protocol;
        this.address = address;
        this.segments = segments;
        this.eventSize = eventSize;
        this.consumers = consumers;
    }

    public static void main(String[] arguments) throws InterruptedException {
        if (arguments.length != 8 && arguments.length != 10) {
            System.err.print(USAGE);
            System.exit(2);
        }
        try {
            DrainDriver driver = new DrainDriver(arguments[1], arguments[2], Integer.parseInt(arguments[4]),
                    Integer.parseInt(arguments[6]), Integer.parseInt(arguments[7]));
            boolean writes = arguments[0].equals("write");
            Map<String, Object> result = null;
            if (arguments.length == 10) {
                result = driver.run(writes, arguments[8], Long.parseLong(arguments[9]));
            }
            Map<String, Object> last = driver.run(writes, arguments[3], Long.parseLong(arguments[5]));
            last.put("warm_up", result);
            System.out.println(Json.write(last));
        } catch (RuntimeException e) {
            e.printStackTrace();
            System.err.println("drain driver failed: " + e);
            Runtime.getRuntime().halt(1);
        }
        // Client threads that still wait for a server must not keep us.
        System.out.flush();
        Runtime.getRuntime().halt(0);
    }

    private Map<String, Object> run(boolean writes, String stream, long events) throws InterruptedException {
        Target target = switch (protocol) {
            case "kafka" -> new KafkaTarget(address, stream);
            case "pulsar" -> Target.ofPulsar(address, stream, false, Options.LINGER_MILLIS_DEFAULT, Options.BATCH_BYTES_DEFAULT);
            default -> new LoadStream(URI.create(address), SCOPE, stream, false, false, 0);
        };
        double cpuBefore = LoadDriver.cpuSeconds();
        double startEpoch = LoadDriver.epochSeconds();
        long started = System.nanoTime();
        if (writes) {
            write(target, events);
        } else {
            drain(target, events);
        }
        Map<String, Object> out = new LinkedHashMap<>();
        double seconds = (System.nanoTime() - started) / 1e9;
        out.put("events", events);
        out.put("seconds", seconds);
        out.put("events_per_second", events / seconds);
        out.put("mb_per_second", events * (double) eventSize / seconds / 1e6);
        out.put("start_epoch", startEpoch);
        out.put("end_epoch", LoadDriver.epochSeconds());
        out.put("client_cpu_seconds", LoadDriver.cpuSeconds() - cpuBefore);
        return out;
    }

    private void write(Target target, long events) throws InterruptedException {
        target.create(segments, 0);
        Target.Sender sender = target.sender(0);
        int outstandingMax = (int) Math.max(1, Math.min(OUTSTANDING_EVENTS_MAX, OUTSTANDING_BYTES / eventSize));
        Semaphore outstanding = new Semaphore(outstandingMax);
        Failures failures = new Failures();
        byte[] payload = new byte[eventSize];
        ThreadLocalRandom.current().nextBytes(payload);
        for (long event = 0; event < events; event++) {
            outstanding.acquire();
            sender.send("key-" + event % KEY_COUNT, payload.clone(), problem -> {
                if (problem != null) {
                    failures.add("send", problem);
                }
                outstanding.release();
            });
        }
        outstanding.acquire(outstandingMax);
        failures.check();
        sender.close();
    }

    private void drain(Target target, long events) throws InterruptedException {
        AtomicLong read = new AtomicLong();
        AtomicLong wrongSize = new AtomicLong();
        Failures failures = new Failures();
        List<Thread> threads = new ArrayList<>();
        for (int i = 0; i < consumers; i++) {
            Target.Receiver receiver = target.drainer(i, consumers);
            threads.add(new Thread(() -> drain(receiver, events, read, wrongSize, failures), "drainer-" + i));
        }
        threads.forEach(thread -> {
            thread.setDaemon(true);
            thread.start();
        });
        for (Thread thread : threads) {
            while (thread.isAlive()) {
                thread.join(TimeUnit.SECONDS.toMillis(1));
                failures.check();
            }
        }
        failures.check();
        if (read.get() != events || wrongSize.get() != 0) {
            throw new IllegalStateException(read + " events were read of " + events + ", and " + wrongSize + " of another size");
        }
    }

    private void drain(Target.Receiver receiver, long events, AtomicLong read, AtomicLong wrongSize, Failures failures) {
        long[] own = new long[1];
        try {
            while (read.get() < events) {
                receiver.receive(READ_TIMEOUT_MILLIS, (ByteBuffer event) -> {
                    own[0]++;
                    if (event.remaining() != eventSize) {
                        wrongSize.incrementAndGet();
                    }
                });
                read.addAndGet(own[0]);
                own[0] = 0;
            }
        } catch (RuntimeException e) {
            failures.add("drainer", e);
        }
    }
}
