"""Finds the frames of the wire protocol in a buffer.

A frame is an int32 type, an int32 payload length and the payload, all big endian.

Example: Hello is type -127 (docs/formats/wire-protocol.md has another example). Its frame has 16
bytes, and the buffer also has the first 3 bytes of the next frame:

    ffffff81 00000008 00000010 00000005 ffffff    position 0: type -127, payload of 8 bytes
    ([(-127, 8, 16)], 16)                         the result: type, payload's start and end;
                                                  the next scan begins at byte 16

Invariants:
1. A type that is not accepted is refused after 4 bytes, and a length that is not allowed after 8
   bytes, before any byte of the payload has arrived. Held by
   ``test_a_type_that_may_not_come_is_refused_before_its_length_is_there`` and
   ``test_a_length_that_may_not_be_is_refused_before_its_payload_is_there``.
2. Any bytes give the same frames or the same error as the decoder in Python, and no byte outside
   the buffer is read. Held by ``test_garbage_is_scanned_like_slowly``.
"""

cdef Py_ssize_t HEADER_BYTES = 8


class FrameError(ValueError):
    """A frame header that no peer may send."""


cdef int int32_at(const unsigned char *data, Py_ssize_t position) noexcept nogil:
    return <int>(
        (<unsigned int>data[position] << 24)
        | (<unsigned int>data[position + 1] << 16)
        | (<unsigned int>data[position + 2] << 8)
        | <unsigned int>data[position + 3]
    )


cdef long long int64_at(const unsigned char *data, Py_ssize_t position) noexcept nogil:
    return <long long>(
        (<unsigned long long><unsigned int>int32_at(data, position) << 32)
        | <unsigned int>int32_at(data, position + 4)
    )


cdef Py_ssize_t next_frame(
    const unsigned char *data,
    Py_ssize_t position,
    Py_ssize_t end,
    const unsigned char *accepted,
    Py_ssize_t payload_max,
    int *code,
) except -1:
    cdef int length
    if end - position < 4:
        return 0
    code[0] = int32_at(data, position)
    if code[0] < -128 or code[0] > 127 or accepted[code[0] + 128] == 0:
        raise FrameError(f"unexpected command type {code[0]}")
    if end - position < HEADER_BYTES:
        return 0
    length = int32_at(data, position + 4)
    if length < 0 or length > payload_max:
        raise FrameError(f"command type {code[0]} of {length} bytes, at most {payload_max} may be")
    if length > end - position - HEADER_BYTES:
        return 0
    return position + HEADER_BYTES + length


def scan_frames(
    const unsigned char[::1] data not None,
    Py_ssize_t position,
    bytes accepted not None,
    Py_ssize_t payload_max,
):
    """Return the complete frames from ``position`` on, and the position after the last one.

    Each frame is a tuple of its type code, its payload's start and its payload's end. Byte ``code +
    128`` of ``accepted`` (256 bytes) is not zero for each allowed type. Raises ``FrameError`` for
    another type, a negative length, or one over ``payload_max``.
    """
    cdef const unsigned char *table = accepted
    cdef const unsigned char *start = NULL
    cdef Py_ssize_t end = data.shape[0]
    cdef Py_ssize_t frame_end
    cdef int code = 0
    cdef list frames = []
    if len(accepted) != 256:
        raise ValueError("accepted must be 256 bytes")
    if position < 0 or position > end:
        raise ValueError("position is outside the buffer")
    if end:
        start = &data[0]
    while True:
        frame_end = next_frame(start, position, end, table, payload_max, &code)
        if frame_end == 0:
            return frames, position
        frames.append((code, position + HEADER_BYTES, frame_end))
        position = frame_end
