package segstore.load;

import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Deque;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.DoubleSupplier;

/**
 * Waits until a load is warm: the median latencies of three windows in a row differ by less than 5 %. A JVM, the client's or a server's,
 * gets quicker for most of its first minute.
 */
final class WarmUp {
    static final int WINDOW_COUNT = 3;
    static final double DIFFERENCE_MAX = 0.05;

    private final double secondsMin;
    private final double secondsMax;
    private final double windowSeconds;
    private final Deque<Double> medians = new ArrayDeque<>();
    private double seconds;

    /** At least {@code secondsMin}; then on until it is steady, but not longer than {@code secondsMax}. */
    WarmUp(double secondsMin, double secondsMax, double windowSeconds) {
        this.secondsMin = secondsMin;
        this.secondsMax = secondsMax;
        this.windowSeconds = windowSeconds;
    }

    /** {@code median}: the median latency since its last call, in milliseconds; NaN when there was none. */
    void run(DoubleSupplier median) throws InterruptedException {
        long started = System.nanoTime();
        if (secondsMax <= secondsMin) {
            sleep(secondsMin);
        } else {
            sleep(Math.max(0, secondsMin - WINDOW_COUNT * windowSeconds));
            median.getAsDouble();
            do {
                sleep(windowSeconds);
                add(median.getAsDouble());
                seconds = since(started);
            } while (seconds + windowSeconds <= secondsMax && !(seconds >= secondsMin && isSteady()));
        }
        seconds = since(started);
    }

    void add(double median) {
        medians.addLast(median);
        if (medians.size() > WINDOW_COUNT) {
            medians.removeFirst();
        }
    }

    boolean isSteady() {
        double least = medians.stream().mapToDouble(Double::doubleValue).min().orElse(Double.NaN);
        double most = medians.stream().mapToDouble(Double::doubleValue).max().orElse(Double.NaN);
        // Comparisons with NaN are false.
        return medians.size() == WINDOW_COUNT && most - least < DIFFERENCE_MAX * least;
    }

    /** Seconds that it took; whether it was steady then, null where that was not asked; the last medians. */
    Map<String, Object> summary() {
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("seconds", seconds);
        out.put("steady", secondsMax <= secondsMin ? null : isSteady());
        List<Object> last = new ArrayList<>();
        medians.forEach(each -> last.add(each.isNaN() ? null : each));
        out.put("p50_ms", last);
        return out;
    }

    private static double since(long started) {
        return (System.nanoTime() - started) / 1e9;
    }

    private static void sleep(double seconds) throws InterruptedException {
        Thread.sleep((long) (seconds * 1000));
    }
}
