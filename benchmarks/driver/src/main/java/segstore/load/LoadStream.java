package segstore.load;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.control.impl.ControllerFailureException;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReinitializationRequiredException;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.TruncatedDataException;
import io.pravega.client.stream.impl.ByteBufferSerializer;
import java.net.URI;
import java.nio.ByteBuffer;
import java.util.concurrent.locks.LockSupport;
import java.util.function.Consumer;

/** A Pravega stream with its reader group, and the official clients that write and read it. */
final class LoadStream implements Target {
    private static final long READY_LIMIT_NANOS = 60_000_000_000L;
    private static final long RETRY_NANOS = 200_000_000L;

    private static final int SCALE_FACTOR = 2;

    private final boolean connectionPooling;
    private final boolean ownGroups;
    private final int scaleAbove;
    private final String scope;
    private final String stream;
    private final StreamManager streams;
    private final ReaderGroupManager groups;
    private final EventStreamClientFactory clients;

    private int groupCount;

    /**
     * {@code ownGroups}: each receiver reads all events, in a reader group of its own. {@code scaleAbove}: events a second above which a
     * segment is split; 0 for never.
     */
    LoadStream(URI controller, String scope, String stream, boolean connectionPooling, boolean ownGroups, int scaleAbove) {
        ClientConfig config = configFor(controller);
        this.connectionPooling = connectionPooling;
        this.ownGroups = ownGroups;
        this.scaleAbove = scaleAbove;
        this.scope = scope;
        this.stream = stream;
        this.streams = StreamManager.create(config);
        this.groups = ReaderGroupManager.withScope(scope, config);
        this.clients = EventStreamClientFactory.withScope(scope, config);
    }

    /**
     * Over TLS the system property {@code load.trustStore} names the certificate of the authority. The client itself reads the user and the
     * password from its environment variables.
     */
    private static ClientConfig configFor(URI controller) {
        ClientConfig.ClientConfigBuilder builder = ClientConfig.builder().controllerURI(controller);
        String authority = System.getProperty("load.trustStore");
        return (authority == null ? builder : builder.trustStore(authority)).build();
    }

    @Override
    public void create(int segments, int receivers) {
        createStream(segments);
        groupCount = ownGroups ? receivers : Math.min(receivers, 1);
        for (int i = 0; i < groupCount; i++) {
            groups.createReaderGroup(group(i), ReaderGroupConfig.builder().stream(Stream.of(scope, stream)).build());
        }
    }

    private String group(int index) {
        return stream + "-readers-" + (ownGroups ? index : 0);
    }

    /** A controller may accept before its segment stores do, and then fails what it is asked; that passes. */
    private void createStream(int segments) {
        long deadline = System.nanoTime() + READY_LIMIT_NANOS;
        for (boolean isFirst = true;; isFirst = false) {
            try {
                streams.createScope(scope);
                ScalingPolicy policy = scaleAbove == 0
                        ? ScalingPolicy.fixed(segments) : ScalingPolicy.byEventRate(scaleAbove, SCALE_FACTOR, segments);
                boolean created = streams.createStream(scope, stream, StreamConfiguration.builder().scalingPolicy(policy).build());
                // An attempt that failed may have created it all the same.
                if (!created && isFirst) {
                    throw new IllegalArgumentException("the stream " + scope + "/" + stream + " exists already");
                }
                return;
            } catch (ControllerFailureException e) {
                if (System.nanoTime() > deadline) {
                    throw e;
                }
                LockSupport.parkNanos(RETRY_NANOS);
            }
        }
    }

    @Override
    public Sender sender(int index) {
        EventWriterConfig config = EventWriterConfig.builder().enableConnectionPooling(connectionPooling).build();
        return new WriterSender(clients.createEventWriter(stream, new ByteBufferSerializer(), config));
    }

    @Override
    public Receiver receiver(int index) {
        ReaderConfig config = ReaderConfig.builder().disableTimeWindows(true).build();
        return new ReaderReceiver(clients.createReader("reader-" + index, group(index), new ByteBufferSerializer(), config));
    }

    @Override
    public Receiver drainer(int index, int count) {
        String drain = stream + "-drain";
        if (index == 0) {
            groups.createReaderGroup(drain, ReaderGroupConfig.builder().stream(Stream.of(scope, stream)).build());
        }
        ReaderConfig config = ReaderConfig.builder().disableTimeWindows(true).build();
        return new ReaderReceiver(clients.createReader("drainer-" + index, drain, new ByteBufferSerializer(), config));
    }

    @Override
    public void delete() {
        for (int i = 0; i < groupCount; i++) {
            groups.deleteReaderGroup(group(i));
        }
        streams.sealStream(scope, stream);
        streams.deleteStream(scope, stream);
    }

    @Override
    public void close() {
        clients.close();
        groups.close();
        streams.close();
    }

    private record WriterSender(EventStreamWriter<ByteBuffer> writer) implements Sender {
        @Override
        public void send(String key, byte[] event, Ack ack) {
            ByteBuffer data = ByteBuffer.wrap(event);
            var written = key == null ? writer.writeEvent(data) : writer.writeEvent(key, data);
            written.whenComplete((nothing, problem) -> ack.done(problem));
        }

        @Override
        public void close() {
            writer.close();
        }
    }

    private record ReaderReceiver(EventStreamReader<ByteBuffer> reader) implements Receiver {
        @Override
        public void receive(long timeoutMillis, Consumer<ByteBuffer> events) {
            try {
                // No event: the time-out has passed, or the group is at a checkpoint.
                EventRead<ByteBuffer> next = reader.readNextEvent(timeoutMillis);
                if (next.getEvent() != null) {
                    events.accept(next.getEvent());
                }
            } catch (ReinitializationRequiredException | TruncatedDataException e) {
                throw new IllegalStateException(e);
            }
        }

        @Override
        public void close() {
            reader.close();
        }
    }
}
