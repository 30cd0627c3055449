"""A bounded cache of B+Tree pages, shared by any number of trees.

Owns: the pages in the cache, by tree and offset. A clock hand goes round and evicts the pages that
were not used since its last visit.

A page never changes: a tree writes another page at another offset. A page stays at its address
until pages are put, dropped or forgotten; lookups move no page.

Invariants:
1. ``used_bytes`` never exceeds ``bytes_max``. A page that does not fit, or for which memory cannot
   be allocated, is evicted at once. A caller that needs a page for longer therefore keeps its own
   reference. Held by ``TestTreeModel``.
2. Leaves are evicted before index pages. While the index fits, a lookup reads at most one page from
   storage. Held by ``test_a_warm_lookup_reads_one_page_at_most``.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from _fast.btree.memory cimport (
    KIND_COUNT,
    LENGTH_MAX,
    NOBODY,
    REGION_BYTES,
    PageMemory,
    allow,
    forbid,
    kind_of,
    slot_bytes_of,
)
from _fast.btree.page cimport page_level

from _fast.btree.page import CorruptPageError

cdef enum:
    NONE = -1
    # The cost of a page besides its slot: its entry, its bucket, and the slot's record.
    OVERHEAD_BYTES = 56
    ENTRIES_MIN = 64
    ENTRIES_MAX = 1 << 30


cdef inline Py_ssize_t cost_of(const Cached *entry) noexcept:
    return slot_bytes_of(kind_of(entry.length)) + OVERHEAD_BYTES


# A page cache is in no reference cycle, and trees that are in one need the cache until they are
# freed.
@cython.no_gc
cdef class PageCache:
    """Pages of any number of trees in at most ``bytes_max`` bytes."""

    def __cinit__(self, Py_ssize_t bytes_max):
        if bytes_max < 0:
            raise ValueError(f"a cache cannot have {bytes_max} bytes")
        self.bytes_max = bytes_max
        self._memory = PageMemory()
        self._unused = NONE
        if not self._grow():
            raise MemoryError("no room for a cache of pages")

    def __dealloc__(self):
        free(self._entries)
        free(self._buckets)

    @property
    def memory_bytes(self):
        """Return how much memory was allocated; the pages use most."""
        return self._memory.region_count * <Py_ssize_t>REGION_BYTES

    cdef uint32_t register(self) except? 0:
        """Return a number for a new tree."""
        self._owners += 1
        return self._owners

    cdef const Cached *find(self, uint32_t owner, uint64_t offset) noexcept:
        """Return the entry of a tree's page at an offset, or NULL."""
        cdef int32_t index = self._place(owner, offset).index
        if index == NONE:
            self.miss_count += 1
            return NULL
        self.hit_count += 1
        self._entries[index].touched = True
        return self._entries + index

    cdef void put(
        self,
        uint32_t owner,
        uint64_t offset,
        const unsigned char *page,
        Py_ssize_t length,
        int level,
    ) noexcept:
        """Store a copy of a page if there is memory for it; other pages may be evicted."""
        cdef Bucket *bucket = self._place(owner, offset)
        cdef Cached *entry
        cdef int32_t index
        if bucket.index != NONE:
            self._remove(bucket)
        if length > LENGTH_MAX or (self._unused == NONE and not self._grow()):
            return
        index = self._unused
        entry = self._entries + index
        self._unused = entry.slot
        entry.page = self._memory.allocate(length, index, &entry.slot)
        if entry.page == NULL:
            entry.slot = self._unused
            self._unused = index
            return
        memcpy(entry.page, page, <size_t>length)
        entry.offset = offset
        entry.owner = owner
        entry.level = <uint8_t>level
        entry.touched = True
        entry.length = <uint16_t>length
        bucket = self._place(owner, offset)
        bucket.hash = hash_of(owner, offset)
        bucket.index = index
        self.page_count += 1
        self._leaf_count += level == 0
        self.used_bytes += cost_of(entry)
        if self.used_bytes > self.bytes_max:
            self._shrink()

    cdef void drop(self, uint32_t owner, uint64_t offset) noexcept:
        """Drop a page that no tree needs any more, if it is in the cache."""
        cdef Bucket *bucket = self._place(owner, offset)
        if bucket.index != NONE:
            self._remove(bucket)

    cdef void replace(
        self,
        uint32_t owner,
        uint64_t before,
        uint64_t offset,
        const unsigned char *page,
        Py_ssize_t length,
        int level,
    ) noexcept:
        """Replace a page by another, in the same memory if that is about as long."""
        cdef Bucket *bucket = self._place(owner, before)
        cdef int32_t index = bucket.index
        cdef Cached *entry
        if index == NONE:
            self.put(owner, offset, page, length, level)
            return
        entry = self._entries + index
        if length > LENGTH_MAX or kind_of(entry.length) != kind_of(length):
            self._remove(bucket)
            self.put(owner, offset, page, length, level)
            return
        self._unlink(bucket)
        bucket = self._place(owner, offset)
        if bucket.index != NONE:
            self._remove(bucket)
            bucket = self._place(owner, offset)
        bucket.hash = hash_of(owner, offset)
        bucket.index = index
        allow(entry.page, length)
        memcpy(entry.page, page, <size_t>length)
        if length < entry.length:
            forbid(entry.page + length, entry.length - length)
        self._leaf_count += (level == 0) - (entry.level == 0)
        entry.offset = offset
        entry.level = <uint8_t>level
        entry.touched = True
        entry.length = <uint16_t>length

    cdef void forget(self, uint32_t owner) noexcept:
        """Drop all pages of a tree."""
        cdef int32_t index
        for index in range(self._capacity):
            if self._entries[index].page != NULL and self._entries[index].owner == owner:
                self._remove_entry(index)
        self.settle()

    cdef void settle(self) noexcept:
        """Free the memory of pages that were dropped."""
        cdef int kind
        for kind in range(KIND_COUNT):
            if self._memory.has_many_holes(kind):
                self._settle_kind(kind)

    cdef void _settle_kind(self, int kind) noexcept:
        """Move the pages of a kind together if there are enough holes."""
        cdef Cached *entry
        cdef const unsigned char *page
        cdef int32_t user
        cdef int32_t slot
        while self._memory.has_many_holes(kind):
            user = self._memory.last_user(kind)
            if user != NOBODY:
                entry = self._entries + user
                page, slot = entry.page, entry.slot
                # There is a free slot of this size, so this cannot fail for lack of memory.
                entry.page = self._memory.allocate(entry.length, user, &entry.slot)
                memcpy(entry.page, page, entry.length)
                self._memory.release(kind, slot)
            self._memory.drop_last(kind)

    cdef bint _grow(self) noexcept:
        """Double the entries and buckets; return whether there is memory for them."""
        cdef int32_t capacity = self._capacity * 2 if self._capacity else ENTRIES_MIN
        cdef Bucket *buckets
        cdef Bucket *bucket
        cdef int32_t index
        if capacity > ENTRIES_MAX:
            return False
        entries = <Cached *>realloc(self._entries, <size_t>capacity * sizeof(Cached))
        if entries == NULL:
            return False
        self._entries = entries
        buckets = <Bucket *>malloc(<size_t>capacity * 2 * sizeof(Bucket))
        if buckets == NULL:
            return False
        free(self._buckets)
        self._buckets = buckets
        self._mask = <uint32_t>capacity * 2 - 1
        for index in range(capacity * 2):
            buckets[index].index = NONE
        for index in range(self._capacity):
            bucket = buckets + (hash_of(entries[index].owner, entries[index].offset) & self._mask)
            while bucket.index != NONE:
                bucket = self._after(bucket)
            bucket.hash = hash_of(entries[index].owner, entries[index].offset)
            bucket.index = index
        for index in range(capacity - 1, self._capacity - 1, -1):
            entries[index].page = NULL
            entries[index].slot = self._unused
            self._unused = index
        self._capacity = capacity
        return True

    cdef Bucket *_place(self, uint32_t owner, uint64_t offset) noexcept:
        """Return the bucket of a page, or the empty one in which it belongs."""
        cdef uint32_t hash = hash_of(owner, offset)
        cdef Bucket *bucket = self._by_hash(hash)
        cdef Cached *entry
        while bucket.index != NONE:
            if bucket.hash == hash:
                entry = self._entries + bucket.index
                if entry.offset == offset and entry.owner == owner:
                    break
            bucket = self._after(bucket)
        return bucket

    cdef void _remove(self, Bucket *bucket) noexcept:
        """Remove the page that a bucket names."""
        cdef int32_t index = bucket.index
        cdef Cached *entry = self._entries + index
        self.page_count -= 1
        self._leaf_count -= entry.level == 0
        self.used_bytes -= cost_of(entry)
        self._memory.release(kind_of(entry.length), entry.slot)
        entry.page = NULL
        entry.slot = self._unused
        self._unused = index
        self._unlink(bucket)

    cdef void _unlink(self, Bucket *bucket) noexcept:
        """Empty a bucket, and move up the buckets after it that belong there."""
        cdef Bucket *next = self._after(bucket)
        cdef uint32_t place
        while next.index != NONE:
            place = <uint32_t>(bucket - self._buckets)
            if ((next.hash - place - 1) & self._mask) >= (
                (<uint32_t>(next - self._buckets) - place) & self._mask
            ):
                bucket[0] = next[0]
                bucket = next
            next = self._after(next)
        bucket.index = NONE

    cdef void _remove_entry(self, int32_t index) noexcept:
        self._remove(self._place(self._entries[index].owner, self._entries[index].offset))

    cdef void _shrink(self) noexcept:
        cdef Cached *entry
        cdef int kind
        while self.used_bytes > self.bytes_max:
            self._hand = (self._hand + 1) & (self._capacity - 1)
            entry = self._entries + self._hand
            if entry.page == NULL or (entry.level and self._leaf_count):
                continue
            if entry.touched:
                entry.touched = False
                continue
            kind = kind_of(entry.length)
            self._remove_entry(self._hand)
            if self._memory.has_many_holes(kind):
                self._settle_kind(kind)


cdef const unsigned char *page_at(
    PageCache cache, uint32_t owner, dict held, uint64_t offset, Py_ssize_t length, int level
) except? NULL:
    """Return the page from the cache or from ``held``, as a parent describes it, else NULL."""
    cdef const Cached *entry = cache.find(owner, offset)
    cdef const unsigned char *page
    cdef Py_ssize_t found
    cdef int found_level
    if entry != NULL:
        page = entry.page
        found = entry.length
        found_level = entry.level
    else:
        kept = None if held is None else held.get(offset)
        if kept is None:
            return NULL
        page = <const unsigned char *>PyBytes_AS_STRING(<bytes?>kept)
        found = PyBytes_GET_SIZE(kept)
        found_level = page_level(page)
    if found != length or found_level != level:
        raise CorruptPageError(offset, "the page is not the one that its parent knows")
    return page
