package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;

import io.pravega.client.stream.Checkpoint;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.ReinitializationRequiredException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Calls that came to the client with 0.12. */
class LaterClientTest {
    @RegisterExtension final TestScope scope = new TestScope();

    private final ScheduledExecutorService executor = Executors.newScheduledThreadPool(1);

    @AfterEach
    void stop() {
        executor.shutdownNow();
    }

    @Test
    @Api("reader group: checkpoints, resets")
    void aGroupGoesBackToItsLastCheckpoint() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 100));
        ReaderGroupConfig config =
                scope.groupConfig(stream).disableAutomaticCheckpoints().build();
        try (ReaderGroup group = scope.createGroup(config)) {
            try (EventStreamReader<String> reader = scope.reader(group, "reader")) {
                TestScope.readAll(reader, 100);
                CompletableFuture<Checkpoint> taken = group.initiateCheckpoint("checkpoint", executor);
                Deadline deadline = new Deadline(60);
                while (!taken.isDone()) {
                    reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
                    assertFalse(deadline.passed(), "no checkpoint after 60 s");
                }
                assertEquals("checkpoint", taken.get().getName());
                scope.write(stream, "a", TestScope.numbered("a:", 100, 110));
                assertEquals(
                        TestScope.numbered("a:", 100, 110),
                        TestScope.readAll(reader, 10).values());
                group.resetReaderGroup();
                assertThrows(
                        ReinitializationRequiredException.class,
                        () -> TestScope.readAll(reader, 1000));
            }
            try (EventStreamReader<String> reader = scope.reader(group, "again")) {
                assertEquals(
                        TestScope.numbered("a:", 100, 110),
                        TestScope.readAll(reader, 10).values());
            }
        }
    }

    @Test
    @Api("stream manager")
    void anEventIsFetchedByItsPointer() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        TestScope.Events events = scope.readAll(stream, 10);
        for (int number = 0; number < 10; number++) {
            assertEquals(
                    "a:" + number,
                    scope.streams
                            .fetchEvent(events.pointers().get(number), TestScope.TEXT)
                            .get(30, TimeUnit.SECONDS));
        }
    }
}
