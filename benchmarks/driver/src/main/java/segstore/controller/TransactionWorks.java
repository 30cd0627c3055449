package segstore.controller;

import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import io.pravega.client.stream.TransactionalEventStreamWriter;
import io.pravega.client.stream.TxnFailedException;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.UUID;
import java.util.concurrent.locks.LockSupport;
import segstore.load.Latencies;

/** Works about transactions. */
final class TransactionWorks {
    static final int EVENT_BYTES = 100;
    private static final int UNDER_WAY = 64;
    private static final long LEASE_MILLIS = 600_000;
    private static final long POLL_NANOS = 1_000_000L;

    private final Clients clients;
    private Stream openOn;
    private final List<UUID> open = new ArrayList<>();

    TransactionWorks(Clients clients) {
        this.clients = clients;
    }

    void addTo(Map<String, ControllerDriver.Work> works) {
        works.put("commit", this::commit);
        works.put("rate", arguments -> new TransactionLoad(clients, arguments, false).run());
        works.put("split", arguments -> new TransactionLoad(clients, arguments, true).run());
        works.put("begin", this::begin);
        works.put("open", this::open);
        works.put("states", this::states);
        works.put("wait", arguments -> new WaitingCalls(clients, openOn, open.get(0)).run(arguments));
    }

    /** Begin, write one event, commit, ask until it is committed; one after the other. */
    private Map<String, Object> commit(Arguments arguments) throws TxnFailedException {
        Stream stream = clients.createStream(clients.newName("commit"), arguments.count("segments"));
        Latencies latencies = new Latencies();
        EventWriterConfig config = transactionalConfig();
        try (TransactionalEventStreamWriter<ByteBuffer> writer = clients.factory.createTransactionalEventWriter(
                "writer", stream.getStreamName(), new ByteBufferSerializer(), config)) {
            commitUntil(System.nanoTime() + arguments.nanos("warmup"), writer, new Latencies());
            commitUntil(System.nanoTime() + arguments.nanos("seconds"), writer, latencies);
        }
        return Map.of("latency_ms", Latencies.summary(List.of(latencies)));
    }

    /**
     * Shared connections: the client holds the buffer of 1 MiB of each connection for 20 s, also after its end. With a connection for each
     * transaction and segment a heap of 1 GiB is full after some 1,000 of them, and the client then fails or waits for 30 s.
     */
    static EventWriterConfig transactionalConfig() {
        return EventWriterConfig.builder().enableConnectionPooling(true).build();
    }

    private static void commitUntil(long end, TransactionalEventStreamWriter<ByteBuffer> writer, Latencies latencies)
            throws TxnFailedException {
        while (System.nanoTime() < end) {
            long began = System.nanoTime();
            Transaction<ByteBuffer> transaction = writer.beginTxn();
            transaction.writeEvent(ByteBuffer.allocate(EVENT_BYTES));
            transaction.commit();
            awaitCommitted(transaction, POLL_NANOS);
            latencies.record(System.nanoTime() - began);
        }
    }

    static void awaitCommitted(Transaction<?> transaction, long pollNanos) {
        for (Transaction.Status status = transaction.checkStatus(); status != Transaction.Status.COMMITTED;
                status = transaction.checkStatus()) {
            if (status == Transaction.Status.ABORTED || status == Transaction.Status.ABORTING) {
                throw new IllegalStateException("transaction " + transaction.getTxnId() + " is " + status);
            }
            LockSupport.parkNanos(pollNanos);
        }
    }

    /** Begins on a stream of many segments. No writer is opened for them: the controller alone is asked. */
    private Map<String, Object> begin(Arguments arguments) throws Exception {
        Stream stream = clients.createStream(clients.newName("begin"), arguments.count("segments"));
        Latencies latencies = new Latencies();
        for (int i = 0; i < arguments.count("count"); i++) {
            long began = System.nanoTime();
            UUID begun = Clients.wait(clients.controller.createTransaction(stream, LEASE_MILLIS)).getTxnId();
            latencies.record(System.nanoTime() - began);
            Clients.wait(clients.controller.abortTransaction(stream, begun));
            while (Clients.wait(clients.controller.checkTransactionStatus(stream, begun)) != Transaction.Status.ABORTED) {
                LockSupport.parkNanos(POLL_NANOS);
            }
        }
        return Map.of("latency_ms", Latencies.summary(List.of(latencies)));
    }

    /** Begins transactions that stay open, all on one stream. */
    private Map<String, Object> open(Arguments arguments) throws Exception {
        if (openOn == null) {
            openOn = clients.createStream(clients.newName("open"), arguments.count("segments"));
        }
        long began = System.nanoTime();
        Clients.all(arguments.count("count"), UNDER_WAY, i -> clients.controller.createTransaction(openOn, LEASE_MILLIS))
                .forEach(begun -> open.add(begun.getTxnId()));
        return Map.of("seconds", Clients.seconds(began), "open", open.size());
    }

    /** In which states the transactions are that were opened. */
    private Map<String, Object> states(Arguments arguments) throws Exception {
        Map<String, Object> counts = new LinkedHashMap<>();
        Map<String, Long> found = new TreeMap<>();
        Clients.all(open.size(), UNDER_WAY, i -> clients.controller.checkTransactionStatus(openOn, open.get(i)))
                .forEach(status -> found.merge(status.name(), 1L, Long::sum));
        counts.putAll(found);
        return Map.of("states", counts);
    }
}
