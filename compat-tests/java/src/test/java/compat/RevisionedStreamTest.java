package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.state.Revision;
import io.pravega.client.state.RevisionedStreamClient;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.stream.InvalidStreamException;
import io.pravega.client.stream.TruncatedDataException;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** One segment as a log of revisions: conditional writes, the mark, truncation. */
@Api("revisioned stream")
class RevisionedStreamTest {
    @RegisterExtension final TestScope scope = new TestScope();

    private String stream;
    private SynchronizerClientFactory clients;
    private RevisionedStreamClient<String> log;

    @BeforeEach
    void open() {
        stream = scope.createStream(1);
        clients = SynchronizerClientFactory.withScope(scope.name, scope.config);
        log = openLog();
    }

    @AfterEach
    void close() {
        log.close();
        clients.close();
    }

    private RevisionedStreamClient<String> openLog() {
        return clients.createRevisionedStreamClient(
                stream, TestScope.TEXT, SynchronizerConfig.builder().build());
    }

    private static List<String> values(Iterator<Map.Entry<Revision, String>> entries) {
        List<String> values = new ArrayList<>();
        entries.forEachRemaining(entry -> values.add(entry.getValue()));
        return values;
    }

    @Test
    void aConditionalWriteHoldsOnlyAtTheLatestRevision() {
        Revision empty = log.fetchLatestRevision();
        assertEquals(log.fetchOldestRevision(), empty);
        Revision first = log.writeConditionally(empty, "first");
        assertNotNull(first);
        assertNull(log.writeConditionally(empty, "late"));
        Revision second = log.writeConditionally(first, "second");
        assertEquals(second, log.fetchLatestRevision());
        assertTrue(second.compareTo(first) > 0);
        assertEquals(List.of("first", "second"), values(log.readFrom(empty)));
        assertEquals(List.of("second"), values(log.readFrom(first)));
        assertEquals(List.of(), values(log.readFrom(second)));
    }

    @Test
    void ofTwoRacingConditionalWritesOneHolds() throws Exception {
        int rounds = 100;
        new Parallel().add(2, number -> writeConditionally("writer-" + number, rounds)).run();
        List<String> written = values(log.readFrom(log.fetchOldestRevision()));
        OrderCheck order = new OrderCheck();
        written.forEach(order::accept);
        assertEquals(2 * rounds, order.count());
    }

    private void writeConditionally(String name, int rounds) {
        try (RevisionedStreamClient<String> own = openLog()) {
            for (int sequence = 0; sequence < rounds; sequence++) {
                Revision written = null;
                while (written == null) {
                    Revision latest = own.fetchLatestRevision();
                    written = own.writeConditionally(latest, OrderCheck.event(name, sequence));
                }
            }
        }
    }

    @Test
    void revisionsReadBackAreTheRevisionsWritten() {
        List<Revision> written = new ArrayList<>();
        Revision revision = log.fetchLatestRevision();
        Revision begin = revision;
        for (int number = 0; number < 20; number++) {
            revision = log.writeConditionally(revision, "value-" + number);
            written.add(revision);
        }
        List<Revision> read = new ArrayList<>();
        log.readFrom(begin).forEachRemaining(entry -> read.add(entry.getKey()));
        assertEquals(written, read);
        String text = written.get(7).toString();
        assertEquals(written.get(7), Revision.fromString(text));
    }

    @Test
    void unconditionalWritesMoveTheLatestRevision() {
        Revision empty = log.fetchLatestRevision();
        log.writeUnconditionally("a");
        log.writeUnconditionally("b");
        assertNull(log.writeConditionally(empty, "late"));
        assertEquals(List.of("a", "b"), values(log.readFrom(empty)));
    }

    @Test
    void anEntryOfManyBufferSizesComesBackWhole() {
        String large = "0123456789".repeat(90_000);
        log.writeUnconditionally("small");
        log.writeUnconditionally(large);
        assertEquals(List.of("small", large), values(log.readFrom(log.fetchOldestRevision())));
    }

    @Test
    void theMarkIsComparedAndSet() {
        assertNull(log.getMark());
        Revision first = log.writeConditionally(log.fetchLatestRevision(), "first");
        Revision second = log.writeConditionally(first, "second");
        assertFalse(log.compareAndSetMark(first, second), "no mark is set yet");
        assertTrue(log.compareAndSetMark(null, first));
        assertEquals(first, log.getMark());
        assertFalse(log.compareAndSetMark(null, second));
        assertFalse(log.compareAndSetMark(second, first));
        assertTrue(log.compareAndSetMark(first, second));
        try (RevisionedStreamClient<String> other = openLog()) {
            assertEquals(second, other.getMark());
            assertTrue(other.compareAndSetMark(second, null));
        }
        assertNull(log.getMark());
    }

    @Test
    void aTruncatedRevisionIsGone() {
        Revision empty = log.fetchLatestRevision();
        Revision first = log.writeConditionally(empty, "first");
        Revision second = log.writeConditionally(first, "second");
        Revision third = log.writeConditionally(second, "third");
        log.truncateToRevision(second);
        assertEquals(second, log.fetchOldestRevision());
        assertEquals(third, log.fetchLatestRevision());
        assertThrows(TruncatedDataException.class, () -> log.readFrom(first));
        assertEquals(List.of("third"), values(log.readFrom(second)));
        log.truncateToRevision(first);
        assertEquals(second, log.fetchOldestRevision(), "the oldest revision moved back");
        Revision fourth = log.writeConditionally(third, "fourth");
        assertEquals(List.of("third", "fourth"), values(log.readFrom(second)));
        log.truncateToRevision(fourth);
        assertEquals(List.of(), values(log.readFrom(fourth)));
    }

    @Test
    void aMissingStreamCannotBeOpened() {
        assertThrows(
                InvalidStreamException.class,
                () -> clients.createRevisionedStreamClient(
                        "missing", TestScope.TEXT, SynchronizerConfig.builder().build()));
    }
}
