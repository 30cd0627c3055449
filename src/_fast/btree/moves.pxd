"""The lowest leaves of a tree, for the module that moves them."""

from libc.stdint cimport uint32_t, uint64_t

from _fast.btree.cache cimport PageCache
from _fast.btree.delta cimport Deltas
from _fast.btree.page cimport Footer, Pointer, load64


cdef class Moves:
    cdef Py_ssize_t key_length
    # No leaf lies before this offset.
    cdef uint64_t lowest
    # Every leaf before this offset is a candidate.
    cdef uint64_t known_until
    # Candidates: the offset of a leaf, big endian, and a key that leads to it.
    cdef unsigned char *items
    cdef Py_ssize_t item_bytes
    cdef Py_ssize_t first
    cdef Py_ssize_t count
    cdef Py_ssize_t _capacity
    # The search that is not finished.
    cdef Deltas _deltas
    cdef PageCache _cache
    cdef uint32_t _owner
    cdef dict _held
    cdef list _missing

    cdef void restart(self, uint64_t lowest) noexcept
    cdef uint64_t lowest_from(self, uint64_t front) noexcept
    cdef void advance(self, uint64_t lowest) noexcept
    cdef int look_up(
        self,
        uint64_t front,
        uint64_t end,
        Footer present,
        Deltas deltas,
        PageCache cache,
        uint32_t owner,
        dict held,
        list missing,
    ) except -1
    cdef int _collect(self, Pointer page, int level, uint64_t until) except -1
    cdef int _add(self, uint64_t offset, const unsigned char *key) except -1
    cdef inline uint64_t offset_at(self, Py_ssize_t index) noexcept:
        return load64(self.items + index * self.item_bytes)

    cdef inline const unsigned char *key_at(self, Py_ssize_t index) noexcept:
        return self.items + index * self.item_bytes + 8
