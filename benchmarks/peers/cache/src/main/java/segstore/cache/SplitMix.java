package segstore.cache;

/** The generator that both sides draw from: SplitMix64. */
final class SplitMix {
    private long state;

    SplitMix(long seed) {
        state = seed;
    }

    long next() {
        state += 0x9E3779B97F4A7C15L;
        long z = state;
        z = (z ^ (z >>> 30)) * 0xBF58476D1CE4E5B9L;
        z = (z ^ (z >>> 27)) * 0x94D049BB133111EBL;
        return z ^ (z >>> 31);
    }

    /** From 0 to bound - 1; the same slight bias on both sides. */
    int below(int bound) {
        return (int) ((next() >>> 33) % bound);
    }

    byte[] bytes(int length) {
        byte[] bytes = new byte[length];
        for (int i = 0; i < length; i++) {
            bytes[i] = (byte) next();
        }
        return bytes;
    }
}
