package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.grpc.Status;
import io.pravega.client.admin.StreamManager;
import io.pravega.client.stream.NoSuchScopeException;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.Stream;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Set;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.api.function.Executable;

/** Scopes and streams: made, listed page by page, described, updated, tagged, deleted, refused. */
@Api("stream manager")
class StreamManagementTest {
    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void everyStreamIsListedOnceWhateverThePageSize() throws Exception {
        Set<String> created = new TreeSet<>();
        List<CompletableFuture<Boolean>> creations = new ArrayList<>();
        try (ControllerAccess controller = new ControllerAccess(scope.config)) {
            for (int number = 0; number < 120; number++) {
                created.add("stream-" + number);
                creations.add(
                        controller.controller.createStream(
                                scope.name, "stream-" + number, TestScope.fixed(1)));
                if (creations.size() == 10) {
                    for (CompletableFuture<Boolean> creation : creations) {
                        assertTrue(creation.get(30, TimeUnit.SECONDS));
                    }
                    creations.clear();
                }
            }
        }
        List<String> listed = userStreams(scope.streams.listStreams(scope.name));
        assertEquals(created, new TreeSet<>(listed));
        assertEquals(created.size(), listed.size(), "a stream was listed twice");
    }

    @Test
    void scopesAreListedCreatedAndDeleted() {
        Set<String> created = new TreeSet<>();
        for (int number = 0; number < 12; number++) {
            String name = TestScope.unique("listed");
            assertTrue(scope.streams.createScope(name));
            assertFalse(scope.streams.createScope(name), "created twice");
            assertTrue(scope.streams.checkScopeExists(name));
            created.add(name);
        }
        Set<String> listed = new TreeSet<>();
        scope.streams.listScopes().forEachRemaining(listed::add);
        assertTrue(listed.containsAll(created));
        for (String name : created) {
            assertTrue(scope.streams.deleteScope(name));
            assertFalse(scope.streams.checkScopeExists(name));
            assertFalse(scope.streams.deleteScope(name), "deleted twice");
        }
        Set<String> left = new TreeSet<>();
        scope.streams.listScopes().forEachRemaining(left::add);
        assertTrue(left.stream().noneMatch(created::contains));
        assertTrue(left.contains(scope.name));
    }

    @Test
    void anUpdatedFixedSegmentCountScalesTheStream() throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        assertTrue(scope.streams.updateStream(scope.name, stream, TestScope.fixed(4)));
        try (ControllerAccess controller = new ControllerAccess(scope.config)) {
            assertEquals(4, controller.currentSegments(scope.name, stream).size());
        }
        scope.write(stream, "a", TestScope.numbered("a:", 10, 20));
        assertEquals(TestScope.numbered("a:", 0, 20), scope.readAll(stream, 20).values());
    }

    /** The listed streams without those the client or the server made for itself. */
    static List<String> userStreams(Iterator<Stream> streams) {
        List<String> names = new ArrayList<>();
        streams.forEachRemaining(
                stream -> {
                    if (!stream.getStreamName().startsWith("_")) {
                        names.add(stream.getStreamName());
                    }
                });
        return names;
    }

    @Test
    void onlyASealedStreamIsDeletedAndThenItIsGone() throws Exception {
        String stream = scope.createStream(2);
        scope.write(stream, "a", TestScope.numbered("a:", 0, 10));
        assertThrows(
                IllegalArgumentException.class,
                () -> scope.streams.deleteStream(scope.name, stream));
        assertTrue(scope.streams.sealStream(scope.name, stream));
        assertTrue(scope.streams.deleteStream(scope.name, stream));
        assertFalse(scope.streams.deleteStream(scope.name, stream), "deleted twice");
        assertFalse(scope.streams.checkStreamExists(scope.name, stream));
        assertFalse(userStreams(scope.streams.listStreams(scope.name)).contains(stream));
        assertThrows(RuntimeException.class, () -> scope.writer(stream).close());
    }

    @Test
    void aStreamDeletedUnderAReaderGroupCanBeMadeAnew() throws Exception {
        String stream = scope.createStream(2);
        scope.write(stream, "a", TestScope.numbered("old:", 0, 10));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            assertEquals(Set.of(stream), streamNames(group));
            assertTrue(scope.streams.sealStream(scope.name, stream));
            assertTrue(scope.streams.deleteStream(scope.name, stream));
        }
        assertTrue(scope.streams.createStream(scope.name, stream, TestScope.fixed(3)));
        scope.write(stream, "a", TestScope.numbered("new:", 0, 10));
        assertEquals(TestScope.numbered("new:", 0, 10), scope.readAll(stream, 10).values());
    }

    private static Set<String> streamNames(ReaderGroup group) {
        Set<String> names = new TreeSet<>();
        group.getStreamNames().forEach(name -> names.add(name.substring(name.indexOf('/') + 1)));
        return names;
    }

    @Test
    void aStreamIsCreatedOnce() {
        StreamManager streams = scope.streams;
        assertTrue(streams.createStream(scope.name, "once", TestScope.fixed(2)));
        assertFalse(streams.createStream(scope.name, "once", TestScope.fixed(5)));
        assertTrue(streams.checkStreamExists(scope.name, "once"));
        assertFalse(streams.checkStreamExists(scope.name, "never"));
    }

    @Test
    void whatIsNotThereIsRefused() {
        StreamManager streams = scope.streams;
        String missing = TestScope.unique("missing");
        assertThrows(
                IllegalArgumentException.class,
                () -> streams.createStream(missing, "s", TestScope.fixed(1)));
        assertThrows(
                IllegalArgumentException.class,
                () -> streams.updateStream(scope.name, "missing", TestScope.fixed(1)));
        CompletionException failed =
                assertThrows(
                        CompletionException.class, () -> streams.listStreams(missing).hasNext());
        assertInstanceOf(NoSuchScopeException.class, failed.getCause());
        assertNotFound(() -> scope.info("missing"));
        assertFalse(streams.deleteStream(scope.name, "missing"));
        assertFalse(streams.deleteScope(missing));
        assertFalse(streams.checkStreamExists(missing, "s"));
    }

    private static void assertNotFound(Executable call) {
        Throwable failed = assertThrows(Exception.class, call);
        assertEquals(Status.Code.NOT_FOUND, Status.fromThrowable(failed).getCode());
    }

    @Test
    void namesAtTheLimitWork() throws Exception {
        for (String stream : List.of("n".repeat(250), "a.b-c.d", "1", "A".repeat(9) + "..")) {
            assertTrue(scope.streams.createStream(scope.name, stream, TestScope.fixed(1)), stream);
            assertTrue(scope.streams.checkStreamExists(scope.name, stream), stream);
            scope.write(stream, "ключ", List.of("événement"));
            assertNotEquals(
                    scope.info(stream).getHeadStreamCut(), scope.info(stream).getTailStreamCut());
        }
    }
}
