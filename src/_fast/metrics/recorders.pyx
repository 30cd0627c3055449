"""Counters, and histograms of integers, such as nanoseconds and bytes.

Owns: ``Counter``, ``Histogram`` and ``now_ns``.

A histogram has eight buckets between one power of two and the next, so a value is known to 1/8 of
itself whatever its size, and a recording is one addition. The first eight buckets have one value
each. Any thread may record: a recording holds the interpreter's lock.

Invariants:
1. When a value is recorded, its bucket's bound is not below it, and at most 1/8 above it. Held by
   ``test_the_bound_of_a_bucket_is_at_most_an_eighth_above_its_values``.
2. When a value is negative or has more than 48 bits, it is counted as the nearest that has a
   bucket. Held by ``test_values_beyond_the_buckets_are_counted_in_the_outer_ones``.
"""

from libc.string cimport memset


cdef extern from "<time.h>" nogil:
    int CLOCK_MONOTONIC
    struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int, timespec *)


cdef extern from *:
    int leading_zeros "__builtin_clzll"(unsigned long long) nogil


cdef enum:
    # Bits of a value that choose a bucket between two powers of two.
    SUB_BITS = 3
    SUB_BUCKETS = 8
    VALUE_BITS = 48

cdef long long VALUE_MAX = (<long long>1 << VALUE_BITS) - 1


cdef long long monotonic_ns() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <long long>now.tv_sec * 1000000000 + now.tv_nsec


def now_ns():
    """Return the monotonic time, in nanoseconds, from which ``record_since`` measures."""
    return monotonic_ns()


cdef int _bucket_of(long long value) noexcept nogil:
    cdef int exponent
    if value < SUB_BUCKETS:
        return <int>value
    exponent = 63 - leading_zeros(<unsigned long long>value)
    return (exponent - SUB_BITS + 1) * SUB_BUCKETS + <int>(
        (value >> (exponent - SUB_BITS)) & (SUB_BUCKETS - 1)
    )


cdef long long _bound_of(int bucket) noexcept nogil:
    """Return the greatest value of a bucket."""
    cdef int shift
    if bucket < SUB_BUCKETS:
        return bucket
    shift = bucket // SUB_BUCKETS - 1
    return ((<long long>(SUB_BUCKETS + bucket % SUB_BUCKETS + 1)) << shift) - 1


cdef class Counter:
    """A number that only grows."""

    cpdef void add(self, long long count) noexcept:
        """Add to the number."""
        self.value += count


cdef class Histogram:
    """The number of values of each size, and the sum of all."""

    def __cinit__(self):
        memset(self._counts, 0, sizeof(self._counts))

    cpdef void record(self, long long value) noexcept:
        """Count a value."""
        if value < 0:
            value = 0
        elif value > VALUE_MAX:
            value = VALUE_MAX
        self._counts[_bucket_of(value)] += 1
        self.sum += value

    cpdef void record_since(self, long long start_ns) noexcept:
        """Count the nanoseconds since a result of ``now_ns``."""
        self.record(monotonic_ns() - start_ns)

    def counts(self):
        """Return the buckets that are not empty: the greatest value of each, and its count."""
        cdef int bucket
        return [
            (_bound_of(bucket), self._counts[bucket])
            for bucket in range(BUCKETS)
            if self._counts[bucket]
        ]
