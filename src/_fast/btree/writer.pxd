"""The writer of a tree's new pages, for the module that rebuilds it."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint32_t, uint64_t


cdef struct NewPage:
    # The lowest key that belongs to it; NULL for that of its first record.
    const unsigned char *key
    uint64_t offset
    uint64_t min_offset
    uint32_t length


cdef class PageWriter:
    cdef Py_ssize_t key_length
    # The offsets of the update and of the next page.
    cdef uint64_t start
    cdef uint64_t end
    # The bytes from `start` to `end`, with room after them.
    cdef PyObject *_buffer
    cdef unsigned char *_data
    cdef Py_ssize_t _room_bytes
    # The room with which an update begins.
    cdef Py_ssize_t _usual_bytes
    cdef uint32_t pages_sum
    cdef int64_t leaf_count
    cdef int64_t index_count
    cdef int64_t live_bytes
    cdef NewPage *pages
    cdef Py_ssize_t page_count
    cdef Py_ssize_t _capacity
    # The row of pages that is being written.
    cdef int _level
    cdef Py_ssize_t _stride
    cdef Py_ssize_t _left
    cdef Py_ssize_t _records_max
    cdef bint _ascending
    cdef const unsigned char *_key
    cdef const unsigned char *_first_key
    # The present page: its number of records, the place of the next, and how many are left.
    cdef Py_ssize_t _page_records
    cdef unsigned char *_to
    cdef Py_ssize_t _room

    cdef int reset(self, uint64_t end) except -1
    cdef int begin_row(
        self,
        int level,
        Py_ssize_t total,
        Py_ssize_t records_max,
        bint ascending,
        const unsigned char *key,
    ) except -1
    cdef void next_source(self, const unsigned char *lower) noexcept
    cdef int put(self, const unsigned char *records, Py_ssize_t count) except -1
    cdef int put_page(self, Py_ssize_t index) except -1
    cdef int move(
        self, const unsigned char *page, Py_ssize_t length, const unsigned char *key
    ) except -1
    cdef void forget(self, int level, Py_ssize_t length) noexcept
    cdef int append(self, bytes delta) except -1
    cdef bytes finish(self, bytes footer)
    cdef void release(self) noexcept
    cdef const unsigned char *key_of(self, const NewPage *page) noexcept
    cdef unsigned char *_reserve(self, Py_ssize_t length) except NULL
    cdef int _open_page(self) except -1
    cdef int _close_page(self) except -1
    cdef int _add(
        self,
        int level,
        Py_ssize_t count,
        Py_ssize_t length,
        uint32_t records_sum,
        const unsigned char *key,
    ) except -1
