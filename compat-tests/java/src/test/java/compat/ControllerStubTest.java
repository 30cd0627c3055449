package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.ClientConfig;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.segment.impl.Segment;
import io.pravega.client.stream.Stream;
import io.pravega.client.stream.impl.WriterPosition;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** What the client asks of a controller but its public factories do not, or do by themselves. */
@Api("controller stub")
class ControllerStubTest {
    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void aSegmentIsOpenUntilItIsScaledAway() throws Exception {
        String stream = scope.createStream(1);
        try (ControllerAccess access = new ControllerAccess(scope.config)) {
            Segment first = new Segment(scope.name, stream, 0);
            assertTrue(access.controller.isSegmentOpen(first).get(30, TimeUnit.SECONDS));
            access.scale(scope.name, stream, List.of(0.5), Map.of(0.0, 0.5, 0.5, 1.0));
            assertFalse(access.controller.isSegmentOpen(first).get(30, TimeUnit.SECONDS));
        }
    }

    @Test
    void aWriterThatNotedTimesIsRemoved() throws Exception {
        String stream = scope.createStream(1);
        try (ControllerAccess access = new ControllerAccess(scope.config)) {
            access.controller
                    .noteTimestampFromWriter(
                            "writer",
                            Stream.of(scope.name, stream),
                            1000,
                            new WriterPosition(Map.of(new Segment(scope.name, stream, 0), 0L)))
                    .get(30, TimeUnit.SECONDS);
            access.controller
                    .removeWriter("writer", Stream.of(scope.name, stream))
                    .get(30, TimeUnit.SECONDS);
        }
        scope.write(stream, "a", List.of("a:0"));
        assertEquals(List.of("a:0"), scope.readAll(stream, 1).values());
    }

    @Test
    @Api("controllers found by pravega://")
    void controllersAreFoundByAskingOne() throws Exception {
        String stream = scope.createStream(1);
        URI uri = URI.create("pravega://" + scope.controller.getAuthority());
        ClientConfig config = ClientConfig.builder().controllerURI(uri).build();
        try (StreamManager streams = StreamManager.create(config)) {
            assertTrue(streams.checkStreamExists(scope.name, stream));
            assertFalse(streams.checkStreamExists(scope.name, "missing"));
        }
    }

    /** Clients that look into the first scope find users' streams there, if there are any. */
    @Test
    @Api("stream manager")
    void theScopeOfTheServerItselfIsNotListedFirst() {
        List<String> listed = new ArrayList<>();
        scope.streams.listScopes().forEachRemaining(listed::add);
        assertTrue(listed.contains(scope.name));
        assertNotEquals("_system", listed.get(0));
    }

    /** As clients before 0.11 do it: stream by stream, then group by group, then the scope. */
    @Test
    @Api("stream manager: recursive deletion")
    @SuppressWarnings("deprecation")
    void aScopeIsDeletedByForceWithItsStreamsAndGroups() throws Exception {
        String stream = scope.createStream(2);
        scope.write(stream, "a", List.of("a:0"));
        scope.createGroup(scope.groupConfig(stream).build()).close();
        assertTrue(scope.streams.deleteScope(scope.name, true));
        assertFalse(scope.streams.checkScopeExists(scope.name));
        assertTrue(scope.streams.createScope(scope.name));
        assertFalse(scope.streams.listStreams(scope.name).hasNext());
    }
}
