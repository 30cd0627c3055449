package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.control.impl.ControllerFailureException;
import io.pravega.client.stream.RetentionPolicy;
import io.pravega.client.stream.ScalingPolicy;
import io.pravega.client.stream.StreamConfiguration;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** What a stream was configured with can be read again, all of it. */
@Api("stream manager")
class StreamConfigurationTest {
    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void aStreamKeepsItsWholeConfiguration() throws Exception {
        List<StreamConfiguration> configurations =
                List.of(
                        TestScope.fixed(3),
                        StreamConfiguration.builder()
                                .scalingPolicy(ScalingPolicy.byEventRate(1000, 2, 3))
                                .retentionPolicy(RetentionPolicy.byTime(Duration.ofHours(2)))
                                .build(),
                        StreamConfiguration.builder()
                                .scalingPolicy(ScalingPolicy.byDataRate(5000, 3, 1))
                                .retentionPolicy(
                                        RetentionPolicy.bySizeBytes(1_000_000, 5_000_000_000L))
                                .timestampAggregationTimeout(12_345)
                                .build());
        try (ControllerAccess controller = new ControllerAccess(scope.config)) {
            for (StreamConfiguration wanted : configurations) {
                String stream = TestScope.unique("configured");
                assertTrue(
                        controller.controller
                                .createStream(scope.name, stream, wanted)
                                .get(30, TimeUnit.SECONDS));
                assertEquals(wanted, scope.info(stream).getStreamConfiguration());
                assertEquals(
                        wanted.getScalingPolicy().getMinNumSegments(),
                        controller.currentSegments(scope.name, stream).size());
            }
        }
    }

    @Test
    void anUpdateReplacesTheConfiguration() throws Exception {
        String stream = scope.createStream(1);
        StreamConfiguration retained =
                StreamConfiguration.builder()
                        .scalingPolicy(ScalingPolicy.fixed(1))
                        .retentionPolicy(RetentionPolicy.byTime(Duration.ofDays(1)))
                        .build();
        assertTrue(scope.streams.updateStream(scope.name, stream, retained));
        assertEquals(retained, scope.info(stream).getStreamConfiguration());
        StreamConfiguration scaled =
                StreamConfiguration.builder()
                        .scalingPolicy(ScalingPolicy.byEventRate(100, 2, 1))
                        .build();
        assertTrue(scope.streams.updateStream(scope.name, stream, scaled));
        assertEquals(scaled, scope.info(stream).getStreamConfiguration());
    }

    @Test
    void aSealedStreamIsNotUpdated() {
        String stream = scope.createStream(1);
        assertTrue(scope.streams.sealStream(scope.name, stream));
        RuntimeException refused =
                assertThrows(
                        RuntimeException.class,
                        () -> scope.streams.updateStream(scope.name, stream, TestScope.fixed(2)));
        // Clients before 0.11 do not know the status that says so.
        assertTrue(
                refused instanceof UnsupportedOperationException
                        || refused instanceof ControllerFailureException,
                refused::toString);
    }
}
