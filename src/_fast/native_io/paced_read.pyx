"""Reads of a file in pieces, one after the other, without the interpreter's lock between them.

Only one piece at a time is requested from the kernel, so another process that uses the disk waits
for at most one piece. The owner of the memory is kept alive during the read.

Invariants:
1. When the file ends early, the bytes of the memory after the end are unchanged, as are the bytes
   around the memory. Held by ``test_memory_has_what_the_file_has``.
"""

from cpython.buffer cimport (
    PyBUF_SIMPLE,
    PyBUF_WRITABLE,
    PyBuffer_Release,
    PyObject_GetBuffer,
)
from libc.errno cimport EINTR, errno
from libc.stdint cimport int64_t
from posix.unistd cimport pread

import os


def read_in_pieces(int descriptor, memory not None, int64_t offset, Py_ssize_t piece_bytes):
    """Fill ``memory`` from ``offset`` of the file on; return the bytes read. Raises ``OSError``."""
    cdef Py_buffer target
    cdef Py_ssize_t filled = 0, wanted, count = 0
    cdef int failure = 0
    if piece_bytes < 1:
        raise ValueError(f"pieces of {piece_bytes} bytes")
    PyObject_GetBuffer(memory, &target, PyBUF_SIMPLE | PyBUF_WRITABLE)
    try:
        with nogil:
            while filled < target.len:
                wanted = min(piece_bytes, target.len - filled)
                count = pread(descriptor, <char *>target.buf + filled, <size_t>wanted,
                              offset + filled)
                if count < 0:
                    if errno == EINTR:
                        continue
                    failure = errno
                    break
                filled += count
                if count < wanted:
                    break
    finally:
        PyBuffer_Release(&target)
    if failure:
        raise OSError(failure, os.strerror(failure))
    return filled
