"""Writes to many files and syncs them, without the interpreter's lock.

The GIL is released once for all files. No Python object is used meanwhile, and references keep the
buffers alive. The caller must not change the lists before the call returns.

Invariants:
1. When one file cannot be opened, written or renamed, all others are still written, and every file
   descriptor is closed. Held by ``test_a_file_that_fails_keeps_no_other_from_being_written``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.errno cimport EINTR, EIO, errno
from libc.stdint cimport int64_t
from libc.stdio cimport rename
from libc.stdlib cimport calloc, free
from posix.fcntl cimport O_CREAT, O_DIRECTORY, O_RDONLY, O_RDWR, O_TRUNC, open
from posix.stat cimport fstat, struct_stat
from posix.unistd cimport close, fdatasync, fsync, pwrite


cdef extern from "<fcntl.h>" nogil:
    int O_CLOEXEC

STORED = 0
NOT_OPENED = 1
TOO_SHORT = 2
NOT_STORED = 3
NOT_RENAMED = 4

cdef struct _File:
    const char *path
    const char *final_path  # of a new file; NULL for an existing one
    int64_t offset
    int64_t length
    Py_buffer *buffers
    int buffer_count
    int descriptor
    int outcome
    int error


cdef void _write(_File *file) noexcept nogil:
    """Open a file and write to it."""
    cdef int flags = O_RDWR | O_CLOEXEC, index
    cdef struct_stat found
    cdef int64_t offset = file.offset
    cdef Py_ssize_t position, written
    if file.final_path != NULL:
        flags |= O_CREAT | O_TRUNC
    file.descriptor = open(file.path, flags, 0o644)
    if file.descriptor < 0:
        file.outcome = 1
        file.error = errno
        return
    if fstat(file.descriptor, &found) < 0:
        file.outcome = 1
        file.error = errno
        return
    file.length = found.st_size
    if offset > file.length:
        file.outcome = 2
        return
    for index in range(file.buffer_count):
        position = 0
        while position < file.buffers[index].len:
            written = pwrite(
                file.descriptor,
                <char *>file.buffers[index].buf + position,
                <size_t>(file.buffers[index].len - position),
                offset,
            )
            if written > 0:
                position += written
                offset += written
            elif written == 0 or errno != EINTR:
                file.outcome = 3
                file.error = errno if written < 0 else EIO
                return


cdef void _sync(_File *file) noexcept nogil:
    """Make a file durable, and give a new one its name."""
    cdef int result
    if file.outcome == 0:
        # The length of a new file is in its metadata.
        result = fdatasync(file.descriptor) if file.final_path == NULL else fsync(file.descriptor)
        if result < 0:
            file.outcome = 3
            file.error = errno
    if file.descriptor >= 0:
        close(file.descriptor)
    if file.outcome == 0 and file.final_path != NULL and rename(file.path, file.final_path) < 0:
        file.outcome = 4
        file.error = errno


def write_files(list requests):
    """Write to files and sync them; return ``(outcome, errno, length before)`` for each.

    Each request is ``(path, final path or None, offset, buffers)``; a file with a final path is new
    and is renamed when it is durable. An offset past the file's end is refused.
    """
    cdef Py_ssize_t count = len(requests), index, number
    cdef _File *files = <_File *>calloc(<size_t>max(1, count), sizeof(_File))
    cdef list outcomes
    cdef bytes path, final_path
    if files == NULL:
        raise MemoryError
    try:
        for index in range(count):
            path, final_path, offset, buffers = requests[index]
            files[index].descriptor = -1
            files[index].path = path
            if final_path is not None:
                files[index].final_path = final_path
            if offset < 0:
                raise ValueError(f"no file has an offset of {offset}")
            files[index].offset = offset
            number = len(buffers)
            files[index].buffers = <Py_buffer *>calloc(<size_t>max(1, number), sizeof(Py_buffer))
            if files[index].buffers == NULL:
                raise MemoryError
            for buffer in buffers:
                PyObject_GetBuffer(
                    buffer, &files[index].buffers[files[index].buffer_count], PyBUF_SIMPLE
                )
                files[index].buffer_count += 1
        with nogil:
            for index in range(count):
                _write(&files[index])
            for index in range(count):
                _sync(&files[index])
        outcomes = []
        for index in range(count):
            outcomes.append((files[index].outcome, files[index].error, files[index].length))
        return outcomes
    finally:
        for index in range(count):
            if files[index].buffers != NULL:
                for number in range(files[index].buffer_count):
                    PyBuffer_Release(&files[index].buffers[number])
                free(files[index].buffers)
        free(files)


def sync_directories(list paths):
    """Make directories durable; return the error number of each, 0 for success."""
    cdef Py_ssize_t count = len(paths), index
    cdef const char **names = <const char **>calloc(<size_t>max(1, count), sizeof(char *))
    cdef int *errors = <int *>calloc(<size_t>max(1, count), sizeof(int))
    cdef int descriptor
    cdef bytes path
    try:
        if names == NULL or errors == NULL:
            raise MemoryError
        for index in range(count):
            path = paths[index]
            names[index] = path
        with nogil:
            for index in range(count):
                descriptor = open(names[index], O_RDONLY | O_DIRECTORY | O_CLOEXEC)
                if descriptor < 0 or fsync(descriptor) < 0:
                    errors[index] = errno
                if descriptor >= 0:
                    close(descriptor)
        return [errors[index] for index in range(count)]
    finally:
        free(names)
        free(errors)
