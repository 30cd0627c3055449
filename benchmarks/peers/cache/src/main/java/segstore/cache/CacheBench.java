package segstore.cache;

import io.pravega.common.util.ByteArraySegment;
import io.pravega.segmentstore.storage.cache.DirectMemoryCache;
import java.lang.management.ManagementFactory;
import java.lang.management.ThreadMXBean;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.zip.CRC32;

/** Does the work of workload.py to the original's cache; prints one JSON object. */
public final class CacheBench {
    private static final ThreadMXBean THREADS = ManagementFactory.getThreadMXBean();
    private static final int CHECKED_EVERY = 97;

    private final Options options;
    private final ByteArraySegment source;
    private final byte[] target;
    private final List<String> fields = new ArrayList<>();
    private final CRC32 sum = new CRC32();
    private long wallStart;
    private long cpuStart;

    private CacheBench(Options options) {
        this.options = options;
        this.source = new ByteArraySegment(new SplitMix(options.seed).bytes(options.size));
        this.target = new byte[options.size];
    }

    public static void main(String[] arguments) throws Exception {
        Options options = Options.parse(arguments);
        List<String> passes = new ArrayList<>();
        CacheBench bench = new CacheBench(options);
        Work warmup = options.random ? Work.draw(options, options.warmupCount) : null;
        Work work = options.random ? Work.draw(options, options.count) : null;
        long warmupCapacity = options.warmupCount * (options.size + 8192L) + (4L << 20);
        try (DirectMemoryCache cache = new DirectMemoryCache(warmupCapacity)) {
            for (int pass = 0; pass < options.warmupPasses; pass++) {
                bench.pass(cache, warmup, options.warmupCount);
            }
        }
        System.out.println("ready");
        System.in.read();
        bench.sum.reset();
        try (DirectMemoryCache cache = new DirectMemoryCache(options.capacity)) {
            for (int pass = 0; pass < options.passes; pass++) {
                passes.add(bench.pass(cache, work, options.count));
            }
        }
        System.out.printf("{\"digest\": %d, \"passes\": [%s]}%n",
                bench.sum.getValue(), String.join(", ", passes));
    }

    private String pass(DirectMemoryCache cache, Work work, int count) {
        fields.clear();
        if (options.random) {
            random(cache, work);
        } else {
            sequential(cache, count);
        }
        return "{" + String.join(", ", fields) + "}";
    }

    private void sequential(DirectMemoryCache cache, int count) {
        int[] addresses = new int[count];
        begin();
        insertAll(cache, addresses);
        end("insert", count);
        begin();
        getAll(cache, addresses);
        end("get", count);
        for (int i = 0; i < count; i += CHECKED_EVERY) {
            check(cache, addresses[i]);
        }
        begin();
        deleteAll(cache, addresses);
        end("delete", count);
    }

    private void insertAll(DirectMemoryCache cache, int[] addresses) {
        for (int i = 0; i < addresses.length; i++) {
            addresses[i] = cache.insert(source);
        }
    }

    private void getAll(DirectMemoryCache cache, int[] addresses) {
        for (int address : addresses) {
            cache.get(address).copyTo(ByteBuffer.wrap(target));
        }
    }

    private void deleteAll(DirectMemoryCache cache, int[] addresses) {
        for (int address : addresses) {
            cache.delete(address);
        }
    }

    private void random(DirectMemoryCache cache, Work work) {
        int[] addresses = new int[Math.min(work.deletes().length, options.liveMax)];
        begin();
        int live = runAll(cache, work, addresses);
        end("random", work.deletes().length);
        work.addTo(sum);
        for (int i = 0; i < live; i++) {
            if (i % CHECKED_EVERY == 0) {
                check(cache, addresses[i]);
            }
            cache.delete(addresses[i]);
        }
    }

    private int runAll(DirectMemoryCache cache, Work work, int[] addresses) {
        int live = 0;
        for (int i = 0; i < work.deletes().length; i++) {
            int place = work.deletes()[i];
            if (place < 0) {
                addresses[live++] = cache.insert(options.vary ? source.slice(0, work.lengths()[i]) : source);
            } else {
                cache.delete(addresses[place]);
                addresses[place] = addresses[--live];
            }
            int read = work.reads()[i];
            if (read >= 0) {
                cache.get(addresses[read]).copyTo(ByteBuffer.wrap(target));
            }
        }
        return live;
    }

    private void check(DirectMemoryCache cache, int address) {
        byte[] copy = cache.get(address).getCopy();
        sum.update(copy);
    }

    private void begin() {
        System.gc();
        wallStart = System.nanoTime();
        cpuStart = THREADS.getCurrentThreadCpuTime();
    }

    private void end(String name, int count) {
        long cpu = THREADS.getCurrentThreadCpuTime() - cpuStart;
        long wall = System.nanoTime() - wallStart;
        fields.add(String.format("\"%s\": {\"wall_ns\": %d, \"cpu_ns\": %d, \"count\": %d}",
                name, wall, cpu, count));
    }
}
