"""CRC32C sums of the blocks of a growing byte sequence, and checks of parts against them.

The sums are one bytes object: four big-endian bytes for each block that has begun. The last block's
sum covers the bytes that it has so far.

The GIL is released for long inputs. No Python object is used meanwhile, and references keep the
buffers alive.

Invariants:
1. Any division of the bytes into writes gives the same sums. Sums that were returned before do not
   change. Held by ``test_sums_grow_with_writes_of_any_length``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from _fast.big_endian cimport load32_big, store32_big
from _fast.crc cimport crc32c_of

# Below this size, handing the GIL over costs more than the sums.
cdef Py_ssize_t GIL_BYTES = 8192


cdef void _sum(
    unsigned char *sums,
    int64_t position,
    const Py_buffer *buffers,
    Py_ssize_t count,
    int64_t block_bytes,
) noexcept nogil:
    """Continue the sums from ``position``, which counts from the beginning of the first block."""
    cdef Py_ssize_t index
    cdef int64_t block, taken, left
    cdef uint32_t value
    cdef const unsigned char *data
    for index in range(count):
        data = <const unsigned char *>buffers[index].buf
        left = buffers[index].len
        while left > 0:
            block = position // block_bytes
            taken = min(left, (block + 1) * block_bytes - position)
            value = load32_big(sums + 4 * block)
            store32_big(sums + 4 * block, crc32c_of(data, <size_t>taken, value))
            position += taken
            data += taken
            left -= taken


def extend_sums(bytes sums not None, int64_t phase, int64_t length, data, int64_t block_bytes):
    """Return the sums of ``length`` known bytes and of the buffers in ``data`` after them.

    The first byte is the one at ``phase`` in its block.
    """
    if not 0 <= phase < block_bytes or length < 0:
        raise ValueError(f"no block of {block_bytes} bytes has a byte {phase}")
    cdef int64_t known = (phase + length + block_bytes - 1) // block_bytes if length else 0
    if PyBytes_GET_SIZE(sums) != 4 * known:
        raise ValueError(f"{PyBytes_GET_SIZE(sums)} bytes are no sums of {known} blocks")
    cdef Py_ssize_t count = len(data), held = 0
    cdef int64_t total = 0, size
    cdef Py_buffer *buffers = <Py_buffer *>calloc(<size_t>max(1, count), sizeof(Py_buffer))
    cdef bytes extended
    cdef unsigned char *target
    if buffers == NULL:
        raise MemoryError
    try:
        for each in data:
            PyObject_GetBuffer(each, &buffers[held], PyBUF_SIMPLE)
            total += buffers[held].len
            held += 1
        if total == 0:
            return sums
        size = 4 * ((phase + length + total + block_bytes - 1) // block_bytes)
        extended = PyBytes_FromStringAndSize(NULL, size)
        target = <unsigned char *>PyBytes_AS_STRING(extended)
        for index in range(4 * known, size):
            target[index] = 0
        memcpy(target, PyBytes_AS_STRING(sums), <size_t>(4 * known))
        if total > GIL_BYTES:
            with nogil:
                _sum(target, phase + length, buffers, held, block_bytes)
        else:
            _sum(target, phase + length, buffers, held, block_bytes)
        return extended
    finally:
        for index in range(held):
            PyBuffer_Release(&buffers[index])
        free(buffers)


cdef int64_t _find(
    const unsigned char *sums,
    const unsigned char *data,
    int64_t position,
    int64_t end,
    int64_t block_bytes,
) noexcept nogil:
    cdef int64_t taken, block
    while position < end:
        block = position // block_bytes
        taken = min(end, (block + 1) * block_bytes) - position
        if crc32c_of(data, <size_t>taken, 0) != load32_big(sums + 4 * block):
            return position
        data += taken
        position += taken
    return -1


def find_damage(
    bytes sums not None, int64_t phase, int64_t start, data, int64_t length, int64_t block_bytes
):
    """Return the offset of the first block whose bytes do not match its sum; -1 when all match.

    ``data`` begins at ``start``, a block's beginning. Its first ``length`` bytes are whole blocks,
    except perhaps the last block that has a sum.
    """
    cdef Py_buffer view
    cdef int64_t found, position = phase + start, end = position + length
    cdef const unsigned char *known = <const unsigned char *>PyBytes_AS_STRING(sums)
    cdef const unsigned char *read
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        read = <const unsigned char *>view.buf
        if start < 0 or phase < 0 or not 0 <= length <= view.len:
            raise ValueError(f"{view.len} bytes are no {length} bytes from {start} on")
        if end > PyBytes_GET_SIZE(sums) // 4 * block_bytes:
            raise ValueError(f"there are no sums of {length} bytes from {start} on")
        if length > GIL_BYTES:
            with nogil:
                found = _find(known, read, position, end, block_bytes)
        else:
            found = _find(known, read, position, end, block_bytes)
    finally:
        PyBuffer_Release(&view)
    return found if found < 0 else found - phase
