package segstore.controller;

import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.NavigableMap;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Writers that commit one transaction of one event after the other, and a reader that has to get each of them once.
 *
 * <p>Without splits a writer goes on as soon as its commit was answered, with so many transactions unread at most: the reader sets the pace,
 * and what it reads is what counts. With splits a writer waits until its transaction is committed, and the moments at which it sees that
 * count; all segments are read at the end. A reader group takes up the segments after a split by a clock of its own, in seconds.
 */
final class TransactionLoad {
    private static final int UNREAD_MAX = 8;
    private static final long POLL_NANOS = 10_000_000L;
    private static final long READ_MILLIS = 100;
    private static final long RETRY_MILLIS = 10;
    private static final long DRAIN_NANOS = 60_000_000_000L;

    private final Clients clients;
    private final Arguments arguments;
    private final boolean splits;
    private final Stream stream;
    private final String group;
    private final int writers;
    private final List<Semaphore> unread = new ArrayList<>();
    private final Map<Long, Integer> reads = new ConcurrentHashMap<>();
    private final ConcurrentLinkedQueue<Long> completions = new ConcurrentLinkedQueue<>();
    private final AtomicLong committed = new AtomicLong();
    private final AtomicLong read = new AtomicLong();
    private final AtomicInteger splitCount = new AtomicInteger();
    private final AtomicReference<Exception> failure = new AtomicReference<>();
    private volatile boolean writing = true;
    private volatile boolean reading = true;

    TransactionLoad(Clients clients, Arguments arguments, boolean splits) {
        this.clients = clients;
        this.arguments = arguments;
        this.splits = splits;
        this.writers = arguments.count("writers");
        this.stream = clients.createStream(clients.newName("rate"), arguments.count("segments"));
        this.group = stream.getStreamName() + "-readers";
        clients.groups.createReaderGroup(group, ReaderGroupConfig.builder().stream(stream).build());
        for (int i = 0; i < writers; i++) {
            unread.add(new Semaphore(UNREAD_MAX));
        }
    }

    @FunctionalInterface
    private interface Task {
        void run() throws Exception;
    }

    Map<String, Object> run() throws Exception {
        Thread reader = splits ? null : start("reader", this::readUntilStopped);
        List<Thread> others = new ArrayList<>();
        for (int i = 0; i < writers; i++) {
            int number = i;
            others.add(start("writer-" + i, () -> writeUntilStopped(number)));
        }
        TimeUnit.NANOSECONDS.sleep(arguments.nanos("warmup"));
        if (splits) {
            others.add(start("splitter", this::splitUntilStopped));
        }
        long began = System.nanoTime();
        long readBefore = read.get();
        completions.clear();
        TimeUnit.NANOSECONDS.sleep(arguments.nanos("seconds"));
        long ended = System.nanoTime();
        long readInTime = read.get() - readBefore;
        writing = false;
        for (Thread thread : others) {
            thread.join();
        }
        if (splits) {
            readAll();
        } else {
            long deadline = System.nanoTime() + DRAIN_NANOS;
            while (read.get() < committed.get() && System.nanoTime() < deadline && failure.get() == null) {
                Thread.sleep(10);
            }
            reading = false;
            reader.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        return result(began, ended, readInTime);
    }

    private Map<String, Object> result(long began, long ended, long readInTime) {
        List<Long> moments = new ArrayList<>(completions);
        moments.removeIf(moment -> moment > ended);
        moments.sort(null);
        long last = began;
        long longest = 0;
        for (long moment : moments) {
            longest = Math.max(longest, moment - last);
            last = moment;
        }
        longest = Math.max(longest, ended - last);
        double seconds = (ended - began) / 1e9;
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("per_second", (splits ? moments.size() : readInTime) / seconds);
        out.put("longest_stop_seconds", longest / 1e9);
        out.put("splits", splitCount.get());
        out.put("committed", committed.get());
        out.put("unread", committed.get() - reads.size());
        out.put("read_again", read.get() - reads.size());
        return out;
    }

    private Thread start(String name, Task task) {
        Thread thread = new Thread(() -> {
            try {
                task.run();
            } catch (Exception e) {
                failure.compareAndSet(null, e);
                writing = false;
            }
        }, name);
        thread.setDaemon(true);
        thread.start();
        return thread;
    }

    private void writeUntilStopped(int number) throws Exception {
        EventWriterConfig config = TransactionWorks.transactionalConfig();
        try (TransactionalEventStreamWriter<ByteBuffer> writer = clients.factory.createTransactionalEventWriter(
                "writer-" + number, stream.getStreamName(), new ByteBufferSerializer(), config)) {
            for (int i = 0; writing; i++) {
                if (!splits && !unread.get(number).tryAcquire(READ_MILLIS, TimeUnit.MILLISECONDS)) {
                    i--;
                    continue;
                }
                Transaction<ByteBuffer> transaction = writer.beginTxn();
                ByteBuffer event = ByteBuffer.allocate(TransactionWorks.EVENT_BYTES);
                event.putInt(0, number).putInt(Integer.BYTES, i);
                transaction.writeEvent(number + "-" + i, event);
                transaction.commit();
                if (splits) {
                    TransactionWorks.awaitCommitted(transaction, POLL_NANOS);
                    completions.add(System.nanoTime());
                }
                committed.incrementAndGet();
            }
        }
    }

    private void readUntilStopped() {
        ReaderConfig config = ReaderConfig.builder().disableTimeWindows(true).build();
        try (EventStreamReader<ByteBuffer> reader =
                clients.factory.createReader("reader", group, new ByteBufferSerializer(), config)) {
            while (reading) {
                EventRead<ByteBuffer> next = reader.readNextEvent(READ_MILLIS);
                ByteBuffer event = next.getEvent();
                if (event != null) {
                    count(event);
                    unread.get(event.getInt(event.position())).release();
                }
            }
        }
    }

    private void count(ByteBuffer event) {
        read.incrementAndGet();
        reads.merge(event.getLong(event.position()), 1, Integer::sum);
    }

    /** Reads every segment that the stream ever had. */
    private void readAll() {
        for (Iterator<SegmentRange> ranges = clients.batches.getSegments(stream, null, null).getIterator(); ranges.hasNext();) {
            try (SegmentIterator<ByteBuffer> events = clients.batches.readSegment(ranges.next(), new ByteBufferSerializer())) {
                events.forEachRemaining(this::count);
            }
        }
    }

    /** Splits the segment with the widest range, again and again. */
    private void splitUntilStopped() throws Exception {
        NavigableMap<Double, Double> ranges = new TreeMap<>(Clients.even(arguments.count("segments")));
        long period = arguments.nanos("period");
        for (long next = System.nanoTime() + period / 2; writing; next += period) {
            while (writing && System.nanoTime() < next) {
                Thread.sleep(10);
            }
            if (writing) {
                split(ranges);
                splitCount.incrementAndGet();
            }
        }
    }

    private void split(NavigableMap<Double, Double> ranges) throws Exception {
        Map.Entry<Double, Double> widest = ranges.firstEntry();
        for (Map.Entry<Double, Double> range : ranges.entrySet()) {
            if (range.getValue() - range.getKey() > widest.getValue() - widest.getKey()) {
                widest = range;
            }
        }
        double low = widest.getKey();
        double high = widest.getValue();
        double middle = (low + high) / 2;
        NavigableMap<Double, Double> halves = new TreeMap<>(Map.of(low, middle, middle, high));
        // A commit that crosses the split before this one replaces segments too: the one that was just found may be gone.
        while (writing && !clients.scale(stream, List.of(clients.segmentAt(stream, middle)), halves)) {
            Thread.sleep(RETRY_MILLIS);
        }
        ranges.putAll(halves);
    }
}
