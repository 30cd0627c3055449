"""The streaming cache's memory in plain C: buffers, blocks, chains, free lists.

Owns: the bytes in the cache's memory, as docs/formats/cache-layout.md describes them. The class in
cache.pyx decides; the functions here act, with or without the interpreter lock.

Functions return 0 or -1 for corrupted metadata. Every step of a walk lowers the block index, so a
walk ends. Counts and the queue of buffers lie outside the mapping, where a stray write cannot reach
them.

Invariants:
1. When the metadata in the mapping are damaged, every operation ends, and no operation reads or
   writes outside the mapping. Held by ``test_any_damage_ends_in_an_answer_or_an_error``.
2. A buffer is first written when its first block is allocated, and only after all earlier buffers
   are full. Held by ``test_a_buffer_is_touched_only_when_the_others_are_full``.
"""

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from _fast.cache.copy cimport copy_bytes, copy_into_blocks
from _fast.cache.memory cimport (
    BUFFER_BYTES, Memory, buffer_at, memory_begin, memory_close, memory_open, memory_reach,
)

cdef enum:
    BLOCK_BYTES = 4096
    BLOCKS_PER_BUFFER = 512
    # An address is a buffer's number << 10 | the number of a block in it, from 1 to 511.
    NUMBER_BITS = 10
    NUMBER_MASK = 1023
    # Bits of a block's state.
    USED = 0x8000
    LAST = 0x4000
    INDEX_MASK = 0x3FFF


cdef struct Block:
    # Used block: the address of the block before it in the entry. An entry's first block has 0, or
    # the number of the pin while the entry is pinned.
    uint32_t previous
    # Used block: the number of its bytes. Free block, and block 0: the number of the next free
    # block, 0 at the end.
    uint16_t length
    # Used block: USED, LAST if it is an entry's address, and its index in the entry. 0 when free.
    uint16_t state


cdef struct Pool:
    Memory memory
    uint32_t buffer_count
    # The buffers 0..touched_count - 1 have metadata.
    uint32_t touched_count
    uint16_t *free_counts
    # The buffers that are not full: a ring with room for all.
    uint32_t *queue
    uint32_t queue_head
    uint32_t queue_length
    uint64_t used_blocks
    uint64_t stored_bytes


cdef struct Walk:
    # The bytes from `position` to `end` are still to be visited, back to front.
    uint32_t address
    Py_ssize_t start  # the offset in the entry at which the block at `address` begins
    Py_ssize_t position
    Py_ssize_t end
    # The result of the last step: neighbouring bytes, `run_position` bytes into the entry.
    unsigned char *run
    Py_ssize_t run_position
    Py_ssize_t run_length


cdef inline int pool_open(Pool *pool, uint32_t buffer_count) noexcept nogil:
    """Reserve memory for this many buffers; return -1 when there is none. Close the pool anyway."""
    pool.free_counts = <uint16_t *>calloc(buffer_count, sizeof(uint16_t))
    pool.queue = <uint32_t *>calloc(buffer_count, sizeof(uint32_t))
    if pool.free_counts == NULL or pool.queue == NULL:
        return -1
    pool.buffer_count = buffer_count
    return memory_open(&pool.memory, buffer_count)


cdef inline void pool_close(Pool *pool) noexcept nogil:
    memory_close(&pool.memory)
    free(pool.free_counts)
    free(pool.queue)
    pool.free_counts = NULL
    pool.queue = NULL


cdef inline Block *metadata_of(const Pool *pool, uint32_t buffer) noexcept nogil:
    return <Block *>buffer_at(&pool.memory, buffer)


cdef inline Block *block_at(const Pool *pool, uint32_t address) noexcept nogil:
    return metadata_of(pool, address >> NUMBER_BITS) + (address & NUMBER_MASK)


cdef inline unsigned char *data_at(const Pool *pool, uint32_t address) noexcept nogil:
    return (
        buffer_at(&pool.memory, address >> NUMBER_BITS)
        + <size_t>(address & NUMBER_MASK) * BLOCK_BYTES
    )


cdef inline bint is_address(const Pool *pool, uint32_t address) noexcept nogil:
    """Return whether this is the address of a block that can hold data."""
    cdef uint32_t number = address & NUMBER_MASK
    return (address >> NUMBER_BITS) < pool.touched_count and 0 < number < BLOCKS_PER_BUFFER


cdef inline bint is_entry(const Pool *pool, uint32_t address) noexcept nogil:
    """Return whether an entry has this address."""
    return (
        is_address(pool, address)
        and (block_at(pool, address).state & (USED | LAST)) == (USED | LAST)
    )


cdef inline Py_ssize_t entry_length(const Block *last) noexcept nogil:
    return <Py_ssize_t>(last.state & INDEX_MASK) * BLOCK_BYTES + last.length


cdef inline uint64_t block_count(Py_ssize_t length) noexcept nogil:
    """Return the number of blocks of an entry of ``length`` bytes; an empty one has one."""
    return <uint64_t>(length + BLOCK_BYTES - 1) // BLOCK_BYTES if length else 1


cdef inline uint64_t free_blocks(const Pool *pool) noexcept nogil:
    return <uint64_t>pool.buffer_count * (BLOCKS_PER_BUFFER - 1) - pool.used_blocks


cdef inline uint64_t pool_used(const Pool *pool) noexcept nogil:
    """Return the bytes of used blocks and of the metadata of touched buffers."""
    return (pool.used_blocks + pool.touched_count) * <uint64_t>BLOCK_BYTES


cdef inline bint would_fault(const Pool *pool, uint64_t blocks) noexcept nogil:
    """Return whether allocating this many blocks would wait for the system."""
    return <uint64_t>pool.touched_count * (BLOCKS_PER_BUFFER - 1) - pool.used_blocks < blocks


cdef inline uint32_t previous_block(const Pool *pool, uint32_t address) noexcept nogil:
    """Return the block before one that is not its entry's first; 0 when corrupted."""
    cdef const Block *block = block_at(pool, address)
    cdef const Block *before
    cdef uint32_t previous = block.previous
    if not is_address(pool, previous):
        return 0
    before = block_at(pool, previous)
    if (
        before.state != (USED | ((block.state & INDEX_MASK) - 1))
        or before.length != BLOCK_BYTES
    ):
        return 0
    return previous


cdef inline uint32_t first_block(const Pool *pool, uint32_t address) noexcept nogil:
    """Return the first block of the entry after checking all of them; 0 when corrupted."""
    while block_at(pool, address).state & INDEX_MASK:
        address = previous_block(pool, address)
        if address == 0:
            return 0
    return address


cdef inline void walk_begin(
    const Pool *pool, Walk *walk, uint32_t address, Py_ssize_t position, Py_ssize_t length
) noexcept nogil:
    """Begin a walk over ``length`` bytes of an entry that has them, from ``position`` on."""
    walk.address = address
    walk.start = <Py_ssize_t>(block_at(pool, address).state & INDEX_MASK) * BLOCK_BYTES
    walk.position = position
    walk.end = position + length


cdef inline int walk_step(const Pool *pool, Walk *walk) noexcept nogil:
    """Find the longest run of neighbouring blocks at the end.

    Returns 1 when found, 0 when done, -1 when corrupted.
    """
    cdef uint32_t before = 0
    if walk.end == walk.position:
        return 0
    while walk.start >= walk.end:
        walk.address = previous_block(pool, walk.address)
        if walk.address == 0:
            return -1
        walk.start -= BLOCK_BYTES
    while walk.start > walk.position:
        before = previous_block(pool, walk.address)
        if before == 0:
            return -1
        if before != walk.address - 1:
            break
        walk.address = before
        walk.start -= BLOCK_BYTES
    walk.run_position = max(walk.start, walk.position)
    walk.run_length = walk.end - walk.run_position
    walk.run = data_at(pool, walk.address) + (walk.run_position - walk.start)
    walk.end = walk.run_position
    if walk.end > walk.position:
        walk.address = before
        walk.start -= BLOCK_BYTES
    return 1


cdef inline int copy_out(
    const Pool *pool,
    uint32_t address,
    unsigned char *target,
    Py_ssize_t position,
    Py_ssize_t length,
) noexcept nogil:
    """Copy a range that the entry has, neighbouring blocks at once; return -1 when corrupted."""
    cdef Walk walk
    cdef int found
    walk_begin(pool, &walk, address, position, length)
    while True:
        found = walk_step(pool, &walk)
        if found != 1:
            return found
        copy_bytes(target + (walk.run_position - position), walk.run, walk.run_length)


cdef inline void enqueue(Pool *pool, uint32_t buffer) noexcept nogil:
    cdef uint32_t place = pool.queue_head + pool.queue_length
    if place >= pool.buffer_count:
        place -= pool.buffer_count
    pool.queue[place] = buffer
    pool.queue_length += 1


cdef inline void dequeue(Pool *pool) noexcept nogil:
    pool.queue_head += 1
    if pool.queue_head == pool.buffer_count:
        pool.queue_head = 0
    pool.queue_length -= 1


cdef inline void touch_next_buffer(Pool *pool) noexcept nogil:
    """Write the next buffer's metadata, with all blocks free in ascending order, and queue it."""
    cdef uint32_t buffer = pool.touched_count
    cdef uint32_t number
    cdef Block *metadata = metadata_of(pool, buffer)
    memory_begin(&pool.memory, buffer)
    for number in range(BLOCKS_PER_BUFFER):
        metadata[number].previous = 0
        metadata[number].length = <uint16_t>((number + 1) % BLOCKS_PER_BUFFER)
        metadata[number].state = 0
    pool.touched_count += 1
    pool.free_counts[buffer] = BLOCKS_PER_BUFFER - 1
    enqueue(pool, buffer)


cdef inline void link_free(Block *metadata, uint32_t first, uint32_t last) noexcept nogil:
    """Link neighbouring blocks into the buffer's free list, which ascends."""
    cdef uint32_t number, before = first - 1
    while before and metadata[before].state:
        before -= 1
    for number in range(first, last):
        metadata[number].previous = 0
        metadata[number].length = <uint16_t>(number + 1)
        metadata[number].state = 0
    metadata[last].previous = 0
    metadata[last].length = metadata[before].length
    metadata[last].state = 0
    metadata[before].length = <uint16_t>first


cdef inline int release(Pool *pool, uint32_t address, uint32_t index_min) noexcept nogil:
    """Free the blocks from ``address`` back to ``index_min``; return -1 when corrupted."""
    cdef uint32_t buffer, last, count, index, previous
    cdef const Block *block
    while True:
        # Extend the run while the blocks adjoin.
        buffer = address >> NUMBER_BITS
        last = address & NUMBER_MASK
        count = 0
        while True:
            block = block_at(pool, address)
            index = block.state & INDEX_MASK
            previous = previous_block(pool, address) if index > index_min else 0
            pool.stored_bytes -= block.length
            count += 1
            if previous == 0 or previous != address - 1:
                break
            address = previous
        link_free(metadata_of(pool, buffer), last + 1 - count, last)
        if pool.free_counts[buffer] == 0:
            enqueue(pool, buffer)
        pool.free_counts[buffer] += <uint16_t>count
        pool.used_blocks -= count
        if previous == 0:
            return 0 if index <= index_min else -1
        address = previous


cdef inline uint32_t claim(
    Pool *pool, uint32_t previous, uint32_t index, const unsigned char *data, Py_ssize_t length
) noexcept nogil:
    """Copy ``data`` into free blocks, of which there are enough, chained after ``previous``.

    ``index`` is that of the first new block. Returns the address of the last block, which is marked
    as such; or 0 when corrupted, with nothing changed.
    """
    cdef uint32_t buffer, number, first, run, free_count, index_min = index
    cdef Py_ssize_t run_length
    cdef Block *metadata
    cdef Block *block
    cdef bint intact
    while True:
        if pool.queue_length == 0:
            if pool.touched_count == pool.buffer_count:
                break
            touch_next_buffer(pool)
        buffer = pool.queue[pool.queue_head]
        metadata = metadata_of(pool, buffer)
        free_count = pool.free_counts[buffer]
        # Use the longest run of neighbours at the head of the buffer's free list.
        first = number = metadata[0].length
        run = 0
        run_length = 0
        intact = False
        while 0 < number < BLOCKS_PER_BUFFER and not metadata[number].state and run < free_count:
            block = &metadata[number]
            number = block.length
            block.previous = previous
            block.length = <uint16_t>min(length - run_length, BLOCK_BYTES)
            block.state = <uint16_t>(USED | index)
            run_length += block.length
            previous = (buffer << NUMBER_BITS) | (first + run)
            index += 1
            run += 1
            intact = run_length == length or number != first + run
            if intact:
                break
        metadata[0].length = <uint16_t>number
        pool.free_counts[buffer] = <uint16_t>(free_count - run)
        pool.used_blocks += run
        pool.stored_bytes += run_length
        if run == free_count:
            dequeue(pool)
        if not intact:
            break
        memory_reach(&pool.memory, buffer, <size_t>(first + run) * BLOCK_BYTES)
        copy_into_blocks(data_at(pool, (buffer << NUMBER_BITS) | first), data, run_length)
        data += run_length
        length -= run_length
        if length == 0:
            block_at(pool, previous).state |= LAST
            return previous
    if index > index_min:
        release(pool, previous, index_min)
    return 0
