package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.function.IntFunction;
import java.util.stream.IntStream;
import org.junit.jupiter.api.Test;

/**
 * What the Pravega driver of the OpenMessaging Benchmark calls, in its order, with its defaults: a
 * run makes its topics, then consumers, then producers; sends one event for each producer and waits
 * until all consumers have it; loads; and closes everything while its reader groups stay.
 *
 * <p>Payloads are told apart here, which the benchmark's are not: each event is read once by each
 * subscription.
 */
@Api("OpenMessaging Benchmark driver")
final class OpenMessagingTest {
    private static final String PROBE_KEY = "key";

    @Test
    void aRunWithoutPooling() throws Exception {
        runEvents(false, ScalingPolicy.fixed(4));
    }

    @Test
    void aRunWithPooling() throws Exception {
        runEvents(true, ScalingPolicy.fixed(4));
    }

    @Test
    void aRunOnStreamsThatScaleByEvents() throws Exception {
        runEvents(true, ScalingPolicy.byEventRate(10_000, 2, 3));
    }

    @Test
    void aRunOnStreamsThatScaleByBytes() throws Exception {
        runEvents(true, ScalingPolicy.byDataRate(100_000, 2, 3));
    }

    @Test
    void aRunWithOneEventInATransaction() throws Exception {
        runTransactions(1, 40);
    }

    @Test
    void aRunWithTenEventsInATransaction() throws Exception {
        runTransactions(10, 300);
    }

    @Test
    void streamsThatAreKeptAreSealedAndReadAgain() throws Exception {
        String scope = TestScope.unique("omb");
        String topic;
        try (Run run = new Run(scope, false)) {
            topic = run.createTopic(ScalingPolicy.fixed(2));
            try (Producer producer = run.createProducer(topic, true)) {
                producer.sendAll(null, 0, 100);
            }
        }
        try (Run run = new Run(scope, true);
                Consumer late = run.createConsumer(topic, "late")) {
            late.awaitExactly(numbers(0, 100));
        }
    }

    private static void runEvents(boolean pooling, ScalingPolicy policy) throws Exception {
        try (Run run = new Run(TestScope.unique("omb"), true)) {
            List<String> topics = List.of(run.createTopic(policy), run.createTopic(policy));
            List<Consumer> consumers = new ArrayList<>();
            for (String topic : topics) {
                for (String subscription : List.of("sub-000-a", "sub-001-b")) {
                    consumers.add(run.createConsumer(topic, topic + subscription));
                    consumers.add(run.createConsumer(topic, topic + subscription));
                }
            }
            List<Producer> producers = new ArrayList<>();
            for (String topic : topics) {
                producers.add(run.createProducer(topic, pooling));
                producers.add(run.createProducer(topic, pooling));
            }
            for (int number = 0; number < producers.size(); number++) {
                producers.get(number).send(PROBE_KEY, number % 2).get(30, TimeUnit.SECONDS);
            }
            for (Producer producer : producers) {
                int first = producers.indexOf(producer) % 2 == 0 ? 2 : 1002;
                producer.sendAll(n -> n % 2 == 0 ? null : "key-" + n % 50, first, 1000);
            }
            for (int number = 0; number < consumers.size(); number += 2) {
                awaitExactly(consumers.subList(number, number + 2), numbers(0, 2002));
            }
            for (Producer producer : producers) {
                producer.close();
            }
            for (Consumer consumer : consumers) {
                consumer.close();
            }
        }
    }

    private static void runTransactions(int eventsPerTransaction, int count) throws Exception {
        try (Run run = new Run(TestScope.unique("omb"), true)) {
            String topic = run.createTopic(ScalingPolicy.fixed(3));
            try (Consumer consumer = run.createConsumer(topic, "sub")) {
                try (TransactionProducer producer =
                        run.createTransactionProducer(topic, eventsPerTransaction)) {
                    producer.send(PROBE_KEY, 0);
                    for (int number = 1; number <= count; number++) {
                        producer.send(number % 2 == 0 ? null : "key-" + number % 7, number);
                    }
                    if (eventsPerTransaction > 1) {
                        // The last transaction stays open: closing aborts it.
                        producer.send(null, count + 1);
                    }
                }
                // The driver fills the transaction of its probe with copies, and adds one.
                Map<Integer, Integer> expected = numbers(0, count + 1);
                expected.put(0, eventsPerTransaction + 1);
                if (eventsPerTransaction > 1) {
                    // Behind the probe's extra event, the count begins anew.
                    assertEquals(0, count % eventsPerTransaction);
                }
                consumer.awaitExactly(expected);
            }
        }
    }

    /** The numbers from one to the other, once each. */
    private static Map<Integer, Integer> numbers(int from, int to) {
        Map<Integer, Integer> once = new ConcurrentHashMap<>();
        IntStream.range(from, to).forEach(number -> once.put(number, 1));
        return once;
    }

    /** Waits for as many events as expected, and a second for one too many. */
    private static void awaitExactly(List<Consumer> subscription, Map<Integer, Integer> expected)
            throws Exception {
        int count = expected.values().stream().mapToInt(Integer::intValue).sum();
        Deadline deadline = new Deadline(60);
        while (countOf(subscription) < count && !deadline.passed()) {
            Thread.sleep(20);
        }
        Thread.sleep(1000);
        Map<Integer, Integer> received = new ConcurrentHashMap<>();
        for (Consumer consumer : subscription) {
            assertTrue(!consumer.reading.isDone(), "a consumer ended");
            consumer.received.forEach((number, times) -> received.merge(number, times, Integer::sum));
        }
        assertEquals(expected, received);
    }

    private static int countOf(List<Consumer> subscription) {
        return subscription.stream()
                .flatMap(consumer -> consumer.received.values().stream())
                .mapToInt(Integer::intValue)
                .sum();
    }

    /** What the driver keeps for a run. */
    private static final class Run implements AutoCloseable {
        private final String scope;
        private final boolean deleteStreams;
        private final StreamManager streams;
        private final ReaderGroupManager groups;
        private final EventStreamClientFactory clients;
        private final List<String> topics = new ArrayList<>();

        Run(String scope, boolean deleteStreams) {
            this.scope = scope;
            this.deleteStreams = deleteStreams;
            ClientConfig config = TestScope.configFor(TestScope.controllerUri());
            streams = StreamManager.create(config);
            groups = ReaderGroupManager.withScope(scope, config);
            clients = EventStreamClientFactory.withScope(scope, config);
        }

        String createTopic(ScalingPolicy policy) {
            String topic = "openmessaging-benchmark-" + UUID.randomUUID();
            topics.add(topic);
            streams.createScope(scope);
            streams.createStream(
                    scope, topic, StreamConfiguration.builder().scalingPolicy(policy).build());
            return topic;
        }

        Consumer createConsumer(String topic, String subscription) {
            groups.createReaderGroup(
                    subscription,
                    ReaderGroupConfig.builder().stream(Stream.of(scope, topic)).build());
            return new Consumer(
                    clients.createReader(
                            UUID.randomUUID().toString(),
                            subscription,
                            new ByteBufferSerializer(),
                            ReaderConfig.builder().disableTimeWindows(true).build()));
        }

        Producer createProducer(String topic, boolean pooling) {
            return new Producer(
                    clients.createEventWriter(topic, new ByteBufferSerializer(), config(pooling)));
        }

        TransactionProducer createTransactionProducer(String topic, int eventsPerTransaction) {
            String id = UUID.randomUUID().toString();
            return new TransactionProducer(
                    clients.createTransactionalEventWriter(
                            id, topic, new ByteBufferSerializer(), config(true)),
                    eventsPerTransaction);
        }

        private static EventWriterConfig config(boolean pooling) {
            return EventWriterConfig.builder().enableConnectionPooling(pooling).build();
        }

        @Override
        public void close() {
            clients.close();
            groups.close();
            for (String topic : topics) {
                streams.sealStream(scope, topic);
                if (deleteStreams) {
                    assertTrue(streams.deleteStream(scope, topic));
                }
            }
            streams.close();
        }
    }

    /** Reads for ever, a second at a time. */
    private static final class Consumer implements AutoCloseable {
        private final EventStreamReader<ByteBuffer> reader;
        private final ExecutorService thread = Executors.newSingleThreadExecutor();
        private final Map<Integer, Integer> received = new ConcurrentHashMap<>();
        private final Future<?> reading;
        private volatile boolean closed;

        Consumer(EventStreamReader<ByteBuffer> reader) {
            this.reader = reader;
            reading = thread.submit(this::read);
        }

        private void read() {
            while (!closed) {
                ByteBuffer event = reader.readNextEvent(1000).getEvent();
                if (event != null) {
                    assertTrue(event.getLong() > 0);
                    received.merge(event.getInt(), 1, Integer::sum);
                }
            }
        }

        void awaitExactly(Map<Integer, Integer> expected) throws Exception {
            OpenMessagingTest.awaitExactly(List.of(this), expected);
        }

        @Override
        public void close() throws InterruptedException {
            closed = true;
            thread.shutdown();
            assertTrue(thread.awaitTermination(1, TimeUnit.MINUTES));
            reader.close();
        }
    }

    private static ByteBuffer event(int number) {
        return ByteBuffer.allocate(100).putLong(System.currentTimeMillis()).putInt(number).rewind();
    }

    /** Sends without waiting. */
    private record Producer(EventStreamWriter<ByteBuffer> writer) implements AutoCloseable {
        CompletableFuture<Void> send(String key, int number) {
            return key == null
                    ? writer.writeEvent(event(number))
                    : writer.writeEvent(key, event(number));
        }

        void sendAll(IntFunction<String> keyOf, int first, int count) throws Exception {
            List<Future<Void>> sent = new ArrayList<>();
            for (int number = first; number < first + count; number++) {
                sent.add(send(keyOf == null ? null : keyOf.apply(number), number));
            }
            for (Future<Void> each : sent) {
                each.get(30, TimeUnit.SECONDS);
            }
        }

        @Override
        public void close() {
            writer.close();
        }
    }

    /** Commits when it has so many events, and does not wait until they can be read. */
    private static final class TransactionProducer implements AutoCloseable {
        private final TransactionalEventStreamWriter<ByteBuffer> writer;
        private final int eventsPerTransaction;
        private Transaction<ByteBuffer> transaction;
        private int count;

        TransactionProducer(
                TransactionalEventStreamWriter<ByteBuffer> writer, int eventsPerTransaction) {
            this.writer = writer;
            this.eventsPerTransaction = eventsPerTransaction;
        }

        void send(String key, int number) throws Exception {
            if (transaction == null) {
                transaction = writer.beginTxn();
            }
            if (PROBE_KEY.equals(key)) {
                for (; count < eventsPerTransaction; count++) {
                    transaction.writeEvent(key, event(number));
                }
            }
            if (key == null) {
                transaction.writeEvent(event(number));
            } else {
                transaction.writeEvent(key, event(number));
            }
            if (++count >= eventsPerTransaction) {
                count = 0;
                transaction.commit();
                transaction = null;
            }
        }

        @Override
        public void close() {
            if (transaction != null) {
                transaction.abort();
            }
            writer.close();
        }
    }
}
