package segstore.controller;

import io.pravega.client.stream.Stream;
import io.pravega.client.stream.Transaction;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import segstore.load.Latencies;

/** Pings of an open transaction and questions where a segment is, beside many calls that wait for a segment store. */
final class WaitingCalls {
    private static final long LEASE_MILLIS = 600_000;

    private final Clients clients;
    private final Stream stream;
    private final UUID transaction;
    private final Latencies pings = new Latencies();
    private final Latencies addresses = new Latencies();

    WaitingCalls(Clients clients, Stream stream, UUID transaction) {
        this.clients = clients;
        this.stream = stream;
        this.transaction = transaction;
    }

    /** The calls are left waiting: whoever stopped the segment store lets it go on. */
    Map<String, Object> run(Arguments arguments) throws Exception {
        List<CompletableFuture<Boolean>> waiting = new ArrayList<>();
        for (int i = 0; i < arguments.count("count"); i++) {
            waiting.add(clients.controller.createStream(Clients.SCOPE, clients.newName("waiting"), Clients.fixed(1)));
        }
        // Until the server has taken all of them up, it is measured how fast it does that.
        Thread.sleep(arguments.nanos("settle") / 1_000_000);
        long end = System.nanoTime() + arguments.nanos("seconds");
        for (int i = 0; System.nanoTime() < end; i++) {
            long began = System.nanoTime();
            var status = Clients.wait(clients.controller.pingTransaction(stream, transaction, LEASE_MILLIS));
            pings.record(System.nanoTime() - began);
            if (status != Transaction.PingStatus.OPEN) {
                throw new IllegalStateException("the transaction is " + status);
            }
            began = System.nanoTime();
            // A name of its own for each, as the client remembers what it was told.
            Clients.wait(clients.controller.getEndpointForSegment(Clients.SCOPE + "/other" + i + "/0.#epoch.0"));
            addresses.record(System.nanoTime() - began);
        }
        long still = waiting.stream().filter(answer -> !answer.isDone()).count();
        return Map.of(
                "ping_ms", Latencies.summary(List.of(pings)),
                "address_ms", Latencies.summary(List.of(addresses)),
                "waiting", still);
    }
}
