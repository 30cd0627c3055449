package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTimeoutPreemptively;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.admin.ReaderGroupManager;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.EventWriterConfig;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroupConfig;
import io.pravega.client.stream.Stream;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** Names: the longest and oddest ones work; those that no segment can have are refused at once. */
@Api("stream manager")
class NamesTest {
    private static final Duration PROMPTLY = Duration.ofSeconds(15);

    @RegisterExtension final TestScope scope = new TestScope();

    @Test
    void namesThatNoSegmentCanHaveAreRefusedAtOnce() {
        for (String name : List.of(".", "..")) {
            String refusal =
                    assertTimeoutPreemptively(
                            PROMPTLY,
                            () ->
                                    assertThrows(
                                            RuntimeException.class,
                                            () -> scope.streams.createScope(name)))
                            .toString();
            assertTrue(refusal.contains("Illegal scope name"), refusal);
            refusal =
                    assertTimeoutPreemptively(
                            PROMPTLY,
                            () ->
                                    assertThrows(
                                            RuntimeException.class,
                                            () ->
                                                    scope.streams.createStream(
                                                            scope.name,
                                                            name,
                                                            TestScope.fixed(1))))
                            .toString();
            assertTrue(refusal.contains("Illegal stream name"), refusal);
            assertFalse(scope.streams.checkScopeExists(name));
        }
        assertFalse(scope.streams.listStreams(scope.name).hasNext());
        assertTrue(scope.streams.deleteScope(scope.name));
    }

    @Test
    void theLongestNamesWork() throws Exception {
        String unique = TestScope.unique("");
        work(fill("scope" + unique, 255), fill("stream", 250), fill("group", 250));
    }

    @Test
    void namesThatLookLikeDirectoriesWork() throws Exception {
        String unique = TestScope.unique("");
        work(".." + unique, "...", "..a");
    }

    private void work(String scopeName, String stream, String group) throws Exception {
        assertTrue(scope.streams.createScope(scopeName));
        assertTrue(scope.streams.createStream(scopeName, stream, TestScope.fixed(2)));
        try (EventStreamClientFactory clients =
                        EventStreamClientFactory.withScope(scopeName, scope.config);
                ReaderGroupManager groups =
                        ReaderGroupManager.withScope(scopeName, scope.config)) {
            try (EventStreamWriter<String> writer =
                    clients.createEventWriter(
                            stream, TestScope.TEXT, EventWriterConfig.builder().build())) {
                writer.writeEvent("key", "event").get(30, TimeUnit.SECONDS);
            }
            ReaderGroupConfig config =
                    ReaderGroupConfig.builder().stream(Stream.of(scopeName, stream)).build();
            groups.createReaderGroup(group, config);
            try (EventStreamReader<String> reader =
                    clients.createReader(
                            "reader", group, TestScope.TEXT, ReaderConfig.builder().build())) {
                assertEquals(List.of("event"), TestScope.readAll(reader, 1).values());
            }
            groups.deleteReaderGroup(group);
        }
        assertTrue(scope.streams.sealStream(scopeName, stream));
        assertTrue(scope.streams.deleteStream(scopeName, stream));
        assertTrue(scope.streams.deleteScope(scopeName));
        assertFalse(scope.streams.checkScopeExists(scopeName));
        assertTrue(scope.streams.createScope(scopeName));
        assertTrue(scope.streams.deleteScope(scopeName));
    }

    private static String fill(String name, int length) {
        return name + "x".repeat(length - name.length());
    }
}
