package compat;

import io.pravega.client.stream.EventStreamWriter;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.stream.Collectors;

/**
 * A client of a store whose disk fills up. A program, not a test: it writes until nothing is
 * acknowledged any more, truncates the stream, and goes on with the same writer.
 */
final class FullStore {
    private static final String KEY = "a";
    private static final String FILLING = "x".repeat(10_000);
    private static final int STILL_SECONDS = 8;
    private static final int FREED_SECONDS_MAX = 120;
    private static final int COUNT_AFTER = 200;

    private final TestScope scope = new TestScope();
    private final AtomicInteger acknowledged = new AtomicInteger();
    private final AtomicInteger failed = new AtomicInteger();
    private volatile boolean isFull;

    public static void main(String[] arguments) throws Exception {
        new FullStore().run();
        // Client threads that are still busy must not keep us.
        Runtime.getRuntime().halt(0);
    }

    private void run() throws Exception {
        scope.open("full");
        String stream = scope.createStream(1);
        EventStreamWriter<String> writer = scope.writer(stream);
        // It may block within a write, too.
        CompletableFuture<Integer> written = CompletableFuture.supplyAsync(() -> write(writer));
        int before = -1;
        while (acknowledged.get() > before) {
            before = acknowledged.get();
            Thread.sleep(STILL_SECONDS * 1000L);
        }
        isFull = true;
        System.out.println("full after " + before);
        if (!scope.streams.truncateStream(scope.name, stream, scope.info(stream).getTailStreamCut())) {
            throw new AssertionError("it is not truncated");
        }
        int last = written.get(FREED_SECONDS_MAX, java.util.concurrent.TimeUnit.SECONDS);
        for (int number = last; number < last + COUNT_AFTER; number++) {
            send(writer, number);
        }
        writer.flush();
        writer.close();
        if (failed.get() > 0 || acknowledged.get() != last + COUNT_AFTER) {
            throw new AssertionError(
                    acknowledged + " of " + (last + COUNT_AFTER) + " acknowledged, " + failed);
        }
        List<Integer> found = scope.readAll(stream, COUNT_AFTER).values().stream()
                .map(event -> Integer.parseInt(event.substring(0, event.indexOf(' '))))
                .collect(Collectors.toList());
        for (int place = 0; place < found.size(); place++) {
            if (found.get(place) != last + COUNT_AFTER - found.size() + place) {
                throw new AssertionError("not in order: " + found);
            }
        }
        System.out.println("went on to " + (last + COUNT_AFTER) + ", read " + found.size());
    }

    /** Writes until the store is full; returns the number of the next event. */
    private int write(EventStreamWriter<String> writer) {
        int number = 0;
        while (!isFull) {
            send(writer, number++);
        }
        return number;
    }

    private void send(EventStreamWriter<String> writer, int number) {
        writer.writeEvent(KEY, number + " " + FILLING).whenComplete((nothing, error) -> {
            (error == null ? acknowledged : failed).incrementAndGet();
        });
    }
}
