package compat;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.impl.JavaSerializer;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;

/**
 * Readers of a group that stay online until they are told to go: {@code SCOPE STREAM GROUP
 * READER...}. It says "online" when they are, and then, for each line that it reads, lets the first
 * reader go and says "offline"; it ends with its input.
 */
final class HeldReaders {
    private HeldReaders() {}

    public static void main(String[] arguments) throws Exception {
        String scope = arguments[0];
        ClientConfig config =
                ClientConfig.builder()
                        .controllerURI(URI.create(System.getProperty("compat.controller")))
                        .build();
        try (StreamManager streams = StreamManager.create(config)) {
            streams.createScope(scope);
            streams.createStream(scope, arguments[1], TestScope.fixed(1));
        }
        List<EventStreamReader<String>> readers = new ArrayList<>();
        try (ReaderGroupManager groups = ReaderGroupManager.withScope(scope, config);
                EventStreamClientFactory clients =
                        EventStreamClientFactory.withScope(scope, config)) {
            groups.createReaderGroup(
                    arguments[2],
                    ReaderGroupConfig.builder().stream(Stream.of(scope, arguments[1])).build());
            for (int number = 3; number < arguments.length; number++) {
                readers.add(
                        clients.createReader(
                                arguments[number],
                                arguments[2],
                                new JavaSerializer<String>(),
                                ReaderConfig.builder().build()));
            }
            System.out.println("online");
            while (System.in.read() == '\n') {
                readers.remove(0).close();
                System.out.println("offline");
            }
            readers.forEach(EventStreamReader::close);
        }
    }
}
