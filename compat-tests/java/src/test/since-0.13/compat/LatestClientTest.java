package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;

import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.state.Revision;
import io.pravega.client.state.RevisionedStreamClient;
import io.pravega.client.state.SynchronizerConfig;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Calls that came to the client with 0.13. */
class LatestClientTest {
    @RegisterExtension final TestScope scope = new TestScope();

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
}
