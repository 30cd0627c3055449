"""Writes the pages of an update, one behind the other.

Owns: the new pages' bytes, where they will lie, and what their parents have to know of them.

Invariants:
1. A row of pages holds exactly the records that it was begun for, in the order they are put.
2. In a row that grows at its end all pages but the last are full; otherwise they are equally full.
3. A page that only moves keeps its records and their sum: just its header is written anew.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from _fast.btree_page cimport (
    HEADER_BYTES,
    Pointer,
    load32,
    load64,
    page_count,
    page_level,
    record_bytes,
    store_pointer,
    write_header,
)
from _fast.crc cimport crc32c_of


cdef class PageWriter:
    """The pages of one update."""

    def __cinit__(self, Py_ssize_t key_length):
        self.key_length = key_length

    def __dealloc__(self):
        free(self.pages)

    cdef int reset(self, uint64_t end) except -1:
        """Begin an update whose first page will lie at ``end``."""
        self.start = self.end = end
        self.buffers = []
        self.pages_sum = 0
        self.leaf_count = self.index_count = self.live_bytes = 0
        self.page_count = 0
        self._page = None
        return 0

    cdef int begin_row(
        self,
        int level,
        Py_ssize_t total,
        Py_ssize_t records_max,
        bint ascending,
        const unsigned char *key,
    ) except -1:
        """Begin pages for ``total`` records, the first of which is for keys from ``key`` on."""
        self._level = level
        self._stride = record_bytes(level, self.key_length)
        self._left = total
        self._records_max = records_max
        self._ascending = ascending
        self._key = key
        self._first_key = NULL
        self._room = 0
        return 0

    cdef void next_source(self, const unsigned char *lower) noexcept:
        """Records of another index page follow: the first gets that page's lowest key."""
        self._first_key = lower

    cdef int put(self, const unsigned char *records, Py_ssize_t count) except -1:
        """Copy records."""
        cdef Py_ssize_t taken
        while count > 0:
            if self._room == 0:
                self._open_page()
            taken = min(count, self._room)
            memcpy(self._to, records, <size_t>(taken * self._stride))
            if self._first_key != NULL:
                memcpy(self._to, self._first_key, <size_t>self.key_length)
                self._first_key = NULL
            records += taken * self._stride
            self._to += taken * self._stride
            self._room -= taken
            count -= taken
            if self._room == 0:
                self._close_page()
        return 0

    cdef int put_page(self, Py_ssize_t index) except -1:
        """Put the record of a page that was written earlier."""
        cdef NewPage page = self.pages[index]
        cdef const unsigned char *key = page.key
        cdef Pointer pointer
        if self._room == 0:
            self._open_page()
        if self._first_key != NULL:
            key = self._first_key
            self._first_key = NULL
        memcpy(self._to, key, <size_t>self.key_length)
        pointer.offset = page.offset
        pointer.min_offset = page.min_offset
        pointer.length = page.length
        store_pointer(self._to + self.key_length, pointer)
        self._to += self._stride
        self._room -= 1
        if self._room == 0:
            self._close_page()
        return 0

    cdef int move(self, object page, const unsigned char *key) except -1:
        """Write a leaf again as it is."""
        cdef Py_ssize_t length = PyBytes_GET_SIZE(page)
        copy = PyBytes_FromStringAndSize(NULL, length)
        memcpy(PyBytes_AS_STRING(copy), PyBytes_AS_STRING(page), <size_t>length)
        self._add(
            copy,
            page_level(page),
            page_count(page),
            load32(<const unsigned char *>PyBytes_AS_STRING(page) + 4),
            key,
        )
        return 0

    cdef void forget(self, int level, Py_ssize_t length) noexcept:
        """Count a page out that the update replaces."""
        if level:
            self.index_count -= 1
        else:
            self.leaf_count -= 1
        self.live_bytes -= length

    cdef int append(self, object delta) except -1:
        """Put a delta behind the pages."""
        self.pages_sum = crc32c_of(
            <const unsigned char *>PyBytes_AS_STRING(delta), 4, self.pages_sum
        )
        self.buffers.append(delta)
        self.end += <uint64_t>PyBytes_GET_SIZE(delta)
        return 0

    cdef int _open_page(self) except -1:
        cdef Py_ssize_t pages = (self._left + self._records_max - 1) // self._records_max
        assert pages > 0, "more records than the row was begun for"
        if self._ascending:
            self._room = min(self._left, self._records_max)
        else:
            self._room = (self._left + pages - 1) // pages
        self._page = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + self._room * self._stride)
        self._to = <unsigned char *>PyBytes_AS_STRING(self._page) + HEADER_BYTES
        self._left -= self._room
        return 0

    cdef int _close_page(self) except -1:
        cdef bytes page = self._page
        cdef const unsigned char *records
        cdef Py_ssize_t length = PyBytes_GET_SIZE(page) - HEADER_BYTES
        records = <const unsigned char *>PyBytes_AS_STRING(page) + HEADER_BYTES
        self._page = None
        self._add(
            page,
            self._level,
            length // self._stride,
            crc32c_of(records, <size_t>length, 0),
            records if self._key == NULL else self._key,
        )
        self._key = NULL
        return 0

    cdef int _add(
        self,
        object page,
        int level,
        Py_ssize_t count,
        uint32_t records_sum,
        const unsigned char *key,
    ) except -1:
        """Give a page its header and its place."""
        cdef unsigned char *data = <unsigned char *>PyBytes_AS_STRING(page)
        cdef Py_ssize_t length = PyBytes_GET_SIZE(page)
        cdef NewPage *added
        if self.page_count == self._capacity:
            capacity = max(self._capacity * 2, 64)
            pages = <NewPage *>realloc(self.pages, <size_t>capacity * sizeof(NewPage))
            if pages == NULL:
                raise MemoryError("no room for the pages of an update")
            self.pages = pages
            self._capacity = capacity
        write_header(data, level, count, self.key_length, self.end, records_sum)
        self.pages_sum = crc32c_of(data, 4, self.pages_sum)
        added = self.pages + self.page_count
        added.key = key
        added.offset = self.end
        added.length = <uint32_t>length
        added.min_offset = self.end if level == 0 else lowest(data, count, self.key_length, level)
        self.page_count += 1
        self.buffers.append(page)
        self.end += <uint64_t>length
        self.live_bytes += length
        if level:
            self.index_count += 1
        else:
            self.leaf_count += 1
        return 0


cdef uint64_t lowest(
    const unsigned char *page, Py_ssize_t count, Py_ssize_t key_length, int level
) noexcept nogil:
    """The lowest offset of any page below an index page."""
    cdef Py_ssize_t stride = record_bytes(level, key_length)
    cdef const unsigned char *min_offset = page + HEADER_BYTES + key_length + 10
    cdef uint64_t least = <uint64_t>-1
    for _ in range(count):
        least = min(least, load64(min_offset))
        min_offset += stride
    return least
