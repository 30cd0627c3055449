"""Finds the events in a segment's bytes, and lays them out as columns or as objects.

Owns: the walk from header to header, and ``ReadEvent``. An event is an int32 zero, an int32 length,
and the bytes.

Invariants:
1. No byte outside the buffer is read, even if another thread changes the buffer during the call.
   Held by ``test_bytes_that_change_meanwhile_lead_nowhere_outside``.
2. The allocated memory is proportional to the length of the buffer, whatever length a header
   declares. Held by ``test_a_length_that_is_not_there_asks_for_no_memory``.
3. When the buffer ends within an event, the position of that event is returned, and a later call
   with more bytes finds it whole. Held by
   ``test_a_stream_of_pieces_gives_the_events_of_the_whole``.
4. All functions find the same events and errors as the decoder in Python. Held by
   ``test_events_are_found_where_the_plain_reading_finds_them``.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_FORMAT, PyBUF_ND, PyBUF_SIMPLE, PyBUF_STRIDES, PyBUF_WRITABLE,
    PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.mem cimport PyMem_RawFree, PyMem_RawMalloc, PyMem_RawRealloc
from libc.stdint cimport int32_t, int64_t, uint64_t
from libc.string cimport memcpy

from _fast.big_endian cimport load64_big, store64_big

cdef enum:
    HEADER_BYTES = 8
    # The header as one number: its first half is zero, its second half not negative.
    HEADER_MAX = 0x7FFFFFFF
    SPAN_NUMBERS = 2
    # Of a column with int32 offsets.
    LENGTH_MAX = 0x7FFFFFFF
    # Below this length, releasing the GIL costs more than the walk.
    NOGIL_BYTES = 32768

cdef enum Outcome:
    COMPLETE  # the rest is no whole event
    FULL  # there is no room for the next event
    BAD  # the next bytes are no header
    NO_MEMORY


class EventError(ValueError):
    """There is no event at ``position``."""

    def __init__(self, position):
        super().__init__(f"no event at position {position}")
        self.position = position


cdef struct Walk:
    const unsigned char *data
    Py_ssize_t position
    Py_ssize_t end


cdef class _Column:
    """Memory of one column, as a buffer."""

    cdef void *memory
    cdef Py_ssize_t count
    cdef Py_ssize_t item_bytes
    cdef const char *item_format

    def __dealloc__(self):
        PyMem_RawFree(self.memory)

    def __getbuffer__(self, Py_buffer *view, int flags):
        if self.memory == NULL:
            raise BufferError("columns come from this module's functions")
        view.obj = self
        view.buf = self.memory
        view.len = self.count * self.item_bytes
        view.readonly = 0
        view.itemsize = self.item_bytes
        view.format = <char *>self.item_format if flags & PyBUF_FORMAT else NULL
        view.ndim = 1
        view.shape = &self.count if flags & PyBUF_ND else NULL
        view.strides = &self.item_bytes if flags & PyBUF_STRIDES == PyBUF_STRIDES else NULL
        view.suboffsets = NULL
        view.internal = NULL


cdef _Column new_column(const char *item_format, Py_ssize_t item_bytes, Py_ssize_t count):
    cdef _Column column = _Column.__new__(_Column)
    # The buffer of a column without items has an address, too.
    column.memory = PyMem_RawMalloc(max(count, 1) * item_bytes)
    if column.memory == NULL:
        raise MemoryError(f"no memory for {count} numbers")
    column.count = count
    column.item_bytes = item_bytes
    column.item_format = item_format
    return column


cdef bint grow(_Column column, Py_ssize_t count) noexcept nogil:
    cdef void *memory = PyMem_RawRealloc(column.memory, count * column.item_bytes)
    if memory != NULL:
        column.memory = memory
        column.count = count
    return memory != NULL


cdef inline Py_ssize_t next_length(const Walk *walk) noexcept nogil:
    """Return the length of the next event; -1 when it is incomplete, -2 when there is no event."""
    cdef uint64_t header
    cdef Py_ssize_t left = walk.end - walk.position - HEADER_BYTES
    if left < 0:
        return -1
    header = load64_big(walk.data + walk.position)
    if header > HEADER_MAX:
        return -2
    return <Py_ssize_t>header if <Py_ssize_t>header <= left else -1


cdef Outcome walk_spans(
    Walk *walk, int64_t *spans, Py_ssize_t capacity, Py_ssize_t *count
) noexcept nogil:
    """Store the places of events; ``count`` continues from its value."""
    cdef Py_ssize_t length
    while True:
        length = next_length(walk)
        if length < 0:
            return COMPLETE if length == -1 else BAD
        if count[0] == capacity:
            return FULL
        walk.position += HEADER_BYTES
        spans[SPAN_NUMBERS * count[0]] = walk.position
        spans[SPAN_NUMBERS * count[0] + 1] = length
        count[0] += 1
        walk.position += length


cdef Outcome walk_grown(Walk *walk, _Column spans, Py_ssize_t *count) noexcept nogil:
    """Walk like ``walk``, and grow the column whenever it is full."""
    cdef Outcome outcome
    cdef Py_ssize_t most
    while True:
        outcome = walk_spans(
            walk, <int64_t *>spans.memory, spans.count // SPAN_NUMBERS, count
        )
        if outcome != FULL:
            return outcome
        most = count[0] + (walk.end - walk.position) // HEADER_BYTES
        if not grow(spans, SPAN_NUMBERS * min(most, 2 * count[0] + 64)):
            return NO_MEMORY


cdef struct Values:
    unsigned char *bytes
    int64_t length
    int64_t length_max
    int32_t *narrow
    int64_t *wide
    Py_ssize_t count
    Py_ssize_t capacity


cdef Outcome walk_values(Walk *walk, Values *values) noexcept nogil:
    """Copy events to one place, and store the end of each."""
    cdef Py_ssize_t length
    while True:
        length = next_length(walk)
        if length < 0:
            return COMPLETE if length == -1 else BAD
        if values.count == values.capacity or length > values.length_max - values.length:
            return FULL
        walk.position += HEADER_BYTES
        memcpy(values.bytes + values.length, walk.data + walk.position, <size_t>length)
        values.length += length
        values.count += 1
        if values.wide != NULL:
            values.wide[values.count] = values.length
        else:
            values.narrow[values.count] = <int32_t>values.length
        walk.position += length


cdef int begin(Walk *walk, const Py_buffer *view, Py_ssize_t position) except -1:
    if position < 0 or position > view.len:
        raise ValueError(f"position {position} is outside the buffer of {view.len} bytes")
    walk.data = <const unsigned char *>view.buf
    walk.position = position
    walk.end = view.len
    return 0


cdef int check_target(const Py_buffer *target) except -1:
    if target.format == NULL or target.format not in (b"q", b"l", b"<q"):
        raise ValueError("offsets are int64")
    if <size_t>target.buf % sizeof(int64_t):
        raise ValueError("offsets begin at a multiple of 8 bytes")
    return 0


cdef int judge(Outcome outcome, const Walk *walk) except -1:
    if outcome == BAD:
        raise EventError(walk.position)
    if outcome == NO_MEMORY:
        raise MemoryError("no memory for the events' offsets")
    return 0


def frame_events(events not None):
    """See events.pyi."""
    cdef list held = [each if type(each) is bytes else bytes(each) for each in events]
    cdef Py_ssize_t length, total = 0
    cdef bytes event, framed
    cdef unsigned char *place
    for event in held:
        length = PyBytes_GET_SIZE(event)
        if length > LENGTH_MAX:
            raise OverflowError(f"an event of {length} bytes has no header")
        total += HEADER_BYTES + length
    framed = PyBytes_FromStringAndSize(NULL, total)
    place = <unsigned char *>PyBytes_AS_STRING(framed)
    for event in held:
        length = PyBytes_GET_SIZE(event)
        store64_big(place, <uint64_t>length)
        memcpy(place + HEADER_BYTES, PyBytes_AS_STRING(event), <size_t>length)
        place += HEADER_BYTES + length
    return framed


def scan_events(data not None, offsets=None, *, Py_ssize_t position=0):
    """See events.pyi."""
    cdef Py_buffer view, target
    cdef Walk walk
    cdef Outcome outcome
    cdef _Column spans
    cdef Py_ssize_t count = 0
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        begin(&walk, &view, position)
        if offsets is not None:
            PyObject_GetBuffer(offsets, &target, PyBUF_WRITABLE | PyBUF_FORMAT | PyBUF_ND)
            try:
                check_target(&target)
                with nogil:
                    outcome = walk_spans(
                        &walk,
                        <int64_t *>target.buf,
                        target.len // <Py_ssize_t>(SPAN_NUMBERS * sizeof(int64_t)),
                        &count,
                    )
                judge(outcome, &walk)
            finally:
                PyBuffer_Release(&target)
            return count, walk.position
        # Allocate for as many events as there are if all are as long as the first.
        spans = new_column(b"q", sizeof(int64_t), SPAN_NUMBERS * guess(&walk))
        if view.len - position >= NOGIL_BYTES:
            with nogil:
                outcome = walk_grown(&walk, spans, &count)
        else:
            outcome = walk_grown(&walk, spans, &count)
        judge(outcome, &walk)
        spans.count = SPAN_NUMBERS * count
        return memoryview(spans), walk.position
    finally:
        PyBuffer_Release(&view)


cdef Py_ssize_t guess(const Walk *walk) noexcept:
    cdef Py_ssize_t length = next_length(walk)
    if length < 0:
        return 0
    return (walk.end - walk.position) // (HEADER_BYTES + length)


def compact_events(data not None, *, Py_ssize_t position=0, bint wide=False):
    """See events.pyi."""
    cdef Py_buffer view
    cdef Walk walk, counted
    cdef Values values
    cdef Outcome outcome
    cdef _Column column, offsets
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        begin(&walk, &view, position)
        counted = walk
        values.length_max = view.len if wide else min(<int64_t>view.len, <int64_t>LENGTH_MAX)
        with nogil:
            outcome = count_values(&counted, &values)
        judge(outcome, &counted)
        column = new_column(b"B", 1, values.length)
        offsets = new_column(
            b"q" if wide else b"i", sizeof(int64_t) if wide else sizeof(int32_t), values.count + 1
        )
        values.bytes = <unsigned char *>column.memory
        values.length_max = values.length
        values.capacity = values.count
        values.wide = <int64_t *>offsets.memory if wide else NULL
        values.narrow = NULL if wide else <int32_t *>offsets.memory
        values.length = 0
        values.count = 0
        if wide:
            values.wide[0] = 0
        else:
            values.narrow[0] = 0
        with nogil:
            walk_values(&walk, &values)
        # The caller may have changed the bytes meanwhile, so that they are other events now.
        if values.count != values.capacity or values.length != values.length_max:
            raise EventError(walk.position)
        return memoryview(column), memoryview(offsets), walk.position
    finally:
        PyBuffer_Release(&view)


cdef Outcome count_values(Walk *walk, Values *values) noexcept nogil:
    """Count the events and their bytes."""
    cdef Py_ssize_t length
    values.count = 0
    values.length = 0
    while True:
        length = next_length(walk)
        if length < 0:
            return COMPLETE if length == -1 else BAD
        if length > values.length_max - values.length:
            return FULL
        values.count += 1
        values.length += length
        walk.position += HEADER_BYTES + length


@cython.freelist(1024)
cdef class ReadEvent:
    """See events.pyi.

    Its fields cannot be part of a cycle, so that the garbage collector has no work with events.
    """

    cdef readonly bytes data
    cdef readonly int64_t segment_id
    cdef readonly int64_t offset
    cdef readonly str segment

    def __init__(
        self, bytes data not None, int64_t segment_id, int64_t offset, str segment not None
    ):
        self.data = data
        self.segment_id = segment_id
        self.offset = offset
        self.segment = segment

    @classmethod
    def __class_getitem__(cls, item):
        return cls

    @property
    def value(self):
        return self.data

    @property
    def end_offset(self):
        return self.offset + HEADER_BYTES + PyBytes_GET_SIZE(self.data)

    @property
    def stream(self):
        return self.segment.rpartition("/")[0]

    def __eq__(self, other):
        if not isinstance(other, ReadEvent):
            return NotImplemented
        return self._key() == (<ReadEvent>other)._key()

    def __hash__(self):
        return hash(self._key())

    def __reduce__(self):
        return ReadEvent, self._key()

    def __repr__(self):
        return (
            f"ReadEvent(data={self.data!r}, segment_id={self.segment_id}, offset={self.offset},"
            f" segment={self.segment!r})"
        )

    cdef tuple _key(self):
        return self.data, self.segment_id, self.offset, self.segment


@cython.final
cdef class DecodedEvent(ReadEvent):
    """See events.pyi."""

    cdef object _decode
    """None when the value was made."""
    cdef object _value

    def __init__(
        self,
        bytes data not None,
        int64_t segment_id,
        int64_t offset,
        str segment not None,
        decode,
    ):
        super().__init__(data, segment_id, offset, segment)
        self._decode = decode

    @property
    def value(self):
        if self._decode is not None:
            self._value = self._decode(self)
            self._decode = None
        return self._value


def split_events(
    bytes data not None,
    *,
    int64_t segment_id,
    int64_t offset,
    str segment not None,
    Py_ssize_t position=0,
    decode=None,
):
    """See events.pyi."""
    cdef Walk walk
    cdef Py_ssize_t length
    cdef ReadEvent event
    cdef list events = []
    if position < 0 or position > PyBytes_GET_SIZE(data):
        raise ValueError(f"position {position} is outside of {PyBytes_GET_SIZE(data)} bytes")
    walk.data = <const unsigned char *>PyBytes_AS_STRING(data)
    walk.position = position
    walk.end = PyBytes_GET_SIZE(data)
    while True:
        length = next_length(&walk)
        if length < 0:
            judge(COMPLETE if length == -1 else BAD, &walk)
            return events, walk.position
        if decode is None:
            event = ReadEvent.__new__(ReadEvent)
        else:
            event = DecodedEvent.__new__(DecodedEvent)
            (<DecodedEvent>event)._decode = decode
        event.segment_id = segment_id
        event.offset = offset + walk.position
        event.segment = segment
        walk.position += HEADER_BYTES
        event.data = PyBytes_FromStringAndSize(<char *>walk.data + walk.position, length)
        walk.position += length
        events.append(event)


def gather_columns(list events not None):
    """See events.pyi."""
    cdef ReadEvent event
    cdef _Column values, ends, offsets
    cdef int64_t length = 0
    cdef Py_ssize_t size, begun
    cdef Py_ssize_t index = 0
    cdef Py_ssize_t count = len(events)
    cdef list runs = []
    cdef str segment = None
    for event in events:
        length += PyBytes_GET_SIZE(event.data)
    if length > LENGTH_MAX:
        raise OverflowError(f"{count} events have {length} bytes, more than {LENGTH_MAX}")
    values = new_column(b"B", 1, length)
    ends = new_column(b"i", sizeof(int32_t), count + 1)
    offsets = new_column(b"q", sizeof(int64_t), count)
    length = begun = 0
    (<int32_t *>ends.memory)[0] = 0
    for event in events:
        # Those that were split together have one text: comparing them looks at no letter.
        if event.segment != segment:
            if index > begun:
                runs.append((segment, index - begun))
            segment, begun = event.segment, index
        size = PyBytes_GET_SIZE(event.data)
        memcpy(<char *>values.memory + length, PyBytes_AS_STRING(event.data), <size_t>size)
        length += size
        (<int64_t *>offsets.memory)[index] = event.offset
        index += 1
        (<int32_t *>ends.memory)[index] = <int32_t>length
    if index > begun:
        runs.append((segment, index - begun))
    return memoryview(values), memoryview(ends), memoryview(offsets), runs
