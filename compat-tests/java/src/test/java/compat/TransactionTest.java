package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TxnFailedException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.atomic.AtomicBoolean;
import java.util.stream.Collectors;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Transactions: all of one or nothing, in the order of the commits, across scales and leases. */
@Api("transactions")
class TransactionTest {
    private static final long LEASE_MS = 30_000;

    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void aCommittedTransactionIsReadWholeAndInOrder() throws Exception {
        String stream = scope.createStream(3);
        try (TransactionalEventStreamWriter<String> writer = writer(stream, LEASE_MS)) {
            List<String> expected = new ArrayList<>();
            for (int number = 0; number < 20; number++) {
                Transaction<String> transaction = writer.beginTxn();
                write(transaction, "t" + number + "-", expected);
                assertEquals(Transaction.Status.OPEN, transaction.checkStatus());
                commit(transaction);
            }
            List<String> read = scope.readAll(stream, expected.size()).values();
            for (String key : keys()) {
                assertEquals(withKey(expected, key), withKey(read, key));
            }
            assertEquals(expected.size(), read.size());
        }
    }

    @Test
    void transactionsAreReadInTheOrderOfTheirCommits() throws Exception {
        String stream = scope.createStream(1);
        try (TransactionalEventStreamWriter<String> writer = writer(stream, LEASE_MS)) {
            Transaction<String> first = writer.beginTxn();
            Transaction<String> second = writer.beginTxn();
            Transaction<String> third = writer.beginTxn();
            first.writeEvent("k", "first");
            second.writeEvent("k", "second");
            third.writeEvent("k", "third");
            third.commit();
            first.commit();
            second.commit();
            assertEquals(List.of("third", "first", "second"), scope.readAll(stream, 3).values());
        }
    }

    @Test
    void anAbortedTransactionIsNeverRead() throws Exception {
        String stream = scope.createStream(2);
        try (TransactionalEventStreamWriter<String> writer = writer(stream, LEASE_MS)) {
            Transaction<String> aborted = writer.beginTxn();
            write(aborted, "aborted-", new ArrayList<>());
            Transaction<String> open = writer.beginTxn();
            write(open, "open-", new ArrayList<>());
            aborted.abort();
            await(aborted, Transaction.Status.ABORTED);
            assertThrows(TxnFailedException.class, aborted::commit);
            Transaction<String> committed = writer.beginTxn();
            committed.writeEvent("k", "committed");
            commit(committed);
            assertEquals(List.of("committed"), scope.readAll(stream, 1).values());
            open.abort();
        }
    }

    @Test
    @Api("transactions: leases")
    void aLeaseThatNobodyRenewsAbortsAndPingsKeepItAlive() throws Exception {
        String stream = scope.createStream(1);
        Stream scoped = Stream.of(scope.name, stream);
        try (TransactionalEventStreamWriter<String> alive = writer(stream, 10_000);
                ControllerAccess access = new ControllerAccess(scope.config)) {
            Transaction<String> kept = alive.beginTxn();
            // The client's own stub begins one that no writer renews.
            UUID left = access.controller.createTransaction(scoped, 10_000).get().getTxnId();
            Transaction.Status status = access.controller.checkTransactionStatus(scoped, left).get();
            assertEquals(Transaction.Status.OPEN, status);
            Deadline deadline = new Deadline(25);
            while (status != Transaction.Status.ABORTED && !deadline.passed()) {
                Thread.sleep(500);
                status = access.controller.checkTransactionStatus(scoped, left).get();
            }
            assertEquals(Transaction.Status.ABORTED, status);
            assertEquals(Transaction.Status.OPEN, kept.checkStatus());
            kept.writeEvent("k", "kept");
            commit(kept);
        }
        assertEquals(List.of("kept"), scope.readAll(stream, 1).values());
    }

    @Test
    @Api("transactions: resumed by id")
    void aTransactionIsResumedByItsIdAfterAPartialScale() throws Exception {
        String stream = scope.createStream(2);
        try (TransactionalEventStreamWriter<String> writer = writer(stream, LEASE_MS);
                ControllerAccess controller = new ControllerAccess(scope.config)) {
            // The upper segment stays what it was: its id keeps the epoch that created it.
            controller.scale(scope.name, stream, List.of(0.25), Map.of(0.0, 0.25, 0.25, 0.5));
            List<String> expected = new ArrayList<>();
            Transaction<String> begun = writer.beginTxn();
            write(begun, "begun-", expected);
            begun.flush();
            try (TransactionalEventStreamWriter<String> other = writer(stream, LEASE_MS)) {
                Transaction<String> resumed = other.getTxn(begun.getTxnId());
                write(resumed, "resumed-", expected);
                commit(resumed);
            }
            List<String> read = scope.readAll(stream, expected.size()).values();
            assertEquals(expected.stream().sorted().toList(), read.stream().sorted().toList());
        }
    }

    @Test
    @Api("transactions: across scales")
    void transactionsCrossScalesThatReadersAndWritersFollow() throws Exception {
        String stream = scope.createStream(1);
        List<String> expected = new ArrayList<>();
        AtomicBoolean writing = new AtomicBoolean(true);
        List<String> events = new ArrayList<>();
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader");
                TransactionalEventStreamWriter<String> writer = writer(stream, LEASE_MS);
                ControllerAccess controller = new ControllerAccess(scope.config)) {
            Parallel work =
                    new Parallel()
                            .add(() -> writeUntilTold(stream, writing, events))
                            .add(
                                    () -> {
                                        try {
                                            crossScales(stream, writer, controller, expected);
                                            // A writer closed while it still re-sends what the
                                            // last epoch sealed may wait for ever, anywhere.
                                            Thread.sleep(1000);
                                        } finally {
                                            writing.set(false);
                                        }
                                    });
            work.run();
            List<String> all = new ArrayList<>(expected);
            all.addAll(events);
            List<String> read = TestScope.readAll(reader, all.size()).values();
            assertEquals(all.stream().sorted().toList(), read.stream().sorted().toList());
            assertEquals(events, withKey(read, "event"));
            for (String key : keys()) {
                assertEquals(withKey(expected, key), withKey(read, key));
            }
            // From the head: over every duplicate epoch again.
            assertEquals(
                    all.stream().sorted().toList(),
                    scope.readAll(stream, all.size()).values().stream().sorted().toList());
        }
    }

    @Test
    void sealingAbortsWhatIsOpenAndKeepsWhatIsCommitted() throws Exception {
        String stream = scope.createStream(2);
        try (TransactionalEventStreamWriter<String> writer = writer(stream, LEASE_MS)) {
            Transaction<String> open = writer.beginTxn();
            open.writeEvent("k", "open");
            open.flush();
            Transaction<String> committed = writer.beginTxn();
            committed.writeEvent("k", "committed");
            committed.commit();
            assertTrue(scope.streams.sealStream(scope.name, stream));
            assertEquals(Transaction.Status.ABORTED, open.checkStatus());
            assertEquals(Transaction.Status.COMMITTED, committed.checkStatus());
            assertThrows(TxnFailedException.class, open::commit);
            assertEquals(List.of("committed"), scope.readAll(stream, 1).values());
            assertTrue(scope.streams.deleteStream(scope.name, stream));
        }
    }

    private void crossScales(
            String stream,
            TransactionalEventStreamWriter<String> writer,
            ControllerAccess controller,
            List<String> expected)
            throws Exception {
        List<Map<Double, Double>> ranges =
                List.of(Map.of(0.0, 0.25, 0.25, 1.0), Map.of(0.0, 1.0));
        List<List<Double>> places = List.of(List.of(0.5), List.of(0.1, 0.9));
        for (int round = 0; round < ranges.size(); round++) {
            Transaction<String> before = writer.beginTxn();
            Transaction<String> alsoBefore = writer.beginTxn();
            write(before, "before" + round + "-", expected);
            write(alsoBefore, "alsobefore" + round + "-", expected);
            controller.scale(scope.name, stream, places.get(round), ranges.get(round));
            before.commit();
            commit(alsoBefore);
            await(before, Transaction.Status.COMMITTED);
            Transaction<String> after = writer.beginTxn();
            write(after, "after" + round + "-", expected);
            commit(after);
        }
    }

    private void writeUntilTold(String stream, AtomicBoolean writing, List<String> events)
            throws Exception {
        try (EventStreamWriter<String> writer = scope.writer(stream)) {
            for (int number = 0; writing.get(); number++) {
                String event = "event:" + number;
                writer.writeEvent("event", event).get();
                events.add(event);
                Thread.sleep(2);
            }
        }
    }

    private TransactionalEventStreamWriter<String> writer(String stream, long leaseMs) {
        return scope.clients.createTransactionalEventWriter(
                "writer",
                stream,
                TestScope.TEXT,
                EventWriterConfig.builder().transactionTimeoutTime(leaseMs).build());
    }

    /** Writes three events of each key, each of which begins with its key. */
    private static void write(
            Transaction<String> transaction, String prefix, List<String> expected)
            throws TxnFailedException {
        for (int number = 0; number < 3; number++) {
            for (String key : keys()) {
                String event = key + ":" + prefix + number;
                transaction.writeEvent(key, event);
                expected.add(event);
            }
        }
    }

    private static List<String> keys() {
        return List.of("a", "b", "c", "d", "e");
    }

    private static List<String> withKey(List<String> events, String key) {
        return events.stream()
                .filter(event -> event.startsWith(key + ":"))
                .collect(Collectors.toList());
    }

    private static void commit(Transaction<String> transaction) throws Exception {
        transaction.commit();
        await(transaction, Transaction.Status.COMMITTED);
    }

    private static void await(Transaction<String> transaction, Transaction.Status status)
            throws Exception {
        Deadline deadline = new Deadline(30);
        while (transaction.checkStatus() != status) {
            assertTrue(!deadline.passed(), () -> "not " + status + " after 30 s");
            Thread.sleep(5);
        }
    }
}
