"""The page cache, for the modules that look pages up."""

from libc.stdint cimport int32_t, uint8_t, uint16_t, uint32_t, uint64_t

from _fast.btree.memory cimport PageMemory


cdef extern from *:
    """
    #define btree_prefetch(address) __builtin_prefetch(address)
    """
    void prefetch "btree_prefetch"(const void *) noexcept nogil


cdef enum:
    CACHE_LINE_BYTES = 64


cdef inline void prefetch_all(const unsigned char *start, Py_ssize_t length) noexcept nogil:
    cdef Py_ssize_t position = 0
    while position < length:
        prefetch(start + position)
        position += CACHE_LINE_BYTES


cdef struct Bucket:
    # The hash of owner and offset, and the entry that has the page, or NONE.
    uint32_t hash
    int32_t index


cdef struct Cached:
    uint64_t offset
    # NULL in an unused entry.
    unsigned char *page
    uint32_t owner
    # The slot of its memory, or the next unused entry.
    int32_t slot
    uint16_t length
    uint8_t level
    # Whether the page was used since the hand passed.
    uint8_t touched


cdef inline uint32_t hash_of(uint32_t owner, uint64_t offset) noexcept nogil:
    return ((offset ^ (<uint64_t>owner << 48)) * <uint64_t>0x9E3779B97F4A7C15) >> 32


cdef class PageCache:
    cdef readonly Py_ssize_t bytes_max
    cdef readonly Py_ssize_t used_bytes
    cdef readonly Py_ssize_t page_count
    cdef readonly uint64_t hit_count
    cdef readonly uint64_t miss_count
    cdef PageMemory _memory
    cdef uint32_t _owners
    cdef Cached *_entries
    cdef int32_t _capacity
    cdef int32_t _unused
    # There are twice as many buckets as entries. A page is in the first bucket that was free,
    # searched from the bucket of its hash.
    cdef Bucket *_buckets
    cdef uint32_t _mask
    cdef int32_t _hand
    cdef Py_ssize_t _leaf_count

    cdef inline void expect_bucket(self, uint32_t owner, uint64_t offset) noexcept:
        """Prefetch a page's bucket: the first step."""
        prefetch(self._buckets + (hash_of(owner, offset) & self._mask))

    cdef inline void expect_entry(self, uint32_t owner, uint64_t offset) noexcept:
        """Prefetch a page's entry: the second step."""
        cdef int32_t index = self._by_hash(hash_of(owner, offset)).index
        if index >= 0:
            prefetch(self._entries + index)

    cdef inline void expect_page(self, uint32_t owner, uint64_t offset) noexcept:
        """Prefetch the beginning of a page: the third step."""
        cdef int32_t index = self._by_hash(hash_of(owner, offset)).index
        if index >= 0:
            prefetch(self._entries[index].page)

    cdef inline void expect_whole_page(self, uint32_t owner, uint64_t offset) noexcept:
        """Prefetch a whole page, instead of its beginning."""
        cdef int32_t index = self._by_hash(hash_of(owner, offset)).index
        if index >= 0:
            prefetch_all(self._entries[index].page, self._entries[index].length)

    cdef inline Bucket *_by_hash(self, uint32_t hash) noexcept:
        """Return the first bucket with that hash, or an empty one."""
        cdef Bucket *bucket = self._buckets + (hash & self._mask)
        while bucket.index >= 0 and bucket.hash != hash:
            bucket = self._after(bucket)
        return bucket

    cdef inline Bucket *_after(self, Bucket *bucket) noexcept:
        """Return the next bucket; the first follows the last."""
        return self._buckets + (<uint32_t>(bucket - self._buckets + 1) & self._mask)

    cdef uint32_t register(self) except? 0
    cdef const Cached *find(self, uint32_t owner, uint64_t offset) noexcept
    cdef void put(
        self,
        uint32_t owner,
        uint64_t offset,
        const unsigned char *page,
        Py_ssize_t length,
        int level,
    ) noexcept
    cdef void drop(self, uint32_t owner, uint64_t offset) noexcept
    cdef void replace(
        self,
        uint32_t owner,
        uint64_t before,
        uint64_t offset,
        const unsigned char *page,
        Py_ssize_t length,
        int level,
    ) noexcept
    cdef void forget(self, uint32_t owner) noexcept
    cdef void settle(self) noexcept
    cdef bint _grow(self) noexcept
    cdef Bucket *_place(self, uint32_t owner, uint64_t offset) noexcept
    cdef void _remove(self, Bucket *bucket) noexcept
    cdef void _unlink(self, Bucket *bucket) noexcept
    cdef void _remove_entry(self, int32_t index) noexcept
    cdef void _shrink(self) noexcept
    cdef void _settle_kind(self, int kind) noexcept


cdef const unsigned char *page_at(
    PageCache cache, uint32_t owner, dict held, uint64_t offset, Py_ssize_t length, int level
) except? NULL
