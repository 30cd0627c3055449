package compat;

import io.pravega.client.ClientConfig;
import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.state.InitialUpdate;
import io.pravega.client.state.Revision;
import io.pravega.client.state.Revisioned;
import io.pravega.client.state.StateSynchronizer;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.state.Update;
import io.pravega.client.stream.Serializer;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.function.Function;

/**
 * Names that programs share, as texts of UTF-8: {@code SCOPE STREAM NAME}. It makes scope and
 * stream, and begins with the one name; then it answers each line with a line: {@code add NAME},
 * {@code names}, {@code compact}.
 */
final class SharedNames implements Revisioned {
    private final String scopedStreamName;
    private final Revision revision;
    private final String names;

    private SharedNames(String scopedStreamName, Revision revision, String names) {
        this.scopedStreamName = scopedStreamName;
        this.revision = revision;
        this.names = names;
    }

    @Override
    public String getScopedStreamName() {
        return scopedStreamName;
    }

    @Override
    public Revision getRevision() {
        return revision;
    }

    private record Begin(String text) implements InitialUpdate<SharedNames> {
        @Override
        public SharedNames create(String scopedStreamName, Revision revision) {
            return new SharedNames(scopedStreamName, revision, text);
        }
    }

    private record Add(String text) implements Update<SharedNames> {
        @Override
        public SharedNames applyTo(SharedNames old, Revision revision) {
            return new SharedNames(old.scopedStreamName, revision, old.names + " " + text);
        }
    }

    private record Texts<T>(Function<T, String> write, Function<String, T> read)
            implements Serializer<T> {
        @Override
        public ByteBuffer serialize(T value) {
            return ByteBuffer.wrap(write.apply(value).getBytes(StandardCharsets.UTF_8));
        }

        @Override
        public T deserialize(ByteBuffer bytes) {
            return read.apply(StandardCharsets.UTF_8.decode(bytes).toString());
        }
    }

    public static void main(String[] arguments) throws Exception {
        ClientConfig config =
                ClientConfig.builder().controllerURI(TestScope.controllerUri()).build();
        try (StreamManager streams = StreamManager.create(config)) {
            streams.createScope(arguments[0]);
            streams.createStream(arguments[0], arguments[1], TestScope.fixed(1));
        }
        Serializer<Update<SharedNames>> updates =
                new Texts<>(update -> ((Add) update).text(), Add::new);
        Serializer<InitialUpdate<SharedNames>> begins =
                new Texts<>(begin -> ((Begin) begin).text(), Begin::new);
        try (SynchronizerClientFactory clients =
                        SynchronizerClientFactory.withScope(arguments[0], config);
                StateSynchronizer<SharedNames> names =
                        clients.createStateSynchronizer(
                                arguments[1],
                                updates,
                                begins,
                                SynchronizerConfig.builder().build())) {
            names.initialize(new Begin(arguments[2]));
            System.out.println("online");
            BufferedReader input =
                    new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
            for (String line = input.readLine(); line != null; line = input.readLine()) {
                System.out.println(take(names, line.split(" ")));
            }
        }
    }

    private static String take(StateSynchronizer<SharedNames> names, String[] words) {
        switch (words[0]) {
            case "add":
                names.updateState(
                        (state, made) -> {
                            made.add(new Add(words[1]));
                        });
                return "added";
            case "names":
                names.fetchUpdates();
                return names.getState().names;
            case "compact":
                names.compact(state -> new Begin(state.names));
                return "compacted";
            default:
                throw new IllegalArgumentException(words[0]);
        }
    }
}
