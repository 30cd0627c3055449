"""Decodes a server connection's bytes into appends, and encodes their acknowledgements.

Owns: the writers that a connection has set up, its open append block, and the rules for both; the
bytes of ``DataAppended``.

Invariants:
1. A second SetupAppend of a writer replaces its segment and its last event number. Held by
   ``test_setting_a_writer_up_again_replaces_its_segment_and_starts_its_numbers_afresh``.
2. When the event number of a writer is lower than the one before on the same connection, the
   connection fails. Held by ``test_an_event_number_may_repeat_but_not_go_back``.
3. When another append command comes between an AppendBlock and its AppendBlockEnd, the connection
   fails. Held by ``test_no_other_append_command_may_stand_inside_a_block``.
4. When an AppendBlock and its AppendBlockEnd arrive in the same read, the data are copied once,
   from the receive buffer into the ``Append``. Held by
   ``test_an_appends_data_is_copied_once_out_of_the_receive_buffer``. When they arrive in different
   reads, the data are copied twice.
5. When a length from a peer exceeds the frame that contains it, the connection fails and no byte
   outside the frame is read. Held by ``test_an_append_commands_data_lies_within_it``.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint64_t
from libc.string cimport memcmp, memcpy

from _fast.big_endian cimport store32_big, store64_big
from _fast.metrics.recorders cimport Counter, Histogram, monotonic_ns
from _fast.wire.frames cimport int32_at, int64_at, next_frame

from _fast.wire.frames import FrameError

cdef enum:
    HEADER_BYTES = 8
    UUID_BYTES = 16
    PARTIAL_EVENT = -2
    PADDING = -1
    EVENT = 0
    SETUP_APPEND = 1
    APPEND_BLOCK = 3
    APPEND_BLOCK_END = 4
    CONDITIONAL_APPEND = 5
    DATA_APPENDED = 7
    CONDITIONAL_BLOCK_END = 89
    # AppendBlockEnd: writer id, bytes of whole events, bytes of data | data | count, number
    BLOCK_END_BYTES = 24
    BLOCK_END_TAIL_BYTES = 12
    # ConditionalAppend and ConditionalBlockEnd: writer id, event number, expected offset
    CONDITIONAL_BYTES = 32
    # DataAppended: writer id, event number, the number before it, request id, length
    DATA_APPENDED_BYTES = 48


cdef class Append:
    """One whole append, in however many commands the client sent it.

    ``expected_offset`` is None for an unconditional append.
    """

    cdef readonly str segment
    cdef readonly bytes writer_id
    cdef readonly bytes data
    cdef readonly int event_count
    cdef readonly long long last_event_number
    cdef readonly long long request_id
    cdef readonly object expected_offset
    cdef long long _received_ns

    def __init__(
        self,
        str segment not None,
        bytes writer_id not None,
        bytes data not None,
        int event_count,
        long long last_event_number,
        long long request_id,
        expected_offset=None,
    ):
        self.segment = segment
        self.writer_id = writer_id
        self.data = data
        self.event_count = event_count
        self.last_event_number = last_event_number
        self.request_id = request_id
        self.expected_offset = expected_offset
        self._received_ns = monotonic_ns()

    def _key(self):
        return (
            self.segment,
            self.writer_id,
            self.data,
            self.event_count,
            self.last_event_number,
            self.request_id,
            self.expected_offset,
        )

    def __eq__(self, other):
        if not isinstance(other, Append):
            return NotImplemented
        return self._key() == (<Append>other)._key()

    def __hash__(self):
        return hash(self._key())

    def __repr__(self):
        return f"Append{self._key()}"


cdef class Acknowledgement:
    """The reply ``DataAppended``: tells a writer which of its events are durable."""

    cdef readonly bytes writer_id
    cdef readonly long long event_number
    cdef readonly long long previous_event_number
    cdef readonly long long request_id
    cdef readonly long long length
    cdef readonly bint is_sent

    def __init__(
        self,
        bytes writer_id not None,
        long long previous_event_number,
        long long event_number,
        long long request_id,
        long long length,
    ):
        if len(writer_id) != UUID_BYTES:
            raise ValueError(f"a writer id has {UUID_BYTES} bytes, not {len(writer_id)}")
        self.writer_id = writer_id
        self.previous_event_number = previous_event_number
        self.event_number = event_number
        self.request_id = request_id
        self.length = length

    def __len__(self):
        return HEADER_BYTES + DATA_APPENDED_BYTES

    def extend(self, long long event_number, long long request_id, long long length):
        """Acknowledge a later append, too; return False if the reply has been sent."""
        if self.is_sent:
            return False
        self.event_number = event_number
        self.request_id = request_id
        self.length = length
        return True

    def to_bytes(self):
        """Return the reply's bytes; afterwards it counts as sent."""
        cdef bytes reply = PyBytes_FromStringAndSize(NULL, HEADER_BYTES + DATA_APPENDED_BYTES)
        cdef unsigned char *target = <unsigned char *>PyBytes_AS_STRING(reply)
        self.is_sent = True
        store32_big(target, DATA_APPENDED)
        store32_big(target + 4, DATA_APPENDED_BYTES)
        memcpy(target + 8, <const char *>PyBytes_AS_STRING(self.writer_id), UUID_BYTES)
        store64_big(target + 24, <uint64_t>self.event_number)
        store64_big(target + 32, <uint64_t>self.previous_event_number)
        store64_big(target + 40, <uint64_t>self.request_id)
        store64_big(target + 48, <uint64_t>self.length)
        return reply


cdef class AppendMeter:
    """Measures the appends that became durable: their delay, their bytes and their events."""

    cdef Histogram _nanoseconds
    cdef Counter _bytes
    cdef Counter _events

    def __init__(
        self,
        Histogram nanoseconds not None,
        Counter bytes_appended not None,
        Counter events_appended not None,
    ):
        self._nanoseconds = nanoseconds
        self._bytes = bytes_appended
        self._events = events_appended

    cpdef void record(self, Append append):
        """Record that an append is durable now."""
        self._nanoseconds.record_since(append._received_ns)
        self._bytes.add(len(append.data))
        self._events.add(append.event_count)


cdef class _Writer:
    cdef bytes writer_id
    cdef str segment
    cdef long long last_event_number


cdef class AppendDecoder:
    """The incoming commands of one server connection. Any error leaves it unusable.

    ``accepted`` tells by byte ``code + 128`` which types are allowed; a payload has at most
    ``payload_max`` bytes; a connection has at most ``writers_max`` writers.
    """

    cdef bytes _accepted
    cdef Py_ssize_t _payload_max
    cdef Py_ssize_t _writers_max
    cdef dict _writers
    # The writer used last: it is probably the next one, which saves a dictionary's look-up.
    cdef _Writer _recent
    cdef _Writer _block_writer
    cdef bytes _block
    cdef const unsigned char *_block_start
    cdef Py_ssize_t _block_length

    @property
    def open_bytes(self):
        """Return the number of bytes received of an append block that has not ended."""
        return 0 if self._block_writer is None else self._block_length

    def __init__(self, bytes accepted not None, Py_ssize_t payload_max, Py_ssize_t writers_max):
        if len(accepted) != 256:
            raise ValueError("accepted must be 256 bytes")
        self._accepted = accepted
        self._payload_max = payload_max
        self._writers_max = writers_max
        self._writers = {}

    def set_up(self, bytes writer_id not None, str segment not None):
        """Accept appends of the writer from now on."""
        cdef _Writer writer = _Writer()
        if len(writer_id) != UUID_BYTES:
            raise ValueError(f"a writer id has {UUID_BYTES} bytes, not {len(writer_id)}")
        self._expect_no_block("SetupAppend")
        if len(self._writers) >= self._writers_max and writer_id not in self._writers:
            raise FrameError(f"more than {self._writers_max} writers on a connection")
        writer.writer_id = writer_id
        writer.segment = segment
        self._writers[writer_id] = writer
        self._recent = writer

    def forget(self, bytes writer_id not None):
        """Forget the writer; its next append is an error unless it is set up again."""
        self._writers.pop(writer_id, None)
        self._recent = None

    def decode(self, const unsigned char[::1] data not None, decode_other not None):
        """Return the appends and other commands in ``data``, and the position after the last of
        them.

        ``decode_other(code, start, end)`` returns the command in a payload; it is also called for
        SetupAppend and is expected to call ``set_up`` for it.
        """
        cdef list commands = []
        cdef const unsigned char *accepted = self._accepted
        cdef const unsigned char *bytes_in = NULL
        cdef Py_ssize_t position = 0
        cdef Py_ssize_t end = data.shape[0]
        cdef Py_ssize_t start, frame_end
        cdef int code = 0
        if end:
            bytes_in = &data[0]
        if self._block_writer is not None:
            self._block_start = <const unsigned char *>PyBytes_AS_STRING(self._block)
        while True:
            frame_end = next_frame(
                bytes_in, position, end, accepted, self._payload_max, &code
            )
            if frame_end == 0:
                break
            start = position + HEADER_BYTES
            if code == APPEND_BLOCK_END:
                commands.append(self._end_block(bytes_in, start, frame_end))
            elif code == APPEND_BLOCK:
                self._open_block(bytes_in, start, frame_end)
            elif code == CONDITIONAL_APPEND:
                commands.append(self._conditional_append(bytes_in, start, frame_end))
            elif code == CONDITIONAL_BLOCK_END:
                commands.append(self._conditional_block_end(bytes_in, start, frame_end))
            elif code == PADDING:
                self._expect_no_block("Padding")
            else:
                commands.append(decode_other(code, start, frame_end))
            position = frame_end
        if self._block_writer is not None and (
            self._block is None
            or self._block_start != <const unsigned char *>PyBytes_AS_STRING(self._block)
        ):
            # The receive buffer will change: copy the open block's bytes.
            self._block = PyBytes_FromStringAndSize(
                <const char *>self._block_start, self._block_length
            )
        return commands, position

    cdef int _expect_no_block(self, str name) except -1:
        if self._block_writer is not None:
            raise FrameError(f"{name} inside an append block")
        return 0

    cdef _Writer _writer(self, const unsigned char *writer_id):
        cdef _Writer writer = self._recent
        if writer is not None and memcmp(
            <const unsigned char *>PyBytes_AS_STRING(writer.writer_id), writer_id, UUID_BYTES
        ) == 0:
            return writer
        key = PyBytes_FromStringAndSize(<const char *>writer_id, UUID_BYTES)
        writer = self._writers.get(key)
        if writer is None:
            raise FrameError(f"writer {key.hex()} was not set up")
        self._recent = writer
        return writer

    cdef int _open_block(
        self, const unsigned char *data, Py_ssize_t start, Py_ssize_t end
    ) except -1:
        self._expect_no_block("AppendBlock")
        if end - start < UUID_BYTES:
            raise FrameError("AppendBlock ends early")
        self._block_writer = self._writer(data + start)
        self._block = None
        self._block_start = data + start + UUID_BYTES
        self._block_length = end - start - UUID_BYTES
        return 0

    cdef Append _end_block(self, const unsigned char *data, Py_ssize_t start, Py_ssize_t end):
        cdef _Writer writer
        cdef Py_ssize_t data_start = start + BLOCK_END_BYTES
        cdef Py_ssize_t data_end, position
        cdef int whole_bytes, length, event_count
        cdef long long event_number, request_id
        cdef bytes payload
        if data_start > end:
            raise FrameError("AppendBlockEnd ends early")
        whole_bytes = int32_at(data, start + UUID_BYTES)
        length = int32_at(data, start + UUID_BYTES + 4)
        data_end = data_start + length
        position = data_end + BLOCK_END_TAIL_BYTES
        if length < 0 or position > end:
            raise FrameError(f"AppendBlockEnd with {length} bytes of data does not fit")
        event_count = int32_at(data, data_end)
        event_number = int64_at(data, data_end + 4)
        request_id = _request_id(data, position, end)
        writer = self._writer(data + start)
        if event_count <= 0:
            raise FrameError(f"AppendBlockEnd of {event_count} events")
        _advance(writer, event_number)
        if self._block_writer is None:
            payload = PyBytes_FromStringAndSize(<const char *>data + data_start, length)
        elif self._block_writer is not writer:
            raise FrameError("AppendBlockEnd of another writer than its AppendBlock")
        else:
            payload = self._block_data(whole_bytes, data + data_start, length)
            self._block_writer = None
            self._block = None
        return _make(writer, payload, event_count, event_number, request_id, None)

    cdef bytes _block_data(
        self, Py_ssize_t whole_bytes, const unsigned char *end_data, Py_ssize_t end_length
    ):
        """Return a block's whole events and, when it ends in a partial event, that event completed.
        """
        cdef const unsigned char *block = self._block_start
        cdef Py_ssize_t length = self._block_length
        cdef Py_ssize_t tail_length
        cdef bytes payload
        cdef char *target
        cdef int code
        if not 0 <= whole_bytes <= length:
            raise FrameError(f"{whole_bytes} bytes of whole events in a block of {length}")
        if whole_bytes == length:
            return PyBytes_FromStringAndSize(<const char *>block, length)
        if whole_bytes + HEADER_BYTES > length:
            raise FrameError("an append block ends in neither padding nor a partial event")
        code = int32_at(block, whole_bytes)
        tail_length = int32_at(block, whole_bytes + 4)
        if tail_length < 0 or tail_length > length - whole_bytes - HEADER_BYTES:
            raise FrameError(f"a tail of {tail_length} bytes does not fit its append block")
        if code == PADDING:
            if end_length:
                raise FrameError("AppendBlockEnd with data behind a padded block")
            return PyBytes_FromStringAndSize(<const char *>block, whole_bytes)
        if code != PARTIAL_EVENT:
            raise FrameError(f"command type {code} at the end of an append block")
        payload = PyBytes_FromStringAndSize(NULL, whole_bytes + tail_length + end_length)
        target = PyBytes_AS_STRING(payload)
        memcpy(target, block, whole_bytes)
        memcpy(target + whole_bytes, block + whole_bytes + HEADER_BYTES, tail_length)
        memcpy(target + whole_bytes + tail_length, end_data, end_length)
        return payload

    cdef Append _conditional_append(
        self, const unsigned char *data, Py_ssize_t start, Py_ssize_t end
    ):
        cdef Py_ssize_t data_start = start + CONDITIONAL_BYTES
        cdef Py_ssize_t data_end
        cdef int code, length
        if data_start + HEADER_BYTES > end:
            raise FrameError("ConditionalAppend ends early")
        code = int32_at(data, data_start)
        length = int32_at(data, data_start + 4)
        data_end = data_start + HEADER_BYTES + length
        if code != EVENT or length < 0 or data_end > end:
            raise FrameError("ConditionalAppend without a whole event")
        return self._conditional(
            data, start, data_start, data_end, _request_id(data, data_end, end)
        )

    cdef Append _conditional_block_end(
        self, const unsigned char *data, Py_ssize_t start, Py_ssize_t end
    ):
        cdef Py_ssize_t data_start = start + CONDITIONAL_BYTES + 4
        cdef Py_ssize_t data_end
        cdef int length
        if data_start > end:
            raise FrameError("ConditionalBlockEnd ends early")
        length = int32_at(data, data_start - 4)
        data_end = data_start + length
        if length < 0 or data_end + 8 > end:
            raise FrameError(f"ConditionalBlockEnd of {length} bytes does not fit")
        return self._conditional(data, start, data_start, data_end, int64_at(data, data_end))

    cdef Append _conditional(
        self,
        const unsigned char *data,
        Py_ssize_t start,
        Py_ssize_t data_start,
        Py_ssize_t data_end,
        long long request_id,
    ):
        cdef _Writer writer
        cdef long long event_number = int64_at(data, start + UUID_BYTES)
        cdef bytes payload
        self._expect_no_block("a conditional append")
        writer = self._writer(data + start)
        _advance(writer, event_number)
        payload = PyBytes_FromStringAndSize(
            <const char *>data + data_start, data_end - data_start
        )
        expected_offset = int64_at(data, start + UUID_BYTES + 8)
        return _make(writer, payload, 1, event_number, request_id, expected_offset)


cdef Append _make(
    _Writer writer,
    bytes data,
    int event_count,
    long long event_number,
    long long request_id,
    object expected_offset,
):
    cdef Append append = Append.__new__(Append)
    append.segment = writer.segment
    append.writer_id = writer.writer_id
    append.data = data
    append.event_count = event_count
    append.last_event_number = event_number
    append.request_id = request_id
    append.expected_offset = expected_offset
    append._received_ns = monotonic_ns()
    return append


cdef int _advance(_Writer writer, long long event_number) except -1:
    if event_number < writer.last_event_number:
        raise FrameError(
            f"event number went backwards from {writer.last_event_number} to {event_number}"
        )
    writer.last_event_number = event_number
    return 0


cdef long long _request_id(
    const unsigned char *data, Py_ssize_t position, Py_ssize_t end
) except? -1:
    if position == end:
        return -1
    if position + 8 > end:
        raise FrameError("a request id ends early")
    return int64_at(data, position)
