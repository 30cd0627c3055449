package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.StreamConfiguration;
import java.time.Duration;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Streams are found by their tags. */
@Api("stream manager: tags")
class TagTest {
    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void streamsAreFoundByTheirTags() {
        StreamConfiguration red = tagged("red", "warm");
        StreamConfiguration blue = tagged("blue");
        for (int number = 0; number < 15; number++) {
            scope.streams.createStream(scope.name, "red-" + number, red);
        }
        scope.streams.createStream(scope.name, "blue-0", blue);
        scope.streams.createStream(scope.name, "plain", TestScope.fixed(1));
        assertEquals(
                Set.of("red", "warm"),
                Set.copyOf(scope.streams.getStreamTags(scope.name, "red-3")));
        assertEquals(Set.of(), Set.copyOf(scope.streams.getStreamTags(scope.name, "plain")));
        assertEquals(15, withTag("warm").size());
        assertEquals(Set.of("blue-0"), withTag("blue"));
        assertEquals(Set.of(), withTag("green"));

        assertTrue(scope.streams.updateStream(scope.name, "blue-0", tagged("green", "red")));
        assertEquals(Set.of(), withTag("blue"));
        assertEquals(Set.of("blue-0"), withTag("green"));
        assertEquals(16, withTag("red").size());

        assertTrue(scope.streams.sealStream(scope.name, "red-3"));
        assertTrue(scope.streams.deleteStream(scope.name, "red-3"));
        assertFalse(withTag("red").contains("red-3"));
    }

    @Test
    void tagsAndRolloverSizeAreKeptThroughUpdates() throws Exception {
        StreamConfiguration wanted =
                StreamConfiguration.builder()
                        .scalingPolicy(ScalingPolicy.byDataRate(5000, 3, 1))
                        .tags(Set.of("red", "green"))
                        .rolloverSizeBytes(1 << 20)
                        .build();
        StreamConfiguration retained =
                wanted.toBuilder()
                        .clearTags()
                        .tag("kept")
                        .retentionPolicy(RetentionPolicy.byTime(Duration.ofDays(1)))
                        .build();
        // The client's stream manager drops the rollover size; its stub for the controller does not.
        try (ControllerAccess access = new ControllerAccess(scope.config)) {
            assertTrue(
                    access.controller
                            .createStream(scope.name, "s", wanted)
                            .get(30, TimeUnit.SECONDS));
            assertEquals(wanted, scope.info("s").getStreamConfiguration());
            assertTrue(
                    access.controller
                            .updateStream(scope.name, "s", retained)
                            .get(30, TimeUnit.SECONDS));
        }
        assertEquals(retained, scope.info("s").getStreamConfiguration());
        assertEquals(Set.of("kept"), Set.copyOf(scope.streams.getStreamTags(scope.name, "s")));
    }

    /** As many tags, as long ones, as the Java client itself reads back, on each of some streams. */
    @Test
    void asManyAndAsLongTagsAsTheClientAllowsAreReadBack() throws Exception {
        Set<String> tags = new TreeSet<>();
        for (int number = 0; number < 127; number++) {
            tags.add((number + "-").repeat(256).substring(0, 255));
        }
        StreamConfiguration wanted =
                StreamConfiguration.builder()
                        .scalingPolicy(ScalingPolicy.fixed(1))
                        .tags(tags)
                        .build();
        assertTrue(scope.streams.createStream(scope.name, "s", wanted));
        assertEquals(tags, Set.copyOf(scope.streams.getStreamTags(scope.name, "s")));
        assertEquals(Set.of("s"), withTag(tags.iterator().next()));
    }

    @Test
    void tagsOfWhatIsNotThereAreNotFound() {
        StatusRuntimeException failed =
                assertThrows(
                        StatusRuntimeException.class,
                        () -> scope.streams.getStreamTags(scope.name, "missing"));
        assertEquals(Status.Code.NOT_FOUND, failed.getStatus().getCode());
    }

    private static StreamConfiguration tagged(String... tags) {
        return StreamConfiguration.builder()
                .scalingPolicy(ScalingPolicy.fixed(1))
                .tags(Set.of(tags))
                .build();
    }

    private Set<String> withTag(String tag) {
        return new TreeSet<>(StreamManagementTest.userStreams(scope.streams.listStreams(scope.name, tag)));
    }
}
