package segstore.controller;

import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.StreamConfiguration;
import java.time.Duration;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import segstore.load.Latencies;

/** Works about scopes of many streams. */
final class ScopeWorks {
    private static final String TAG = "tagged";
    private static final int UNDER_WAY = 64;
    private static final int TARGET_RATE = 1_000;

    private final Clients clients;

    ScopeWorks(Clients clients) {
        this.clients = clients;
    }

    void addTo(Map<String, ControllerDriver.Work> works) {
        works.put("fill", this::fill);
        works.put("list", arguments -> list(arguments, clients.streams.listStreams(arguments.text("scope"))));
        works.put("list-by-tag", this::listByTag);
        works.put("delete-scope", this::deleteScope);
    }

    /** Creates a scope of streams with policies, some of which have a tag. */
    private Map<String, Object> fill(Arguments arguments) throws Exception {
        String scope = arguments.text("scope");
        int tagged = arguments.count("tagged");
        var plain = StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.byEventRate(TARGET_RATE, 2, 1))
                .retentionPolicy(RetentionPolicy.byTime(Duration.ofDays(1)));
        StreamConfiguration without = plain.build();
        StreamConfiguration with = plain.tag(TAG).build();
        clients.streams.createScope(scope);
        long began = System.nanoTime();
        Clients.all(arguments.count("count"), UNDER_WAY,
                i -> clients.controller.createStream(scope, "stream-" + i, i < tagged ? with : without));
        return Map.of("seconds", Clients.seconds(began));
    }

    private static Map<String, Object> list(Arguments arguments, Iterator<Stream> streams) {
        long began = System.nanoTime();
        int count = 0;
        for (; streams.hasNext(); count++) {
            streams.next();
        }
        return Map.of("seconds", Clients.seconds(began), "streams", count);
    }

    private Map<String, Object> listByTag(Arguments arguments) {
        Latencies latencies = new Latencies();
        int found = 0;
        for (int i = 0; i < arguments.count("times"); i++) {
            long began = System.nanoTime();
            found = 0;
            for (Iterator<Stream> streams = clients.streams.listStreams(arguments.text("scope"), TAG); streams.hasNext(); found++) {
                streams.next();
            }
            latencies.record(System.nanoTime() - began);
        }
        return Map.of("latency_ms", Latencies.summary(List.of(latencies)), "streams", found);
    }

    private Map<String, Object> deleteScope(Arguments arguments) throws Exception {
        long began = System.nanoTime();
        if (!clients.streams.deleteScopeRecursive(arguments.text("scope"))) {
            throw new IllegalStateException("the scope was not deleted");
        }
        return Map.of("seconds", Clients.seconds(began));
    }
}
