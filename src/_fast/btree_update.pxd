"""The rebuilding of a tree's changed pages, for the tree."""

from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from _fast.btree_batch cimport Batch
from _fast.btree_cache cimport PageCache
from _fast.btree_page cimport LEVELS_MAX, Footer
from _fast.btree_writer cimport NewPage, PageWriter


cdef struct Node:
    # A page of the present tree that the update reads, and as a rule replaces.
    PyObject *page
    uint64_t offset
    # Keys below this one belong to another page.
    const unsigned char *lower
    # The changes that fall into it.
    Py_ssize_t first
    Py_ssize_t last
    # Its place in the level above, and in that page.
    Py_ssize_t parent
    Py_ssize_t slot
    # How many records it has, and how many it will have.
    Py_ssize_t count
    Py_ssize_t total
    # Its nodes in the level below.
    Py_ssize_t children
    Py_ssize_t children_end
    # The pages that replace it.
    Py_ssize_t out_first
    Py_ssize_t out_count
    # It lies where the tree is to be truncated.
    bint moved
    bint changed
    # It is replaced, by no page perhaps.
    bint consumed
    # It grows at its end only.
    bint ascending
    # It is put together with the next one, or with any.
    bint joins_next
    bint joined


cdef struct Level:
    Node *nodes
    Py_ssize_t count
    Py_ssize_t capacity


cdef class Update:
    """The pages that a batch of changes leads to, and the tree as it will be."""

    cdef readonly uint64_t offset
    cdef readonly list buffers
    cdef readonly Footer footer
    cdef readonly uint64_t moved_bytes
    cdef list dropped


cdef class Rebuild:
    cdef Py_ssize_t key_length
    cdef Py_ssize_t leaf_records_max
    cdef Py_ssize_t index_records_max
    cdef Py_ssize_t page_bytes_max
    cdef bint compacts
    cdef double retained_ratio
    # What the update before wrote, without what it only moved.
    cdef uint64_t own_bytes
    cdef PageCache cache
    cdef uint32_t owner
    # Of the update under way.
    cdef Footer present
    cdef Batch batch
    cdef dict held
    cdef list missing
    cdef list dropped
    cdef PageWriter writer
    cdef uint64_t front
    cdef uint64_t moved_bytes
    cdef int64_t entry_count
    cdef Level levels[LEVELS_MAX]
    cdef Level spare
    cdef Py_ssize_t group_total
    cdef uint16_t *positions
    cdef uint8_t *kinds
    cdef Py_ssize_t changes_capacity

    cdef object run(self, Footer present, uint64_t end, Batch batch, dict held)
    cdef int _begin(self, Footer present, uint64_t end, Batch batch, dict held) except -1
    cdef int _reserve_changes(self) except -1
    cdef void _release(self) noexcept
    cdef uint64_t _compaction_front(self, uint64_t end) noexcept
    cdef int _walk(self) except -1
    cdef int _descend(self, int level, Py_ssize_t index) except -1
    cdef int _visit(
        self, int level, Py_ssize_t parent, Py_ssize_t slot, Py_ssize_t first, Py_ssize_t last
    ) except -1
    cdef bint _count_changes(self) noexcept
    cdef void _count_leaf(self, Node *node) noexcept
    cdef void _count_index(self, int level) noexcept
    cdef Py_ssize_t _records_max(self, int level) noexcept
    cdef int _join_sparse(self, int level) except -1
    cdef int _join_one(self, int level, Py_ssize_t index, Py_ssize_t records_max) except -1
    cdef int _join_right(self, int level, Py_ssize_t index, Py_ssize_t limit) except -1
    cdef int _join_left(self, int level, Py_ssize_t index, Py_ssize_t limit) except -1
    cdef Node *_keep(self, Node *node) except NULL
    cdef int _add_neighbour(self, int level, Node *node, Py_ssize_t slot) except -1
    cdef Py_ssize_t _untouched_total(self, int level, Node *node, Py_ssize_t slot) noexcept
    cdef int _emit(self, int level) except -1
    cdef int _emit_group(self, int level, Py_ssize_t first, Py_ssize_t end) except -1
    cdef int _replace(self, Node *node, int level) except -1
    cdef int _stream_leaf(self, Node *node) except -1
    cdef int _stream_index(self, int level, Node *node) except -1
    cdef Update _finish(self)
    cdef NewPage _new_root(self, int *level) except *
    cdef NewPage _only_child(self) noexcept
