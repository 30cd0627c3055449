package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.state.Revision;
import io.pravega.client.state.RevisionedStreamClient;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.ReaderGroup;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Calls that came to the client with 0.13. */
class LatestClientTest {
    @RegisterExtension final TestScope scope = new TestScope();

    private final ScheduledExecutorService executor = Executors.newScheduledThreadPool(1);

    @AfterEach
    void stop() {
        executor.shutdownNow();
    }

    @Test
    @Api("revisioned stream")
    void aRangeOfRevisionsIsRead() throws Exception {
        String stream = scope.createStream(1);
        try (SynchronizerClientFactory clients =
                        SynchronizerClientFactory.withScope(scope.name, scope.config);
                RevisionedStreamClient<String> client =
                        clients.createRevisionedStreamClient(
                                stream, TestScope.TEXT, SynchronizerConfig.builder().build())) {
            List<Revision> revisions = new ArrayList<>();
            for (String entry : TestScope.numbered("a:", 0, 10)) {
                revisions.add(client.writeConditionally(client.fetchLatestRevision(), entry));
            }
            List<String> found = new ArrayList<>();
            client.readRange(revisions.get(2), revisions.get(6))
                    .forEachRemaining((Map.Entry<Revision, String> e) -> found.add(e.getValue()));
            assertEquals(TestScope.numbered("a:", 3, 7), found);
        }
    }

    @Test
    @Api("reader group: checkpoints, resets")
    void outstandingCheckpointsAreCancelled() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            TestScope.readAll(reader, 10);
            // Nobody reads now: these stay outstanding, and no fourth one would be taken.
            for (String name : List.of("one", "two", "three")) {
                group.initiateCheckpoint(name, executor);
            }
            group.cancelOutstandingCheckpoints();
            CompletableFuture<?> taken = group.initiateCheckpoint("four", executor);
            Deadline deadline = new Deadline(60);
            while (!taken.isDone()) {
                reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
                assertFalse(deadline.passed(), "no checkpoint after 60 s");
            }
            taken.get();
        }
    }
}
