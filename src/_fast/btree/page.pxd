"""The byte layout of a B+Tree page, for the modules that read and write pages.

docs/formats/attribute-index.md has the grammar.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from *:
    """
    #include <endian.h>
    #include <stdint.h>
    #include <string.h>

    static inline uint16_t btree_load16(const unsigned char *from) {
        uint16_t number;
        memcpy(&number, from, 2);
        return be16toh(number);
    }

    static inline uint32_t btree_load32(const unsigned char *from) {
        uint32_t number;
        memcpy(&number, from, 4);
        return be32toh(number);
    }

    static inline uint64_t btree_load64(const unsigned char *from) {
        uint64_t number;
        memcpy(&number, from, 8);
        return be64toh(number);
    }

    static inline void btree_store16(unsigned char *to, uint16_t number) {
        number = htobe16(number);
        memcpy(to, &number, 2);
    }

    static inline void btree_store32(unsigned char *to, uint32_t number) {
        number = htobe32(number);
        memcpy(to, &number, 4);
    }

    static inline void btree_store64(unsigned char *to, uint64_t number) {
        number = htobe64(number);
        memcpy(to, &number, 8);
    }

    static inline int btree_is_less(
        const unsigned char *left, const unsigned char *right, Py_ssize_t key_length
    ) {
        if (key_length == 16) {
            uint64_t first = btree_load64(left), second = btree_load64(right);
            return first < second
                || (first == second && btree_load64(left + 8) < btree_load64(right + 8));
        }
        return memcmp(left, right, (size_t)key_length) < 0;
    }

    /* Records are `stride` bytes apart and begin with their keys, in ascending order.
       Returns the first of the records low..high whose key is not less than `key`, else `high`. */
    static inline Py_ssize_t btree_lower_bound(
        const unsigned char *records, Py_ssize_t stride, Py_ssize_t key_length,
        Py_ssize_t low, Py_ssize_t high, const unsigned char *key
    ) {
        if (key_length == 16) {
            uint64_t first = btree_load64(key), second = btree_load64(key + 8);
            while (low < high) {
                Py_ssize_t middle = low + (high - low) / 2;
                const unsigned char *record = records + middle * stride;
                uint64_t start = btree_load64(record);
                if (start < first || (start == first && btree_load64(record + 8) < second))
                    low = middle + 1;
                else
                    high = middle;
            }
            return low;
        }
        while (low < high) {
            Py_ssize_t middle = low + (high - low) / 2;
            if (memcmp(records + middle * stride, key, (size_t)key_length) < 0)
                low = middle + 1;
            else
                high = middle;
        }
        return low;
    }

    /* The same where the answer is probably close to `low`. */
    static inline Py_ssize_t btree_gallop(
        const unsigned char *records, Py_ssize_t stride, Py_ssize_t key_length,
        Py_ssize_t low, Py_ssize_t high, const unsigned char *key
    ) {
        Py_ssize_t step = 1;
        if (low >= high || !btree_is_less(records + low * stride, key, key_length))
            return low;
        while (low + step < high
               && btree_is_less(records + (low + step) * stride, key, key_length)) {
            low += step;
            step *= 2;
        }
        low += 1;
        if (low + step - 1 < high)
            high = low + step - 1;
        return btree_lower_bound(records, stride, key_length, low, high, key);
    }
    """
    uint16_t load16 "btree_load16"(const unsigned char *) nogil
    uint32_t load32 "btree_load32"(const unsigned char *) nogil
    uint64_t load64 "btree_load64"(const unsigned char *) nogil
    void store16 "btree_store16"(unsigned char *, uint16_t) nogil
    void store32 "btree_store32"(unsigned char *, uint32_t) nogil
    void store64 "btree_store64"(unsigned char *, uint64_t) nogil
    Py_ssize_t lower_bound "btree_lower_bound"(
        const unsigned char *, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t,
        const unsigned char *) nogil
    Py_ssize_t gallop "btree_gallop"(
        const unsigned char *, Py_ssize_t, Py_ssize_t, Py_ssize_t, Py_ssize_t,
        const unsigned char *) nogil

cdef enum:
    HEADER_BYTES = 24
    VALUE_BYTES = 8
    # The fields of a child: offset:u64 length:u16 min-offset:u64.
    POINTER_BYTES = 18
    KEY_BYTES_MAX = 256
    PAGE_BYTES_MAX_ = 32768
    LEVELS_MAX = 32
    FOOTER_BYTES_ = 112
    NO_LEVEL = 255
    # Stands for a level in a record of changes of the index, which is no page.
    DELTA_LEVEL = 64
    DELTA_BYTES_MAX_ = 524288


cdef struct Pointer:
    # The place of a child page, and the lowest offset of any page in its subtree.
    uint64_t offset
    uint64_t min_offset
    uint32_t length


cdef inline Py_ssize_t record_bytes(int level, Py_ssize_t key_length) noexcept nogil:
    return key_length + (POINTER_BYTES if level else VALUE_BYTES)


cdef inline int page_level(const unsigned char *page) noexcept nogil:
    return page[9]


cdef inline Py_ssize_t page_count(const unsigned char *page) noexcept nogil:
    return load16(page + 10)


cdef inline Py_ssize_t delta_bytes(const unsigned char *delta) noexcept nogil:
    return load16(delta + 10) | <Py_ssize_t>load16(delta + 14) << 16


cdef inline Py_ssize_t page_bytes(
    const unsigned char *page, Py_ssize_t key_length
) noexcept nogil:
    """Return the length that the page, or the delta, states."""
    if page[9] == DELTA_LEVEL:
        return delta_bytes(page)
    return HEADER_BYTES + load16(page + 10) * record_bytes(page[9], key_length)


cdef inline Pointer load_pointer(const unsigned char *value) noexcept nogil:
    cdef Pointer pointer
    pointer.offset = load64(value)
    pointer.length = load16(value + 8)
    pointer.min_offset = load64(value + 10)
    return pointer


cdef inline void store_pointer(unsigned char *value, Pointer pointer) noexcept nogil:
    store64(value, pointer.offset)
    store16(value + 8, <uint16_t>pointer.length)
    store64(value + 10, pointer.min_offset)


cdef inline Py_ssize_t child_slot(
    const unsigned char *records,
    Py_ssize_t stride,
    Py_ssize_t key_length,
    Py_ssize_t low,
    Py_ssize_t count,
    const unsigned char *key,
    bint near=False,
) noexcept nogil:
    """Return the child, from ``low`` on, whose subtree has the key's place.

    ``near`` tells that the child is probably close to ``low``.
    """
    # Whatever the first key says, smaller ones belong to the first child too.
    cdef Py_ssize_t slot
    if near:
        slot = gallop(records, stride, key_length, low, count, key)
    else:
        slot = lower_bound(records, stride, key_length, low, count, key)
    if slot < count and is_key(records + slot * stride, key, key_length):
        return slot
    return slot - 1 if slot > 0 else 0


cdef inline bint is_key(
    const unsigned char *left, const unsigned char *right, Py_ssize_t length
) noexcept nogil:
    if length == 16:
        return load64(left) == load64(right) and load64(left + 8) == load64(right + 8)
    return memcmp(left, right, <size_t>length) == 0


cdef extern from "string.h" nogil:
    int memcmp(const void *, const void *, size_t)


cdef void write_header(
    unsigned char *page,
    int level,
    Py_ssize_t count,
    Py_ssize_t key_length,
    uint64_t offset,
    uint32_t records_sum,
) noexcept nogil

cdef void write_delta_header(
    unsigned char *delta,
    Py_ssize_t length,
    Py_ssize_t key_length,
    uint64_t offset,
    uint32_t body_sum,
) noexcept nogil

cdef int check_page(
    const unsigned char *page, Py_ssize_t length, uint64_t offset, int level, Py_ssize_t key_length
) except -1


cdef class Footer:
    """Write the end of an update: where the tree is and what it holds."""

    cdef readonly uint64_t offset
    cdef readonly uint64_t update_offset
    cdef readonly uint64_t root_offset
    cdef readonly uint64_t min_offset
    cdef readonly uint64_t entry_count
    cdef readonly uint64_t leaf_count
    cdef readonly uint64_t index_count
    cdef readonly uint64_t live_bytes
    cdef readonly uint64_t update_number
    cdef readonly uint32_t root_length
    cdef readonly uint32_t pages_sum
    cdef readonly uint64_t delta_offset
    cdef readonly uint32_t delta_length
    cdef readonly uint32_t delta_number
    cdef readonly int root_level
    cdef readonly int key_length
