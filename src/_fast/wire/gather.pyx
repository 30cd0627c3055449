"""Copies many buffers into one.

Large buffers are copied without the interpreter's lock. References keep the buffers alive
meanwhile.

Invariants:
1. When the buffers are longer than the target, the copy ends at the target's end. When they are
   shorter, the rest of the target is unchanged. Held by
   ``test_buffers_lie_side_by_side_until_the_target_is_full``.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.string cimport memcpy

cdef enum:
    # Releasing and acquiring the lock costs as much as a copy of ten kilobytes.
    UNLOCKED_BYTES_MIN = 65536


def gather(target, buffers):
    """Copy ``buffers`` one after the other into ``target`` until it is full.

    Returns the number of copied bytes.
    """
    cdef Py_buffer whole, part
    cdef char *place
    cdef Py_ssize_t position = 0, length
    PyObject_GetBuffer(target, &whole, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        for buffer in buffers:
            PyObject_GetBuffer(buffer, &part, PyBUF_SIMPLE)
            try:
                length = min(part.len, whole.len - position)
                place = <char *>whole.buf + position
                if length < UNLOCKED_BYTES_MIN:
                    memcpy(place, part.buf, <size_t>length)
                else:
                    with nogil:
                        memcpy(place, part.buf, <size_t>length)
                position += length
            finally:
                PyBuffer_Release(&part)
            if position == whole.len:
                break
    finally:
        PyBuffer_Release(&whole)
    return position
