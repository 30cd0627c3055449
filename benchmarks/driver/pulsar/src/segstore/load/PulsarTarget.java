package segstore.load;

import java.io.IOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.SubscriptionInitialPosition;
import org.apache.pulsar.client.api.SubscriptionType;
import org.apache.pulsar.client.api.TypedMessageBuilder;

/**
 * A partitioned topic of Pulsar whose partitions stand for segments. Producers are set as OpenMessaging Benchmark sets them: by default batches
 * of 128 KiB that wait one millisecond, and a producer that waits while the client's memory is full; all else is the client's default. The
 * address is that of the web service, from which the client learns the broker's.
 */
final class PulsarTarget implements Target {
    private static final String NAMESPACE = "public/default";

    private final String address;
    private final String topic;
    private final boolean ownGroups;
    private final long lingerMillis;
    private final int batchBytes;
    private final HttpClient http = HttpClient.newHttpClient();
    private final PulsarClient client;

    private int receiverCount;

    /** {@code ownGroups}: each receiver reads all events, by a subscription of its own. */
    PulsarTarget(String address, String topic, boolean ownGroups, double lingerMillis, int batchBytes) {
        this.address = address;
        this.topic = topic;
        this.ownGroups = ownGroups;
        // The client refuses less.
        this.lingerMillis = Math.max(1, Math.round(lingerMillis));
        this.batchBytes = batchBytes;
        try {
            this.client = PulsarClient.builder().serviceUrl(address).build();
        } catch (PulsarClientException e) {
            throw new IllegalStateException(e);
        }
    }

    @Override
    public void create(int segments, int receivers) {
        receiverCount = receivers;
        ask("PUT", "", Integer.toString(segments));
    }

    @Override
    public Sender sender(int index) {
        ProducerBuilder<byte[]> builder = client.newProducer().topic(topic).blockIfQueueFull(true).enableBatching(batchBytes > 0);
        if (batchBytes > 0) {
            builder.batchingMaxPublishDelay(lingerMillis, TimeUnit.MILLISECONDS)
                    .batchingMaxBytes(batchBytes)
                    .batchingMaxMessages(Integer.MAX_VALUE);
        }
        return new PulsarSender(await(builder.createAsync()));
    }

    @Override
    public Receiver receiver(int index) {
        return ownGroups ? receiver("readers-" + index, 0, 1) : receiver("readers", index, receiverCount);
    }

    @Override
    public Receiver drainer(int index, int count) {
        return receiver("drain", index, count);
    }

    /** Receivers share the partitions out themselves: a subscription would move them with each consumer that comes. */
    private Receiver receiver(String subscription, int index, int count) {
        List<String> all = await(client.getPartitionsForTopic(topic, false));
        List<String> own = new ArrayList<>();
        for (int partition = index; partition < all.size(); partition += count) {
            own.add(all.get(partition));
        }
        if (own.isEmpty()) {
            throw new IllegalStateException("reader " + index + " has nothing to read: there are " + all.size() + " segments");
        }
        return new PulsarReceiver(await(client.newConsumer()
                .topics(own)
                .subscriptionName(subscription)
                .subscriptionType(SubscriptionType.Exclusive)
                .subscriptionInitialPosition(SubscriptionInitialPosition.Earliest)
                .subscribeAsync()));
    }

    @Override
    public void delete() {
        ask("DELETE", "?force=true", "");
    }

    @Override
    public void close() {
        await(client.closeAsync());
    }

    /** Asks the broker for something that concerns the partitioned topic. */
    private void ask(String method, String query, String body) {
        URI uri = URI.create(address + "/admin/v2/persistent/" + NAMESPACE + "/" + topic + "/partitions" + query);
        HttpRequest request = HttpRequest.newBuilder(uri)
                .header("Content-Type", "application/json")
                .method(method, HttpRequest.BodyPublishers.ofString(body))
                .build();
        try {
            HttpResponse<String> answer = http.send(request, HttpResponse.BodyHandlers.ofString());
            if (answer.statusCode() / 100 != 2) {
                throw new IllegalStateException(method + " " + uri + ": " + answer.statusCode() + " " + answer.body());
            }
        } catch (IOException e) {
            throw new IllegalStateException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(e);
        }
    }

    private static <T> T await(CompletableFuture<T> future) {
        try {
            return future.get();
        } catch (ExecutionException e) {
            throw new IllegalStateException(e.getCause());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(e);
        }
    }

    private record PulsarSender(Producer<byte[]> producer) implements Sender {
        @Override
        public void send(String key, byte[] event, Ack ack) {
            TypedMessageBuilder<byte[]> message = producer.newMessage().value(event);
            (key == null ? message : message.key(key)).sendAsync().whenComplete((id, problem) -> ack.done(problem));
        }

        @Override
        public void close() {
            await(producer.closeAsync());
        }
    }

    private record PulsarReceiver(Consumer<byte[]> consumer) implements Receiver {
        @Override
        public void receive(long timeoutMillis, java.util.function.Consumer<ByteBuffer> events) {
            try {
                Message<byte[]> next = consumer.receive((int) timeoutMillis, TimeUnit.MILLISECONDS);
                if (next != null) {
                    events.accept(ByteBuffer.wrap(next.getData()));
                    consumer.acknowledgeAsync(next);
                }
            } catch (PulsarClientException e) {
                throw new IllegalStateException(e);
            }
        }

        @Override
        public void close() {
            await(consumer.closeAsync());
        }
    }
}
