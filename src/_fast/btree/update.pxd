"""The rebuilding of a tree's changed pages, for the tree."""

from libc.stdint cimport uint64_t

from _fast.btree.batch cimport Batch
from _fast.btree.page cimport Footer
from _fast.btree.plan cimport Plan
from _fast.btree.walk cimport Node
from _fast.btree.writer cimport NewPage, PageWriter


cdef class Update:
    """The new pages for a batch of changes, and the tree that they lead to."""

    cdef readonly uint64_t offset
    cdef readonly bytes data
    cdef readonly Footer footer
    cdef readonly uint64_t moved_bytes
    # The offsets of the replaced pages, 8 bytes each.
    cdef bytes dropped
    # The entries of its delta, or None if it writes the index; and the lowest leaf's offset then.
    cdef bytes entries
    cdef uint64_t lowest


cdef class Rebuild(Plan):
    cdef Py_ssize_t leaf_records_max
    cdef Py_ssize_t index_records_max
    cdef Py_ssize_t page_bytes_max
    cdef Py_ssize_t delta_bytes_max
    cdef bint compacts
    cdef double retained_ratio
    # The bytes that the update before wrote, without those of moved leaves.
    cdef uint64_t own_bytes
    # The update that is being made.
    cdef uint64_t *dropped
    cdef Py_ssize_t dropped_count
    cdef Py_ssize_t _dropped_capacity
    cdef PageWriter writer
    cdef uint64_t front
    cdef uint64_t moved_bytes

    cdef object run(self, Footer present, uint64_t end, Batch batch, dict held)
    cdef object _attempt(
        self, Footer present, uint64_t end, Batch batch, dict held, bint writes_index
    )
    cdef int _begin(self, Footer present, uint64_t end, Batch batch, dict held) except -1
    cdef void _release(self) noexcept
    cdef uint64_t _compaction_front(self, uint64_t end) noexcept
    cdef bint _needs_index(self) noexcept
    cdef Py_ssize_t _records_max(self, int level) noexcept
    cdef int _emit(self, int level) except -1
    cdef int _emit_group(self, int level, Py_ssize_t first, Py_ssize_t end) except -1
    cdef int _replace(self, Node *node, int level) except -1
    cdef int _stream_leaf(self, Node *node) except -1
    cdef int _stream_index(self, int level, Node *node) except -1
    cdef Update _finish(self, bint writes_index)
    cdef int _put_root(self, Footer footer) except -1
    cdef int _put_delta(self, Footer footer, Update update) except -1
    cdef bytes _entries(self)
    cdef unsigned char *_put_entry(
        self, unsigned char *to, Node *leaf, Py_ssize_t shift, bint keyed
    ) noexcept
    cdef NewPage _new_root(self, int *level) except *
    cdef NewPage _only_child(self) noexcept
