package segstore.load;

import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.locks.LockSupport;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.PartitionInfo;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * A Kafka topic whose partitions stand for segments. Clients are set as OpenMessaging Benchmark sets them: acks of all replicas, by default
 * batches of 128 KiB that wait one millisecond, and the clients' own defaults.
 */
final class KafkaTarget implements Target {
    private static final long JOIN_LIMIT_NANOS = 60_000_000_000L;
    private static final long RETRY_NANOS = 50_000_000L;
    private static final int FETCH_BYTES = 10 * 1024 * 1024;

    private final String servers;
    private final String topic;
    private final boolean ownGroups;
    private final double lingerMillis;
    private final int batchBytes;
    private final Admin admin;

    private int partitionCount;
    private int receiverCount = 1;

    /** A target whose senders have the usual batches. */
    KafkaTarget(String servers, String topic) {
        this(servers, topic, false, Options.LINGER_MILLIS_DEFAULT, Options.BATCH_BYTES_DEFAULT);
    }

    /** {@code ownGroups}: each receiver reads all events, in a consumer group of its own. */
    KafkaTarget(String servers, String topic, boolean ownGroups, double lingerMillis, int batchBytes) {
        this.servers = servers;
        this.topic = topic;
        this.ownGroups = ownGroups;
        this.lingerMillis = lingerMillis;
        this.batchBytes = batchBytes;
        this.admin = Admin.create(Map.of("bootstrap.servers", servers));
    }

    @Override
    public void create(int segments, int receivers) {
        partitionCount = segments;
        receiverCount = receivers;
        await(() -> admin.createTopics(List.of(new NewTopic(topic, segments, (short) 1))).all().get());
    }

    @Override
    public Sender sender(int index) {
        Map<String, Object> config = Map.of(
                "bootstrap.servers", servers,
                "acks", "all",
                "linger.ms", Math.round(lingerMillis),
                "batch.size", batchBytes,
                "max.request.size", Options.EVENT_SIZE_MAX + batchBytes);
        return new KafkaSender(new KafkaProducer<>(config, new StringSerializer(), new ByteArraySerializer()));
    }

    private KafkaConsumer<String, byte[]> consumer(String group) {
        Map<String, Object> config = Map.of(
                "bootstrap.servers", servers,
                "group.id", group,
                "auto.offset.reset", "earliest",
                "max.partition.fetch.bytes", FETCH_BYTES);
        return new KafkaConsumer<>(config, new StringDeserializer(), new ByteArrayDeserializer());
    }

    @Override
    public Receiver drainer(int index, int count) {
        return sharer(topic + "-drain", index, count);
    }

    /** Partitions are shared out here: a group would begin again with each member that joins. */
    private Receiver sharer(String group, int index, int count) {
        KafkaConsumer<String, byte[]> consumer = consumer(group);
        List<TopicPartition> own = partitions(consumer).stream()
                .filter(each -> each.partition() % count == index)
                .map(each -> new TopicPartition(topic, each.partition()))
                .toList();
        consumer.assign(own);
        consumer.seekToBeginning(own);
        return new KafkaReceiver(consumer);
    }

    /** All partitions; those of a new topic are not known at once. */
    private List<PartitionInfo> partitions(KafkaConsumer<String, byte[]> consumer) {
        long deadline = System.nanoTime() + JOIN_LIMIT_NANOS;
        while (true) {
            List<PartitionInfo> found = consumer.partitionsFor(topic);
            if (!found.isEmpty() && found.size() >= partitionCount) {
                return found;
            }
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException(found.size() + " partitions are known of " + partitionCount);
            }
            LockSupport.parkNanos(RETRY_NANOS);
        }
    }

    @Override
    public Receiver receiver(int index) {
        if (receiverCount > 1 && !ownGroups) {
            return sharer(topic + "-readers", index, receiverCount);
        }
        KafkaConsumer<String, byte[]> consumer = consumer(topic + "-readers-" + (ownGroups ? index : 0));
        consumer.subscribe(List.of(topic));
        // The first group of a new broker waits long until it may read; no event shall wait with it.
        long deadline = System.nanoTime() + JOIN_LIMIT_NANOS;
        while (consumer.assignment().isEmpty()) {
            if (System.nanoTime() > deadline) {
                throw new IllegalStateException("the reader was not given anything to read");
            }
            consumer.poll(Duration.ofMillis(10));
        }
        return new KafkaReceiver(consumer);
    }

    @Override
    public void delete() {
        await(() -> admin.deleteTopics(List.of(topic)).all().get());
    }

    @Override
    public void close() {
        admin.close();
    }

    /** Something that waits for Kafka. */
    private interface Waiting {
        void run() throws ExecutionException, InterruptedException;
    }

    private static void await(Waiting action) {
        try {
            action.run();
        } catch (ExecutionException e) {
            throw new IllegalStateException(e.getCause());
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(e);
        }
    }

    private final class KafkaSender implements Sender {
        private final KafkaProducer<String, byte[]> producer;

        KafkaSender(KafkaProducer<String, byte[]> producer) {
            this.producer = producer;
        }

        @Override
        public void send(String key, byte[] event, Ack ack) {
            producer.send(new ProducerRecord<>(topic, key, event), (metadata, problem) -> ack.done(problem));
        }

        @Override
        public void close() {
            producer.close();
        }
    }

    private static final class KafkaReceiver implements Receiver {
        private final KafkaConsumer<String, byte[]> consumer;

        KafkaReceiver(KafkaConsumer<String, byte[]> consumer) {
            this.consumer = consumer;
        }

        @Override
        public void receive(long timeoutMillis, java.util.function.Consumer<ByteBuffer> events) {
            consumer.poll(Duration.ofMillis(timeoutMillis)).forEach(record -> events.accept(ByteBuffer.wrap(record.value())));
        }

        @Override
        public void close() {
            consumer.close();
        }
    }
}
