package segstore.load;

import java.util.List;
import java.util.LinkedHashMap;
import java.util.Map;
import org.HdrHistogram.Histogram;
import org.HdrHistogram.Recorder;

/**
 * Latencies recorded by any number of threads, in nanoseconds with three significant digits, from one microsecond to ten minutes.
 * What lies outside counts as the nearest that lies inside.
 */
public final class Latencies {
    private static final long LEAST_NANOS = 1_000;
    private static final long MOST_NANOS = 600_000_000_000L;
    private static final int DIGITS = 3;

    private final Recorder recorder = new Recorder(LEAST_NANOS, MOST_NANOS, DIGITS);

    public void record(long nanos) {
        recorder.recordValue(Math.max(0, Math.min(nanos, MOST_NANOS)));
    }

    /** What was recorded since the last call. */
    public Histogram take() {
        return recorder.getIntervalHistogram();
    }

    /** Takes what was recorded since the last call from each of these; returns the median in milliseconds, or NaN for nothing. */
    public static double median(List<Latencies> parts) {
        Histogram all = merged(parts);
        return all.getTotalCount() > 0 ? millis(all.getValueAtPercentile(50)) : Double.NaN;
    }

    /** Takes what was recorded since the last call from each of these, as one summary in milliseconds. */
    public static Map<String, Object> summary(List<Latencies> parts) {
        Histogram all = merged(parts);
        Map<String, Object> out = new LinkedHashMap<>();
        out.put("count", all.getTotalCount());
        boolean some = all.getTotalCount() > 0;
        out.put("p50", some ? millis(all.getValueAtPercentile(50)) : null);
        out.put("p95", some ? millis(all.getValueAtPercentile(95)) : null);
        out.put("p99", some ? millis(all.getValueAtPercentile(99)) : null);
        out.put("p99_9", some ? millis(all.getValueAtPercentile(99.9)) : null);
        out.put("max", some ? millis(all.getMaxValue()) : null);
        return out;
    }

    private static Histogram merged(List<Latencies> parts) {
        Histogram all = new Histogram(LEAST_NANOS, MOST_NANOS, DIGITS);
        for (Latencies part : parts) {
            all.add(part.take());
        }
        return all;
    }

    private static double millis(long nanos) {
        return nanos / 1e6;
    }
}
