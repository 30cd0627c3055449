"""The page cache, for the modules that look pages up."""

from cpython.object cimport PyObject
from libc.stdint cimport int32_t, uint32_t, uint64_t


cdef struct Cached:
    uint64_t offset
    PyObject *page
    uint32_t owner
    # The next in the same bucket, or the next unused one.
    int32_t next
    # Neighbours by last use.
    int32_t newer
    int32_t older
    # Which of the two lists by last use.
    int32_t kind


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
    cdef int32_t _newest[2]
    cdef int32_t _oldest[2]

    cdef uint32_t register(self) except? 0
    cdef PyObject *find(self, uint32_t owner, uint64_t offset) noexcept
    cdef int put(self, uint32_t owner, uint64_t offset, object page, int level) except -1
    cdef int drop(self, uint32_t owner, uint64_t offset) except -1
    cdef void forget(self, uint32_t owner) noexcept
    cdef int _grow(self) except -1
    cdef void _link(self, int32_t index) noexcept
    cdef void _unlink(self, int32_t index) noexcept
    cdef int32_t *_place(self, uint32_t owner, uint64_t offset) noexcept
    cdef void _remove(self, int32_t *place) noexcept
    cdef void _remove_entry(self, int32_t index) noexcept
    cdef void _shrink(self) noexcept


cdef object page_at(
    PageCache cache, uint32_t owner, dict held, uint64_t offset, Py_ssize_t length, int level
)
