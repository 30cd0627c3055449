package compat;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.ByteStreamClientFactory;
import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.byteStream.ByteStreamReader;
import io.pravega.client.byteStream.ByteStreamWriter;
import io.pravega.client.state.Revision;
import io.pravega.client.state.RevisionedStreamClient;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.UUID;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Order;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.parallel.Execution;
import org.junit.jupiter.api.parallel.ExecutionMode;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/**
 * Each API in use while the segment store, or the controller, is killed with kill -9 and comes back:
 * the clients go on by themselves, and what they were told is so.
 */
@Execution(ExecutionMode.CONCURRENT)
@Timeout(300)
class KillTest {
    private static final int EVENT_COUNT = 300;

    @Order(1)
    @RegisterExtension
    final Kills kills = new Kills();

    @Order(2)
    @RegisterExtension
    final TestScope scope = new TestScope();

    @ParameterizedTest
    @ValueSource(strings = {Kills.STORE, Kills.CONTROLLER})
    @Api("killed meanwhile: event writer and reader")
    void eventsAreWrittenAndReadOnceAndInOrder(String victim) throws Exception {
        String stream = scope.createStream(2);
        for (boolean pooled : new boolean[] {true, false}) {
            String key = pooled ? "p" : "o";
            EventWriterConfig config =
                    EventWriterConfig.builder().enableConnectionPooling(pooled).build();
            try (EventStreamWriter<String> writer =
                    scope.clients.createEventWriter(stream, TestScope.TEXT, config)) {
                kills.during(
                        victim,
                        () -> {
                            List<Future<Void>> acks = new ArrayList<>();
                            for (int number = 0; number < EVENT_COUNT; number++) {
                                acks.add(writer.writeEvent(key, key + ":" + number));
                                Thread.sleep(3);
                            }
                            for (Future<Void> ack : acks) {
                                ack.get(60, TimeUnit.SECONDS);
                            }
                        });
            }
        }
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            OrderCheck order = new OrderCheck();
            kills.during(
                    victim,
                    () -> {
                        for (String event : readSlowly(reader, 2 * EVENT_COUNT)) {
                            order.accept(event);
                        }
                    });
            assertEquals(2 * EVENT_COUNT, order.count());
        }
    }

    private static List<String> readSlowly(EventStreamReader<String> reader, int count)
            throws Exception {
        List<String> events = new ArrayList<>();
        Deadline deadline = new Deadline(60);
        Deadline quiet = new Deadline(1);
        while (events.size() < count || !quiet.passed()) {
            assertTrue(!deadline.passed(), "read " + events.size() + " of " + count);
            String event = reader.readNextEvent(TestScope.READ_TIMEOUT_MS).getEvent();
            if (event != null) {
                events.add(event);
                quiet = new Deadline(1);
                Thread.sleep(1);
            }
        }
        return events;
    }

    @ParameterizedTest
    @ValueSource(strings = {Kills.STORE, Kills.CONTROLLER})
    @Api("killed meanwhile: transactions")
    void transactionsBegunBeforeAreCommittedAndAbortedAfter(String victim) throws Exception {
        String stream = scope.createStream(2);
        Stream scoped = Stream.of(scope.name, stream);
        List<String> expected = new ArrayList<>();
        try (TransactionalEventStreamWriter<String> writer = transactions(stream)) {
            Transaction<String> kept = writer.beginTxn();
            Transaction<String> aborted = writer.beginTxn();
            kept.writeEvent("k", "k:0");
            aborted.writeEvent("a", "a:0");
            kept.flush();
            aborted.flush();
            kills.during(
                    victim,
                    () -> {
                        for (int number = 0; number < 20; number++) {
                            Transaction<String> one = writer.beginTxn();
                            one.writeEvent("t", "t:" + number);
                            one.commit();
                            expected.add("t:" + number);
                            Thread.sleep(30);
                        }
                    });
            // Resumed by its id, by a client that knows nothing of it, after the restart.
            UUID id = kept.getTxnId();
            try (TransactionalEventStreamWriter<String> other = transactions(stream)) {
                Transaction<String> resumed = other.getTxn(id);
                assertEquals(Transaction.Status.OPEN, resumed.checkStatus());
                resumed.writeEvent("k", "k:1");
                resumed.commit();
            }
            aborted.abort();
            await(kept, Transaction.Status.COMMITTED);
            await(aborted, Transaction.Status.ABORTED);
            expected.addAll(List.of("k:0", "k:1"));
        }
        List<String> read = scope.readAll(stream, expected.size()).values();
        assertEquals(expected.stream().sorted().toList(), read.stream().sorted().toList());
        OrderCheck order = new OrderCheck();
        read.forEach(order::accept);
    }

    private TransactionalEventStreamWriter<String> transactions(String stream) {
        return scope.clients.createTransactionalEventWriter(
                "writer",
                stream,
                TestScope.TEXT,
                EventWriterConfig.builder().transactionTimeoutTime(60_000).build());
    }

    private static void await(Transaction<String> transaction, Transaction.Status status)
            throws Exception {
        Deadline deadline = new Deadline(30);
        while (transaction.checkStatus() != status) {
            assertTrue(!deadline.passed(), () -> "not " + status + " after 30 s");
            Thread.sleep(20);
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {Kills.STORE, Kills.CONTROLLER})
    @Api("killed meanwhile: byte stream")
    void bytesAreWrittenAndReadOnceAndInOrder(String victim) throws Exception {
        String stream = scope.createStream(1);
        byte[] bytes = new byte[300_000];
        new Random(5).nextBytes(bytes);
        try (ByteStreamClientFactory clients =
                ByteStreamClientFactory.withScope(scope.name, scope.config)) {
            try (ByteStreamWriter writer = clients.createByteStreamWriter(stream)) {
                kills.during(
                        victim,
                        () -> {
                            for (int from = 0; from < bytes.length; from += 1000) {
                                writer.write(bytes, from, 1000);
                                Thread.sleep(3);
                            }
                            writer.flush();
                        });
            }
            try (ByteStreamReader reader = clients.createByteStreamReader(stream)) {
                byte[] read = new byte[bytes.length];
                kills.during(
                        victim,
                        () -> {
                            int filled = 0;
                            while (filled < read.length) {
                                int most = Math.min(1000, read.length - filled);
                                int count = reader.read(read, filled, most);
                                assertTrue(count > 0, "the end after " + filled);
                                filled += count;
                                Thread.sleep(2);
                            }
                        });
                assertArrayEquals(bytes, read);
                assertEquals(bytes.length, reader.fetchTailOffset());
            }
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {Kills.STORE, Kills.CONTROLLER})
    @Api("killed meanwhile: revisioned stream")
    void conditionalWritesHappenOnce(String victim) throws Exception {
        String stream = scope.createStream(1);
        int count = 100;
        try (SynchronizerClientFactory clients =
                        SynchronizerClientFactory.withScope(scope.name, scope.config);
                RevisionedStreamClient<String> client = revisioned(clients, stream);
                RevisionedStreamClient<String> other = revisioned(clients, stream)) {
            kills.during(
                    victim,
                    () -> {
                        Revision at = client.fetchLatestRevision();
                        for (int number = 0; number < count; number++) {
                            Revision next = client.writeConditionally(at, "a:" + number);
                            assertTrue(next != null, "refused at " + number);
                            at = next;
                            Thread.sleep(10);
                        }
                        assertEquals(at, client.fetchLatestRevision());
                    });
            List<String> found = new ArrayList<>();
            Iterator<Map.Entry<Revision, String>> entries =
                    other.readFrom(other.fetchOldestRevision());
            entries.forEachRemaining(entry -> found.add(entry.getValue()));
            assertEquals(TestScope.numbered("a:", 0, count), found);
        }
    }

    private static RevisionedStreamClient<String> revisioned(
            SynchronizerClientFactory clients, String stream) {
        return clients.createRevisionedStreamClient(
                stream, TestScope.TEXT, SynchronizerConfig.builder().build());
    }

    @ParameterizedTest
    @ValueSource(strings = {Kills.STORE, Kills.CONTROLLER})
    @Api("killed meanwhile: batch client")
    void aBatchReadGoesOn(String victim) throws Exception {
        String stream = scope.createStream(2);
        for (String key : List.of("a", "b", "c")) {
            scope.write(stream, key, TestScope.numbered(key + ":", 0, 200));
        }
        OrderCheck order = new OrderCheck();
        try (BatchClientFactory batch = BatchClientFactory.withScope(scope.name, scope.config)) {
            kills.during(
                    victim,
                    () -> {
                        Iterator<SegmentRange> ranges =
                                batch.getSegments(
                                                Stream.of(scope.name, stream),
                                                StreamCut.UNBOUNDED,
                                                StreamCut.UNBOUNDED)
                                        .getIterator();
                        while (ranges.hasNext()) {
                            SegmentRange range = ranges.next();
                            try (SegmentIterator<String> events =
                                    batch.readSegment(range, TestScope.TEXT)) {
                                while (events.hasNext()) {
                                    order.accept(events.next());
                                    Thread.sleep(2);
                                }
                            }
                        }
                    });
        }
        assertEquals(600, order.count());
    }

    @ParameterizedTest
    @ValueSource(strings = {Kills.STORE, Kills.CONTROLLER})
    @Api("killed meanwhile: reader group")
    void aReaderGroupIsCheckpointedAcross(String victim) throws Exception {
        String stream = scope.createStream(2);
        scope.write(stream, "a", TestScope.numbered("a:", 0, EVENT_COUNT));
        scope.write(stream, "b", TestScope.numbered("b:", 0, EVENT_COUNT));
        OrderCheck order = new OrderCheck();
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            try (EventStreamReader<String> first = scope.reader(group, "first")) {
                kills.during(
                        victim,
                        () -> {
                            while (order.count() < EVENT_COUNT) {
                                String event =
                                        first.readNextEvent(TestScope.READ_TIMEOUT_MS).getEvent();
                                if (event != null) {
                                    order.accept(event);
                                    Thread.sleep(3);
                                }
                            }
                        });
            }
            // The group's state says where the closed reader was.
            try (EventStreamReader<String> second = scope.reader(group, "second")) {
                TestScope.readAll(second, 2 * EVENT_COUNT - order.count())
                        .values()
                        .forEach(order::accept);
            }
            assertEquals(2 * EVENT_COUNT, order.count());
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {Kills.STORE, Kills.CONTROLLER})
    @Api("killed meanwhile: stream manager")
    void streamsComeAndGo(String victim) throws Exception {
        StreamManager streams = scope.streams;
        int count = 12;
        kills.during(
                victim,
                () -> {
                    for (int number = 0; number < count; number++) {
                        // A call that is repeated by the client may find its own work: no verdict.
                        streams.createStream(scope.name, "s" + number, TestScope.fixed(2));
                        assertTrue(streams.checkStreamExists(scope.name, "s" + number));
                        if (number % 2 == 0) {
                            assertTrue(streams.sealStream(scope.name, "s" + number));
                            streams.deleteStream(scope.name, "s" + number);
                        }
                        Thread.sleep(50);
                    }
                });
        List<String> left = StreamManagementTest.userStreams(streams.listStreams(scope.name));
        assertEquals(List.of("s1", "s11", "s3", "s5", "s7", "s9"), left.stream().sorted().toList());
        for (String stream : left) {
            scope.write(stream, "a", List.of("a:0"));
            assertEquals(List.of("a:0"), scope.readAll(stream, 1).values());
        }
    }

    @ParameterizedTest
    @ValueSource(strings = {Kills.STORE, Kills.CONTROLLER})
    @Api("killed meanwhile: state synchronizer")
    void everyUpdateOfAStateIsAppliedOnce(String victim) throws Exception {
        String stream = scope.createStream(1);
        int count = 100;
        try (StateSynchronizerTest.Party one = new StateSynchronizerTest.Party(scope, stream);
                StateSynchronizerTest.Party two = new StateSynchronizerTest.Party(scope, stream)) {
            one.state.initialize(new StateSynchronizerTest.Begin(new ArrayList<>()));
            two.state.initialize(new StateSynchronizerTest.Begin(new ArrayList<>()));
            kills.during(
                    victim,
                    () -> {
                        for (int number = 0; number < count; number++) {
                            one.add("one:" + number);
                            two.add("two:" + number);
                            Thread.sleep(5);
                        }
                    });
            assertEquals(one.names(), two.names());
            OrderCheck order = new OrderCheck();
            one.names().forEach(order::accept);
            assertEquals(2 * count, order.count());
        }
    }
}
