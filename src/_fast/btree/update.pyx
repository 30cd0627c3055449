"""Turns a batch of changes into new pages of an append-only B+Tree.

Owns: the scratch memory of one update. The update either writes a successor of every page that
takes part, from the leaves up, or writes leaves alone and a delta that describes the new index.

Example, with keys of 2 bytes, and leaves of two records (docs/formats/attribute-index.md shows the
bytes):

    {aa: 1, bb: 2, cc: 3}   writes 254 bytes: leaf (aa, bb) at 0, 44 bytes; leaf (cc) at 44,
                            34 bytes; root at 78, 64 bytes; footer at 142, 112 bytes
    {bb: -7}                writes 219 bytes: leaf (aa, bb) at 254, 44 bytes; a delta at 298,
                            63 bytes, that replaces the first leaf; footer at 361, 112 bytes

The root stays at 78. Storage may be truncated at 44, where the lowest page in use lies.

Invariants:
1. No present page changes, and an update that is not committed leaves the tree as it was. Held by
   ``TestTreeModel``.
2. A page lies after its children: leaves are written first and the root last. Held by
   ``test_figure_four_without_compaction``.
3. The first key of a written index page is the lowest key that belongs there, so it is still right
   when its records move into another page. Searches ignore it. Held by
   ``test_the_documents_pages_have_these_records``.
4. An update that changes no entry writes nothing. Held by ``TestTreeModel``.
5. The index itself is written when its changes since the last time exceed ``delta_bytes_max``, when
   there is no page that a delta could change, or when more than half of the bytes that the tree
   needs were written since then. So storage keeps the ratio ``retained_ratio``. Held by
   ``test_deltas_keep_the_ratio_that_was_asked_for``.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.math cimport cbrt, ceil, sqrt
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memset

from _fast.btree.batch cimport Batch
from _fast.btree.delta cimport DELTA_HEAD_BYTES, ENTRY_BYTES, LINK_BYTES, LINKS_MAX, Deltas
from _fast.btree.plan cimport KEEP, INSERT, LEAVES_AHEAD, REMOVE, Plan, expect_leaf
from _fast.btree.moves cimport Moves
from _fast.btree.page cimport (
    HEADER_BYTES,
    LEVELS_MAX,
    VALUE_BYTES,
    Footer,
    Pointer,
    load_pointer,
    record_bytes,
    store16,
    store64,
)
from _fast.btree.walk cimport ZEROS, Level, Node
from _fast.btree.writer cimport NewPage, PageWriter

cdef enum:
    # Balancing the levels keeps at least this many records in an index page.
    BALANCED_RECORDS_MIN = 32
    # A small tree may write this many bytes before it must write its index.
    HELD_BACK_BYTES_MIN = 4096
    # Bytes of one record in an entry of a delta.
    PLACE_BYTES = 10


cdef class Update:
    """The new pages for a batch of changes, and the tree that they lead to.

    ``data`` belongs at ``offset``. When it is written, ``Tree.commit`` makes this tree the present
    one, which needs no byte before ``truncate_offset``.
    """

    @property
    def length(self):
        """Return the number of bytes that the update writes."""
        return self.footer.end - self.offset

    @property
    def truncate_offset(self):
        """Return the offset before which the committed tree needs no byte."""
        return self.footer.min_offset


cdef class Rebuild(Plan):
    """Makes one update at a time."""

    def __cinit__(self, Py_ssize_t key_length):
        self.writer = PageWriter(key_length)
        self.deltas = Deltas(key_length)
        self.moves = Moves(key_length)

    def __dealloc__(self):
        free(self.dropped)

    cdef object run(self, Footer present, uint64_t end, Batch batch, dict held):
        """Return an ``Update``, or None if nothing changes, or a list of pages to read first."""
        cdef bint writes_index = self.delta_bytes_max == 0 or present.root_level < 1
        try:
            result = self._attempt(present, end, batch, held, writes_index)
            if result is False:
                self._release()
                result = self._attempt(present, end, batch, held, True)
            return result
        finally:
            self._release()

    cdef object _attempt(
        self, Footer present, uint64_t end, Batch batch, dict held, bint writes_index
    ):
        """Make the update like ``run``; return False if it must write the index but should not."""
        cdef int level
        self._begin(present, end, batch, held)
        self.find_pages(self.front, end, writes_index)
        if self.missing:
            return self.missing
        if not self.count_changes():
            return None
        if not writes_index and self._needs_index():
            return False
        for level in range(max(present.root_level, 0) + 1 if writes_index else 1):
            if level:
                self.count_index(level)
            self.join_sparse(level, self._records_max(level))
            if self.missing:
                return self.missing
            self._emit(level)
        return self._finish(writes_index)

    cdef int _begin(self, Footer present, uint64_t end, Batch batch, dict held) except -1:
        self.present = present
        self.batch = batch
        self.held = held
        self.missing = []
        self.dropped_count = 0
        self.writer.reset(end)
        self.entry_count = <int64_t>present.entry_count
        self.moved_bytes = 0
        self.reserve_changes()
        self.front = self._compaction_front(end)
        return 0

    cdef void _release(self) noexcept:
        """Release the unfinished update, if there is one."""
        self.release_nodes()
        self.spare.count = 0
        self.writer.release()
        self.present = None
        self.batch = None
        self.held = None
        self.missing = None

    cdef uint64_t _compaction_front(self, uint64_t end) noexcept:
        """Return the offset before which leaves are moved.

        At least the lowest leaf is moved. While dead pages take too much room, more leaves are
        moved, up to about as many bytes as the update itself writes.
        """
        cdef Footer present = self.present
        cdef uint64_t lowest = self.moves.lowest
        cdef double excess
        cdef uint64_t own
        if not self.compacts or present.root_level < 1:
            return 0
        excess = <double>(end - lowest) - self.retained_ratio * <double>present.live_bytes
        if self.retained_ratio <= 0 or excess < 1:
            return lowest + 1
        own = min(self.own_bytes, <uint64_t>((self.batch.count + 1) * self.page_bytes_max))
        return lowest + <uint64_t>max(1.0, min(excess, 2.0 * <double>own))

    cdef bint _needs_index(self) noexcept:
        """Return whether the update must write the index, because a delta is not enough."""
        cdef Level *leaves = &self.levels[0]
        cdef Level *above = &self.levels[1]
        cdef Py_ssize_t records = 0
        cdef Py_ssize_t added, length, index, child
        cdef Py_ssize_t emptied
        cdef Node *leaf
        if self.writer.start - self.present.root_offset > max(
            self.present.live_bytes // 2, <uint64_t>HELD_BACK_BYTES_MIN
        ):
            return True
        child = 0
        for index in range(above.count):
            emptied = 0
            while child < leaves.count and leaves.nodes[child].parent == index:
                leaf = leaves.nodes + child
                added = (leaf.total + self.leaf_records_max - 1) // self.leaf_records_max
                records += added
                emptied += added == 0
                child += 1
            if emptied == above.nodes[index].count:
                return True
        length = self.deltas.log_bytes + HEADER_BYTES + DELTA_HEAD_BYTES + LINKS_MAX * LINK_BYTES
        length += leaves.count * (ENTRY_BYTES + self.key_length + PLACE_BYTES)
        if records > leaves.count:
            length += (records - leaves.count) * (self.key_length + PLACE_BYTES)
        return length > self.delta_bytes_max

    cdef Py_ssize_t _records_max(self, int level) noexcept:
        """Return the maximum number of records of a page.

        Where every update writes index pages, the maximum keeps all levels about equally wide: two
        index levels then serve some ten million keys, three a billion, and writing a path through
        the tree is as cheap as it can be.
        """
        cdef double leaves = <double>self.present.leaf_count + <double>self.writer.leaf_count
        cdef double width = 2 * sqrt(leaves)
        if level == 0:
            return self.leaf_records_max
        if self.delta_bytes_max:
            return self.index_records_max
        if width > <double>self.index_records_max / 2:
            width = 2 * cbrt(leaves)
        return min(self.index_records_max, max(BALANCED_RECORDS_MIN, <Py_ssize_t>ceil(width)))

    cdef int _emit(self, int level) except -1:
        """Write the successors of a level's pages."""
        cdef Level *present = &self.levels[level]
        cdef Py_ssize_t index, end
        cdef Node *node
        if level == 0:
            for index in range(min(LEAVES_AHEAD, present.count)):
                expect_leaf(present.nodes + index)
        for index in range(present.count):
            node = present.nodes + index
            if node.moved and not node.changed and not node.joined:
                self._replace(node, level)
                node.out_first = self.writer.page_count
                node.out_count = 1
                self.writer.move(node.page, node.length, node.lower)
                self.moved_bytes += self.writer.pages[node.out_first].length
        index = 0
        while index < present.count:
            end = index + 1
            while present.nodes[end - 1].joins_next:
                end += 1
            if level == 0 and end - 1 + LEAVES_AHEAD < present.count:
                expect_leaf(present.nodes + end - 1 + LEAVES_AHEAD)
            if present.nodes[index].changed or end - index > 1:
                self._emit_group(level, index, end)
            index = end
        return 0

    cdef int _emit_group(self, int level, Py_ssize_t first, Py_ssize_t end) except -1:
        """Write the successors of one changed page, or of several joined pages."""
        cdef Node *nodes = self.levels[level].nodes
        cdef Py_ssize_t total = 0
        cdef Py_ssize_t index
        for index in range(first, end):
            total += nodes[index].total
            self._replace(nodes + index, level)
        nodes[first].out_first = self.writer.page_count
        if total == 0 or (level and total == 1 and level == self.present.root_level):
            # A root with one child is replaced by the child.
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
        """Record that a node's page is not needed any more."""
        node.consumed = True
        if node.length == 0:
            return 0
        if self.dropped_count == self._dropped_capacity:
            capacity = max(self._dropped_capacity * 2, 64)
            dropped = <uint64_t *>realloc(self.dropped, <size_t>capacity * sizeof(uint64_t))
            if dropped == NULL:
                raise MemoryError("no room for the pages of an update")
            self.dropped = dropped
            self._dropped_capacity = capacity
        self.dropped[self.dropped_count] = node.offset
        self.dropped_count += 1
        self.writer.forget(level, node.length)
        return 0

    cdef int _stream_leaf(self, Node *node) except -1:
        """Write a leaf's records with its changes."""
        cdef Py_ssize_t stride = self.key_length + VALUE_BYTES
        cdef const unsigned char *changes = self.batch.changes
        cdef const unsigned char *records = node.records
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t index
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
        """Write an index page's records, replacing those of children that have successors."""
        cdef Py_ssize_t stride = record_bytes(level, self.key_length)
        cdef const unsigned char *records = node.records
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

    cdef Update _finish(self, bint writes_index):
        """Return the update, with the footer."""
        cdef Footer present = self.present
        cdef Footer footer = Footer.__new__(Footer)
        cdef PageWriter writer = self.writer
        cdef Update update = Update.__new__(Update)
        if writes_index:
            self._put_root(footer)
        else:
            self._put_delta(footer, update)
        footer.offset = writer.end
        footer.key_length = <int>self.key_length
        footer.update_offset = writer.start
        footer.update_number = present.update_number + 1
        if footer.root_level < 0:
            footer.root_offset = footer.min_offset = writer.end
        footer.entry_count = <uint64_t>self.entry_count
        footer.leaf_count = <uint64_t>(<int64_t>present.leaf_count + writer.leaf_count)
        footer.index_count = <uint64_t>(<int64_t>present.index_count + writer.index_count)
        footer.live_bytes = <uint64_t>(<int64_t>present.live_bytes + writer.live_bytes)
        footer.pages_sum = writer.pages_sum
        update.offset = writer.start
        update.data = writer.finish(footer.encode())
        update.footer = footer
        update.moved_bytes = self.moved_bytes
        update.dropped = PyBytes_FromStringAndSize(
            <const char *>self.dropped, self.dropped_count * <Py_ssize_t>sizeof(uint64_t)
        )
        return update

    cdef int _put_root(self, Footer footer) except -1:
        """Record the place of the written root."""
        cdef int level = self.present.root_level
        cdef NewPage root = self._new_root(&level)
        footer.root_level = level
        footer.root_offset = root.offset
        footer.root_length = root.length
        footer.min_offset = root.min_offset
        return 0

    cdef int _put_delta(self, Footer footer, Update update) except -1:
        """Return the root, below any new levels; set ``level`` to its level."""
        cdef Footer present = self.present
        cdef Py_ssize_t index
        cdef Node *above
        update.entries = self._entries()
        delta = self.deltas.encode(update.entries, self.writer.end, present.root_offset)
        footer.root_level = present.root_level
        footer.root_offset = present.root_offset
        footer.root_length = present.root_length
        footer.delta_offset = self.writer.end
        footer.delta_length = <uint32_t>PyBytes_GET_SIZE(delta)
        footer.delta_number = self.deltas.number + 1
        self.writer.append(delta)
        update.lowest = self.moves.lowest_from(self.front)
        footer.min_offset = min(update.lowest, self.deltas.lowest)
        for index in range(self.levels[1].count):
            above = self.levels[1].nodes + index
            footer.min_offset = min(footer.min_offset, above.offset)
        return 0

    cdef bytes _entries(self):
        """Return the changes of the pages just above the leaves, as entries of a delta."""
        cdef Level *leaves = &self.levels[0]
        cdef Py_ssize_t length = 0
        cdef Py_ssize_t shift = 0
        cdef Py_ssize_t page = -1
        cdef Py_ssize_t index
        cdef bint keyed = False
        cdef Node *leaf
        cdef unsigned char *to
        for index in range(leaves.count):
            leaf = leaves.nodes + index
            if leaf.consumed:
                length += ENTRY_BYTES + self.key_length + PLACE_BYTES
                length += leaf.out_count * (self.key_length + PLACE_BYTES)
        entries = PyBytes_FromStringAndSize(NULL, length)
        to = <unsigned char *>PyBytes_AS_STRING(entries)
        for index in range(leaves.count):
            leaf = leaves.nodes + index
            if not leaf.consumed:
                continue
            if leaf.parent != page:
                page = leaf.parent
                shift = 0
                keyed = self.deltas.find(self.levels[1].nodes[page].offset) == NULL
            to = self._put_entry(to, leaf, shift, keyed)
            shift += leaf.out_count - 1
            keyed = False
        return entries[: to - <unsigned char *>PyBytes_AS_STRING(entries)]

    cdef unsigned char *_put_entry(
        self, unsigned char *to, Node *leaf, Py_ssize_t shift, bint keyed
    ) noexcept:
        """Write the entry that replaces one leaf; return the position after it."""
        cdef Node *above = self.levels[1].nodes + leaf.parent
        cdef NewPage *page
        cdef Py_ssize_t index
        store64(to, above.offset)
        store16(to + 8, <uint16_t>(leaf.slot + shift))
        store16(to + 10, <uint16_t>leaf.out_count)
        to[12] = keyed
        to += ENTRY_BYTES
        if keyed:
            memcpy(to, above.lower, <size_t>self.key_length)
            to += self.key_length
        for index in range(leaf.out_count):
            page = self.writer.pages + leaf.out_first + index
            if index:
                memcpy(to, self.writer.key_of(page), <size_t>self.key_length)
                to += self.key_length
            store64(to, page.offset)
            store16(to + 8, <uint16_t>page.length)
            to += PLACE_BYTES
        return to

    cdef NewPage _new_root(self, int *level) except *:
        """Write the levels above the highest pages; return the root and set ``level`` to its level.
        """
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
        """Return the only child of a root."""
        cdef int level = self.present.root_level
        cdef Node *top = self.levels[level].nodes
        cdef Node *child = self.levels[level - 1].nodes
        cdef const unsigned char *record = top.records + self.key_length
        cdef Py_ssize_t slot = 0
        cdef Py_ssize_t index
        cdef NewPage page
        cdef Pointer pointer
        for index in range(top.children, top.children_end):
            if child[index].consumed:
                if child[index].out_count:
                    return self.writer.pages[child[index].out_first]
                # The update removed all other children, so this one is at the first gap.
                slot += slot == child[index].slot
        pointer = load_pointer(record + slot * record_bytes(level, self.key_length))
        page.key = ZEROS
        page.offset = pointer.offset
        page.length = pointer.length
        page.min_offset = pointer.min_offset
        return page
