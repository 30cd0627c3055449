"""A data frame for other modules of this package: they write records straight into it."""

cdef enum:
    PART_HEADER_BYTES = 5
    FIRST_PART = 1
    LAST_PART = 2


cdef class DataFrame:
    cdef unsigned char *buffer
    cdef readonly Py_ssize_t limit
    cdef readonly Py_ssize_t length
    cdef readonly Py_ssize_t record_count
    cdef int exports
    cdef bint sealed

    cdef inline Py_ssize_t room_for_record(self) noexcept:
        return self.limit - self.length - PART_HEADER_BYTES

    cdef void reset(self) noexcept
    cdef Py_ssize_t copy_part(
        self, const Py_buffer *head, const Py_buffer *body, Py_ssize_t start
    ) except -1
    cdef unsigned char *begin_part(self, Py_ssize_t length, int flags) except NULL

cdef Py_ssize_t check_frame(const unsigned char *data, Py_ssize_t length) except -1
