package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotNull;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.pravega.client.SynchronizerClientFactory;
import io.pravega.client.state.InitialUpdate;
import io.pravega.client.state.Revision;
import io.pravega.client.state.Revisioned;
import io.pravega.client.state.StateSynchronizer;
import io.pravega.client.state.SynchronizerConfig;
import io.pravega.client.state.Update;
import io.pravega.client.stream.impl.JavaSerializer;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

/**
 * State shared through conditional appends: whatever races, every update is applied exactly once
 * and everybody sees the same updates in the same order, across compactions too.
 */
@Api("state synchronizer")
class StateSynchronizerTest {
    private static final int UPDATER_COUNT = 2;
    private static final int UPDATES_EACH = 300;

    @RegisterExtension final TestScope scope = new TestScope();

    /** A list of all names ever added, in the order in which the updates were applied. */
    static final class Names implements Revisioned {
        private final String scopedStreamName;
        private final Revision revision;
        final List<String> names;

        Names(String scopedStreamName, Revision revision, List<String> names) {
            this.scopedStreamName = scopedStreamName;
            this.revision = revision;
            this.names = List.copyOf(names);
        }

        @Override
        public String getScopedStreamName() {
            return scopedStreamName;
        }

        @Override
        public Revision getRevision() {
            return revision;
        }
    }

    record Begin(ArrayList<String> names) implements InitialUpdate<Names>, Serializable {
        @Override
        public Names create(String scopedStreamName, Revision revision) {
            return new Names(scopedStreamName, revision, names);
        }
    }

    record Add(String name) implements Update<Names>, Serializable {
        @Override
        public Names applyTo(Names old, Revision newRevision) {
            List<String> names = new ArrayList<>(old.names);
            names.add(name);
            return new Names(old.scopedStreamName, newRevision, names);
        }
    }

    /** One party: its own connections, its own copy of the state. */
    static final class Party implements AutoCloseable {
        private final SynchronizerClientFactory clients;
        final StateSynchronizer<Names> state;

        Party(TestScope scope, String stream) {
            clients = SynchronizerClientFactory.withScope(scope.name, scope.config);
            state =
                    clients.createStateSynchronizer(
                            stream,
                            new JavaSerializer<Add>(),
                            new JavaSerializer<Begin>(),
                            SynchronizerConfig.builder().build());
        }

        void add(String name) {
            state.updateState(
                    (old, updates) -> {
                        updates.add(new Add(name));
                    });
        }

        List<String> names() {
            state.fetchUpdates();
            return state.getState().names;
        }

        @Override
        public void close() {
            state.close();
            clients.close();
        }
    }

    @Test
    @Timeout(180)
    void racingUpdatesAreEachAppliedOnce() throws Exception {
        String stream = scope.createStream(1);
        new Parallel().add(UPDATER_COUNT, number -> addNames(stream, number, false)).run();
        assertEveryNameOnce(stream);
    }

    @Test
    @Timeout(180)
    void racingUpdatesAndCompactionsLoseNothing() throws Exception {
        String stream = scope.createStream(1);
        new Parallel().add(UPDATER_COUNT, number -> addNames(stream, number, true)).run();
        assertEveryNameOnce(stream);
    }

    private void addNames(String stream, int updaterNumber, boolean compacting) {
        try (Party party = new Party(scope, stream)) {
            party.state.initialize(new Begin(new ArrayList<>()));
            for (int number = 0; number < UPDATES_EACH; number++) {
                String name = OrderCheck.event("updater-" + updaterNumber, number);
                party.add(name);
                assertTrue(party.state.getState().names.contains(name));
                if (compacting && number % 50 == 49) {
                    party.state.compact(state -> new Begin(new ArrayList<>(state.names)));
                }
            }
        }
    }

    private void assertEveryNameOnce(String stream) {
        try (Party first = new Party(scope, stream);
                Party second = new Party(scope, stream)) {
            List<String> names = first.names();
            OrderCheck order = new OrderCheck();
            names.forEach(order::accept);
            assertEquals(UPDATER_COUNT * UPDATES_EACH, order.count());
            assertEquals(names, second.names());
        }
    }

    @Test
    void theFirstInitialisationWins() {
        String stream = scope.createStream(1);
        try (Party first = new Party(scope, stream);
                Party second = new Party(scope, stream)) {
            first.state.fetchUpdates();
            assertNull(first.state.getState());
            first.state.initialize(new Begin(new ArrayList<>(List.of("first"))));
            second.state.initialize(new Begin(new ArrayList<>(List.of("second"))));
            assertEquals(List.of("first"), first.names());
            assertEquals(List.of("first"), second.names());
        }
    }

    @Test
    void anUpdateGeneratedFromAnOldStateIsGeneratedAgain() {
        String stream = scope.createStream(1);
        try (Party first = new Party(scope, stream);
                Party second = new Party(scope, stream)) {
            first.state.initialize(new Begin(new ArrayList<>()));
            second.state.fetchUpdates();
            first.add("0");
            // The second party does not know that yet: its first try must be refused.
            Map<Integer, Integer> triesBySize = new HashMap<>();
            second.state.updateState(
                    (old, updates) -> {
                        triesBySize.merge(old.names.size(), 1, Integer::sum);
                        updates.add(new Add(Integer.toString(old.names.size())));
                    });
            assertEquals(Map.of(0, 1, 1, 1), triesBySize);
            assertEquals(List.of("0", "1"), first.names());
        }
    }

    @Test
    void unconditionalUpdatesArriveToo() {
        String stream = scope.createStream(1);
        try (Party first = new Party(scope, stream);
                Party second = new Party(scope, stream)) {
            first.state.initialize(new Begin(new ArrayList<>()));
            first.state.updateStateUnconditionally(new Add("a"));
            first.state.updateStateUnconditionally(List.of(new Add("b"), new Add("c")));
            assertEquals(List.of("a", "b", "c"), second.names());
        }
    }

    @Test
    void afterACompactionANewcomerReadsOnlyTheCompactedState() {
        String stream = scope.createStream(1);
        try (Party old = new Party(scope, stream)) {
            old.state.initialize(new Begin(new ArrayList<>()));
            for (int number = 0; number < 100; number++) {
                old.add("name-" + number);
            }
            assertTrue(old.state.bytesWrittenSinceCompaction() > 1000);
            // The second compaction truncates what lies behind the first.
            for (int round = 0; round < 2; round++) {
                old.state.compact(state -> new Begin(new ArrayList<>(state.names)));
                old.add("between");
            }
            try (Party newcomer = new Party(scope, stream)) {
                assertEquals(102, newcomer.names().size());
                assertEquals(old.names(), newcomer.names());
                assertNotNull(newcomer.state.getState().getRevision());
            }
        }
    }
}
