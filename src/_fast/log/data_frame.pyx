"""Data frames: records packed into entries of a durable log, and read back.

Owns: a frame's memory and its bytes. docs/formats/data-frame.md has the format.

A record is copied once: its head and its body go straight to their place in the entry.

Invariants:
1. A frame's memory is used again: after ``clear`` a frame has the same bytes as a new one with the
   same records. Held by ``test_a_frame_that_was_cleared_keeps_nothing``.
2. While a view of a sealed frame exists, ``clear`` raises ``BufferError`` and the bytes do not
   change. Held by ``test_bytes_that_somebody_looks_at_do_not_change``.
3. Any bytes are either read as a frame or refused with ``FrameDamagedError``. No byte outside the
   frame is read, whatever its lengths declare. Held by ``test_any_content_is_records_or_damage``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc
from cpython.memoryview cimport PyMemoryView_FromObject
from libc.stdint cimport uint32_t
from libc.string cimport memcpy

from _fast.big_endian cimport load32_big, store16_big, store32_big
from _fast.crc cimport crc32c_of

cdef enum:
    VERSION = 2
    # The checksum covers the part of the header before it.
    SUMMED_HEADER_BYTES = 8
    HEADER_BYTES = 12
    # A shorter record is copied when read: a view would cost more and would hold its whole frame.
    VIEW_BYTES_MIN = 2048
    RECORD_COUNT_MAX = 0xFFFF

FRAME_HEADER_BYTES = HEADER_BYTES
PART_BYTES_MIN = 64
cdef Py_ssize_t PART_MIN = PART_BYTES_MIN


class FrameDamagedError(ValueError):
    """Bytes that no encoder of data frames has written."""


cdef class DataFrame:
    """A frame to fill, of at most ``limit`` bytes, of which it has ``length``."""

    def __cinit__(self, Py_ssize_t limit):
        if limit < HEADER_BYTES + PART_HEADER_BYTES + PART_MIN or limit > 0x7FFFFFFF:
            raise ValueError(f"a data frame has no limit of {limit} bytes")
        self.buffer = <unsigned char *>PyMem_RawMalloc(limit)
        if self.buffer == NULL:
            raise MemoryError(f"no memory for a data frame of {limit} bytes")
        self.limit = limit
        self.reset()

    def __dealloc__(self):
        PyMem_RawFree(self.buffer)

    cdef void reset(self) noexcept:
        self.length = HEADER_BYTES
        self.record_count = 0
        self.sealed = False

    @property
    def is_empty(self):
        return self.length == HEADER_BYTES

    @property
    def is_free(self):
        return self.exports == 0

    @property
    def room(self):
        return self.room_for_record()

    def clear(self):
        if self.exports:
            raise BufferError("a data frame is cleared while a view of it exists")
        self.reset()

    def put_whole(self, head not None, body not None):
        cdef Py_buffer head_view, body_view
        cdef unsigned char *target
        PyObject_GetBuffer(head, &head_view, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(body, &body_view, PyBUF_SIMPLE)
            try:
                target = self.begin_part(head_view.len + body_view.len, FIRST_PART | LAST_PART)
                memcpy(target, head_view.buf, head_view.len)
                memcpy(target + head_view.len, body_view.buf, body_view.len)
            finally:
                PyBuffer_Release(&body_view)
        finally:
            PyBuffer_Release(&head_view)

    def put_part(self, head not None, body not None, Py_ssize_t start):
        cdef Py_buffer head_view, body_view
        PyObject_GetBuffer(head, &head_view, PyBUF_SIMPLE)
        try:
            PyObject_GetBuffer(body, &body_view, PyBUF_SIMPLE)
            try:
                return self.copy_part(&head_view, &body_view, start)
            finally:
                PyBuffer_Release(&body_view)
        finally:
            PyBuffer_Release(&head_view)

    cdef Py_ssize_t copy_part(
        self, const Py_buffer *head, const Py_buffer *body, Py_ssize_t start
    ) except -1:
        cdef Py_ssize_t whole = head.len + body.len
        cdef Py_ssize_t room = self.room_for_record()
        cdef Py_ssize_t count, from_head
        cdef unsigned char *target
        if start < 0 or start >= whole:
            raise ValueError(f"a record of {whole} bytes has no part from {start} on")
        if room < PART_MIN:
            return start
        count = min(room, whole - start)
        target = self.begin_part(
            count,
            (FIRST_PART if start == 0 else 0) | (LAST_PART if start + count == whole else 0),
        )
        from_head = max(0, min(count, head.len - start))
        if from_head:
            memcpy(target, <const char *>head.buf + start, from_head)
        if count > from_head:
            memcpy(
                target + from_head,
                <const char *>body.buf + (start + from_head - head.len),
                count - from_head,
            )
        return start + count

    cdef unsigned char *begin_part(self, Py_ssize_t length, int flags) except NULL:
        """Make room for a part of ``length`` bytes, which the caller writes at once."""
        cdef unsigned char *header = self.buffer + self.length
        if self.sealed:
            raise ValueError("a sealed data frame takes no records")
        if length > self.room_for_record():
            raise ValueError(f"{length} bytes do not fit into the data frame")
        store32_big(header, <uint32_t>length)
        header[4] = <unsigned char>flags
        self.length += PART_HEADER_BYTES + length
        if flags & LAST_PART:
            self.record_count += 1
        return header + PART_HEADER_BYTES

    def seal(self):
        if not self.sealed:
            self.sealed = True
            self.buffer[0] = VERSION
            self.buffer[1] = 0
            store16_big(self.buffer + 2, min(self.record_count, RECORD_COUNT_MAX))
            store32_big(self.buffer + 4, <uint32_t>(self.length - HEADER_BYTES))
            store32_big(self.buffer + 8, sum_of(self.buffer, self.length))
        return PyMemoryView_FromObject(self)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if not self.sealed:
            raise BufferError("a data frame has no bytes before it is sealed")
        PyBuffer_FillInfo(view, self, self.buffer, self.length, 1, flags)
        self.exports += 1

    def __releasebuffer__(self, Py_buffer *view):
        self.exports -= 1


cdef class FrameReader:
    """Joins records from frames that are fed in log order."""

    cdef list parts
    cdef object began

    def feed(self, frame not None, address not None):
        cdef Py_buffer view
        cdef list records = []
        PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
        try:
            self.read_frame(frame, <const unsigned char *>view.buf, view.len, address, records)
        finally:
            PyBuffer_Release(&view)
        return records

    cdef int read_frame(
        self,
        object frame,
        const unsigned char *data,
        Py_ssize_t length,
        object address,
        list records,
    ) except -1:
        cdef Py_ssize_t position = check_frame(data, length)
        cdef Py_ssize_t part_length
        cdef object frame_view = None
        cdef object part
        cdef int flags
        while position < length:
            if position + PART_HEADER_BYTES > length:
                raise FrameDamagedError(f"it ends in a part's header, at byte {position}")
            part_length = load32_big(data + position)
            flags = data[position + 4]
            position += PART_HEADER_BYTES
            if part_length > length - position:
                raise FrameDamagedError(f"it ends in a record, at byte {position}")
            if flags & ~(FIRST_PART | LAST_PART):
                raise FrameDamagedError(f"a part's flags are {flags}, at byte {position - 1}")
            if part_length < VIEW_BYTES_MIN:
                part = PyBytes_FromStringAndSize(<const char *>data + position, part_length)
            else:
                if frame_view is None:
                    frame_view = PyMemoryView_FromObject(frame)
                part = frame_view[position:position + part_length]
            if flags == FIRST_PART | LAST_PART:
                self.began = None
                self.parts = None
                records.append((address, part))
            else:
                self.read_part(part, flags, address, position, records)
            position += part_length
        return 0

    cdef int read_part(
        self, object part, int flags, object address, Py_ssize_t position, list records
    ) except -1:
        if flags & FIRST_PART:
            # A crash cut off a record that was begun and never ended: it was never acknowledged.
            self.parts = [part]
            self.began = address
            return 0
        if self.parts is None:
            raise FrameDamagedError(f"it has a part without a head, at byte {position}")
        self.parts.append(part)
        if flags & LAST_PART:
            records.append((self.began, b"".join(self.parts)))
            self.parts = None
            self.began = None
        return 0


cdef inline uint32_t sum_of(const unsigned char *frame, Py_ssize_t length) noexcept:
    """Return the checksum of a frame whose header is filled in."""
    return crc32c_of(
        frame,
        SUMMED_HEADER_BYTES,
        crc32c_of(frame + HEADER_BYTES, length - HEADER_BYTES, 0),
    )


cdef Py_ssize_t check_frame(const unsigned char *data, Py_ssize_t length) except -1:
    """Return the offset of the parts in a frame whose header, length and checksum are right.

    Raises ``FrameDamagedError`` for any other frame.
    """
    cdef uint32_t found
    if length < HEADER_BYTES:
        raise FrameDamagedError(f"it has {length} bytes, less than a header")
    if data[0] != VERSION:
        raise FrameDamagedError(f"a damaged header: version {data[0]}")
    if length - HEADER_BYTES != <Py_ssize_t>load32_big(data + 4):
        raise FrameDamagedError(
            f"a damaged header: {load32_big(data + 4)} bytes of {length - HEADER_BYTES}"
        )
    found = sum_of(data, length)
    if found != load32_big(data + 8):
        raise FrameDamagedError(
            f"a checksum of {load32_big(data + 8):#010x} where {found:#010x} is right"
        )
    if data[1] != 0:
        raise FrameDamagedError(f"a damaged header: flags {data[1]}")
    return HEADER_BYTES
