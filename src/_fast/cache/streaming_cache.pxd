"""The streaming cache, for modules that call it without Python in between."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from _fast.cache.pins cimport Pins
from _fast.cache.pool cimport Block, Pool


cdef class StreamingCache:
    cdef object __weakref__
    cdef object _on_full
    cdef Pool _pool
    cdef Pins _pins
    cdef bint _copying
    cdef bint _cleaning
    cdef bint _corrupted

    # These have the effect of the operations of the same names. The bytes must stay at their
    # address meanwhile.
    cdef uint32_t insert_bytes(self, const unsigned char *data, Py_ssize_t length) except 0
    cdef uint32_t append_bytes(
        self, int64_t address, const unsigned char *data, Py_ssize_t length
    ) except 0
    cdef Py_ssize_t delete_entry(self, int64_t address) except -1
    cdef int get_bytes(
        self, int64_t address, unsigned char *target, Py_ssize_t position, Py_ssize_t length
    ) except -1
    cdef list get_views(self, int64_t address, Py_ssize_t position, Py_ssize_t length)

    cdef int _clean_up(self, int attempts, uint64_t blocks, uint32_t address) except -1
    cdef uint32_t _pin(self, uint32_t address) except 0
    cdef void _unpin(self, uint32_t pin) noexcept
    cdef void _drop_pin(self, uint32_t pin) noexcept
    cdef object _view(self, uint32_t pin, unsigned char *start, Py_ssize_t length)
    cdef int _enter(self) except -1
    cdef int _fail(self) except -1
    cdef int _check_length(self, Py_ssize_t length, Py_ssize_t added) except -1
    cdef Block *_last_block(self, int64_t address) except NULL
    cdef Py_ssize_t _range(
        self, int64_t address, Py_ssize_t position, Py_ssize_t length
    ) except -1
    cdef uint32_t _claim(
        self, uint32_t previous, uint32_t index, const unsigned char *data, Py_ssize_t length
    ) except 0
    cdef int _copy_out(
        self, int64_t address, unsigned char *target, Py_ssize_t position, Py_ssize_t length
    ) except -1
    cdef void _copied(self) noexcept
    cdef int _remove(self, uint32_t address) except -1
