"""CRC32C (Castagnoli) of buffers, by the processor's own instruction where it has one.

The implementation is chosen when the module is imported. The GIL is released for long buffers only,
because releasing it costs more than the sum of a short one.

Invariants:
1. The table and the processor's instruction give the same sums, at every length and alignment. Held
   by ``test_large_sums_agree_at_every_alignment``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport uint32_t

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>
    #include <string.h>

    #define CRC32C_POLYNOMIAL 0x82f63b78u  /* bit-reversed */
    #define CRC32C_LANE_LONG 4096
    #define CRC32C_LANE_SHORT 256

    /* crc32c_table[k][b]: what byte b becomes after k more zero bytes. */
    static uint32_t crc32c_table[8][256];
    /* crc32c_shift_*[k][b]: what byte k of a sum, b, becomes after a lane of zero bytes. */
    static uint32_t crc32c_shift_long[4][256];
    static uint32_t crc32c_shift_short[4][256];

    static uint32_t crc32c_by_table(uint32_t sum, const unsigned char *data, size_t length) {
        while (length >= 8) {
            uint32_t low = sum ^ ((uint32_t)data[0] | (uint32_t)data[1] << 8
                                  | (uint32_t)data[2] << 16 | (uint32_t)data[3] << 24);
            sum = crc32c_table[7][low & 0xff] ^ crc32c_table[6][low >> 8 & 0xff]
                ^ crc32c_table[5][low >> 16 & 0xff] ^ crc32c_table[4][low >> 24]
                ^ crc32c_table[3][data[4]] ^ crc32c_table[2][data[5]]
                ^ crc32c_table[1][data[6]] ^ crc32c_table[0][data[7]];
            data += 8;
            length -= 8;
        }
        while (length--)
            sum = sum >> 8 ^ crc32c_table[0][(sum ^ *data++) & 0xff];
        return sum;
    }

    static void crc32c_fill_shift(uint32_t shift[4][256], size_t lane) {
        static const unsigned char zeros[CRC32C_LANE_LONG];
        for (int byte = 0; byte < 4; byte++) {
            for (int bit = 0; bit < 8; bit++)
                shift[byte][1 << bit] = crc32c_by_table(1u << (8 * byte + bit), zeros, lane);
            for (int value = 1; value < 256; value++)  /* the shift is linear */
                shift[byte][value] = shift[byte][value & (value - 1)]
                                   ^ shift[byte][value & -value];
        }
    }

    static void crc32c_fill_tables(void) {
        for (uint32_t value = 0; value < 256; value++) {
            uint32_t sum = value;
            for (int bit = 0; bit < 8; bit++)
                sum = sum & 1 ? sum >> 1 ^ CRC32C_POLYNOMIAL : sum >> 1;
            crc32c_table[0][value] = sum;
        }
        for (int k = 1; k < 8; k++)
            for (int value = 0; value < 256; value++)
                crc32c_table[k][value] = crc32c_table[k - 1][value] >> 8
                                       ^ crc32c_table[0][crc32c_table[k - 1][value] & 0xff];
        crc32c_fill_shift(crc32c_shift_long, CRC32C_LANE_LONG);
        crc32c_fill_shift(crc32c_shift_short, CRC32C_LANE_SHORT);
    }

    #if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
    static inline uint32_t crc32c_shifted(uint32_t shift[4][256], uint32_t sum) {
        return shift[0][sum & 0xff] ^ shift[1][sum >> 8 & 0xff]
             ^ shift[2][sum >> 16 & 0xff] ^ shift[3][sum >> 24];
    }

    static inline uint64_t crc32c_load(const unsigned char *data) {
        uint64_t word;
        memcpy(&word, data, 8);
        return word;
    }

    /* The instruction has a latency of three cycles and a throughput of one: three lanes keep it
       busy. The lanes' sums are put together as if the later lanes were zero bytes. */
    __attribute__((target("sse4.2")))
    static const unsigned char *crc32c_three_lanes(
        uint64_t *sum, const unsigned char *data, size_t *length, size_t lane,
        uint32_t shift[4][256]
    ) {
        while (*length >= 3 * lane) {
            uint64_t first = *sum, second = 0, third = 0;
            const unsigned char *end = data + lane;
            for (; data < end; data += 8) {
                first = __builtin_ia32_crc32di(first, crc32c_load(data));
                second = __builtin_ia32_crc32di(second, crc32c_load(data + lane));
                third = __builtin_ia32_crc32di(third, crc32c_load(data + 2 * lane));
            }
            first = crc32c_shifted(shift, (uint32_t)first) ^ second;
            *sum = crc32c_shifted(shift, (uint32_t)first) ^ third;
            data += 2 * lane;
            *length -= 3 * lane;
        }
        return data;
    }

    __attribute__((target("sse4.2")))
    static uint32_t crc32c_by_instruction(
        uint32_t start, const unsigned char *data, size_t length
    ) {
        uint64_t sum = start;
        data = crc32c_three_lanes(&sum, data, &length, CRC32C_LANE_LONG, crc32c_shift_long);
        data = crc32c_three_lanes(&sum, data, &length, CRC32C_LANE_SHORT, crc32c_shift_short);
        for (; length >= 8; data += 8, length -= 8)
            sum = __builtin_ia32_crc32di(sum, crc32c_load(data));
        uint32_t narrow = (uint32_t)sum;
        for (; length > 0; data++, length--)
            narrow = __builtin_ia32_crc32qi(narrow, *data);
        return narrow;
    }

    static int crc32c_has_instruction(void) {
        __builtin_cpu_init();
        return __builtin_cpu_supports("sse4.2") != 0;
    }
    #else
    #define crc32c_by_instruction crc32c_by_table
    static int crc32c_has_instruction(void) { return 0; }
    #endif
    """
    void crc32c_fill_tables() nogil
    int crc32c_has_instruction() nogil
    uint32_t crc32c_by_table(uint32_t, const unsigned char*, size_t) nogil
    uint32_t crc32c_by_instruction(uint32_t, const unsigned char*, size_t) nogil

# Below this size, handing the GIL over costs more than the sum.
cdef Py_ssize_t GIL_BYTES = 8192

crc32c_fill_tables()
HARDWARE = bool(crc32c_has_instruction())
cdef Summer best = <Summer>crc32c_by_instruction if HARDWARE else <Summer>crc32c_by_table


cdef uint32_t run(object data, uint32_t value, Summer summer) except? 0:
    cdef Py_buffer view
    cdef uint32_t result
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    if view.len > GIL_BYTES:
        with nogil:
            result = ~summer(~value, <const unsigned char*>view.buf, <size_t>view.len)
    else:
        result = ~summer(~value, <const unsigned char*>view.buf, <size_t>view.len)
    PyBuffer_Release(&view)
    return result


def crc32c(data, uint32_t value=0):
    """Return the CRC32C of ``data``, continued from ``value``, the sum of the bytes before it."""
    return run(data, value, best)


def crc32c_portable(data, uint32_t value=0):
    """Return the same as ``crc32c``, computed without the processor's instruction."""
    return run(data, value, <Summer>crc32c_by_table)
