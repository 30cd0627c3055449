"""The recorders and the clock, for other modules of this package."""

cdef enum:
    BUCKETS = 368

cdef long long monotonic_ns() noexcept nogil


cdef class Counter:
    cdef public long long value

    cpdef void add(self, long long count) noexcept


cdef class Histogram:
    cdef long long _counts[BUCKETS]
    cdef readonly long long sum

    cpdef void record(self, long long value) noexcept
    cpdef void record_since(self, long long start_ns) noexcept
