package segstore.load;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReinitializationRequiredException;
import io.pravega.client.stream.TruncatedDataException;
import java.nio.ByteBuffer;
import java.util.concurrent.atomic.AtomicLong;

/** One thread that reads events through one reader until it is told to stop. */
final class Consumer implements Runnable {
    final Latencies latencies = new Latencies();
    final AtomicLong read = new AtomicLong();
    final AtomicLong wrongSize = new AtomicLong();

    private final EventStreamReader<ByteBuffer> reader;
    private final Options options;
    private final Failures failures;
    private volatile boolean stopping;

    Consumer(EventStreamReader<ByteBuffer> reader, Options options, Failures failures) {
        this.reader = reader;
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
                // No event: the time-out has passed, or the group is at a checkpoint.
                EventRead<ByteBuffer> next = reader.readNextEvent(options.readTimeoutMillis());
                if (next.getEvent() != null) {
                    count(next.getEvent());
                }
            }
        } catch (ReinitializationRequiredException | TruncatedDataException e) {
            failures.add("reader", e);
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
