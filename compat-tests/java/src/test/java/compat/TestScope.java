package compat;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamInfo;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventPointer;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Serializer;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeEachCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/**
 * A scope of its own for one test, on the server named by the system property
 * {@code compat.controller} (or the environment variable SEGSTORE_COMPAT_TARGET), and the client
 * objects a test needs to work in it. All of them are closed after the test.
 */
final class TestScope implements BeforeEachCallback, AfterEachCallback {
    /** Reads wait this long at most: a 0.13 reader may sleep out its whole time-out beside data. */
    static final long READ_TIMEOUT_MS = 200;

    static final Serializer<String> TEXT = new UTF8StringSerializer();

    String name;
    URI controller = controllerUri();
    ClientConfig config;
    StreamManager streams;
    EventStreamClientFactory clients;
    ReaderGroupManager groups;

    /** What one full read of a stream returned, in order. */
    record Events(List<String> values, List<EventPointer> pointers) {}

    static URI controllerUri() {
        String fromEnvironment =
                System.getenv().getOrDefault("SEGSTORE_COMPAT_TARGET", "tcp://127.0.0.1:9090");
        return URI.create(System.getProperty("compat.controller", fromEnvironment));
    }

    /**
     * The client's settings for a controller. Over TLS the system property
     * {@code compat.trustStore} names the certificate of the authority; the client itself reads the
     * user and the password from its own environment variables.
     */
    static ClientConfig configFor(URI controller) {
        var builder = ClientConfig.builder().controllerURI(controller);
        String authority = System.getProperty("compat.trustStore");
        return (authority == null ? builder : builder.trustStore(authority)).build();
    }

    static String unique(String prefix) {
        return prefix + "-" + UUID.randomUUID().toString().substring(0, 8);
    }

    @Override
    public void beforeEach(ExtensionContext context) {
        // A suite may have a port of its own, where its calls are counted.
        String suite = context.getRequiredTestClass().getSimpleName();
        String own = System.getProperty("compat.controller." + suite);
        controller = own == null ? controllerUri() : URI.create(own);
        open(unique("compat"));
    }

    /** Opens the clients and creates the scope: for programs that are no JUnit test. */
    void open(String scopeName) {
        name = scopeName;
        config = configFor(controller);
        streams = StreamManager.create(config);
        streams.createScope(name);
        clients = EventStreamClientFactory.withScope(name, config);
        groups = ReaderGroupManager.withScope(name, config);
    }

    @Override
    public void afterEach(ExtensionContext context) {
        groups.close();
        clients.close();
        streams.close();
    }

    String createStream(int segmentCount) {
        String stream = unique("stream");
        streams.createStream(name, stream, fixed(segmentCount));
        return stream;
    }

    static StreamConfiguration fixed(int segmentCount) {
        return StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(segmentCount))
                .build();
    }

    EventStreamWriter<String> writer(String stream) {
        return clients.createEventWriter(stream, TEXT, EventWriterConfig.builder().build());
    }

    /** Writes the events under one routing key and waits until all are acknowledged. */
    void write(String stream, String routingKey, List<String> events) throws Exception {
        try (EventStreamWriter<String> writer = writer(stream)) {
            List<Future<Void>> acks = new ArrayList<>();
            for (String event : events) {
                acks.add(writer.writeEvent(routingKey, event));
            }
            writer.flush();
            for (Future<Void> ack : acks) {
                ack.get(30, TimeUnit.SECONDS);
            }
        }
    }

    ReaderGroupConfig.ReaderGroupConfigBuilder groupConfig(String stream) {
        return ReaderGroupConfig.builder()
                .stream(Stream.of(name, stream))
                .automaticCheckpointIntervalMillis(1000)
                .groupRefreshTimeMillis(500);
    }

    ReaderGroup createGroup(ReaderGroupConfig groupConfig) {
        String group = unique("group");
        groups.createReaderGroup(group, groupConfig);
        return groups.getReaderGroup(group);
    }

    EventStreamReader<String> reader(ReaderGroup group, String id) {
        return clients.createReader(id, group.getGroupName(), TEXT, ReaderConfig.builder().build());
    }

    /**
     * Reads a stream from its head with a new group until {@code count} events came, and then on
     * until nothing came for a second, so that an event too many is noticed. A stream of many epochs
     * takes long, since readers hand segments over at their leisure: only silence is a failure.
     */
    Events readAll(String stream, int count) {
        return readAll(groupConfig(stream).build(), count);
    }

    Events readAll(ReaderGroupConfig groupConfig, int count) {
        try (ReaderGroup group = createGroup(groupConfig);
                EventStreamReader<String> reader = reader(group, "reader")) {
            return readAll(reader, count);
        }
    }

    static Events readAll(EventStreamReader<String> reader, int count) {
        Events events = new Events(new ArrayList<>(), new ArrayList<>());
        Deadline deadline = new Deadline(60);
        Deadline quiet = new Deadline(1);
        while (events.values.size() < count || !quiet.passed()) {
            EventRead<String> read = reader.readNextEvent(READ_TIMEOUT_MS);
            if (read.getEvent() != null) {
                events.values.add(read.getEvent());
                events.pointers.add(read.getEventPointer());
                quiet = new Deadline(1);
                deadline = new Deadline(60);
            }
            if (deadline.passed()) {
                throw new AssertionError(
                        "no event in 60 s after " + events.values.size() + " of " + count);
            }
        }
        return events;
    }

    /** Stream information, by whichever of its two names this client version has. */
    StreamInfo info(String stream) throws Exception {
        try {
            Object future =
                    StreamManager.class
                            .getMethod("fetchStreamInfo", String.class, String.class)
                            .invoke(streams, name, stream);
            return (StreamInfo) ((Future<?>) future).get(30, TimeUnit.SECONDS);
        } catch (NoSuchMethodException olderClient) {
            return (StreamInfo)
                    StreamManager.class
                            .getMethod("getStreamInfo", String.class, String.class)
                            .invoke(streams, name, stream);
        }
    }

    static List<String> numbered(String prefix, int from, int to) {
        List<String> events = new ArrayList<>();
        for (int number = from; number < to; number++) {
            events.add(prefix + number);
        }
        return events;
    }
}
