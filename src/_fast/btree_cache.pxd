"""The page cache, for the modules that look pages up."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint32_t, uint64_t


cdef extern from *:
    """
    #define btree_prefetch(address) __builtin_prefetch(address)
    """
    void prefetch "btree_prefetch"(const void *) noexcept nogil


cdef struct Cached:
    uint64_t offset
    # NULL in an entry that is not used.
    PyObject *page
    uint32_t owner
    # The next in the same bucket, or the next unused one.
    int32_t next
    bint is_leaf
    # Since the hand passed by.
    bint touched


cdef inline uint64_t spread(uint32_t owner, uint64_t offset) noexcept nogil:
    cdef uint64_t hashed = (offset ^ (<uint64_t>owner << 48)) * <uint64_t>0x9E3779B97F4A7C15
    return hashed ^ (hashed >> 32)


cdef class PageCache:
    cdef readonly Py_ssize_t bytes_max
    cdef readonly Py_ssize_t used_bytes
    cdef readonly Py_ssize_t page_count
    cdef readonly uint64_t hit_count
    cdef readonly uint64_t miss_count
    cdef uint32_t _owners
    cdef Cached *_entries
    cdef int32_t _capacity
    cdef int32_t _unused
    cdef int32_t *_buckets
    cdef uint64_t _mask
    cdef int32_t _hand
    cdef Py_ssize_t _leaf_count

    cdef inline void expect_place(self, uint32_t owner, uint64_t offset) noexcept:
        """Get the memory ready that says where a page is."""
        prefetch(self._buckets + (spread(owner, offset) & self._mask))

    cdef inline void expect_entry(self, uint32_t owner, uint64_t offset) noexcept:
        """Then that of the page's entry."""
        cdef int32_t index = self._buckets[spread(owner, offset) & self._mask]
        if index >= 0:
            prefetch(self._entries + index)

    cdef inline void expect_page(self, uint32_t owner, uint64_t offset) noexcept:
        """Then that of the page itself, of which the beginning."""
        cdef int32_t index = self._buckets[spread(owner, offset) & self._mask]
        if index >= 0:
            prefetch(self._entries[index].page)

    cdef uint32_t register(self) except? 0
    cdef PyObject *find(self, uint32_t owner, uint64_t offset) noexcept
    cdef int put(self, uint32_t owner, uint64_t offset, object page, int level) except -1
    cdef int drop(self, uint32_t owner, uint64_t offset) except -1
    cdef void forget(self, uint32_t owner) noexcept
    cdef int _grow(self) except -1
    cdef int32_t *_place(self, uint32_t owner, uint64_t offset) noexcept
    cdef void _remove(self, int32_t *place) noexcept
    cdef void _remove_entry(self, int32_t index) noexcept
    cdef void _shrink(self) noexcept


cdef object page_at(
    PageCache cache, uint32_t owner, dict held, uint64_t offset, Py_ssize_t length, int level
)
