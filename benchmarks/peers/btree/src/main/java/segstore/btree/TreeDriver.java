package segstore.btree;

import io.pravega.common.util.ByteArraySegment;
import io.pravega.common.util.btree.BTreeIndex;
import io.pravega.common.util.btree.PageEntry;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Random;

/**
 * Measures one workload: {@code TreeDriver sorted|random|get <keys> <batch size> <page bytes> <warm-up keys>}.
 *
 * Prints one line of JSON: seconds, those of CPU of the thread that works, how many bytes are retained, how many were written. What is timed is the calls of the index
 * alone, on entries that were made before.
 */
public final class TreeDriver {
    private static final Duration TIMEOUT = Duration.ofHours(1);
    private static final int KEY_LENGTH = 16;
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();

    private final int pageBytes;
    private final WorkQueue queue = new WorkQueue();
    private final Random random = new Random(1);
    private long cpuNanos;

    private TreeDriver(int pageBytes) {
        this.pageBytes = pageBytes;
    }

    public static void main(String[] arguments) {
        if (arguments.length != 5) {
            System.err.println("TreeDriver sorted|random|get <keys> <batch size> <page bytes> <warm-up keys>");
            System.exit(2);
        }
        String workload = arguments[0];
        int keys = Integer.parseInt(arguments[1]);
        int batchSize = Integer.parseInt(arguments[2]);
        TreeDriver driver = new TreeDriver(Integer.parseInt(arguments[3]));
        int warmUpKeys = Integer.parseInt(arguments[4]);
        if (warmUpKeys > 0) {
            driver.run(workload, warmUpKeys, batchSize);
        }
        System.gc();
        System.out.println(driver.run(workload, keys, batchSize));
    }

    private String run(String workload, int keys, int batchSize) {
        PageMemory memory = new PageMemory();
        BTreeIndex index = BTreeIndex.builder()
                .keyLength(KEY_LENGTH)
                .valueLength(Long.BYTES)
                .maxPageSize(pageBytes)
                .executor(queue)
                .getLength(memory::getLength)
                .readPage(memory::read)
                .writePages(memory::write)
                .maintainStatistics(false)
                .traceObjectId("benchmark")
                .build();
        queue.await(index.initialize(TIMEOUT));
        double seconds;
        long before = 0;
        cpuNanos = 0;
        if (workload.equals("sorted")) {
            seconds = update(index, batches(order(keys, false), batchSize, 0));
        } else {
            update(index, batches(order(keys, false), keys, 0));
            before = memory.length();
            seconds = workload.equals("get")
                    ? get(index, keys, batchSize)
                    : update(index, batches(order(keys, true), batchSize, 1));
        }
        return String.format(Locale.ROOT,
                "{\"seconds\": %.6f, \"cpu_seconds\": %.6f, \"retained_bytes\": %d, \"written_bytes\": %d}",
                seconds, cpuNanos / 1e9, memory.retainedBytes(), memory.length() - before);
    }

    private double update(BTreeIndex index, List<List<PageEntry>> batches) {
        long cpuStart = THREADS.getCurrentThreadCpuTime();
        long start = System.nanoTime();
        for (List<PageEntry> batch : batches) {
            queue.await(index.update(batch, TIMEOUT));
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        cpuNanos = THREADS.getCurrentThreadCpuTime() - cpuStart;
        return seconds;
    }

    /** Looks {@code count} keys up, one after the other. */
    private double get(BTreeIndex index, int keys, int count) {
        List<Integer> numbers = new ArrayList<>();
        List<ByteArraySegment> sought = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            numbers.add(random.nextInt(keys));
            sought.add(key(numbers.get(i)));
        }
        long cpuStart = THREADS.getCurrentThreadCpuTime();
        long start = System.nanoTime();
        for (int i = 0; i < count; i++) {
            ByteArraySegment value = queue.await(index.get(sought.get(i), TIMEOUT));
            if (value.getLong(0) != numbers.get(i)) {
                throw new IllegalStateException("a wrong value");
            }
        }
        double seconds = (System.nanoTime() - start) / 1e9;
        cpuNanos = THREADS.getCurrentThreadCpuTime() - cpuStart;
        return seconds;
    }

    private List<Integer> order(int keys, boolean shuffled) {
        List<Integer> numbers = new ArrayList<>();
        for (int i = 0; i < keys; i++) {
            numbers.add(i);
        }
        if (shuffled) {
            Collections.shuffle(numbers, random);
        }
        return numbers;
    }

    private static List<List<PageEntry>> batches(List<Integer> numbers, int batchSize, int more) {
        List<List<PageEntry>> batches = new ArrayList<>();
        for (int start = 0; start < numbers.size(); start += batchSize) {
            List<PageEntry> batch = new ArrayList<>();
            for (int number : numbers.subList(start, Math.min(start + batchSize, numbers.size()))) {
                ByteArraySegment value = new ByteArraySegment(new byte[Long.BYTES]);
                value.setLong(0, number + more);
                batch.add(new PageEntry(key(number), value));
            }
            batches.add(batch);
        }
        return batches;
    }

    private static ByteArraySegment key(int number) {
        return new ByteArraySegment(ByteBuffer.allocate(KEY_LENGTH).putLong(0).putLong(number).array());
    }
}
