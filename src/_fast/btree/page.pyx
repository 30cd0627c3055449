"""Encodes, decodes and checks the pages, deltas and footers of the append-only B+Tree.

Owns: the layout of docs/formats/attribute-index.md.

A page that passed the checks is called admitted: its sums are right, it lies where it says, its
records fill it exactly, and their keys ascend. Code that reads admitted pages stays within their
records. The children of a page lie before it, so every path through a tree ends.

Invariants:
1. When a byte of a page or delta is wrong, the page is refused with ``CorruptPageError``, which has
   the page's offset. Held by ``test_every_changed_byte_of_a_page_or_delta_is_refused``. The same is
   true of a footer. Held by ``test_every_changed_byte_of_a_footer_is_refused``.
2. When a whole page lies at another offset, or has another length or level than its parent says, it
   is refused. Held by ``test_a_page_in_a_wrong_place_is_refused``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcmp, memcpy

from _fast.crc cimport crc32c_of

cdef enum:
    PAGE_VERSION = 1
    FOOTER_VERSION = 1

PAGE_BYTES_MAX = PAGE_BYTES_MAX_
FOOTER_BYTES = FOOTER_BYTES_
PAGE_HEADER_BYTES = HEADER_BYTES
FOOTER_MAGIC = b"SegBTree"


class CorruptPageError(ValueError):
    """Bytes that should be a page or a footer are not; ``offset`` is their place."""

    def __init__(self, uint64_t offset, message):
        super().__init__(f"at offset {offset}: {message}")
        self.offset = offset


cdef void write_header(
    unsigned char *page,
    int level,
    Py_ssize_t count,
    Py_ssize_t key_length,
    uint64_t offset,
    uint32_t records_sum,
) noexcept nogil:
    store32(page + 4, records_sum)
    page[8] = PAGE_VERSION
    page[9] = <unsigned char>level
    store16(page + 10, <uint16_t>count)
    store16(page + 12, <uint16_t>key_length)
    store16(page + 14, 0)
    store64(page + 16, offset)
    store32(page, crc32c_of(page + 4, HEADER_BYTES - 4, 0))


cdef void write_delta_header(
    unsigned char *delta,
    Py_ssize_t length,
    Py_ssize_t key_length,
    uint64_t offset,
    uint32_t body_sum,
) noexcept nogil:
    store32(delta + 4, body_sum)
    delta[8] = PAGE_VERSION
    delta[9] = DELTA_LEVEL
    store16(delta + 10, <uint16_t>(length & 0xFFFF))
    store16(delta + 12, <uint16_t>key_length)
    store16(delta + 14, <uint16_t>(length >> 16))
    store64(delta + 16, offset)
    store32(delta, crc32c_of(delta + 4, HEADER_BYTES - 4, 0))


cdef const char *header_fault(
    const unsigned char *page, uint64_t offset, int level, Py_ssize_t key_length
) noexcept nogil:
    """Return what is wrong with the header of a page or a delta, or NULL."""
    if load32(page) != crc32c_of(page + 4, HEADER_BYTES - 4, 0):
        return b"the page header's checksum is wrong"
    if page[8] != PAGE_VERSION or (page[9] != DELTA_LEVEL and load16(page + 14) != 0):
        return b"the page is of an unknown version"
    if load64(page + 16) != offset:
        return b"the page belongs to another offset"
    if load16(page + 12) != key_length:
        return b"the page has keys of another length"
    if page[9] != level:
        return b"the page is of another level"
    if page[9] == DELTA_LEVEL:
        if not HEADER_BYTES < delta_bytes(page) <= DELTA_BYTES_MAX_:
            return b"the delta's length is impossible"
    elif page[9] >= LEVELS_MAX:
        return b"the page is of an unknown level"
    elif load16(page + 10) == 0:
        return b"the page is empty"
    return NULL


cdef const char *records_fault(
    const unsigned char *page, uint64_t offset, Py_ssize_t key_length
) noexcept nogil:
    """Return what is wrong with a page's records, or NULL; its header and its length are right."""
    cdef int level = page[9]
    cdef Py_ssize_t stride = record_bytes(level, key_length)
    cdef Py_ssize_t child_stride = record_bytes(level - 1, key_length)
    cdef Py_ssize_t count = load16(page + 10)
    cdef Py_ssize_t position
    cdef const unsigned char *record = page + HEADER_BYTES
    cdef Pointer child
    if load32(page + 4) != crc32c_of(record, <size_t>(count * stride), 0):
        return b"the checksum of the page's records is wrong"
    for position in range(count):
        if position and memcmp(record - stride, record, <size_t>key_length) >= 0:
            return b"the page's keys are not in order"
        if level:
            child = load_pointer(record + key_length)
            if child.offset >= offset or offset - child.offset < child.length:
                return b"the page has a child behind it"
            if child.min_offset > child.offset:
                return b"a child's lowest offset is behind it"
            if child.length <= HEADER_BYTES or (child.length - HEADER_BYTES) % child_stride:
                return b"a child's length is impossible"
        record += stride
    return NULL


cdef int check_page(
    const unsigned char *page, Py_ssize_t length, uint64_t offset, int level, Py_ssize_t key_length
) except -1:
    """Raise unless these bytes are the page, or the delta, that lies at ``offset``."""
    cdef const char *fault
    if length < HEADER_BYTES:
        raise CorruptPageError(offset, f"{length} bytes are no page")
    fault = header_fault(page, offset, level, key_length)
    if fault == NULL and length != page_bytes(page, key_length):
        fault = b"the page has another length than it says"
    if fault == NULL and page[9] == DELTA_LEVEL:
        if load32(page + 4) != crc32c_of(page + HEADER_BYTES, <size_t>(length - HEADER_BYTES), 0):
            fault = b"the delta's checksum is wrong"
    elif fault == NULL:
        fault = records_fault(page, offset, key_length)
    if fault != NULL:
        raise CorruptPageError(offset, fault.decode())
    return 0


cdef class Footer:
    """The end of an update: the place of the tree's root, and totals of the tree."""

    def encode(self):
        """Return the footer's bytes."""
        data = PyBytes_FromStringAndSize(NULL, FOOTER_BYTES_)
        cdef unsigned char *to = <unsigned char *>PyBytes_AS_STRING(data)
        memcpy(to, PyBytes_AS_STRING(FOOTER_MAGIC), 8)
        to[8] = FOOTER_VERSION
        to[9] = <unsigned char>self.root_level
        store16(to + 10, <uint16_t>self.key_length)
        store32(to + 12, self.root_length)
        store64(to + 16, self.offset)
        store64(to + 24, self.update_offset)
        store64(to + 32, self.root_offset)
        store64(to + 40, self.min_offset)
        store64(to + 48, self.entry_count)
        store64(to + 56, self.leaf_count)
        store64(to + 64, self.index_count)
        store64(to + 72, self.live_bytes)
        store64(to + 80, self.update_number)
        store32(to + 88, self.pages_sum)
        store32(to + 92, self.delta_length)
        store64(to + 96, self.delta_offset)
        store32(to + 104, self.delta_number)
        store32(to + 108, crc32c_of(to, FOOTER_BYTES_ - 4, 0))
        return data

    @property
    def end(self):
        """Return the offset after the footer."""
        return self.offset + FOOTER_BYTES_

    @staticmethod
    def parse(data, *, uint64_t offset):
        """Return the footer in these bytes, which are at ``offset``."""
        cdef Py_buffer view
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            return parsed_footer(<const unsigned char *>view.buf, view.len, offset)
        finally:
            PyBuffer_Release(&view)


cdef Footer parsed_footer(const unsigned char *data, Py_ssize_t length, uint64_t offset):
    cdef Footer footer
    if length != FOOTER_BYTES_ or memcmp(data, PyBytes_AS_STRING(FOOTER_MAGIC), 8) != 0:
        raise CorruptPageError(offset, "there is no footer")
    if load32(data + 108) != crc32c_of(data, FOOTER_BYTES_ - 4, 0):
        raise CorruptPageError(offset, "the footer's checksum is wrong")
    if data[8] != FOOTER_VERSION:
        raise CorruptPageError(offset, "the footer is of an unknown version")
    footer = Footer.__new__(Footer)
    footer.root_level = -1 if data[9] == NO_LEVEL else data[9]
    footer.key_length = load16(data + 10)
    footer.root_length = load32(data + 12)
    footer.offset = load64(data + 16)
    footer.update_offset = load64(data + 24)
    footer.root_offset = load64(data + 32)
    footer.min_offset = load64(data + 40)
    footer.entry_count = load64(data + 48)
    footer.leaf_count = load64(data + 56)
    footer.index_count = load64(data + 64)
    footer.live_bytes = load64(data + 72)
    footer.update_number = load64(data + 80)
    footer.pages_sum = load32(data + 88)
    footer.delta_length = load32(data + 92)
    footer.delta_offset = load64(data + 96)
    footer.delta_number = load32(data + 104)
    if footer.offset != offset:
        raise CorruptPageError(offset, "the footer belongs to another offset")
    if (
        footer.root_level >= LEVELS_MAX
        or not 1 <= footer.key_length <= KEY_BYTES_MAX
        or footer.root_length > PAGE_BYTES_MAX_
        or footer.update_offset > offset
        or footer.root_offset > offset - footer.root_length
        or footer.min_offset > footer.root_offset
        or footer.delta_length > DELTA_BYTES_MAX_
        or (footer.delta_number > 0 and footer.delta_length <= HEADER_BYTES)
        or (footer.delta_number > 0 and footer.delta_offset < footer.root_offset)
        or footer.delta_offset > offset - footer.delta_length
    ):
        raise CorruptPageError(offset, "the footer contradicts itself")
    return footer
