"""A bounded cache of B+Tree pages, shared by any number of trees.

Owns: the pages in it, by tree and offset. A hand goes round: a page that was not used since it
passed by the last time has to go.

Invariants:
1. ``used_bytes`` stays within ``bytes_max``, even if the page put last has to go at once: who needs
   a page for a while holds it.
2. Leaves go first; index pages go only when no leaf is left.
3. A page never changes: a tree writes another page at another offset.
"""

from cpython.bytes cimport PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF, Py_INCREF, Py_XDECREF
from libc.stdint cimport int32_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

from _fast.btree_page cimport page_level

from _fast.btree_page import CorruptPageError

cdef enum:
    NONE = -1
    # What a page costs besides its bytes: the head of its object, its entry, its bucket.
    OVERHEAD_BYTES = 96
    ENTRIES_MIN = 64
    ENTRIES_MAX = 1 << 30


cdef class PageCache:
    """Pages of any number of trees in at most ``bytes_max`` bytes."""

    def __cinit__(self, Py_ssize_t bytes_max):
        if bytes_max < 0:
            raise ValueError(f"a cache cannot have {bytes_max} bytes")
        self.bytes_max = bytes_max
        self._unused = NONE
        self._grow()

    def __dealloc__(self):
        cdef int32_t index
        for index in range(self._capacity):
            Py_XDECREF(self._entries[index].page)
        free(self._entries)
        free(self._buckets)

    cdef uint32_t register(self) except? 0:
        """A number for one more tree."""
        self._owners += 1
        return self._owners

    cdef PyObject *find(self, uint32_t owner, uint64_t offset) noexcept:
        """A tree's page at an offset, or NULL. The reference is the cache's."""
        cdef int32_t index = self._place(owner, offset)[0]
        if index == NONE:
            self.miss_count += 1
            return NULL
        self.hit_count += 1
        self._entries[index].touched = True
        return self._entries[index].page

    cdef int put(self, uint32_t owner, uint64_t offset, object page, int level) except -1:
        """Keep a page; others may go for it."""
        cdef int32_t index
        cdef int32_t *place = self._place(owner, offset)
        if place[0] != NONE:
            self._remove(place)
        if self._unused == NONE:
            self._grow()
        index = self._unused
        place = self._buckets + (spread(owner, offset) & self._mask)
        cdef Cached *entry = self._entries + index
        self._unused = entry.next
        entry.offset = offset
        entry.owner = owner
        entry.is_leaf = level == 0
        entry.touched = True
        entry.page = <PyObject *>page
        Py_INCREF(page)
        entry.next = place[0]
        place[0] = index
        self.page_count += 1
        self._leaf_count += level == 0
        self.used_bytes += PyBytes_GET_SIZE(page) + OVERHEAD_BYTES
        if self.used_bytes > self.bytes_max:
            self._shrink()
        return 0

    cdef int drop(self, uint32_t owner, uint64_t offset) except -1:
        """Let go of a page that no tree needs any more, if it is here."""
        cdef int32_t *place = self._place(owner, offset)
        if place[0] != NONE:
            self._remove(place)
        return 0

    cdef void forget(self, uint32_t owner) noexcept:
        """Let go of all pages of a tree."""
        cdef int32_t index
        for index in range(self._capacity):
            if self._entries[index].page != NULL and self._entries[index].owner == owner:
                self._remove_entry(index)

    cdef int _grow(self) except -1:
        """Twice as many entries and buckets."""
        cdef int32_t capacity = self._capacity * 2 if self._capacity else ENTRIES_MIN
        cdef int32_t index
        if capacity > ENTRIES_MAX:
            raise MemoryError("too many pages in the cache")
        entries = <Cached *>realloc(self._entries, <size_t>capacity * sizeof(Cached))
        if entries == NULL:
            raise MemoryError()
        self._entries = entries
        buckets = <int32_t *>realloc(self._buckets, <size_t>capacity * sizeof(int32_t))
        if buckets == NULL:
            raise MemoryError()
        self._buckets = buckets
        self._mask = <uint64_t>(capacity - 1)
        for index in range(capacity):
            buckets[index] = NONE
        for index in range(self._capacity):
            place = buckets + (spread(entries[index].owner, entries[index].offset) & self._mask)
            entries[index].next = place[0]
            place[0] = index
        for index in range(capacity - 1, self._capacity - 1, -1):
            entries[index].page = NULL
            entries[index].next = self._unused
            self._unused = index
        self._capacity = capacity
        return 0

    cdef int32_t *_place(self, uint32_t owner, uint64_t offset) noexcept:
        """Where the number of a page's entry stands, or would."""
        cdef int32_t *place = self._buckets + (spread(owner, offset) & self._mask)
        while place[0] != NONE:
            if (
                self._entries[place[0]].offset == offset
                and self._entries[place[0]].owner == owner
            ):
                break
            place = &self._entries[place[0]].next
        return place

    cdef void _remove(self, int32_t *place) noexcept:
        cdef int32_t index = place[0]
        cdef Cached *entry = self._entries + index
        place[0] = entry.next
        entry.next = self._unused
        self._unused = index
        self.page_count -= 1
        self._leaf_count -= entry.is_leaf
        page = <object>entry.page
        entry.page = NULL
        self.used_bytes -= PyBytes_GET_SIZE(page) + OVERHEAD_BYTES
        Py_DECREF(page)

    cdef void _remove_entry(self, int32_t index) noexcept:
        self._remove(self._place(self._entries[index].owner, self._entries[index].offset))

    cdef void _shrink(self) noexcept:
        cdef Cached *entry
        while self.used_bytes > self.bytes_max:
            self._hand = (self._hand + 1) & <int32_t>self._mask
            entry = self._entries + self._hand
            if entry.page == NULL or (not entry.is_leaf and self._leaf_count):
                continue
            if entry.touched:
                entry.touched = False
            else:
                self._remove_entry(self._hand)


cdef object page_at(
    PageCache cache, uint32_t owner, dict held, uint64_t offset, Py_ssize_t length, int level
):
    """The page in the cache or in ``held`` that a parent says lies there, else None."""
    cdef PyObject *found = cache.find(owner, offset)
    if found != NULL:
        page = <object>found
    else:
        page = None if held is None else held.get(offset)
        if page is None:
            return None
    if PyBytes_GET_SIZE(page) != length or page_level(page) != level:
        raise CorruptPageError(offset, "the page is not the one that its parent knows")
    return page
