package compat;

import io.pravega.client.BatchClientFactory;
import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.batch.SegmentIterator;
import io.pravega.client.batch.SegmentRange;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.impl.JavaSerializer;
import io.pravega.shared.security.auth.DefaultCredentials;
import java.net.URI;
import java.util.Iterator;

/**
 * A writer, a reader and a batch reader that say everything about TLS and their user by
 * ClientConfig, as the secure samples of the client do: {@code write|read|batch SCOPE STREAM USER
 * VALIDATE}. The environment variable SECURE_SAMPLE_PASSWORD has the password.
 */
final class SecureSample {
    private static final int EVENTS = 20;
    private static final JavaSerializer<String> TEXT = new JavaSerializer<>();

    private SecureSample() {}

    public static void main(String[] arguments) throws Exception {
        String scope = arguments[1];
        String stream = arguments[2];
        ClientConfig config =
                ClientConfig.builder()
                        .controllerURI(URI.create(System.getProperty("compat.controller")))
                        .trustStore(System.getProperty("compat.trustStore"))
                        .validateHostName(Boolean.parseBoolean(arguments[4]))
                        .credentials(
                                new DefaultCredentials(
                                        System.getenv("SECURE_SAMPLE_PASSWORD"), arguments[3]))
                        .build();
        switch (arguments[0]) {
            case "write" -> write(scope, stream, config);
            case "read" -> read(scope, stream, config);
            case "batch" -> readBatch(scope, stream, config);
            default -> throw new IllegalArgumentException(arguments[0]);
        }
    }

    private static void write(String scope, String stream, ClientConfig config) {
        try (StreamManager streams = StreamManager.create(config)) {
            streams.createScope(scope);
            streams.createStream(scope, stream, TestScope.fixed(1));
        }
        try (EventStreamClientFactory clients = EventStreamClientFactory.withScope(scope, config);
                EventStreamWriter<String> writer =
                        clients.createEventWriter(
                                stream, TEXT, EventWriterConfig.builder().build())) {
            for (int number = 0; number < EVENTS; number++) {
                writer.writeEvent("key", "event " + number);
            }
            writer.flush();
        }
    }

    private static void read(String scope, String stream, ClientConfig config) {
        String group = TestScope.unique("group");
        try (ReaderGroupManager groups = ReaderGroupManager.withScope(scope, config);
                EventStreamClientFactory clients =
                        EventStreamClientFactory.withScope(scope, config)) {
            groups.createReaderGroup(
                    group,
                    ReaderGroupConfig.builder().stream(Stream.of(scope, stream))
                            .disableAutomaticCheckpoints()
                            .build());
            try (EventStreamReader<String> reader =
                    clients.createReader("reader", group, TEXT, ReaderConfig.builder().build())) {
                Deadline deadline = new Deadline(60);
                for (int count = 0; count < EVENTS && !deadline.passed(); ) {
                    EventRead<String> read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
                    if (read.getEvent() != null) {
                        System.out.println(read.getEvent());
                        count++;
                    }
                }
            }
        }
    }

    private static void readBatch(String scope, String stream, ClientConfig config) {
        try (BatchClientFactory batch = BatchClientFactory.withScope(scope, config)) {
            Iterator<SegmentRange> ranges =
                    batch.getSegments(
                                    Stream.of(scope, stream),
                                    StreamCut.UNBOUNDED,
                                    StreamCut.UNBOUNDED)
                            .getIterator();
            while (ranges.hasNext()) {
                try (SegmentIterator<String> events = batch.readSegment(ranges.next(), TEXT)) {
                    events.forEachRemaining(System.out::println);
                }
            }
        }
    }
}
