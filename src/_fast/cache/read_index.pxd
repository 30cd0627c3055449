"""The cached entries of segments, for modules that call them without Python in between."""

from libc.stdint cimport int64_t, uint32_t, uint64_t

from _fast.cache.streaming_cache cimport StreamingCache
from _fast.cache.read_index_records cimport Owners, Record, Records
from _fast.cache.read_index_tree cimport Place, Tree


cdef class Generations:
    cdef object __weakref__
    cdef readonly StreamingCache cache
    cdef readonly uint64_t evicted_bytes
    cdef readonly uint64_t evicted_count
    cdef Records _records
    # The segments' entries, borrowed: they are removed when they go away.
    cdef Owners _owners

    cdef int _drop(self, uint32_t number) except -1


cdef class SegmentEntries:
    cdef object __weakref__
    cdef readonly Generations generations
    # Whether the last ``gather`` met bytes that came from tier 2.
    cdef readonly bint read_history
    cdef Tree _tree
    cdef uint32_t _owner
    # The entry with the highest offset; 0 when there is none.
    cdef uint32_t _last
    # The last entry when the next append must not extend it; otherwise any other.
    cdef uint32_t _ended
    # Entries up to this offset are enlisted, because tier 2 has them.
    cdef int64_t _stored

    cdef int append_bytes(
        self, int64_t offset, const unsigned char *data, Py_ssize_t length
    ) except -1
    cdef int _add(self, int64_t offset, uint32_t address, uint32_t length) except -1
    cdef bint _seek(self, int64_t offset, Place *place) noexcept
    cdef bint _is_free(self, int64_t offset, int64_t end) noexcept
    cdef int _remove(self, Place *place) except -1
    cdef void _forget_history(self, Record *record) noexcept
