"""Operations as a container's log holds them, above all appends.

Owns: the classes ``Operation`` and ``AppendOperation``, and the bytes of appends and of attribute
values. docs/formats/operations.md has the format.

Invariants:
1. An append that fits into its data frame is written straight into it, with the same bytes as when
   it is encoded first. An append that does not fit leaves the frame unchanged. Held by
   ``test_an_operation_in_a_frame_has_the_same_bytes``.
2. Any bytes are either decoded or refused with an error that says that the record is damaged. No
   byte outside the record is read. Held by ``test_garbage_is_an_operation_or_damage``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING,
    PyBytes_CheckExact,
    PyBytes_FromStringAndSize,
    PyBytes_GET_SIZE,
)
from cpython.dict cimport PyDict_Next, PyDict_Size
from cpython.memoryview cimport PyMemoryView_FromObject
from cpython.ref cimport PyObject
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from _fast.big_endian cimport (
    load16_big,
    load32_big,
    load64_big,
    store16_big,
    store32_big,
    store64_big,
)
from _fast.log.data_frame cimport FIRST_PART, LAST_PART, DataFrame

cdef enum:
    APPEND = 1
    HEADER_BYTES = 9
    # header, segment id, offset, length, attribute count
    APPEND_HEAD_BYTES = 31
    VALUE_BYTES = 8
    ATTRIBUTE_ID_BYTES_MAX = 256
    CORE_ID_BYTES = 16
    SHARED_ID_COUNT = 16
    ATTRIBUTE_COUNT_MAX = 0xFFFF
    # Shorter data is copied out of its record: a view would cost more.
    VIEW_BYTES_MIN = 2048


# One object for each id of the first core attributes, which nearly all segments have.
cdef uint64_t CORE_PREFIX = <uint64_t>1 << 63
cdef tuple SHARED_IDS = tuple(
    [((1 << 127) + number).to_bytes(CORE_ID_BYTES, "big") for number in range(SHARED_ID_COUNT)]
)


class OperationDamagedError(ValueError):
    """Bytes that are no operation."""


def ignore(error, number):
    """Do nothing: the completion of operations for which no task waits."""


cdef class Operation:
    """One change of a container. ``segment_id`` is -1 until the processor resolves the name."""

    def __init__(self, name not None, on_complete=ignore):
        self.name = name
        self.on_complete = on_complete
        self.segment_id = -1
        self.sequence_number = -1

    @property
    def payload_bytes(self):
        return 0

    def encode(self):
        raise AssertionError(f"{type(self).__name__} is never written to the log")

    def put_into(self, DataFrame frame not None):
        head, body = self.encode()
        if len(head) + len(body) > frame.room_for_record():
            return False
        frame.put_whole(head, body)
        return True


cdef class AppendOperation(Operation):
    """Bytes appended to a segment, atomically with attribute updates."""

    operation_type = APPEND

    def __init__(
        self, name not None, data not None, *, updates=(), expected_offset=None, on_complete=ignore
    ):
        self.name = name
        self.on_complete = on_complete
        self.segment_id = -1
        self.sequence_number = -1
        self.data = data
        self.length = len(data)
        self.updates = updates
        self.expected_offset = expected_offset
        self.offset = -1
        self.attribute_values = {}

    @property
    def payload_bytes(self):
        return self.length

    def encode(self):
        cdef Py_ssize_t head_bytes = append_head_bytes(self)
        cdef bytes head = PyBytes_FromStringAndSize(NULL, head_bytes)
        write_append_head(<unsigned char *>PyBytes_AS_STRING(head), self)
        return head, self.data

    def put_into(self, DataFrame frame not None):
        return put_append(frame, self)


cdef Py_ssize_t attributes_bytes(dict values) except -1:
    """Return the encoded length of ``values``; raises ``ValueError`` for a bad id."""
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t id_bytes
    cdef PyObject *key
    while PyDict_Next(values, &position, &key, NULL):
        if not PyBytes_CheckExact(<object>key):
            raise TypeError("an attribute id is bytes")
        id_bytes = PyBytes_GET_SIZE(<object>key)
        if not 1 <= id_bytes <= ATTRIBUTE_ID_BYTES_MAX:
            raise ValueError(f"an attribute id of {id_bytes} bytes")
        total += 1 + id_bytes + VALUE_BYTES
    return total


cdef int write_attributes(unsigned char *target, dict values) except -1:
    """Write ``values`` into the room that ``attributes_bytes`` has measured."""
    cdef Py_ssize_t position = 0
    cdef Py_ssize_t id_bytes
    cdef PyObject *key
    cdef PyObject *value
    while PyDict_Next(values, &position, &key, &value):
        id_bytes = PyBytes_GET_SIZE(<object>key)
        # A length of 256 does not fit one byte: ids have 1..256 bytes, so 0 stands for 256.
        target[0] = <unsigned char>(id_bytes & 0xFF)
        memcpy(target + 1, PyBytes_AS_STRING(<object>key), id_bytes)
        store64_big(target + 1 + id_bytes, <uint64_t><long long>(<object>value))
        target += 1 + id_bytes + VALUE_BYTES
    return 0


cdef object attribute_id(const unsigned char *data, Py_ssize_t id_bytes):
    cdef uint64_t number
    if id_bytes == CORE_ID_BYTES and load64_big(data) == CORE_PREFIX:
        number = load64_big(data + 8)
        if number < SHARED_ID_COUNT:
            return SHARED_IDS[<Py_ssize_t>number]
    return PyBytes_FromStringAndSize(<const char *>data, id_bytes)


cdef Py_ssize_t read_attributes(
    const unsigned char *data, Py_ssize_t position, Py_ssize_t end, long long count, dict values
) except -1:
    """Read ``count`` attributes into ``values``; return the position after them."""
    cdef Py_ssize_t id_bytes
    cdef long long _
    for _ in range(count):
        if position >= end:
            raise OperationDamagedError(f"attributes end early, at byte {position}")
        id_bytes = data[position]
        if id_bytes == 0:
            id_bytes = ATTRIBUTE_ID_BYTES_MAX
        position += 1
        if id_bytes + VALUE_BYTES > end - position:
            raise OperationDamagedError(f"attributes end early, at byte {position}")
        values[attribute_id(data + position, id_bytes)] = (
            <long long>load64_big(data + position + id_bytes)
        )
        position += id_bytes + VALUE_BYTES
    return position


def encode_attributes(dict values not None):
    cdef bytes data = PyBytes_FromStringAndSize(NULL, attributes_bytes(values))
    write_attributes(<unsigned char *>PyBytes_AS_STRING(data), values)
    return data


def decode_attributes(data not None, Py_ssize_t position, long long count):
    cdef Py_buffer view
    cdef dict values = {}
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        if position < 0 or position > view.len:
            raise OperationDamagedError(f"attributes begin at byte {position} of {view.len}")
        position = read_attributes(
            <const unsigned char *>view.buf, position, view.len, count, values
        )
    finally:
        PyBuffer_Release(&view)
    return values, position


cdef Py_ssize_t append_head_bytes(AppendOperation operation) except -1:
    if PyDict_Size(operation.attribute_values) > ATTRIBUTE_COUNT_MAX:
        raise ValueError("an append has more attributes than its count can tell")
    return APPEND_HEAD_BYTES + attributes_bytes(operation.attribute_values)


cdef int write_append_head(unsigned char *target, AppendOperation operation) except -1:
    target[0] = APPEND
    store64_big(target + 1, <uint64_t>operation.sequence_number)
    store64_big(target + 9, <uint64_t>operation.segment_id)
    store64_big(target + 17, <uint64_t>operation.offset)
    store32_big(target + 25, <uint32_t>operation.length)
    store16_big(target + 29, <uint16_t>PyDict_Size(operation.attribute_values))
    return write_attributes(target + APPEND_HEAD_BYTES, operation.attribute_values)


cdef bint put_append(DataFrame frame, AppendOperation operation) except -1:
    """Write an append into the frame; return whether it fits there."""
    cdef Py_buffer view
    cdef unsigned char *target
    cdef Py_ssize_t head_bytes = append_head_bytes(operation)
    if head_bytes + operation.length > frame.room_for_record():
        return False
    PyObject_GetBuffer(operation.data, &view, PyBUF_SIMPLE)
    try:
        if view.len != operation.length:
            raise ValueError(f"an append of {operation.length} bytes has {view.len}")
        target = frame.begin_part(head_bytes + view.len, FIRST_PART | LAST_PART)
        write_append_head(target, operation)
        memcpy(target + head_bytes, view.buf, view.len)
    finally:
        PyBuffer_Release(&view)
    return True


def decode_append(record not None):
    cdef Py_buffer view
    cdef const unsigned char *data
    cdef AppendOperation operation = AppendOperation.__new__(AppendOperation)
    cdef Py_ssize_t position
    cdef bint copied
    PyObject_GetBuffer(record, &view, PyBUF_SIMPLE)
    try:
        data = <const unsigned char *>view.buf
        if view.len < APPEND_HEAD_BYTES or data[0] != APPEND:
            raise OperationDamagedError(f"an append ends early, at byte {view.len}")
        operation.name = ""
        operation.on_complete = ignore
        operation.sequence_number = <long long>load64_big(data + 1)
        operation.segment_id = <long long>load64_big(data + 9)
        operation.offset = <long long>load64_big(data + 17)
        operation.length = load32_big(data + 25)
        operation.updates = ()
        operation.attribute_values = {}
        position = read_attributes(
            data, APPEND_HEAD_BYTES, view.len, load16_big(data + 29), operation.attribute_values
        )
        if operation.length != view.len - position:
            raise OperationDamagedError(
                f"an append of {operation.length} bytes has {view.len - position}"
            )
        copied = operation.length < VIEW_BYTES_MIN
        if copied:
            operation.data = PyBytes_FromStringAndSize(
                <const char *>data + position, operation.length
            )
    finally:
        PyBuffer_Release(&view)
    if not copied:
        operation.data = PyMemoryView_FromObject(record)[position:]
    return operation
