"""CRC32C for other modules of this package, without a Python call."""

from libc.stdint cimport uint32_t

ctypedef uint32_t (*Summer)(uint32_t, const unsigned char*, size_t) noexcept nogil

# The faster of the two implementations; it takes and returns sums before their final inversion.
cdef Summer best


cdef inline uint32_t crc32c_of(
    const unsigned char *data, size_t length, uint32_t value
) noexcept nogil:
    """Return the CRC32C of ``length`` bytes, continued from ``value``."""
    return ~best(~value, data, length)
