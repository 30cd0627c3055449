"""Finds the lowest leaves: progressive compaction moves these next.

Owns: candidates, by offset: leaves before ``known_until``, which a search of the index found by the
lowest offset that the index records for every subtree.

Every leaf of the present tree before ``known_until`` is a candidate. A candidate may no longer be
in the tree, so before a move, a walk checks that its key still leads to its offset. ``known_until``
never exceeds the end of the written bytes. ``lowest`` and ``known_until`` only decrease when a tree
is restored.

Invariants:
1. No page of the tree lies before the offset at which the storage may be truncated. Held by
   ``TestTreeModel``.
2. Compaction keeps the storage below a multiple of the bytes that the tree needs, under sorted
   insertions and random updates. Held by
   ``test_table_two_compaction_bounds_an_index_of_random_updates``.
"""

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, qsort, realloc
from libc.string cimport memcmp, memcpy, memmove

from _fast.btree.cache cimport PageCache
from _fast.btree.delta cimport Deltas, View
from _fast.btree.page cimport Footer, Pointer, load64, load_pointer, record_bytes, store64

cdef enum:
    # Minimum bytes of storage that one search of the index covers.
    SEARCH_BYTES = 2 << 20


cdef int by_offset(const void *left, const void *right) noexcept nogil:
    return memcmp(left, right, 8)


cdef class Moves:
    """The lowest leaves of one tree."""

    def __cinit__(self, Py_ssize_t key_length):
        self.key_length = key_length
        self.item_bytes = 8 + key_length

    def __dealloc__(self):
        free(self.items)

    cdef void restart(self, uint64_t lowest) noexcept:
        """Remove all candidates, and set ``lowest`` to the offset: no leaf lies before it."""
        self.lowest = self.known_until = lowest
        self.first = self.count = 0

    cdef uint64_t lowest_from(self, uint64_t front) noexcept:
        """Return the lowest offset that a leaf can have when none is left before ``front``."""
        cdef Py_ssize_t index = self.first
        if front < self.lowest:
            return self.lowest
        while index < self.count:
            if self.offset_at(index) >= front:
                return self.offset_at(index)
            index += 1
        return max(front, self.known_until)

    cdef void advance(self, uint64_t lowest) noexcept:
        """Record that no leaf lies before that offset any more."""
        self.lowest = lowest
        self.known_until = max(self.known_until, lowest)
        while self.first < self.count and self.offset_at(self.first) < lowest:
            self.first += 1

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
    ) except -1:
        """Find the leaves before ``front``, or add the pages that must be read first.

        ``end`` is the offset of the next update.
        """
        cdef uint64_t until = min(end, max(front, self.known_until + SEARCH_BYTES))
        cdef Py_ssize_t count
        cdef Pointer root
        if front <= self.known_until:
            return 0
        if self.first:
            self.count -= self.first
            memmove(
                self.items,
                self.items + self.first * self.item_bytes,
                <size_t>(self.count * self.item_bytes),
            )
            self.first = 0
        count = self.count
        self._deltas, self._cache, self._owner = deltas, cache, owner
        self._held, self._missing = held, missing
        root.offset = present.root_offset
        root.length = present.root_length
        root.min_offset = present.min_offset
        try:
            self._collect(root, present.root_level, until)
        finally:
            self._deltas = self._cache = self._held = self._missing = None
        if missing:
            self.count = count
            return 0
        if self.count > count:
            qsort(
                self.items + count * self.item_bytes,
                <size_t>(self.count - count),
                <size_t>self.item_bytes,
                by_offset,
            )
        self.known_until = until
        return 0

    cdef int _collect(self, Pointer page, int level, uint64_t until) except -1:
        """Collect the leaves below an index page that are before ``until`` and not known yet."""
        cdef Py_ssize_t stride = record_bytes(level, self.key_length)
        cdef const unsigned char *record
        cdef uint64_t offset
        cdef View view
        if not self._deltas.view(self._cache, self._owner, self._held, page, level, &view):
            self._missing.append((page.offset, page.length, level))
            return 0
        record = view.records
        for _ in range(view.count):
            if level > 1:
                if load64(record + self.key_length + 10) < until:
                    self._collect(load_pointer(record + self.key_length), level - 1, until)
            else:
                offset = load64(record + self.key_length)
                if self.known_until <= offset < until:
                    self._add(offset, record)
            record += stride
        return 0

    cdef int _add(self, uint64_t offset, const unsigned char *key) except -1:
        cdef unsigned char *item
        if self.count == self._capacity:
            capacity = max(2 * self._capacity, 64)
            items = <unsigned char *>realloc(self.items, <size_t>(capacity * self.item_bytes))
            if items == NULL:
                raise MemoryError("no room for the leaves that are to be moved")
            self.items = items
            self._capacity = capacity
        item = self.items + self.count * self.item_bytes
        store64(item, offset)
        memcpy(item + 8, key, <size_t>self.key_length)
        self.count += 1
        return 0
