package segstore.btree;

import io.pravega.common.util.ByteArraySegment;
import io.pravega.common.util.btree.BTreeIndex;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;

/**
 * Keeps an index's pages in memory, in the order of their offsets, from where it was truncated on.
 *
 * Every page that the tree needs is cached, and comes out of the cache without being copied, which the original's segment store cannot
 * do: that is to its advantage.
 */
final class PageMemory {
    private final Map<Long, ByteArraySegment> cache = new HashMap<>();
    private final ArrayDeque<BTreeIndex.WritePage> stored = new ArrayDeque<>();
    private long startOffset;
    private long length;

    long retainedBytes() {
        return length - startOffset;
    }

    long length() {
        return length;
    }

    CompletableFuture<BTreeIndex.IndexInfo> getLength(Duration timeout) {
        return CompletableFuture.completedFuture(new BTreeIndex.IndexInfo(length, -1));
    }

    CompletableFuture<ByteArraySegment> read(long offset, int pageLength, boolean cacheResult, Duration timeout) {
        return CompletableFuture.completedFuture(cache.get(offset));
    }

    CompletableFuture<Long> write(List<BTreeIndex.WritePage> pages, Collection<Long> obsoleteOffsets, long truncateOffset, Duration timeout) {
        obsoleteOffsets.forEach(cache::remove);
        for (BTreeIndex.WritePage page : pages) {
            if (page.getOffset() != length) {
                throw new IllegalStateException("a page for " + page.getOffset() + " at " + length);
            }
            length += page.getContents().getLength();
            stored.addLast(page);
            if (page.isCache()) {
                cache.put(page.getOffset(), page.getContents());
            }
        }
        while (!stored.isEmpty() && stored.getFirst().getOffset() < truncateOffset) {
            stored.removeFirst();
        }
        startOffset = Math.max(startOffset, truncateOffset);
        return CompletableFuture.completedFuture(length);
    }
}
