package flinkjobs;

import io.pravega.client.ClientConfig;
import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.StreamConfiguration;
import io.pravega.client.stream.impl.UTF8StringSerializer;
import java.util.function.IntFunction;

/** Makes and fills the streams of a job, with the client that the connector carries. */
final class Streams {
    private Streams() {}

    static ClientConfig client() {
        return Settings.pravega().getClientConfig();
    }

    static void create(String name, int segments) {
        try (StreamManager streams = StreamManager.create(client())) {
            streams.createScope(Settings.scope());
            StreamConfiguration configuration =
                    StreamConfiguration.builder().scalingPolicy(ScalingPolicy.fixed(segments)).build();
            if (!streams.createStream(Settings.scope(), name, configuration)) {
                throw new IllegalStateException("the stream " + name + " was there already");
            }
        }
    }

    static void fill(String name, int events, IntFunction<String> eventOf) {
        try (EventStreamClientFactory factory =
                        EventStreamClientFactory.withScope(Settings.scope(), client());
                EventStreamWriter<String> writer =
                        factory.createEventWriter(
                                name, new UTF8StringSerializer(), EventWriterConfig.builder().build())) {
            for (int number = 0; number < events; number++) {
                writer.writeEvent("key " + number % 100, eventOf.apply(number));
            }
            writer.flush();
        }
    }
}
