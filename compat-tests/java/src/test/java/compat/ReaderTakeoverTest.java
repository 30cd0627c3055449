package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.EventStreamClientFactory;
import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.Position;
import io.pravega.client.stream.ReaderConfig;
import io.pravega.client.stream.ReaderGroup;
import java.util.ArrayList;
import java.util.HashSet;
import java.util.List;
import java.util.Set;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/**
 * Two readers share a group; one loses its connections and never closes. Once it is declared
 * offline the other reads the rest: all of it, and from a known position nothing twice.
 */
@Api("reader group: offline readers")
class ReaderTakeoverTest {
    private static final int KEY_COUNT = 40;
    private static final int EVENTS_PER_KEY = 50;
    private static final int EVENT_COUNT = KEY_COUNT * EVENTS_PER_KEY;

    @RegisterExtension final TestScope scope = new TestScope();

    private String stream;

    @BeforeEach
    void writeEvents() {
        stream = scope.createStream(4);
        try (EventStreamWriter<String> writer = scope.writer(stream)) {
            for (int sequence = 0; sequence < EVENTS_PER_KEY; sequence++) {
                for (int key = 0; key < KEY_COUNT; key++) {
                    writer.writeEvent("key-" + key, OrderCheck.event("key-" + key, sequence));
                }
            }
            writer.flush();
        }
    }

    @Test
    void theSurvivorGoesOnAfterTheLastPositionOfTheDead() {
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            EventStreamReader<String> survivor = scope.reader(group, "survivor");
            DeadReader dead = readAndDie(group);
            List<String> before = readUntilQuiet(survivor);
            assertTrue(
                    before.size() + dead.events.size() < EVENT_COUNT,
                    "segments of a reader that is not offline went to another");

            group.readerOffline("dead", dead.position);
            assertEquals(Set.of("survivor"), group.getOnlineReaders());
            List<String> after = TestScope.readAll(
                    survivor, EVENT_COUNT - before.size() - dead.events.size()).values();
            survivor.close();

            OrderCheck order = new OrderCheck();
            dead.events.forEach(order::accept);
            before.forEach(order::accept);
            after.forEach(order::accept);
            assertEquals(EVENT_COUNT, order.count());
        }
    }

    @Test
    void withoutAPositionNothingIsLostAndOnlyTheDeadReadersEventsComeAgain() {
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            EventStreamReader<String> survivor = scope.reader(group, "survivor");
            DeadReader dead = readAndDie(group);
            group.readerOffline("dead", null);
            // At least this many are left; those the dead reader had read may come on top.
            List<String> read = TestScope.readAll(
                    survivor, EVENT_COUNT - dead.events.size()).values();
            survivor.close();

            Set<String> seen = new HashSet<>(read);
            assertEquals(read.size(), seen.size(), "the survivor read an event twice");
            seen.addAll(dead.events);
            assertEquals(EVENT_COUNT, seen.size(), "distinct events");
        }
    }

    record DeadReader(List<String> events, Position position) {}

    /** A second reader that reads a little of its own segments and then loses its connections. */
    private DeadReader readAndDie(ReaderGroup group) {
        EventStreamClientFactory clients =
                EventStreamClientFactory.withScope(scope.name, scope.config);
        EventStreamReader<String> reader =
                clients.createReader(
                        "dead",
                        group.getGroupName(),
                        TestScope.TEXT,
                        ReaderConfig.builder().build());
        List<String> events = new ArrayList<>();
        Position position = null;
        Deadline deadline = new Deadline(30);
        while (events.size() < 25) {
            EventRead<String> read = reader.readNextEvent(TestScope.READ_TIMEOUT_MS);
            position = read.getPosition();
            if (read.getEvent() != null) {
                events.add(read.getEvent());
            }
            assertFalse(deadline.passed(), "the second reader got no events");
        }
        clients.close();
        return new DeadReader(events, position);
    }

    private static List<String> readUntilQuiet(EventStreamReader<String> reader) {
        List<String> events = new ArrayList<>();
        Deadline quiet = new Deadline(3);
        while (!quiet.passed()) {
            String event = reader.readNextEvent(TestScope.READ_TIMEOUT_MS).getEvent();
            if (event != null) {
                events.add(event);
                quiet = new Deadline(3);
            }
        }
        return events;
    }
}
