package segstore.load;

import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;
import java.util.concurrent.atomic.AtomicReference;

/** Counts what went wrong and keeps the first words of it. */
final class Failures {
    private final AtomicLong count = new AtomicLong();
    private final AtomicReference<String> first = new AtomicReference<>();

    void add(String where, Throwable problem) {
        count.incrementAndGet();
        first.compareAndSet(null, where + ": " + problem);
    }

    long count() {
        return count.get();
    }

    /** Throws an unchecked exception when there was any. */
    void check() {
        if (count.get() > 0) {
            throw new IllegalStateException(count + " failures, the first: " + first);
        }
    }

    Map<String, Object> summary() {
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("count", count.get());
        out.put("first", first.get());
        return out;
    }
}
