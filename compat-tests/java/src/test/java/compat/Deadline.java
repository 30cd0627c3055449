package compat;

import java.util.concurrent.TimeUnit;

/** A moment some seconds from now. */
final class Deadline {
    private final long atNanos;

    Deadline(long seconds) {
        atNanos = System.nanoTime() + TimeUnit.SECONDS.toNanos(seconds);
    }

    boolean passed() {
        return System.nanoTime() - atNanos > 0;
    }
}
