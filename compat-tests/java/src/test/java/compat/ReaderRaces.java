package compat;

import io.pravega.client.stream.EventRead;
import io.pravega.client.stream.EventStreamReader;
import io.pravega.client.stream.EventStreamWriter;
import io.pravega.client.stream.ReaderGroup;
import io.pravega.client.stream.StreamCut;
import io.pravega.client.stream.TruncatedDataException;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLongArray;

/**
 * Counts how often readers sleep out their time-out beside data that are there. A program, not a
 * test: {@code ReaderRaces TRIES} prints a line of JSON for each of its races.
 *
 * <p>The client meets a race when a reply comes very soon after its request: its reader is woken,
 * finds nothing and sleeps. What the server does decides how often.
 */
final class ReaderRaces {
    private static final long TIMEOUT_MS = 1_000;
    private static final long SLEPT_MS = 800;
    private static final int EVENT_COUNT = 10;
    private static final int POSITION_COUNT = 200;

    /** One try; tells whether a reader slept. */
    private interface Race {
        boolean sleeps(TestScope scope) throws Exception;
    }

    public static void main(String[] arguments) throws Exception {
        int tries = Integer.parseInt(arguments[0]);
        TestScope scope = new TestScope();
        scope.open(TestScope.unique("races"));
        scope.write(scope.createStream(1), "a", List.of("warm"));
        run("the end of a sealed stream", tries, scope, ReaderRaces::sleepsAtTheEnd);
        run("a truncation", tries, scope, ReaderRaces::sleepsAfterTruncation);
        run("event by event", tries, scope, ReaderRaces::sleepsBehindAWriter);
        System.out.flush();
        // Client threads that are still busy must not keep us.
        Runtime.getRuntime().halt(0);
    }

    private static void run(String name, int tries, TestScope scope, Race race) throws Exception {
        int slept = 0;
        for (int each = 0; each < tries; each++) {
            slept += race.sleeps(scope) ? 1 : 0;
        }
        System.out.printf("{\"race\": \"%s\", \"tries\": %d, \"slept\": %d}%n", name, tries, slept);
    }

    private static boolean sleepsAtTheEnd(TestScope scope) throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, EVENT_COUNT));
        scope.streams.sealStream(scope.name, stream);
        return sleepsReading(scope, stream, EVENT_COUNT);
    }

    private static boolean sleepsAfterTruncation(TestScope scope) throws Exception {
        String stream = scope.createStream(1);
        scope.write(stream, "a", TestScope.numbered("a:", 0, EVENT_COUNT));
        StreamCut cut = scope.info(stream).getTailStreamCut();
        scope.write(stream, "a", TestScope.numbered("a:", EVENT_COUNT, 2 * EVENT_COUNT));
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            scope.streams.truncateStream(scope.name, stream, cut);
            return sleepsReading(scope, group, EVENT_COUNT);
        }
    }

    private static boolean sleepsReading(TestScope scope, String stream, int count) {
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build())) {
            return sleepsReading(scope, group, count);
        }
    }

    private static boolean sleepsReading(TestScope scope, ReaderGroup group, int count) {
        boolean slept = false;
        Deadline deadline = new Deadline(60);
        try (EventStreamReader<String> reader = scope.reader(group, "reader")) {
            for (int read = 0; read < count; ) {
                long started = System.nanoTime();
                try {
                    read += reader.readNextEvent(TIMEOUT_MS).getEvent() == null ? 0 : 1;
                } catch (TruncatedDataException once) {
                    // What is left comes next.
                }
                slept |= milliseconds(started) >= SLEPT_MS;
                check(deadline);
            }
        }
        return slept;
    }

    /** A reader follows a writer that waits for each acknowledgement, and looks at each position. */
    private static boolean sleepsBehindAWriter(TestScope scope) throws Exception {
        String stream = scope.createStream(1);
        AtomicLongArray acknowledged = new AtomicLongArray(POSITION_COUNT);
        Deadline deadline = new Deadline(120);
        boolean slept = false;
        try (ReaderGroup group = scope.createGroup(scope.groupConfig(stream).build());
                EventStreamReader<String> reader = scope.reader(group, "reader")) {
            CompletableFuture<Void> written =
                    CompletableFuture.runAsync(() -> writeOneByOne(scope, stream, acknowledged));
            for (int read = 0; read < POSITION_COUNT; ) {
                EventRead<String> event = reader.readNextEvent(TIMEOUT_MS);
                event.getPosition().toBytes();
                if (event.getEvent() != null) {
                    long since = acknowledged.get(read++);
                    slept |= since != 0 && milliseconds(since) >= SLEPT_MS;
                }
                check(deadline);
            }
            written.get(60, TimeUnit.SECONDS);
        }
        return slept;
    }

    private static void writeOneByOne(TestScope scope, String stream, AtomicLongArray acknowledged) {
        try (EventStreamWriter<String> writer = scope.writer(stream)) {
            for (int number = 0; number < POSITION_COUNT; number++) {
                writer.writeEvent("a", "a:" + number).join();
                acknowledged.set(number, System.nanoTime());
            }
        }
    }

    private static long milliseconds(long sinceNanos) {
        return (System.nanoTime() - sinceNanos) / 1_000_000;
    }

    private static void check(Deadline deadline) {
        if (deadline.passed()) {
            throw new AssertionError("the events did not come in time");
        }
    }
}
