"""Finds the pages that take part in an update.

Owns: the nodes of one update, from the root down: the pages that the batch changes, those that
compaction moves, and those that must be visited so that the index can be written.

The nodes of a level are in the order of their keys.

Invariants:
1. When pages are missing, the walk returns all of them and changes nothing. The caller reads them
   and repeats the walk, with the same result as if they had been in the cache. Held by
   ``TestTreeModel``.
"""

from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcmp, memset

from _fast.btree.delta cimport View
from _fast.btree.page cimport (
    KEY_BYTES_MAX,
    Footer,
    LEVELS_MAX,
    Pointer,
    child_slot,
    gallop,
    load64,
    load_pointer,
    record_bytes,
)

cdef enum:
    # In an index page with fewer records per change than this, on average, the search for each
    # change starts where the one before ended.
    NEAR_SLOTS = 64

memset(ZEROS, 0, KEY_BYTES_MAX)

cdef extern from "stdlib.h" nogil:
    void qsort_r(
        void *, size_t, size_t, int (*)(const void *, const void *, void *) noexcept nogil, void *
    )


cdef int by_key(const void *left, const void *right, void *key_length) noexcept nogil:
    return memcmp(
        (<const Visit *>left).key, (<const Visit *>right).key, (<size_t *>key_length)[0]
    )


cdef Node *push(Level *level) except NULL:
    """Add a node of zeros and return it."""
    cdef Py_ssize_t capacity
    if level.count == level.capacity:
        capacity = max(level.capacity * 2, 16)
        nodes = <Node *>realloc(level.nodes, <size_t>capacity * sizeof(Node))
        if nodes == NULL:
            raise MemoryError("no room for the pages of an update")
        level.nodes = nodes
        level.capacity = capacity
    node = level.nodes + level.count
    memset(node, 0, sizeof(Node))
    level.count += 1
    return node


cdef class Walk:
    """Finds the nodes of one update after the other."""

    def __cinit__(self, Py_ssize_t key_length):
        self.key_length = key_length
        memset(self.levels, 0, sizeof(self.levels))

    def __dealloc__(self):
        for level in range(LEVELS_MAX):
            free(self.levels[level].nodes)
        free(self.visits)

    cdef void release_nodes(self) noexcept:
        """Remove the nodes and pages of the present update."""
        cdef int level
        for level in range(LEVELS_MAX):
            self.levels[level].count = 0

    cdef int find_pages(self, uint64_t front, uint64_t end, bint writes_index) except -1:
        """Find the pages that take part, among them the leaves before ``front``."""
        cdef int level
        cdef Py_ssize_t index
        if self.deltas.awaited:
            self.missing += self.deltas.awaited
            return 0
        if front:
            self.moves.look_up(
                front, end, self.present, self.deltas, self.cache, self.owner, self.held,
                self.missing,
            )
            if self.missing:
                return 0
        self._plan_visits(front, writes_index)
        self._enter()
        for level in range(self.present.root_level, 0, -1):
            for index in range(self.levels[level].count):
                if self.levels[level].nodes[index].records != NULL:
                    self._descend(level, index)
            self._load(level - 1)
        return 0

    cdef int _plan_visits(self, uint64_t front, bint writes_index) except -1:
        """Sort the pages that must be visited without changes by their keys."""
        cdef Py_ssize_t count = self.moves.count - self.moves.first
        cdef size_t key_length = <size_t>self.key_length
        cdef Visit *visit
        cdef Py_ssize_t index
        cdef int32_t page
        self.visit_count = 0
        count += self.deltas.changed_count
        if count > self._visits_capacity:
            visits = <Visit *>realloc(self.visits, <size_t>count * sizeof(Visit))
            if visits == NULL:
                raise MemoryError("no room for the pages of an update")
            self.visits = visits
            self._visits_capacity = count
        visit = self.visits
        if front:
            for index in range(self.moves.first, self.moves.count):
                if self.moves.offset_at(index) >= front:
                    break
                visit.key = self.moves.key_at(index)
                visit.offset = self.moves.offset_at(index)
                visit.level = 0
                visit += 1
        if writes_index:
            for page in range(self.deltas.changed_count):
                visit.key = self.deltas.log + self.deltas.changed[page].key_position
                visit.offset = 0
                visit.level = 1
                visit += 1
        self.visit_count = visit - self.visits
        if self.visit_count > 1:
            qsort_r(
                self.visits, <size_t>self.visit_count, sizeof(Visit), by_key, &key_length
            )
        return 0

    cdef int _enter(self) except -1:
        """Visit the root."""
        cdef Footer present = self.present
        cdef int level = max(present.root_level, 0)
        cdef Pointer child
        cdef View view
        cdef Node *root
        child.offset = present.root_offset
        child.length = present.root_length
        # The empty tree counts as a leaf without records.
        view.page = NULL
        view.records = ZEROS
        view.count = 0
        if present.root_level >= 0 and not self.deltas.view(
            self.cache, self.owner, self.held, child, level, &view
        ):
            self.missing.append((child.offset, child.length, level))
            return 0
        root = push(&self.levels[level])
        root.page = view.page
        root.records = view.records
        root.count = root.total = view.count
        root.offset = child.offset
        root.length = child.length
        root.lower = ZEROS
        root.last = self.batch.count
        root.visits_end = self.visit_count
        root.parent = -1
        return 0

    cdef int _descend(self, int level, Py_ssize_t index) except -1:
        """Visit the children of an index page that take part."""
        cdef Node *node = self.levels[level].nodes + index
        cdef const unsigned char *records = node.records
        cdef const unsigned char *changes = self.batch.changes
        cdef const unsigned char *bound
        cdef Py_ssize_t stride = record_bytes(level, self.key_length)
        cdef Py_ssize_t change_stride = self.batch.stride
        cdef Py_ssize_t key_length = self.key_length
        cdef Py_ssize_t change = node.first
        cdef Py_ssize_t last = node.last
        cdef Py_ssize_t visit = node.visit
        cdef Py_ssize_t visits_end = node.visits_end
        cdef Py_ssize_t slot = 0
        cdef Py_ssize_t target, target_of_visit, end, visit_end
        cdef bint dense = (last - change) * NEAR_SLOTS > node.count
        while True:
            if level == 1:
                while visit < visits_end and self.visits[visit].level == 1:
                    visit += 1
            target = target_of_visit = node.count
            if change < last:
                target = child_slot(
                    records, stride, key_length, slot, node.count,
                    changes + change * change_stride, dense,
                )
            if visit < visits_end:
                target_of_visit = child_slot(
                    records, stride, key_length, slot, node.count, self.visits[visit].key
                )
            slot = min(target, target_of_visit)
            if slot >= node.count:
                return 0
            end = change
            visit_end = visit
            if slot + 1 < node.count:
                bound = records + (slot + 1) * stride
                if target == slot:
                    end = gallop(
                        changes, change_stride, key_length, change, last, bound
                    )
                if target_of_visit == slot:
                    visit_end = self._visits_below(visit, visits_end, bound)
            else:
                end = last
                visit_end = visits_end
            if (
                end > change
                or level > 1
                or self._moves(visit, visit_end, load64(records + slot * stride + key_length))
            ):
                self._visit(level, index, slot, change, end, visit, visit_end)
            change = end
            visit = visit_end
            slot += 1

    cdef Py_ssize_t _visits_below(
        self, Py_ssize_t first, Py_ssize_t end, const unsigned char *bound
    ) noexcept:
        while first < end and memcmp(self.visits[first].key, bound, <size_t>self.key_length) < 0:
            first += 1
        return first

    cdef bint _moves(self, Py_ssize_t first, Py_ssize_t end, uint64_t offset) noexcept:
        """Return whether one of these visits is for the leaf at that offset."""
        cdef Py_ssize_t index
        for index in range(first, end):
            if self.visits[index].level == 0 and self.visits[index].offset == offset:
                return True
        return False

    cdef int _visit(
        self,
        int level,
        Py_ssize_t parent,
        Py_ssize_t slot,
        Py_ssize_t first,
        Py_ssize_t last,
        Py_ssize_t visit,
        Py_ssize_t visits_end,
    ) except -1:
        """Add a child of a node of ``level``."""
        cdef Node *node = push(&self.levels[level - 1])
        cdef Node *above = self.levels[level].nodes + parent
        cdef const unsigned char *record
        cdef Pointer child
        record = above.records + slot * record_bytes(level, self.key_length)
        child = load_pointer(record + self.key_length)
        node.offset = child.offset
        node.length = child.length
        node.lower = record if slot else above.lower
        node.first = first
        node.last = last
        node.visit = visit
        node.visits_end = visits_end
        node.parent = parent
        node.slot = slot
        node.moved = level == 1 and self._moves(visit, visits_end, child.offset)
        return 0

    cdef int _load(self, int level) except -1:
        """Find the pages of a level's nodes, after prefetching all of them at once."""
        cdef Node *nodes = self.levels[level].nodes
        cdef Py_ssize_t count = self.levels[level].count
        cdef Py_ssize_t index
        cdef Pointer child
        cdef View view
        for index in range(count):
            self.cache.expect_bucket(self.owner, nodes[index].offset)
        for index in range(count):
            self.cache.expect_entry(self.owner, nodes[index].offset)
        for index in range(count):
            self.cache.expect_page(self.owner, nodes[index].offset)
        for index in range(count):
            child.offset = nodes[index].offset
            child.length = nodes[index].length
            if not self.deltas.view(self.cache, self.owner, self.held, child, level, &view):
                self.missing.append((child.offset, child.length, level))
                continue
            nodes[index].page = view.page
            nodes[index].records = view.records
            nodes[index].count = nodes[index].total = view.count
        return 0

    cdef Pointer child_at(self, Node *node, int level, Py_ssize_t slot) noexcept:
        """Return the child that a record of a node of that level points to."""
        return load_pointer(
            node.records + slot * record_bytes(level, self.key_length) + self.key_length
        )
