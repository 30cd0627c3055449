package segstore.cache;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.zip.CRC32;

/**
 * What is done to a cache, drawn beforehand so that drawing is not measured. Mirrors workload.py.
 *
 * @param deletes for each operation the place of the entry to delete, or -1 to insert
 * @param lengths for each insertion its length, else 0
 * @param reads for each operation the place of the entry to read afterwards, or -1
 */
record Work(int[] deletes, int[] lengths, int[] reads) {

    static Work draw(Options options, int count) {
        SplitMix random = new SplitMix(options.seed);
        Work work = new Work(new int[count], new int[count], new int[count]);
        int live = 0;
        for (int i = 0; i < count; i++) {
            boolean insert = random.below(100) < options.insertPercent;
            if ((insert || live == 0) && live < options.liveMax) {
                work.deletes[i] = -1;
                work.lengths[i] = options.vary ? random.below(options.size) : options.size;
                live++;
            } else {
                work.deletes[i] = random.below(live);
                live--;
            }
            work.reads[i] = live == 0 ? -1 : random.below(live);
        }
        return work;
    }

    void addTo(CRC32 sum) {
        ByteBuffer line = ByteBuffer.allocate(12).order(ByteOrder.LITTLE_ENDIAN);
        for (int i = 0; i < deletes.length; i++) {
            line.clear().putInt(deletes[i]).putInt(lengths[i]).putInt(reads[i]);
            sum.update(line.array());
        }
    }
}
