"""Big-endian numbers at any place of a buffer. The caller has checked the bounds."""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from *:
    """
    #if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
    #define SEGSTORE_BIG16(value) (value)
    #define SEGSTORE_BIG32(value) (value)
    #define SEGSTORE_BIG64(value) (value)
    #else
    #define SEGSTORE_BIG16(value) __builtin_bswap16(value)
    #define SEGSTORE_BIG32(value) __builtin_bswap32(value)
    #define SEGSTORE_BIG64(value) __builtin_bswap64(value)
    #endif
    """
    uint16_t SEGSTORE_BIG16(uint16_t) noexcept nogil
    uint32_t SEGSTORE_BIG32(uint32_t) noexcept nogil
    uint64_t SEGSTORE_BIG64(uint64_t) noexcept nogil


cdef inline void store16_big(unsigned char *target, uint16_t value) noexcept nogil:
    value = SEGSTORE_BIG16(value)
    memcpy(target, &value, 2)


cdef inline void store32_big(unsigned char *target, uint32_t value) noexcept nogil:
    value = SEGSTORE_BIG32(value)
    memcpy(target, &value, 4)


cdef inline void store64_big(unsigned char *target, uint64_t value) noexcept nogil:
    value = SEGSTORE_BIG64(value)
    memcpy(target, &value, 8)


cdef inline uint16_t load16_big(const unsigned char *source) noexcept nogil:
    cdef uint16_t value
    memcpy(&value, source, 2)
    return SEGSTORE_BIG16(value)


cdef inline uint32_t load32_big(const unsigned char *source) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, source, 4)
    return SEGSTORE_BIG32(value)


cdef inline uint64_t load64_big(const unsigned char *source) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, source, 8)
    return SEGSTORE_BIG64(value)
