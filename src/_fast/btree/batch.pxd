"""A sorted batch of changes, for the module that applies it."""


cdef class Batch:
    cdef readonly Py_ssize_t key_length
    # The number of changes, and the bytes of each.
    cdef readonly Py_ssize_t count
    cdef Py_ssize_t stride
    cdef unsigned char *changes

    cdef int _allocate(self, Py_ssize_t count) except -1
    cdef int _add_packed(self, object data) except -1
    cdef int _add_pairs(self, object pairs) except -1
    cdef int _add_pair(self, Py_ssize_t position, object key, object value) except -1
    cdef bint _in_order(self) noexcept
    cdef int _sort(self) except -1
    cdef Py_ssize_t _shared_bytes(self) noexcept
