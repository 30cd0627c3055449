package compat;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.connection.impl.SocketConnectionFactoryImpl;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TxnFailedException;
import io.pravega.client.stream.impl.ClientFactoryImpl;
import io.pravega.client.stream.impl.StreamSegments;
import java.io.IOException;
import java.io.PrintWriter;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Writes and reads without end while somebody kills the server again and again, and keeps a ledger
 * of it for a checker. A program, not a test: {@code KillNineWorkload DIRECTORY}.
 *
 * <p>It ends once the file {@code DIRECTORY/stop} is there: the writers wait for their last acks,
 * the reader reads on to the end, then everything is read once more from the head. Until then it
 * keeps {@code DIRECTORY/acked}, the count of acknowledged events, for whoever watches progress.
 *
 * <p>The ledgers hold one line per fact, in the order in which it was known: {@code writes.log} has
 * {@code sent KEY SEQUENCE}, {@code acked KEY SEQUENCE} and {@code failed KEY SEQUENCE} (the client
 * gave up: its fate is unknown); {@code follow.log} (the reader that runs all the time) and
 * {@code full.log} (the read at the end) have {@code read KEY SEQUENCE}, {@code corrupt KEY
 * SEQUENCE} and {@code rewind}, after which the reader may repeat what it had read.
 *
 * <p>With transactions, what is sent is what a transaction holds whose commit was asked for; those
 * that are aborted hold the same events as the next one, so that any of theirs is read twice. Their
 * ids are in {@code transactions.log}, and the stream scales all the time.
 */
final class KillNineWorkload {
    private static final int SEGMENT_COUNT = 4;
    private static final int WRITER_COUNT = 3;
    private static final int KEYS_PER_WRITER = 5;
    private static final int IN_FLIGHT_PER_WRITER = 200;
    private static final int BATCH = 4;
    private static final int FILLER_LENGTH = 100;
    private static final long SECONDS_TO_THE_END = 120;
    private static final long LEASE_MS = 60_000;
    private static final int ABORTED_OF = 5;

    /**
     * The shortest time between transactions of a writer without connection pooling. The client
     * holds the buffer of 1 MiB of each connection for 20 s, also after its end, so more than some
     * 70 connections a second fill the heap.
     */
    private static final long UNPOOLED_TRANSACTION_MS = 125;

    private static final long SCALE_MS = 2_000;

    private final Path directory;
    private final boolean transactional;
    private final TestScope scope = new TestScope();
    private final AtomicInteger writersRunning = new AtomicInteger(WRITER_COUNT);
    private final AtomicInteger sentCount = new AtomicInteger();
    private final AtomicInteger ackedCount = new AtomicInteger();
    private final AtomicBoolean ended = new AtomicBoolean();
    private final ScheduledExecutorService executor = Executors.newScheduledThreadPool(4);
    private Ledger writes;
    private Ledger transactions;
    private String stream;

    /** One file of facts, written by many threads. */
    private static final class Ledger implements AutoCloseable {
        private final PrintWriter out;

        Ledger(Path file) throws IOException {
            out = new PrintWriter(Files.newBufferedWriter(file));
        }

        synchronized void add(String fact, String event) {
            String key = OrderCheck.key(event);
            out.println(fact + " " + key + " " + OrderCheck.sequence(event));
        }

        synchronized void add(String fact) {
            out.println(fact);
        }

        @Override
        public synchronized void close() {
            out.close();
        }
    }

    KillNineWorkload(Path directory, boolean transactional) {
        this.directory = directory;
        this.transactional = transactional;
    }

    public static void main(String[] arguments) throws Exception {
        new KillNineWorkload(Path.of(arguments[0]), false).runToTheEnd();
    }

    void runToTheEnd() throws Exception {
        run();
        System.out.println("DONE");
        System.exit(0);
    }

    private void run() throws Exception {
        scope.open(TestScope.unique("kill-nine"));
        stream = scope.createStream(SEGMENT_COUNT);
        try (Ledger ledger = new Ledger(directory.resolve("writes.log"));
                Ledger followed = new Ledger(directory.resolve("follow.log"));
                ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            writes = ledger;
            Files.writeString(directory.resolve("stream"), scope.name + "/" + stream);
            System.out.println("STARTED");
            Parallel work =
                    new Parallel()
                            .add(() -> new Follower(group, followed).run())
                            .add(this::publishProgress);
            if (transactional) {
                transactions = new Ledger(directory.resolve("transactions.log"));
                work.add(WRITER_COUNT, this::commitUntilStopped).add(this::scaleUntilStopped);
            } else {
                work.add(WRITER_COUNT, this::writeUntilStopped);
            }
            work.run();
            if (transactional) {
                transactions.close();
            }
        }
        try (Ledger full = new Ledger(directory.resolve("full.log"))) {
            for (String event : scope.readAll(stream, ackedCount.get()).values()) {
                full.add(intact(event) ? "read" : "corrupt", withoutFiller(event));
            }
        }
    }

    private boolean stopped() {
        return Files.exists(directory.resolve("stop"));
    }

    private void publishProgress() throws Exception {
        Path file = directory.resolve("acked");
        Path next = directory.resolve("acked.next");
        while (!ended.get()) {
            Files.writeString(next, Integer.toString(ackedCount.get()));
            Files.move(next, file, StandardCopyOption.ATOMIC_MOVE);
            Thread.sleep(100);
        }
    }

    /** Like the scope's own clients, but never giving up on a controller that is away. */
    private EventStreamClientFactory patientClients() {
        ClientConfig config = scope.config;
        return new ClientFactoryImpl(
                scope.name, patientController(), config, new SocketConnectionFactoryImpl(config));
    }

    private Controller patientController() {
        return new ControllerImpl(
                ControllerImplConfig.builder()
                        .clientConfig(scope.config)
                        .initialBackoffMillis(10)
                        .backoffMultiple(2)
                        .maxBackoffMillis(500)
                        .retryAttempts(10_000)
                        .build(),
                executor);
    }

    /**
     * Writes transactions, one after the other, and aborts some of them.
     *
     * <p>The connections of one writer are its transactions' own, those of the others are shared.
     */
    private void commitUntilStopped(int writerNumber) throws Exception {
        boolean pooled = writerNumber != 0;
        EventWriterConfig config =
                EventWriterConfig.builder()
                        .initialBackoffMillis(5)
                        .backoffMultiple(2)
                        .maxBackoffMillis(500)
                        .retryAttempts(10_000)
                        .transactionTimeoutTime(LEASE_MS)
                        .enableConnectionPooling(pooled)
                        .build();
        try (EventStreamClientFactory clients = patientClients();
                TransactionalEventStreamWriter<String> writer =
                        clients.createTransactionalEventWriter(
                                "writer-" + writerNumber, stream, TestScope.TEXT, config)) {
            int sequence = 0;
            for (int number = 1; !stopped(); number++) {
                Transaction<String> transaction = writer.beginTxn();
                transactions.add(transaction.getTxnId().toString());
                List<String> events = new ArrayList<>();
                for (int key = 0; key < KEYS_PER_WRITER; key++) {
                    for (int next = sequence; next < sequence + BATCH; next++) {
                        events.add(OrderCheck.event("key-" + writerNumber + "-" + key, next));
                    }
                }
                if (commit(transaction, events, number % ABORTED_OF == 0)) {
                    sequence += BATCH;
                }
                if (!pooled) {
                    Thread.sleep(UNPOOLED_TRANSACTION_MS);
                }
            }
        }
        writersRunning.decrementAndGet();
    }

    /** Whether the transaction was committed, whatever had to be asked how often. */
    private boolean commit(Transaction<String> transaction, List<String> events, boolean aborted)
            throws Exception {
        try {
            for (String event : events) {
                transaction.writeEvent(OrderCheck.key(event), withFiller(event));
            }
            if (aborted) {
                transaction.flush();
                transaction.abort();
                return false;
            }
            transaction.commit();
        } catch (TxnFailedException failed) {
            if (transaction.checkStatus() == Transaction.Status.OPEN) {
                transaction.abort();
            }
        }
        if (!endsCommitted(transaction)) {
            return false;
        }
        events.forEach(this::sent);
        events.forEach(event -> writes.add("acked", event));
        ackedCount.addAndGet(events.size());
        return true;
    }

    private static boolean endsCommitted(Transaction<String> transaction) throws Exception {
        Deadline deadline = new Deadline(SECONDS_TO_THE_END);
        while (!deadline.passed()) {
            Transaction.Status status = transaction.checkStatus();
            if (status == Transaction.Status.COMMITTED) {
                return true;
            }
            if (status == Transaction.Status.ABORTED) {
                return false;
            }
            Thread.sleep(5);
        }
        throw new AssertionError(transaction.getTxnId() + " has no end");
    }

    /** Splits and merges the stream's segments until told to stop. */
    private void scaleUntilStopped() throws Exception {
        try (Controller controller = patientController()) {
            while (!stopped()) {
                Thread.sleep(SCALE_MS);
                scaleOnce(controller);
            }
        }
    }

    private void scaleOnce(Controller controller) throws Exception {
        StreamSegments current = controller.getCurrentSegments(scope.name, stream).get();
        // Four even segments, and five with the lowest one split, in turns.
        boolean split = current.getSegments().size() == SEGMENT_COUNT;
        List<Long> sealed =
                split
                        ? List.of(current.getSegmentForKey(0.1).getSegmentId())
                        : current.getSegments().stream().map(Segment::getSegmentId).toList();
        Map<Double, Double> ranges = split ? Map.of(0.0, 0.125, 0.125, 0.25) : quarters();
        try {
            boolean scaled =
                    controller
                            .scaleStream(Stream.of(scope.name, stream), sealed, ranges, executor)
                            .getFuture()
                            .get(SECONDS_TO_THE_END, TimeUnit.SECONDS);
            System.out.println("scaled " + sealed.size() + " to " + ranges.size() + ": " + scaled);
        } catch (ExecutionException notNow) {
            // A request that is repeated meets the stream as the first one left it.
            System.out.println("not scaled: " + notNow.getCause());
        }
    }

    private static Map<Double, Double> quarters() {
        return Map.of(0.0, 0.25, 0.25, 0.5, 0.5, 0.75, 0.75, 1.0);
    }

    private void writeUntilStopped(int writerNumber) throws Exception {
        EventWriterConfig config =
                EventWriterConfig.builder()
                        .initialBackoffMillis(5)
                        .backoffMultiple(2)
                        .maxBackoffMillis(500)
                        .retryAttempts(10_000)
                        .enableConnectionPooling(writerNumber == 0)
                        .build();
        Semaphore inFlight = new Semaphore(IN_FLIGHT_PER_WRITER);
        try (EventStreamClientFactory clients = patientClients();
                EventStreamWriter<String> writer =
                        clients.createEventWriter(stream, TestScope.TEXT, config)) {
            for (int sequence = 0; !stopped(); sequence += BATCH) {
                for (int number = 0; number < KEYS_PER_WRITER; number++) {
                    String key = "key-" + writerNumber + "-" + number;
                    inFlight.acquire(BATCH);
                    // Every other key is written in batches, which are one append each.
                    if (number % 2 == 0) {
                        writeSingly(writer, key, sequence, inFlight);
                    } else {
                        writeBatch(writer, key, sequence, inFlight);
                    }
                }
                Thread.sleep(20);
            }
            if (!inFlight.tryAcquire(IN_FLIGHT_PER_WRITER, SECONDS_TO_THE_END, TimeUnit.SECONDS)) {
                throw new AssertionError(
                        "events unacknowledged "
                                + SECONDS_TO_THE_END
                                + " s after the end: "
                                + (IN_FLIGHT_PER_WRITER - inFlight.availablePermits()));
            }
        }
        writersRunning.decrementAndGet();
    }

    private void writeSingly(
            EventStreamWriter<String> writer, String key, int from, Semaphore inFlight) {
        for (int sequence = from; sequence < from + BATCH; sequence++) {
            String event = OrderCheck.event(key, sequence);
            sent(event);
            note(writer.writeEvent(key, withFiller(event)), List.of(event), inFlight);
        }
    }

    private void writeBatch(
            EventStreamWriter<String> writer, String key, int from, Semaphore inFlight) {
        List<String> events = new ArrayList<>();
        for (int sequence = from; sequence < from + BATCH; sequence++) {
            events.add(OrderCheck.event(key, sequence));
        }
        events.forEach(this::sent);
        List<String> filled = events.stream().map(KillNineWorkload::withFiller).toList();
        note(writer.writeEvents(key, filled), events, inFlight);
    }

    private void sent(String event) {
        writes.add("sent", event);
        sentCount.incrementAndGet();
    }

    private void note(CompletableFuture<Void> ack, List<String> events, Semaphore inFlight) {
        ack.whenComplete(
                (done, error) -> {
                    for (String event : events) {
                        writes.add(error == null ? "acked" : "failed", event);
                    }
                    ackedCount.addAndGet(error == null ? events.size() : 0);
                    inFlight.release(events.size());
                    if (error != null) {
                        System.out.println("write failed: " + error);
                    }
                });
    }

    /** Reads the stream as it grows, with one reader after another when one gives up. */
    private final class Follower {
        private final ReaderGroup group;
        private final Ledger ledger;
        private final Map<String, Integer> next = new HashMap<>();
        private int distinctCount;
        private int readerNumber;

        Follower(ReaderGroup group, Ledger ledger) {
            this.group = group;
            this.ledger = ledger;
        }

        void run() throws Exception {
            try (EventStreamClientFactory clients = patientClients()) {
                boolean complete = false;
                while (!complete) {
                    complete = readUntilItFails(clients, "follower-" + readerNumber++);
                }
            }
            ended.set(true);
        }

        /** True when everything was read, false when the reader broke and was taken offline. */
        private boolean readUntilItFails(EventStreamClientFactory clients, String id)
                throws InterruptedException {
            Position position = null;
            try (EventStreamReader<String> reader =
                    clients.createReader(
                            id,
                            group.getGroupName(),
                            TestScope.TEXT,
                            ReaderConfig.builder().build())) {
                Deadline quiet = new Deadline(1);
                Deadline end = new Deadline(SECONDS_TO_THE_END);
                while (unread() || !quiet.passed()) {
                    EventRead<String> read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
                    position = read.getPosition();
                    if (read.getEvent() != null) {
                        note(read.getEvent());
                        quiet = new Deadline(1);
                    }
                    if (writersRunning.get() > 0) {
                        end = new Deadline(SECONDS_TO_THE_END);
                    } else if (end.passed()) {
                        throw new AssertionError("the reader read only " + distinctCount);
                    }
                }
                return true;
            } catch (RuntimeException broken) {
                System.out.println("reader " + id + " broke: " + broken);
                takeOffline(id, position);
                return false;
            }
        }

        private boolean unread() {
            return writersRunning.get() > 0 || distinctCount < ackedCount.get();
        }

        private void note(String filled) {
            String event = withoutFiller(filled);
            ledger.add(intact(filled) ? "read" : "corrupt", event);
            int sequence = OrderCheck.sequence(event);
            if (sequence >= next.getOrDefault(OrderCheck.key(event), 0)) {
                next.put(OrderCheck.key(event), sequence + 1);
                distinctCount++;
            }
        }

        private void takeOffline(String id, Position position) throws InterruptedException {
            Deadline deadline = new Deadline(SECONDS_TO_THE_END);
            Position from = position;
            while (true) {
                try {
                    group.readerOffline(id, from);
                    if (from == null) {
                        ledger.add("rewind");
                    }
                    return;
                } catch (IllegalArgumentException segmentsMovedSince) {
                    from = null;
                } catch (RuntimeException unreachable) {
                    if (deadline.passed()) {
                        throw unreachable;
                    }
                    Thread.sleep(200);
                }
            }
        }
    }

    private static String withFiller(String event) {
        return event + " " + filler(event);
    }

    private static String withoutFiller(String event) {
        return event.substring(0, event.indexOf(' '));
    }

    private static boolean intact(String event) {
        return event.substring(event.indexOf(' ') + 1).equals(filler(withoutFiller(event)));
    }

    /** Text that follows from the event's key and sequence, so that any change in it shows. */
    private static String filler(String event) {
        StringBuilder text = new StringBuilder();
        int state = event.hashCode();
        while (text.length() < FILLER_LENGTH) {
            state = state * 1_103_515_245 + 12_345;
            text.append((char) ('a' + Math.floorMod(state >> 16, 26)));
        }
        return text.toString();
    }
}
