"""Plans the pages of an update before any of them is written.

Owns: the effect of each change in its leaf, the number of records of the new pages, and the groups
in which sparse pages are joined with a neighbour.

A sparse page is joined with a neighbour only if both are below the same index page and the joined
page has room left. A page is in at most one such group.
"""

from libc.stdint cimport uint8_t, uint16_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from _fast.btree.delta cimport View
from _fast.btree.page cimport (
    HEADER_BYTES,
    VALUE_BYTES,
    Pointer,
    gallop,
    is_key,
    load64,
    load_pointer,
    lower_bound,
    record_bytes,
)
from _fast.btree.walk cimport Level, Node, Walk, push

cdef enum:
    # In a page, the search for the next of this many keys or fewer starts from scratch.
    FEW_KEYS = 4

cdef uint64_t NULL_BITS = <uint64_t>1 << 63


cdef class Plan(Walk):
    """Plans one update after the other."""

    def __cinit__(self, Py_ssize_t key_length):
        memset(&self.spare, 0, sizeof(self.spare))

    def __dealloc__(self):
        free(self.spare.nodes)
        free(self.positions)
        free(self.kinds)

    cdef int reserve_changes(self) except -1:
        cdef size_t count = <size_t>self.batch.count
        if self.batch.count <= self.changes_capacity:
            return 0
        positions = <uint16_t *>realloc(self.positions, count * sizeof(uint16_t))
        if positions != NULL:
            self.positions = positions
        kinds = <uint8_t *>realloc(self.kinds, count)
        if kinds != NULL:
            self.kinds = kinds
        if positions == NULL or kinds == NULL:
            raise MemoryError(f"no room for {count} changes")
        self.changes_capacity = self.batch.count
        return 0

    cdef bint count_changes(self) noexcept:
        """Find the effect of each change in its leaf; return whether there is any."""
        cdef Py_ssize_t index
        cdef bint changed = False
        for index in range(min(LEAVES_AHEAD, self.levels[0].count)):
            expect_leaf(self.levels[0].nodes + index)
        for index in range(self.levels[0].count):
            if index + LEAVES_AHEAD < self.levels[0].count:
                expect_leaf(self.levels[0].nodes + index + LEAVES_AHEAD)
            self._count_leaf(self.levels[0].nodes + index)
            changed = changed or self.levels[0].nodes[index].changed
        return changed

    cdef void _count_leaf(self, Node *node) noexcept:
        cdef Py_ssize_t key_length = self.key_length
        cdef Py_ssize_t stride = key_length + VALUE_BYTES
        cdef const unsigned char *change = self.batch.changes + node.first * stride
        cdef const unsigned char *records = node.records
        cdef bint few = node.last - node.first <= FEW_KEYS
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t index
        cdef uint64_t value
        cdef uint8_t kind
        node.ascending = True
        for index in range(node.first, node.last):
            if few:
                position = lower_bound(records, stride, key_length, position, node.count, change)
            else:
                position = gallop(records, stride, key_length, position, node.count, change)
            value = load64(change + key_length)
            if position < node.count and is_key(records + position * stride, change, key_length):
                if value == NULL_BITS:
                    kind = REMOVE
                    node.total -= 1
                elif value == load64(records + position * stride + key_length):
                    kind = KEEP
                else:
                    kind = REPLACE
            elif value == NULL_BITS:
                kind = KEEP
            else:
                kind = INSERT
                node.total += 1
                node.ascending = node.ascending and position == node.count
            node.changed = node.changed or kind != KEEP
            self.positions[index] = <uint16_t>position
            self.kinds[index] = kind
            change += stride
        self.entry_count += node.total - node.count

    cdef void count_index(self, int level) noexcept:
        """Find how the pages of a level change when those below have been replaced."""
        cdef Level *below = &self.levels[level - 1]
        cdef Py_ssize_t child = 0
        cdef Py_ssize_t index
        cdef Node *node
        cdef Node *lower
        for index in range(self.levels[level].count):
            node = self.levels[level].nodes + index
            node.children = child
            node.ascending = True
            node.changed = level == 1 and self.deltas.find(node.offset) != NULL
            while child < below.count and below.nodes[child].parent == index:
                lower = below.nodes + child
                if lower.consumed:
                    node.changed = True
                    node.total += lower.out_count - 1
                    if lower.out_count > 1 and lower.slot != node.count - 1:
                        node.ascending = False
                child += 1
            node.children_end = child

    cdef int join_sparse(self, int level, Py_ssize_t records_max) except -1:
        """Join pages that become sparse with a neighbour, where both fit with room."""
        cdef Py_ssize_t index
        cdef Level present = self.levels[level]
        if level >= self.present.root_level:
            return 0
        for index in range(present.count):
            if is_sparse(present.nodes + index, records_max):
                break
        else:
            return 0
        for index in range(present.count):
            self._join_one(level, index, records_max)
        self.levels[level].count = 0
        present = self.levels[level]
        self.levels[level] = self.spare
        self.spare = present
        return 0

    cdef int _join_one(self, int level, Py_ssize_t index, Py_ssize_t records_max) except -1:
        """Add a node to the list with the joined ones, alone or joined with a neighbour."""
        cdef Node *node = self.levels[level].nodes + index
        cdef Node *before = NULL
        cdef Py_ssize_t limit = records_max - records_max // 4
        cdef bint sparse = is_sparse(node, records_max)
        if self.spare.count:
            before = self.spare.nodes + self.spare.count - 1
            if before.parent != node.parent or before.slot != node.slot - 1:
                before = NULL
        if before != NULL and not before.joins_next:
            before.joins_next = (
                sparse and before.total > 0 and self.group_total + node.total <= limit
            )
        if before != NULL and before.joins_next:
            before.joined = True
            self.group_total += node.total
            self._keep(node).joined = True
            return 0
        if sparse and self._join_right(level, index, limit):
            return 0
        if sparse and before == NULL and self._join_left(level, index, limit):
            return 0
        self.group_total = node.total
        self._keep(node)
        return 0

    cdef int _join_right(self, int level, Py_ssize_t index, Py_ssize_t limit) except -1:
        """Join a sparse node with the one after it if both fit; return whether they do."""
        cdef Node *node = self.levels[level].nodes + index
        cdef Node *after = node + 1
        cdef Py_ssize_t slot = node.slot + 1
        cdef Py_ssize_t total
        cdef bint touched
        if slot == self.levels[level + 1].nodes[node.parent].count:
            return False
        touched = (
            index + 1 < self.levels[level].count
            and after.parent == node.parent
            and after.slot == slot
        )
        total = after.total if touched else self._untouched_total(level, node, slot)
        if total == 0 or node.total + total > limit:
            return False
        kept = self._keep(node)
        kept.joined = kept.joins_next = True
        self.group_total = node.total
        if not touched:
            self._add_neighbour(level, node, slot)
        return True

    cdef int _join_left(self, int level, Py_ssize_t index, Py_ssize_t limit) except -1:
        """Join a sparse node with the one before it, which the update does not touch yet."""
        cdef Node *node = self.levels[level].nodes + index
        cdef Py_ssize_t before = self.spare.count
        if node.slot == 0:
            return False
        if node.total + self._untouched_total(level, node, node.slot - 1) > limit:
            return False
        self.group_total = node.total
        self._add_neighbour(level, node, node.slot - 1)
        if self.spare.count > before:
            self.spare.nodes[before].joins_next = True
        self._keep(node).joined = True
        return True

    cdef Node *_keep(self, Node *node) except NULL:
        """Add a node to the list with the joined ones."""
        cdef Node *kept = push(&self.spare)
        kept[0] = node[0]
        return kept

    cdef Py_ssize_t _untouched_total(self, int level, Node *node, Py_ssize_t slot) noexcept:
        """Return the number of records of a node's sibling."""
        cdef Node *above = self.levels[level + 1].nodes + node.parent
        cdef Pointer sibling = self.child_at(above, level + 1, slot)
        return (<Py_ssize_t>sibling.length - HEADER_BYTES) // record_bytes(level, self.key_length)

    cdef int _add_neighbour(self, int level, Node *node, Py_ssize_t slot) except -1:
        """Add an untouched sibling of a node to the list with the joined ones."""
        cdef Node *above = self.levels[level + 1].nodes + node.parent
        cdef Py_ssize_t stride = record_bytes(level + 1, self.key_length)
        cdef const unsigned char *record = above.records + slot * stride
        cdef Pointer sibling = load_pointer(record + self.key_length)
        cdef View view
        if not self.deltas.view(self.cache, self.owner, self.held, sibling, level, &view):
            self.missing.append((sibling.offset, sibling.length, level))
            return 0
        added = push(&self.spare)
        added.page = view.page
        added.records = view.records
        added.offset = sibling.offset
        added.length = sibling.length
        added.lower = record if slot else above.lower
        added.parent = node.parent
        added.slot = slot
        added.count = added.total = view.count
        added.joined = True
        self.group_total += added.total
        return 0


cdef bint is_sparse(Node *node, Py_ssize_t records_max) noexcept nogil:
    return node.changed and 0 < node.total < records_max // 4
