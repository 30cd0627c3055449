"""The changes of an update to each page, for the module that writes the new pages."""

from libc.stdint cimport int64_t, uint8_t, uint16_t

from _fast.btree.cache cimport prefetch_all
from _fast.btree.walk cimport Level, Node, Walk


cdef enum:
    # The effect of a change in its leaf.
    KEEP = 0
    REPLACE = 1
    INSERT = 2
    REMOVE = 3
    # Number of leaves that are prefetched before they are needed.
    LEAVES_AHEAD = 4


cdef inline void expect_leaf(const Node *node) noexcept nogil:
    prefetch_all(node.records, node.length)


cdef class Plan(Walk):
    cdef int64_t entry_count
    # The slot of each change of the batch in its leaf, and its effect there.
    cdef uint16_t *positions
    cdef uint8_t *kinds
    cdef Py_ssize_t changes_capacity
    cdef Level spare
    cdef Py_ssize_t group_total

    cdef int reserve_changes(self) except -1
    cdef bint count_changes(self) noexcept
    cdef void _count_leaf(self, Node *node) noexcept
    cdef void count_index(self, int level) noexcept
    cdef int join_sparse(self, int level, Py_ssize_t records_max) except -1
    cdef int _join_one(self, int level, Py_ssize_t index, Py_ssize_t records_max) except -1
    cdef int _join_right(self, int level, Py_ssize_t index, Py_ssize_t limit) except -1
    cdef int _join_left(self, int level, Py_ssize_t index, Py_ssize_t limit) except -1
    cdef Node *_keep(self, Node *node) except NULL
    cdef int _add_neighbour(self, int level, Node *node, Py_ssize_t slot) except -1
    cdef Py_ssize_t _untouched_total(self, int level, Node *node, Py_ssize_t slot) noexcept
