"""Checks all metadata of a streaming cache, in C.

Invariants:
1. When the metadata are damaged, the check ends, reads no address outside the mapping, and reports
   the damage. Held by ``test_the_check_finds_a_corrupted_free_list``.
"""

from libc.stdint cimport uint32_t, uint64_t

from _fast.cache.pins cimport Pins, is_pin_of
from _fast.cache.pool cimport (
    BLOCK_BYTES,
    BLOCKS_PER_BUFFER,
    INDEX_MASK,
    NUMBER_BITS,
    NUMBER_MASK,
    Block,
    Pool,
    block_at,
    is_entry,
    metadata_of,
    previous_block,
)

cdef enum:
    FREE_MARK = 1
    USED_MARK = 2


cdef inline size_t mark_index(uint32_t address) noexcept nogil:
    return <size_t>(address >> NUMBER_BITS) * BLOCKS_PER_BUFFER + (address & NUMBER_MASK)


cdef inline const char *audit(
    const Pool *pool, const Pins *pins, unsigned char *marks
) noexcept nogil:
    """Return a description of the fault, or NULL. ``marks`` has a zero byte for each block of
    touched buffers."""
    cdef const char *problem = audit_queue(pool, marks)
    cdef uint32_t buffer, number, address, in_use = 0
    cdef uint64_t used = 0, stored = 0
    for buffer in range(pool.touched_count):
        if problem == NULL:
            problem = audit_free_list(pool, buffer, marks)
    for number in range(1, pins.capacity):
        if problem != NULL or pins.pins[number].first == 0:
            continue
        in_use += 1
        if block_at(pool, pins.pins[number].first).previous != number:
            return "a pin is not that of its entry"
        if pins.pins[number].count == 0:
            return "a pin without a view is in use"
        if pins.pins[number].last:
            problem = audit_chain(pool, pins, pins.pins[number].last, marks)
    for buffer in range(pool.touched_count):
        for number in range(1, BLOCKS_PER_BUFFER):
            address = (buffer << NUMBER_BITS) | number
            if problem == NULL and is_entry(pool, address):
                problem = audit_chain(pool, pins, address, marks)
    if problem != NULL:
        return problem
    for buffer in range(pool.touched_count):
        for number in range(1, BLOCKS_PER_BUFFER):
            address = (buffer << NUMBER_BITS) | number
            if marks[mark_index(address)] == 0:
                return "a block is neither free nor in an entry"
            if marks[mark_index(address)] == USED_MARK:
                used += 1
                stored += block_at(pool, address).length
    if used != pool.used_blocks or stored != pool.stored_bytes or in_use != pins.in_use:
        return "the counters are wrong"
    return NULL


cdef inline const char *audit_queue(const Pool *pool, unsigned char *marks) noexcept nogil:
    """Check the queue of buffers, and mark in ``marks`` which are queued."""
    cdef uint32_t place, buffer
    if pool.queue_length > pool.buffer_count:
        return "more buffers are queued than there are"
    for place in range(pool.queue_length):
        buffer = pool.queue[(<uint64_t>pool.queue_head + place) % pool.buffer_count]
        if buffer >= pool.touched_count:
            return "a buffer is queued that was never touched"
        if marks[mark_index(buffer << NUMBER_BITS)]:
            return "a buffer is queued twice"
        marks[mark_index(buffer << NUMBER_BITS)] = FREE_MARK
    return NULL


cdef inline const char *audit_free_list(
    const Pool *pool, uint32_t buffer, unsigned char *marks
) noexcept nogil:
    cdef const Block *metadata = metadata_of(pool, buffer)
    cdef unsigned char *buffer_marks = marks + mark_index(buffer << NUMBER_BITS)
    cdef uint32_t number = metadata[0].length
    cdef uint32_t count = 0
    while number:
        if number >= BLOCKS_PER_BUFFER:
            return "a free list leaves its buffer"
        if metadata[number].state:
            return "a block is free and used"
        buffer_marks[number] = FREE_MARK
        count += 1
        if 0 < metadata[number].length <= number:
            return "a free list does not ascend"
        number = metadata[number].length
    if count != pool.free_counts[buffer]:
        return "a buffer's free blocks are miscounted"
    if buffer_marks[0] != (FREE_MARK if count else 0):
        return "a buffer is queued though full, or not queued though it has room"
    return NULL


cdef inline const char *audit_chain(
    const Pool *pool, const Pins *pins, uint32_t address, unsigned char *marks
) noexcept nogil:
    """Check the entry, or deleted entry, with this last block."""
    cdef const Block *block = block_at(pool, address)
    if block.length > BLOCK_BYTES:
        return "a block holds more than it can"
    if block.length == 0 and block.state & INDEX_MASK:
        return "an entry ends with an empty block"
    while True:
        if marks[mark_index(address)]:
            return "a block is in two chains"
        marks[mark_index(address)] = USED_MARK
        block = block_at(pool, address)
        if not block.state & INDEX_MASK:
            break
        address = previous_block(pool, address)
        if address == 0:
            return "a chain is broken"
    if block.previous and not is_pin_of(pins, block.previous, address):
        return "an entry has a pin that is not its own"
    return NULL
