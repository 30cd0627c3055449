"""The operations that take the fast way through a container, for other modules of this package."""

from _fast.log.data_frame cimport DataFrame


cdef class Operation:
    cdef public object name
    cdef public object on_complete
    cdef public long long segment_id
    cdef public long long sequence_number


cdef class AppendOperation(Operation):
    cdef public object data
    cdef public object updates
    cdef public object expected_offset
    cdef public dict attribute_values
    cdef public long long offset
    cdef public Py_ssize_t length


cdef bint put_append(DataFrame frame, AppendOperation operation) except -1

cdef Py_ssize_t read_attributes(
    const unsigned char *data, Py_ssize_t position, Py_ssize_t end, long long count, dict values
) except -1
