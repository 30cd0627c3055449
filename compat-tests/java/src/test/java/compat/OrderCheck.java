package compat;

import static org.junit.jupiter.api.Assertions.assertEquals;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;

/**
 * Watches events {@code key:sequence} go by, from any number of readers: each must be its key's
 * next one, so nothing is lost, doubled or out of order.
 */
final class OrderCheck {
    private final Map<String, Integer> next = new ConcurrentHashMap<>();
    private final AtomicInteger count = new AtomicInteger();

    static String event(String key, int sequence) {
        return key + ":" + sequence;
    }

    static String key(String event) {
        return event.substring(0, event.lastIndexOf(':'));
    }

    static int sequence(String event) {
        return Integer.parseInt(event.substring(event.lastIndexOf(':') + 1));
    }

    void accept(String event) {
        String key = key(event);
        int sequence = sequence(event);
        Integer previous = next.put(key, sequence + 1);
        assertEquals(previous == null ? 0 : previous, sequence, "next event of " + key);
        count.incrementAndGet();
    }

    int count() {
        return count.get();
    }
}
