"""Writes the pages of an update, one after the other.

Owns: the new pages' bytes, their offsets, and what their parents record about them.

A row is the new pages of one level below one parent. It holds exactly as many records as it was
begun for, in the order of the calls. A moved page keeps its records and their checksum; only its
header is written again. The written bytes are in one buffer, which may move when it grows.

Invariants:
1. When keys are inserted in ascending order, all pages but the last are full. Held by
   ``test_a_page_of_32_kib_has_about_a_thousand_children``.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE, _PyBytes_Resize
from cpython.object cimport PyObject
from cpython.ref cimport Py_CLEAR
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy

from _fast.btree.page cimport (
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

cdef extern from "Python.h":
    # Only the writer uses the buffer while it grows, so it is no Python object.
    PyObject *PyBytes_FromStringAndSize_ "PyBytes_FromStringAndSize"(const char *, Py_ssize_t)
    char *PyBytes_AS_STRING_ "PyBytes_AS_STRING"(PyObject *)

cdef enum:
    ROOM_BYTES_MIN = 2048
    # An update begins with the room that the last one took, and one eighth more.
    SPARE_PART = 8


cdef class PageWriter:
    """Writes the pages of one update after the other."""

    def __cinit__(self, Py_ssize_t key_length):
        self.key_length = key_length

    def __dealloc__(self):
        self.release()
        free(self.pages)

    cdef int reset(self, uint64_t end) except -1:
        """Begin an update whose first page will be at ``end``."""
        self.start = self.end = end
        self.release()
        self.pages_sum = 0
        self.leaf_count = self.index_count = self.live_bytes = 0
        self.page_count = 0
        return 0

    cdef int begin_row(
        self,
        int level,
        Py_ssize_t total,
        Py_ssize_t records_max,
        bint ascending,
        const unsigned char *key,
    ) except -1:
        """Begin pages for ``total`` records; the first page is for keys from ``key`` on."""
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
        """Begin the records of another index page, the first with that page's lowest key."""
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
        """Write the record of a page that was written earlier."""
        cdef NewPage page = self.pages[index]
        cdef const unsigned char *key
        cdef Pointer pointer
        if self._room == 0:
            self._open_page()
        key = self.key_of(&page)
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

    cdef int move(
        self, const unsigned char *page, Py_ssize_t length, const unsigned char *key
    ) except -1:
        """Write an unchanged leaf again."""
        memcpy(self._reserve(length), page, <size_t>length)
        return self._add(page_level(page), page_count(page), length, load32(page + 4), key)

    cdef void forget(self, int level, Py_ssize_t length) noexcept:
        """Remove from the totals a page that the update replaces."""
        if level:
            self.index_count -= 1
        else:
            self.leaf_count -= 1
        self.live_bytes -= length

    cdef int append(self, bytes delta) except -1:
        """Append a delta after the pages."""
        cdef Py_ssize_t length = PyBytes_GET_SIZE(delta)
        cdef unsigned char *to = self._reserve(length)
        memcpy(to, PyBytes_AS_STRING(delta), <size_t>length)
        self.pages_sum = crc32c_of(to, 4, self.pages_sum)
        self.end += <uint64_t>length
        return 0

    cdef bytes finish(self, bytes footer):
        """Return all that was written, with the footer after it."""
        cdef Py_ssize_t length = <Py_ssize_t>(self.end - self.start) + PyBytes_GET_SIZE(footer)
        cdef unsigned char *to = self._reserve(PyBytes_GET_SIZE(footer))
        memcpy(to, PyBytes_AS_STRING(footer), <size_t>PyBytes_GET_SIZE(footer))
        self._usual_bytes = length + length // SPARE_PART
        _PyBytes_Resize(&self._buffer, length)
        data = <bytes>self._buffer
        self.release()
        return data

    cdef void release(self) noexcept:
        """Free what was written."""
        Py_CLEAR(self._buffer)
        self._data = NULL
        self._room_bytes = 0

    cdef const unsigned char *key_of(self, const NewPage *page) noexcept:
        """Return the lowest key that belongs to a page."""
        if page.key != NULL:
            return page.key
        return self._data + (page.offset - self.start) + HEADER_BYTES

    cdef unsigned char *_reserve(self, Py_ssize_t length) except NULL:
        """Return the place of the next ``length`` bytes; earlier bytes may move."""
        cdef Py_ssize_t used = <Py_ssize_t>(self.end - self.start)
        cdef Py_ssize_t room
        if used + length > self._room_bytes:
            if self._buffer == NULL:
                room = max(self._usual_bytes, length, ROOM_BYTES_MIN)
                self._buffer = PyBytes_FromStringAndSize_(NULL, room)
                if self._buffer == NULL:
                    raise MemoryError("no room for an update")
            else:
                room = max(2 * self._room_bytes, used + length)
                self._room_bytes = 0
                _PyBytes_Resize(&self._buffer, room)
            self._room_bytes = room
            self._data = <unsigned char *>PyBytes_AS_STRING_(self._buffer)
        return self._data + used

    cdef int _open_page(self) except -1:
        cdef Py_ssize_t pages = (self._left + self._records_max - 1) // self._records_max
        assert pages > 0, "more records than the row was begun for"
        if self._ascending:
            self._room = min(self._left, self._records_max)
        else:
            self._room = (self._left + pages - 1) // pages
        self._to = self._reserve(HEADER_BYTES + self._room * self._stride) + HEADER_BYTES
        self._page_records = self._room
        self._left -= self._room
        return 0

    cdef int _close_page(self) except -1:
        cdef Py_ssize_t length = self._page_records * self._stride
        cdef const unsigned char *key = self._key
        self._key = NULL
        return self._add(
            self._level,
            self._page_records,
            HEADER_BYTES + length,
            crc32c_of(self._to - length, <size_t>length, 0),
            key,
        )

    cdef int _add(
        self,
        int level,
        Py_ssize_t count,
        Py_ssize_t length,
        uint32_t records_sum,
        const unsigned char *key,
    ) except -1:
        """Write the header of the page at the end, and record its place."""
        cdef unsigned char *data = self._data + (self.end - self.start)
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
    """Return the lowest offset of any page below an index page."""
    cdef Py_ssize_t stride = record_bytes(level, key_length)
    cdef const unsigned char *min_offset = page + HEADER_BYTES + key_length + 10
    cdef uint64_t least = <uint64_t>-1
    for _ in range(count):
        least = min(least, load64(min_offset))
        min_offset += stride
    return least
