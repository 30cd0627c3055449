package segstore.load;

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
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.net.URI;
import java.nio.ByteBuffer;

/** A stream of our own with its reader group, and the clients that write and read it. */
final class LoadStream {
    private final String scope;
    private final String stream;
    private final String group;
    private final StreamManager streams;
    private final ReaderGroupManager groups;
    private final EventStreamClientFactory clients;

    LoadStream(URI controller, String scope, String stream) {
        ClientConfig config = ClientConfig.builder().controllerURI(controller).build();
        this.scope = scope;
        this.stream = stream;
        this.group = stream + "-readers";
        this.streams = StreamManager.create(config);
        this.groups = ReaderGroupManager.withScope(scope, config);
        this.clients = EventStreamClientFactory.withScope(scope, config);
    }

    void create(int segments) {
        streams.createScope(scope);
        boolean created = streams.createStream(scope, stream,
                StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(segments)).build());
        if (!created) {
            throw new IllegalStateException("the stream " + scope + "/" + stream + " exists already");
        }
    }

    void createReaderGroup() {
        groups.createReaderGroup(group, ReaderGroupConfig.builder().stream(Stream.of(scope, stream)).build());
    }

    EventStreamWriter<ByteBuffer> writer(boolean connectionPooling) {
        EventWriterConfig config = EventWriterConfig.builder().enableConnectionPooling(connectionPooling).build();
        return clients.createEventWriter(stream, new ByteBufferSerializer(), config);
    }

    EventStreamReader<ByteBuffer> reader(int index) {
        ReaderConfig config = ReaderConfig.builder().disableTimeWindows(true).build();
        return clients.createReader("reader-" + index, group, new ByteBufferSerializer(), config);
    }

    void deleteReaderGroup() {
        groups.deleteReaderGroup(group);
    }

    void delete() {
        streams.sealStream(scope, stream);
        streams.deleteStream(scope, stream);
    }

    void close() {
        clients.close();
        groups.close();
        streams.close();
    }
}
