"""The pages that take part in an update, for the modules that replace them."""

from libc.stdint cimport uint32_t, uint64_t

from _fast.btree.batch cimport Batch
from _fast.btree.cache cimport PageCache
from _fast.btree.delta cimport Deltas
from _fast.btree.moves cimport Moves
from _fast.btree.page cimport KEY_BYTES_MAX, LEVELS_MAX, Footer, Pointer

cdef unsigned char ZEROS[KEY_BYTES_MAX]


cdef struct Node:
    # A page of the present tree that the update reads and usually replaces: its bytes (unless its
    # records differ from them), its records, their number, and its offset.
    const unsigned char *page
    const unsigned char *records
    Py_ssize_t count
    uint64_t offset
    # 0 for the empty tree.
    Py_ssize_t length
    # Keys below this one belong to another page.
    const unsigned char *lower
    # The changes that fall into the page, and its other visits.
    Py_ssize_t first
    Py_ssize_t last
    Py_ssize_t visit
    Py_ssize_t visits_end
    # Its index in the level above, and its slot in that page.
    Py_ssize_t parent
    Py_ssize_t slot
    # The number of records that the new page will have.
    Py_ssize_t total
    # Its nodes in the level below.
    Py_ssize_t children
    Py_ssize_t children_end
    # The pages that replace it.
    Py_ssize_t out_first
    Py_ssize_t out_count
    # Whether the page lies in the range that compaction frees.
    bint moved
    bint changed
    # Whether the update replaces the page, by new pages or by none.
    bint consumed
    # Whether all new records come after the present ones.
    bint ascending
    # Whether the page is joined with the next page, and whether it is joined with any.
    bint joins_next
    bint joined


cdef struct Level:
    Node *nodes
    Py_ssize_t count
    Py_ssize_t capacity


cdef struct Visit:
    # A key that leads to a page that must be visited even without changes: at level 0 the leaf at
    # this offset, at level 1 any.
    const unsigned char *key
    uint64_t offset
    int level


cdef Node *push(Level *level) except NULL


cdef class Walk:
    cdef Py_ssize_t key_length
    cdef PageCache cache
    cdef uint32_t owner
    cdef Deltas deltas
    cdef Moves moves
    # The update that is being made.
    cdef Footer present
    cdef Batch batch
    cdef dict held
    cdef list missing
    cdef Level levels[LEVELS_MAX]
    cdef Visit *visits
    cdef Py_ssize_t visit_count
    cdef Py_ssize_t _visits_capacity

    cdef int find_pages(self, uint64_t front, uint64_t end, bint writes_index) except -1
    cdef int _plan_visits(self, uint64_t front, bint writes_index) except -1
    cdef int _enter(self) except -1
    cdef int _descend(self, int level, Py_ssize_t index) except -1
    cdef Py_ssize_t _visits_below(
        self, Py_ssize_t first, Py_ssize_t end, const unsigned char *bound
    ) noexcept
    cdef bint _moves(self, Py_ssize_t first, Py_ssize_t end, uint64_t offset) noexcept
    cdef int _visit(
        self,
        int level,
        Py_ssize_t parent,
        Py_ssize_t slot,
        Py_ssize_t first,
        Py_ssize_t last,
        Py_ssize_t visit,
        Py_ssize_t visits_end,
    ) except -1
    cdef int _load(self, int level) except -1
    cdef Pointer child_at(self, Node *node, int level, Py_ssize_t slot) noexcept
    cdef void release_nodes(self) noexcept
