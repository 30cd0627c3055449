package segstore.load;

import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicLong;

/** One thread that reads events through one receiver until it is told to stop. */
final class Consumer implements Runnable {
    final Latencies latencies = new Latencies();
    final AtomicLong read = new AtomicLong();
    final AtomicLong wrongSize = new AtomicLong();

    private final Target.Receiver receiver;
    private final Options options;
    private final Failures failures;
    private volatile boolean stopping;

    Consumer(Target.Receiver receiver, Options options, Failures failures) {
        this.receiver = receiver;
        this.options = options;
        this.failures = failures;
    }

    void stop() {
        stopping = true;
    }

    @Override
    public void run() {
        try {
            while (!stopping) {
                receiver.receive(options.readTimeoutMillis(), this::count);
            }
        } catch (RuntimeException e) {
            if (!stopping) {
                failures.add("reader", e);
            }
        }
    }

    private void count(ByteBuffer event) {
        if (event.remaining() != options.eventSize()) {
            wrongSize.incrementAndGet();
            return;
        }
        latencies.record(System.nanoTime() - event.getLong(event.position()));
        read.lazySet(read.getPlain() + 1);
    }
}
