package compat;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.connection.impl.SocketConnectionFactoryImpl;
import io.pravega.client.control.impl.Controller;
import io.pravega.client.control.impl.ControllerImpl;
import io.pravega.client.control.impl.ControllerImplConfig;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.impl.ClientFactoryImpl;
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
 */
final class KillNineWorkload {
    private static final int SEGMENT_COUNT = 4;
    private static final int WRITER_COUNT = 3;
    private static final int KEYS_PER_WRITER = 5;
    private static final int IN_FLIGHT_PER_WRITER = 200;
    private static final int BATCH = 4;
    private static final int FILLER_LENGTH = 100;
    private static final long SECONDS_TO_THE_END = 120;

    private final Path directory;
    private final TestScope scope = new TestScope();
    private final AtomicInteger writersRunning = new AtomicInteger(WRITER_COUNT);
    private final AtomicInteger sentCount = new AtomicInteger();
    private final AtomicInteger ackedCount = new AtomicInteger();
    private final AtomicBoolean ended = new AtomicBoolean();
    private final ScheduledExecutorService executor = Executors.newScheduledThreadPool(4);
    private Ledger writes;
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

    private KillNineWorkload(Path directory) {
        this.directory = directory;
    }

    public static void main(String[] arguments) throws Exception {
        new KillNineWorkload(Path.of(arguments[0])).run();
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
            System.out.println("STARTED");
            new Parallel()
                    .add(WRITER_COUNT, this::writeUntilStopped)
                    .add(() -> new Follower(group, followed).run())
                    .add(this::publishProgress)
                    .run();
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
        Controller controller =
                new ControllerImpl(
                        ControllerImplConfig.builder()
                                .clientConfig(config)
                                .initialBackoffMillis(10)
                                .backoffMultiple(2)
                                .maxBackoffMillis(500)
                                .retryAttempts(10_000)
                                .build(),
                        executor);
        return new ClientFactoryImpl(
                scope.name, controller, config, new SocketConnectionFactoryImpl(config));
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
