package segstore.load;

import java.nio.ByteBuffer;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.locks.LockSupport;

/**
 * One thread that writes events through one client.
 *
 * <ol>
 *   <li>The load is open: event k is due at start + k / rate whatever happened before, and a producer that is late catches up.
 *   <li>At most {@code outstandingMax} of its events are unacknowledged; it waits for acks beyond that, and counts how long.
 *   <li>An event's first eight bytes are the time its latency counts from, in this JVM's nanoTime.
 * </ol>
 */
final class Producer implements Runnable {
    private static final long ROOM_POLL_NANOS = 50_000;

    final Latencies latencies = new Latencies();
    final AtomicLong sent = new AtomicLong();
    final AtomicLong acknowledged = new AtomicLong();
    final AtomicLong failed = new AtomicLong();
    final AtomicLong blockedNanos = new AtomicLong();

    private final Target.Sender sender;
    private final Options options;
    private final int index;
    private final int outstandingMax;
    private final Failures failures;
    private final String[] keys;
    private final byte[] payload;
    private volatile boolean stopping;

    Producer(Target.Sender sender, Options options, int index, Failures failures) {
        this.sender = sender;
        this.options = options;
        this.index = index;
        this.outstandingMax = Math.max(1, options.outstandingMax() / options.producers());
        this.failures = failures;
        this.keys = new String[options.keys()];
        for (int i = 0; i < keys.length; i++) {
            keys[i] = "key-" + i;
        }
        this.payload = new byte[options.eventSize()];
        ThreadLocalRandom.current().nextBytes(payload);
    }

    void stop() {
        stopping = true;
    }

    /** Events that were sent and neither acknowledged nor failed. */
    long outstanding() {
        return sent.get() - acknowledged.get() - failed.get();
    }

    @Override
    public void run() {
        double nanosPerEvent = options.rate() > 0 ? 1e9 * options.producers() / options.rate() : 0;
        // Producers that share a rate take turns.
        long start = System.nanoTime() + (long) (nanosPerEvent * index / options.producers());
        try {
            for (long event = 0; !stopping; event++) {
                long due = start + (long) (event * nanosPerEvent);
                if (nanosPerEvent > 0) {
                    waitUntil(due);
                }
                waitForRoom();
                if (!stopping) {
                    send(event, due);
                }
            }
        } catch (RuntimeException e) {
            failures.add("producer " + index, e);
        }
    }

    private void waitUntil(long due) {
        long left = due - System.nanoTime();
        while (left > 0 && !stopping) {
            LockSupport.parkNanos(left);
            left = due - System.nanoTime();
        }
    }

    private void waitForRoom() {
        if (outstanding() < outstandingMax) {
            return;
        }
        long from = System.nanoTime();
        while (outstanding() >= outstandingMax && !stopping) {
            LockSupport.parkNanos(ROOM_POLL_NANOS);
        }
        blockedNanos.addAndGet(System.nanoTime() - from);
    }

    private void send(long event, long due) {
        long now = System.nanoTime();
        long from = options.latencyFrom() == Options.LatencyFrom.INTENDED ? due : now;
        // The client keeps the event until the ack: every one needs its own.
        byte[] data = payload.clone();
        ByteBuffer.wrap(data).putLong(0, from);
        sent.lazySet(sent.getPlain() + 1);
        String key = keys.length == 0 ? null : keys[(int) (event % keys.length)];
        sender.send(key, data, problem -> {
            if (problem == null) {
                latencies.record(System.nanoTime() - from);
                acknowledged.incrementAndGet();
            } else {
                failures.add("send", problem);
                failed.incrementAndGet();
            }
        });
    }
}
