"""How a batch of changes becomes new pages of an append-only B+Tree.

Owns: the scratch of one update. From the root down it finds the pages that the batch falls into and
the ones that compaction moves; from the leaves up it writes their successors.

Invariants:
1. The present pages never change. Until the update is committed, nothing has happened.
2. A page lies behind its children: leaves are written first and the root last.
3. The first key of an index page that is written is the lowest key that belongs there, so that it
   stays right when its records move into another page. Reading ignores it.
4. The lowest page of a tree with several levels is a leaf, because of 2: compaction moves leaves.
5. An update that changes no entry writes nothing, and compacts nothing.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_XDECREF, Py_XINCREF
from libc.math cimport cbrt, ceil, sqrt
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memset

from _fast.btree_batch cimport Batch
from _fast.btree_cache cimport page_at
from _fast.btree_page cimport (
    HEADER_BYTES,
    KEY_BYTES_MAX,
    LEVELS_MAX,
    VALUE_BYTES,
    Footer,
    Pointer,
    child_slot,
    gallop,
    is_key,
    load64,
    load_pointer,
    lower_bound,
    page_count,
    page_records,
    record_bytes,
)
from _fast.btree_writer cimport NewPage, PageWriter

cdef enum:
    KEEP = 0
    REPLACE = 1
    INSERT = 2
    REMOVE = 3
    # Index pages are not kept below this many records by the balancing of levels.
    BALANCED_RECORDS_MIN = 32
    # A search for the next of this many keys or fewer in a page starts from scratch.
    FEW_KEYS = 4

cdef uint64_t NULL_BITS = <uint64_t>1 << 63
cdef unsigned char ZEROS[KEY_BYTES_MAX]
memset(ZEROS, 0, KEY_BYTES_MAX)


cdef Node *push(Level *level) except NULL:
    """One more node, all zeros."""
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


cdef void release(Level *level) noexcept:
    """Let go of the pages of a level's nodes."""
    cdef Py_ssize_t index
    for index in range(level.count):
        Py_XDECREF(level.nodes[index].page)
    level.count = 0


cdef class Update:
    """The pages that a batch of changes leads to, and the tree as it will be.

    ``buffers`` belong at ``offset``; when they are there, ``Tree.commit`` makes them the tree, and
    nothing before ``truncate_offset`` is needed any more.
    """

    @property
    def length(self):
        """How many bytes the update writes."""
        return self.footer.end - self.offset

    @property
    def truncate_offset(self):
        """Where the lowest page of the tree will lie."""
        return self.footer.min_offset


cdef class Rebuild:
    """Makes updates, one after the other."""

    def __cinit__(self, Py_ssize_t key_length):
        self.key_length = key_length
        self.writer = PageWriter(key_length)
        memset(self.levels, 0, sizeof(self.levels))
        memset(&self.spare, 0, sizeof(self.spare))

    def __dealloc__(self):
        self._release()
        for level in range(LEVELS_MAX):
            free(self.levels[level].nodes)
        free(self.spare.nodes)
        free(self.positions)
        free(self.kinds)

    cdef object run(self, Footer present, uint64_t end, Batch batch, dict held):
        """An ``Update``, or None if nothing changes, or a list of pages that are needed first."""
        cdef int level
        cdef Update update
        try:
            self._begin(present, end, batch, held)
            self._walk()
            if self.missing:
                return self.missing
            if not self._count_changes():
                return None
            for level in range(max(present.root_level, 0) + 1):
                if level:
                    self._count_index(level)
                self._join_sparse(level)
                if self.missing:
                    return self.missing
                self._emit(level)
            return self._finish()
        finally:
            self._release()

    cdef int _begin(self, Footer present, uint64_t end, Batch batch, dict held) except -1:
        self.present = present
        self.batch = batch
        self.held = held
        self.missing = []
        self.dropped = []
        self.writer.reset(end)
        self.entry_count = <int64_t>present.entry_count
        self.moved_bytes = 0
        self._reserve_changes()
        self.front = self._compaction_front(end)
        return 0

    cdef int _reserve_changes(self) except -1:
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

    cdef void _release(self) noexcept:
        """Let go of the pages of the update under way, if there is one."""
        cdef int level
        for level in range(LEVELS_MAX):
            release(&self.levels[level])
        release(&self.spare)
        self.present = None
        self.batch = None
        self.held = None
        self.missing = None
        self.dropped = None

    cdef uint64_t _compaction_front(self, uint64_t end) noexcept:
        """Leaves before this offset are moved.

        That is the lowest leaf; and more of them while dead pages take too much room, as far as
        the update's own writing pays for it: each update can move about as much as it writes.
        """
        cdef Footer present = self.present
        cdef double excess
        cdef uint64_t own
        if not self.compacts or present.root_level < 1:
            return 0
        excess = <double>(end - present.min_offset)
        excess -= self.retained_ratio * <double>present.live_bytes
        if self.retained_ratio <= 0 or excess < 1:
            return present.min_offset + 1
        own = min(self.own_bytes, <uint64_t>((self.batch.count + 1) * self.page_bytes_max))
        return present.min_offset + <uint64_t>max(1.0, min(excess, 2.0 * <double>own))

    cdef int _walk(self) except -1:
        """Find the pages that take part, from the root down."""
        cdef Footer present = self.present
        cdef int level
        cdef Py_ssize_t index
        cdef Node *root
        if present.root_level < 0:
            # The empty tree is taken for a leaf without records.
            root = push(&self.levels[0])
            root.last = self.batch.count
            root.lower = ZEROS
            root.parent = -1
            return 0
        page = page_at(
            self.cache, self.owner, self.held,
            present.root_offset, present.root_length, present.root_level,
        )
        if page is None:
            self.missing.append((present.root_offset, present.root_length, present.root_level))
            return 0
        root = push(&self.levels[present.root_level])
        Py_INCREF(page)
        root.page = <PyObject *>page
        root.offset = present.root_offset
        root.lower = ZEROS
        root.last = self.batch.count
        root.parent = -1
        root.count = root.total = page_count(page)
        for level in range(present.root_level, 0, -1):
            for index in range(self.levels[level].count):
                self._descend(level, index)
        return 0

    cdef int _descend(self, int level, Py_ssize_t index) except -1:
        """Visit the children of an index page that changes fall into, or that are to be moved."""
        cdef Node *node = self.levels[level].nodes + index
        cdef const unsigned char *records = page_records(<object>node.page)
        cdef const unsigned char *changes = self.batch.changes
        cdef Py_ssize_t stride = record_bytes(level, self.key_length)
        cdef Py_ssize_t change_stride = self.batch.stride
        cdef Py_ssize_t key_length = self.key_length
        cdef Py_ssize_t change = node.first
        cdef Py_ssize_t last = node.last
        cdef Py_ssize_t slot = 0
        cdef Py_ssize_t target, end, passed
        while True:
            target = node.count
            if change < last:
                target = child_slot(
                    records, stride, key_length, slot, node.count,
                    changes + change * change_stride,
                )
            if self.front:
                for passed in range(slot, target):
                    if load64(records + passed * stride + key_length + 10) < self.front:
                        self._visit(level, index, passed, change, change)
            if target == node.count:
                return 0
            end = last
            if target + 1 < node.count:
                end = gallop(
                    changes, change_stride, key_length, change, last,
                    records + (target + 1) * stride,
                )
            self._visit(level, index, target, change, end)
            change = end
            slot = target + 1

    cdef int _visit(
        self, int level, Py_ssize_t parent, Py_ssize_t slot, Py_ssize_t first, Py_ssize_t last
    ) except -1:
        """Add a child of a node of ``level``, if it is at hand."""
        cdef Node *above = self.levels[level].nodes + parent
        cdef const unsigned char *record
        cdef Pointer child
        cdef Node *node
        record = page_records(<object>above.page) + slot * record_bytes(level, self.key_length)
        child = load_pointer(record + self.key_length)
        page = page_at(self.cache, self.owner, self.held, child.offset, child.length, level - 1)
        if page is None:
            self.missing.append((child.offset, child.length, level - 1))
            return 0
        node = push(&self.levels[level - 1])
        Py_INCREF(page)
        node.page = <PyObject *>page
        node.offset = child.offset
        node.lower = record if slot else above.lower
        node.first = first
        node.last = last
        node.parent = parent
        node.slot = slot
        node.count = node.total = page_count(page)
        node.moved = level == 1 and child.min_offset < self.front
        return 0

    cdef bint _count_changes(self) noexcept:
        """Find what each change does in its leaf; whether any does something."""
        cdef Py_ssize_t index
        cdef bint changed = False
        for index in range(self.levels[0].count):
            self._count_leaf(self.levels[0].nodes + index)
            changed = changed or self.levels[0].nodes[index].changed
        return changed

    cdef void _count_leaf(self, Node *node) noexcept:
        cdef Py_ssize_t key_length = self.key_length
        cdef Py_ssize_t stride = key_length + VALUE_BYTES
        cdef const unsigned char *change = self.batch.changes + node.first * stride
        cdef const unsigned char *records = ZEROS
        cdef bint few = node.last - node.first <= FEW_KEYS
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t index
        cdef uint64_t value
        cdef uint8_t kind
        if node.page != NULL:
            records = page_records(<object>node.page)
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

    cdef void _count_index(self, int level) noexcept:
        """Find how the pages of a level change when those below it have been replaced."""
        cdef Level *below = &self.levels[level - 1]
        cdef Py_ssize_t child = 0
        cdef Py_ssize_t index
        cdef Node *node
        cdef Node *lower
        for index in range(self.levels[level].count):
            node = self.levels[level].nodes + index
            node.children = child
            node.ascending = True
            while child < below.count and below.nodes[child].parent == index:
                lower = below.nodes + child
                if lower.consumed:
                    node.changed = True
                    node.total += lower.out_count - 1
                    if lower.out_count > 1 and lower.slot != node.count - 1:
                        node.ascending = False
                child += 1
            node.children_end = child

    cdef Py_ssize_t _records_max(self, int level) noexcept:
        """How many records a page may have.

        Index pages get only as large as keeps every level about equally wide: with that, two
        levels of them serve up to some ten million keys and three a billion, and a path through
        the tree is as cheap to write as it can be.
        """
        cdef double leaves = <double>self.present.leaf_count + <double>self.writer.leaf_count
        cdef double width = 2 * sqrt(leaves)
        if level == 0:
            return self.leaf_records_max
        if width > <double>self.index_records_max / 2:
            width = 2 * cbrt(leaves)
        return min(self.index_records_max, max(BALANCED_RECORDS_MIN, <Py_ssize_t>ceil(width)))

    cdef int _join_sparse(self, int level) except -1:
        """Put pages that become sparse together with a neighbour, where both fit with room."""
        cdef Py_ssize_t records_max = self._records_max(level)
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
        release(&self.levels[level])
        present = self.levels[level]
        self.levels[level] = self.spare
        self.spare = present
        return 0

    cdef int _join_one(self, int level, Py_ssize_t index, Py_ssize_t records_max) except -1:
        """Take a node into the list with the joined ones, alone or with a neighbour."""
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
        """Join a sparse node with the one after it, if both fit; whether they do."""
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
        """Join a sparse node with the one before it, which the update does not touch so far."""
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
        """Take a node over into the list with the joined ones."""
        cdef Node *kept = push(&self.spare)
        kept[0] = node[0]
        Py_XINCREF(kept.page)
        return kept

    cdef Py_ssize_t _untouched_total(self, int level, Node *node, Py_ssize_t slot) noexcept:
        """How many records a sibling of a node has."""
        cdef Node *above = self.levels[level + 1].nodes + node.parent
        cdef Py_ssize_t stride = record_bytes(level + 1, self.key_length)
        cdef const unsigned char *record = page_records(<object>above.page) + slot * stride
        cdef Pointer sibling = load_pointer(record + self.key_length)
        return (<Py_ssize_t>sibling.length - HEADER_BYTES) // record_bytes(level, self.key_length)

    cdef int _add_neighbour(self, int level, Node *node, Py_ssize_t slot) except -1:
        """Take an untouched sibling of a node into the list with the joined ones."""
        cdef Node *above = self.levels[level + 1].nodes + node.parent
        cdef Py_ssize_t stride = record_bytes(level + 1, self.key_length)
        cdef const unsigned char *record = page_records(<object>above.page) + slot * stride
        cdef Pointer sibling = load_pointer(record + self.key_length)
        page = page_at(self.cache, self.owner, self.held, sibling.offset, sibling.length, level)
        if page is None:
            self.missing.append((sibling.offset, sibling.length, level))
            return 0
        added = push(&self.spare)
        Py_INCREF(page)
        added.page = <PyObject *>page
        added.offset = sibling.offset
        added.lower = record if slot else above.lower
        added.parent = node.parent
        added.slot = slot
        added.count = added.total = page_count(page)
        added.joined = True
        self.group_total += added.total
        return 0

    cdef int _emit(self, int level) except -1:
        """Write the successors of a level's pages."""
        cdef Level *present = &self.levels[level]
        cdef Py_ssize_t index, end
        cdef Node *node
        for index in range(present.count):
            node = present.nodes + index
            if node.moved and not node.changed and not node.joined:
                self._replace(node, level)
                node.out_first = self.writer.page_count
                node.out_count = 1
                self.writer.move(<object>node.page, node.lower)
                self.moved_bytes += self.writer.pages[node.out_first].length
        index = 0
        while index < present.count:
            end = index + 1
            while present.nodes[end - 1].joins_next:
                end += 1
            if present.nodes[index].changed or end - index > 1:
                self._emit_group(level, index, end)
            index = end
        return 0

    cdef int _emit_group(self, int level, Py_ssize_t first, Py_ssize_t end) except -1:
        """Write what becomes of one changed page, or of several that are put together."""
        cdef Node *nodes = self.levels[level].nodes
        cdef Py_ssize_t total = 0
        cdef Py_ssize_t index
        for index in range(first, end):
            total += nodes[index].total
            self._replace(nodes + index, level)
        nodes[first].out_first = self.writer.page_count
        if total == 0 or (level and total == 1 and level == self.present.root_level):
            # A root with one child makes way for it.
            return 0
        self.writer.begin_row(
            level,
            total,
            self._records_max(level),
            nodes[first].ascending and end - first == 1,
            nodes[first].lower,
        )
        for index in range(first, end):
            if level:
                self.writer.next_source(nodes[index].lower)
                self._stream_index(level, nodes + index)
            else:
                self._stream_leaf(nodes + index)
        nodes[first].out_count = self.writer.page_count - nodes[first].out_first
        return 0

    cdef int _replace(self, Node *node, int level) except -1:
        """The page of a node is not needed any more."""
        node.consumed = True
        if node.page != NULL:
            self.dropped.append(node.offset)
            self.writer.forget(level, PyBytes_GET_SIZE(<object>node.page))
        return 0

    cdef int _stream_leaf(self, Node *node) except -1:
        """Put a leaf's records with its changes."""
        cdef Py_ssize_t stride = self.key_length + VALUE_BYTES
        cdef const unsigned char *changes = self.batch.changes
        cdef const unsigned char *records = ZEROS
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t index
        if node.page != NULL:
            records = page_records(<object>node.page)
        for index in range(node.first, node.last):
            if self.kinds[index] == KEEP:
                continue
            self.writer.put(records + position * stride, self.positions[index] - position)
            position = self.positions[index]
            if self.kinds[index] != REMOVE:
                self.writer.put(changes + index * stride, 1)
            if self.kinds[index] != INSERT:
                position += 1
        self.writer.put(records + position * stride, node.count - position)
        return 0

    cdef int _stream_index(self, int level, Node *node) except -1:
        """Put an index page's records with those of its children's successors."""
        cdef Py_ssize_t stride = record_bytes(level, self.key_length)
        cdef const unsigned char *records = page_records(<object>node.page)
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t index, out
        cdef Node *child
        for index in range(node.children, node.children_end):
            child = self.levels[level - 1].nodes + index
            if not child.consumed:
                continue
            self.writer.put(records + position * stride, child.slot - position)
            for out in range(child.out_first, child.out_first + child.out_count):
                self.writer.put_page(out)
            position = child.slot + 1
        self.writer.put(records + position * stride, node.count - position)
        return 0

    cdef Update _finish(self):
        """The update, with the footer."""
        cdef Footer present = self.present
        cdef Footer footer = Footer.__new__(Footer)
        cdef PageWriter writer = self.writer
        cdef Update update = Update.__new__(Update)
        cdef int level = present.root_level
        cdef NewPage root = self._new_root(&level)
        footer.offset = writer.end
        footer.key_length = <int>self.key_length
        footer.update_offset = writer.start
        footer.update_number = present.update_number + 1
        footer.root_level = level
        footer.root_offset = root.offset if level >= 0 else writer.end
        footer.root_length = root.length if level >= 0 else 0
        footer.min_offset = root.min_offset if level >= 0 else writer.end
        footer.entry_count = <uint64_t>self.entry_count
        footer.leaf_count = <uint64_t>(<int64_t>present.leaf_count + writer.leaf_count)
        footer.index_count = <uint64_t>(<int64_t>present.index_count + writer.index_count)
        footer.live_bytes = <uint64_t>(<int64_t>present.live_bytes + writer.live_bytes)
        footer.pages_sum = writer.pages_sum
        update.offset = writer.start
        update.buffers = writer.buffers
        update.buffers.append(footer.encode())
        update.footer = footer
        update.moved_bytes = self.moved_bytes
        update.dropped = self.dropped
        return update

    cdef NewPage _new_root(self, int *level) except *:
        """The root, with the levels above it that are needed now; ``level`` is changed to its."""
        cdef PageWriter writer = self.writer
        cdef Node *top = self.levels[max(level[0], 0)].nodes
        cdef Py_ssize_t first = top.out_first
        cdef Py_ssize_t end = first + top.out_count
        cdef Py_ssize_t index
        cdef NewPage nothing
        if top.total == 0:
            level[0] = -1
            memset(&nothing, 0, sizeof(nothing))
            return nothing
        if first == end:
            level[0] -= 1
            return self._only_child()
        level[0] = max(level[0], 0)
        while end - first > 1:
            level[0] += 1
            if level[0] == LEVELS_MAX:
                raise OverflowError("the tree has too many levels")
            writer.begin_row(
                level[0], end - first, self._records_max(level[0]), top.ascending, ZEROS
            )
            for index in range(first, end):
                writer.put_page(index)
            first = end
            end = writer.page_count
        return writer.pages[first]

    cdef NewPage _only_child(self) noexcept:
        """What is left of a root with one child."""
        cdef int level = self.present.root_level
        cdef Node *top = self.levels[level].nodes
        cdef Node *child = self.levels[level - 1].nodes
        cdef const unsigned char *record = page_records(<object>top.page) + self.key_length
        cdef Py_ssize_t slot = 0
        cdef Py_ssize_t index
        cdef NewPage page
        cdef Pointer pointer
        for index in range(top.children, top.children_end):
            if child[index].consumed:
                if child[index].out_count:
                    return self.writer.pages[child[index].out_first]
                # All others are gone, so it stands in the first gap of their slots.
                slot += slot == child[index].slot
        pointer = load_pointer(record + slot * record_bytes(level, self.key_length))
        page.key = ZEROS
        page.offset = pointer.offset
        page.length = pointer.length
        page.min_offset = pointer.min_offset
        return page


cdef bint is_sparse(Node *node, Py_ssize_t records_max) noexcept nogil:
    return node.changed and 0 < node.total < records_max // 4
