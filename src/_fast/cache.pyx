"""The streaming cache: entries of any length in chains of 4 KiB blocks, append in place.

Owns: one reservation of memory, cut into 2 MiB buffers of 512 blocks. Block 0 of a buffer holds the
metadata of its blocks, 8 bytes each; the others hold data. An entry is a chain of blocks that point
back, and its address is that of its last block: ``buffer << 10 | block``.

Invariants:
1. Every block of an entry but the last is full, so a block's place in its chain tells its offset.
2. A block is used, with its place in a chain, or free, linked into its buffer's free list.
3. Buffers with free blocks stand in a queue, once each; the others are full or were never touched.
4. Memory that a view shows is not used again before the last such view is gone: deleting a pinned
   entry takes effect then.
5. Used from one thread at a time. Large copies release the interpreter lock; whoever comes in
   meanwhile from another thread gets an error, not a torn entry.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int32_t, int64_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

cdef extern from "sys/mman.h" nogil:
    void *mmap(void *, size_t, int, int, int, long)
    int munmap(void *, size_t)
    int madvise(void *, size_t, int)
    int PROT_READ, PROT_WRITE, MAP_PRIVATE, MAP_ANONYMOUS, MAP_NORESERVE, MADV_HUGEPAGE
    void *MAP_FAILED

cdef enum:
    BLOCK_BYTES = 4096
    BLOCKS_PER_BUFFER = 512
    BUFFER_BYTES = 2097152
    BLOCK_BITS = 10
    BLOCK_MASK = 1023
    INDEX_MASK = 0x3FFF
    LAST = 0x4000
    USED = 0x8000
    ENTRY_BYTES_MAX_ = 0x3FFFFFF
    NOGIL_BYTES = 65536
    CLEANUP_ATTEMPTS = 5

ENTRY_BYTES_MAX = ENTRY_BYTES_MAX_
CAPACITY_BYTES_MAX = 256 * 1024**3
BUFFER_LENGTH = BUFFER_BYTES
BLOCK_LENGTH = BLOCK_BYTES


cdef struct Block:
    # Of a used block: the address of the block before it, 0 at the beginning of a chain.
    uint32_t previous
    # Of a used block: how many bytes it holds. Of a free one: the next free block, 0 at the end.
    uint16_t length
    # USED, LAST, and the place in the chain. 0 when free.
    uint16_t state


class CacheFullError(MemoryError):
    """No room for the bytes, even after the cleanup callback; nothing was changed."""


cdef class _Pin:
    """Keeps an entry's memory while views of it exist."""

    cdef StreamingCache cache
    cdef uint32_t first

    def __dealloc__(self):
        if self.cache is not None:
            self.cache._unpin(self.first)


cdef class _View:
    """A read-only run of bytes inside the cache."""

    cdef _Pin pin
    cdef unsigned char *start
    cdef Py_ssize_t length

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.start, self.length, 1, flags)


cdef class StreamingCache:
    """See the module. ``on_full`` is called when there is no room; it returns whether it freed some."""

    cdef unsigned char *_base
    cdef size_t _mapped_bytes
    cdef uint32_t _buffer_count
    cdef uint32_t _touched_count
    cdef uint16_t *_free_counts
    # The buffers with free blocks: a ring with room for all of them.
    cdef uint32_t *_queue
    cdef uint32_t _queue_head
    cdef uint32_t _queue_length
    cdef uint64_t _used_blocks
    cdef uint64_t _stored_bytes
    cdef bint _busy
    cdef object _on_full
    cdef dict _pins
    cdef dict _doomed

    def __cinit__(self, size_t capacity_bytes, on_full=None):
        if not BUFFER_BYTES <= capacity_bytes <= <size_t>CAPACITY_BYTES_MAX:
            raise ValueError(
                f"the capacity is from {BUFFER_BYTES} to {CAPACITY_BYTES_MAX} bytes,"
                f" not {capacity_bytes}"
            )
        self._on_full = on_full
        self._pins = {}
        self._doomed = {}
        self._buffer_count = <uint32_t>(capacity_bytes // BUFFER_BYTES)
        # One buffer more, so that the first can begin at a huge page's boundary.
        self._mapped_bytes = <size_t>(self._buffer_count + 1) * BUFFER_BYTES
        self._free_counts = <uint16_t *>malloc(self._buffer_count * sizeof(uint16_t))
        self._queue = <uint32_t *>malloc(self._buffer_count * sizeof(uint32_t))
        self._base = <unsigned char *>mmap(
            NULL,
            self._mapped_bytes,
            PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE,
            -1,
            0,
        )
        if <void *>self._base == MAP_FAILED or self._queue == NULL or self._free_counts == NULL:
            if <void *>self._base == MAP_FAILED:
                self._base = NULL
            raise MemoryError(f"a cache of {capacity_bytes} bytes cannot be reserved")
        # Huge pages cost one fault for 512 blocks; a kernel without them says so and is ignored.
        madvise(self._first_buffer(), self._mapped_bytes - BUFFER_BYTES, MADV_HUGEPAGE)

    def __dealloc__(self):
        if self._base != NULL:
            munmap(self._base, self._mapped_bytes)
        free(self._free_counts)
        free(self._queue)

    cdef inline unsigned char *_first_buffer(self) noexcept nogil:
        return <unsigned char *>(
            (<size_t>self._base + BUFFER_BYTES - 1) & ~(<size_t>BUFFER_BYTES - 1)
        )

    cdef inline Block *_metadata(self, uint32_t buffer) noexcept nogil:
        return <Block *>(self._first_buffer() + <size_t>buffer * BUFFER_BYTES)

    cdef inline Block *_block(self, uint32_t address) noexcept nogil:
        return self._metadata(address >> BLOCK_BITS) + (address & BLOCK_MASK)

    cdef inline unsigned char *_data(self, uint32_t address) noexcept nogil:
        return (
            self._first_buffer()
            + <size_t>(address >> BLOCK_BITS) * BUFFER_BYTES
            + <size_t>(address & BLOCK_MASK) * BLOCK_BYTES
        )

    # ---- counters ----

    @property
    def capacity_bytes(self):
        """The hard bound of the memory that the cache uses, metadata included."""
        return <uint64_t>self._buffer_count * BUFFER_BYTES

    @property
    def stored_bytes(self):
        """Bytes of data in entries."""
        return self._stored_bytes

    @property
    def used_bytes(self):
        """Bytes of blocks that hold entries, and of the metadata blocks of touched buffers."""
        return (self._used_blocks + self._touched_count) * <uint64_t>BLOCK_BYTES

    @property
    def reserved_bytes(self):
        """Bytes of the buffers that were touched so far."""
        return <uint64_t>self._touched_count * BUFFER_BYTES

    @property
    def pinned_count(self):
        """How many entries have views."""
        return len(self._pins)

    # ---- operations ----

    def insert(self, data not None):
        """Copy ``data`` into a new entry and return its address."""
        cdef Py_buffer view
        cdef int64_t address
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self._enter()
            self._check_length(view.len)
            self._make_room(_block_count(view.len))
            address = self._extend(0, 0, <unsigned char *>view.buf, view.len)
        finally:
            self._busy = False
            PyBuffer_Release(&view)
        return address

    def append(self, uint32_t address, data not None):
        """Extend the entry in place; returns its address from now on."""
        cdef Py_buffer view
        cdef Block *last
        cdef Py_ssize_t room, here
        cdef int64_t result = address
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            self._enter()
            last = self._checked(address)
            self._check_length(_entry_length(last) + view.len)
            room = BLOCK_BYTES - last.length
            here = min(room, view.len)
            if view.len > here:
                self._make_room(_block_count(view.len - here))
                last = self._checked(address)
            memcpy(self._data(address) + last.length, view.buf, here)
            last.length += <uint16_t>here
            self._stored_bytes += here
            if view.len > here:
                last.state &= <uint16_t>~LAST
                result = self._extend(
                    address,
                    (last.state & INDEX_MASK) + 1,
                    <unsigned char *>view.buf + here,
                    view.len - here,
                )
        finally:
            self._busy = False
            PyBuffer_Release(&view)
        return result

    def replace(self, uint32_t address, data not None):
        """Put ``data`` in the place of an entry's bytes; returns its address from now on."""
        cdef int64_t result = self.insert(data)
        self.delete(address)
        return result

    def delete(self, uint32_t address):
        """Free an entry and return how many bytes of data it held."""
        cdef Py_ssize_t length
        cdef uint32_t first
        self._enter()
        try:
            length = _entry_length(self._checked(address))
            if self._pins:
                first = self._first_of(address)
                if first in self._pins:
                    if first in self._doomed:
                        raise ValueError(f"cache entry {address:#x} was deleted before")
                    self._doomed[first] = address
                    return length
            self._release(address)
        finally:
            self._busy = False
        return length

    def length(self, uint32_t address):
        """How many bytes the entry holds."""
        return _entry_length(self._checked(address))

    def get(self, uint32_t address, Py_ssize_t position=0, Py_ssize_t length=-1):
        """Copy ``length`` bytes (all that follow, when -1) out of an entry, from ``position`` on."""
        cdef Py_ssize_t total
        cdef bytes result
        self._enter()
        try:
            total = _entry_length(self._checked(address))
            if length == -1:
                length = total - position
            if position < 0 or length < 0 or position > total - length:
                raise IndexError(
                    f"cache entry {address:#x} has {total} bytes, not {position}+{length}"
                )
            result = PyBytes_FromStringAndSize(NULL, length)
            self._copy_out(
                address, total, <unsigned char *>PyBytes_AS_STRING(result), position, length
            )
        finally:
            self._busy = False
        return result

    def get_into(self, uint32_t address, target not None, Py_ssize_t position=0):
        """Copy bytes from ``position`` on into ``target``; returns how many there were."""
        cdef Py_buffer view
        cdef Py_ssize_t total, length = 0
        PyObject_GetBuffer(target, &view, 1)  # writable
        try:
            self._enter()
            total = _entry_length(self._checked(address))
            if not 0 <= position <= total:
                raise IndexError(f"cache entry {address:#x} has {total} bytes, not {position}")
            length = min(total - position, view.len)
            self._copy_out(address, total, <unsigned char *>view.buf, position, length)
        finally:
            self._busy = False
            PyBuffer_Release(&view)
        return length

    def views(self, uint32_t address):
        """The entry's bytes as read-only memory views, without a copy.

        They stay what they are: later appends do not show in them, and deleting the entry frees
        its memory only when the last of them is gone.
        """
        cdef Block *block = self._checked(address)
        cdef _Pin pin = _Pin()
        cdef list runs = []
        cdef uint32_t at = address
        cdef Py_ssize_t run_length
        cdef _View run
        pin.first = self._first_of(address)
        self._pins[pin.first] = self._pins.get(pin.first, 0) + 1
        pin.cache = self
        while True:
            run_length = self._block(at).length
            while self._continues(at):
                at -= 1
                run_length += BLOCK_BYTES
            run = _View()
            run.pin = pin
            run.start = self._data(at)
            run.length = run_length
            runs.append(memoryview(run))
            block = self._block(at)
            if (block.state & INDEX_MASK) == 0:
                break
            at = block.previous
        runs.reverse()
        return runs

    def check(self):
        """Walk over all metadata and raise ``AssertionError`` where an invariant does not hold."""
        cdef uint32_t buffer, number, free_count, used = 0
        cdef uint64_t stored = 0
        cdef Block *metadata
        cdef set queued = set()
        for number in range(self._queue_length):
            queued.add(self._queue[(self._queue_head + number) % self._buffer_count])
        assert len(queued) == self._queue_length, "a buffer is queued twice"
        for buffer in range(self._touched_count):
            metadata = self._metadata(buffer)
            free_count = 0
            number = metadata[0].length
            while number:
                assert metadata[number].state == 0, f"free block {buffer}-{number} is used"
                free_count += 1
                number = metadata[number].length
            assert free_count == self._free_counts[buffer], f"buffer {buffer} miscounts"
            assert (buffer in queued) == (free_count > 0), f"buffer {buffer} is queued wrongly"
            for number in range(1, BLOCKS_PER_BUFFER):
                if metadata[number].state & USED:
                    used += 1
                    stored += metadata[number].length
        assert used == self._used_blocks, f"{used} blocks are used, not {self._used_blocks}"
        assert stored == self._stored_bytes, f"{stored} bytes are stored"

    # ---- inside ----

    cdef inline int _enter(self) except -1:
        if self._busy:
            raise RuntimeError("the cache is used from two threads at once")
        self._busy = True
        return 0

    cdef int _check_length(self, Py_ssize_t length) except -1:
        if length > ENTRY_BYTES_MAX_:
            raise ValueError(f"a cache entry has at most {ENTRY_BYTES_MAX_} bytes, not {length}")
        return 0

    cdef Block *_checked(self, uint32_t address) except NULL:
        """The last block of the entry at ``address``, or an error: addresses are not trusted."""
        cdef uint32_t number = address & BLOCK_MASK
        cdef Block *block
        if (address >> BLOCK_BITS) < self._touched_count and 0 < number < BLOCKS_PER_BUFFER:
            block = self._block(address)
            if (block.state & (USED | LAST)) == (USED | LAST):
                return block
        raise ValueError(f"there is no cache entry {address:#x}")

    cdef inline bint _continues(self, uint32_t address) noexcept nogil:
        """Whether the block before this one in the chain lies right before it in memory."""
        cdef Block *block = self._block(address)
        return (
            (block.state & INDEX_MASK) != 0
            and block.previous == address - 1
            and (address & BLOCK_MASK) > 1
        )

    cdef uint32_t _first_of(self, uint32_t address) noexcept nogil:
        cdef Block *block = self._block(address)
        while block.state & INDEX_MASK:
            address = block.previous
            block = self._block(address)
        return address

    cdef int _make_room(self, uint64_t blocks) except -1:
        """Raise unless ``blocks`` more blocks are free, after the callback had its chances."""
        cdef int attempts = 0
        while self._free_blocks() < blocks:
            if self._on_full is None or attempts == CLEANUP_ATTEMPTS:
                raise CacheFullError(
                    f"the cache has {self._free_blocks()} free blocks, not {blocks}"
                )
            attempts += 1
            self._busy = False
            try:
                if not self._on_full():
                    attempts = CLEANUP_ATTEMPTS
            finally:
                self._enter()
        return 0

    cdef uint64_t _free_blocks(self) noexcept nogil:
        return <uint64_t>self._buffer_count * (BLOCKS_PER_BUFFER - 1) - self._used_blocks

    cdef int64_t _extend(
        self, uint32_t previous, uint32_t index, unsigned char *data, Py_ssize_t length
    ) except -1:
        """Chain ``data`` behind the block ``previous``; there is room. Returns the last address."""
        cdef int64_t address
        if length < NOGIL_BYTES:
            return self._fill(previous, index, data, length)
        with nogil:
            address = self._fill(previous, index, data, length)
        return address

    cdef int64_t _fill(
        self, uint32_t previous, uint32_t index, unsigned char *data, Py_ssize_t length
    ) noexcept nogil:
        cdef uint32_t buffer, number, run_start
        cdef Block *metadata
        cdef Py_ssize_t run_bytes, left = length
        cdef uint16_t here
        while True:
            buffer = self._next_buffer()
            metadata = self._metadata(buffer)
            number = metadata[0].length
            run_start = number
            run_bytes = 0
            while True:
                # Take the head of the buffer's free list.
                metadata[0].length = metadata[number].length
                self._free_counts[buffer] -= 1
                self._used_blocks += 1
                here = <uint16_t>min(left, BLOCK_BYTES)
                metadata[number].previous = previous
                metadata[number].length = here
                metadata[number].state = <uint16_t>(USED | index)
                previous = (buffer << BLOCK_BITS) | number
                index += 1
                left -= here
                run_bytes += here
                if left == 0 or metadata[0].length != number + 1:
                    # The run of neighbouring blocks ends: copy it at once.
                    memcpy(self._data((buffer << BLOCK_BITS) | run_start), data, run_bytes)
                    data += run_bytes
                    run_bytes = 0
                    run_start = metadata[0].length
                number = metadata[0].length
                if left == 0 or number == 0:
                    break
            if self._free_counts[buffer] == 0:
                self._queue_head = (self._queue_head + 1) % self._buffer_count
                self._queue_length -= 1
            if left == 0:
                break
        self._stored_bytes += length
        self._block(previous).state |= LAST
        return previous

    cdef uint32_t _next_buffer(self) noexcept nogil:
        """The buffer to take a block from; there is one."""
        cdef uint32_t buffer, number
        cdef Block *metadata
        if self._queue_length:
            return self._queue[self._queue_head]
        buffer = self._touched_count
        self._touched_count += 1
        metadata = self._metadata(buffer)
        for number in range(BLOCKS_PER_BUFFER):
            metadata[number].previous = 0
            metadata[number].length = <uint16_t>(number + 1)
            metadata[number].state = 0
        metadata[BLOCKS_PER_BUFFER - 1].length = 0
        self._free_counts[buffer] = BLOCKS_PER_BUFFER - 1
        self._enqueue(buffer)
        return buffer

    cdef inline void _enqueue(self, uint32_t buffer) noexcept nogil:
        self._queue[(self._queue_head + self._queue_length) % self._buffer_count] = buffer
        self._queue_length += 1

    cdef void _release(self, uint32_t address) noexcept nogil:
        """Give all blocks of an entry back, last one first: the free list then ascends."""
        cdef uint32_t buffer, number, previous
        cdef uint16_t index
        cdef Block *metadata
        while True:
            buffer = address >> BLOCK_BITS
            number = address & BLOCK_MASK
            metadata = self._metadata(buffer)
            previous = metadata[number].previous
            index = metadata[number].state & INDEX_MASK
            self._stored_bytes -= metadata[number].length
            metadata[number].state = 0
            metadata[number].length = metadata[0].length
            metadata[0].length = <uint16_t>number
            self._used_blocks -= 1
            self._free_counts[buffer] += 1
            if self._free_counts[buffer] == 1:
                self._enqueue(buffer)
            if index == 0:
                return
            address = previous

    cdef int _copy_out(
        self,
        uint32_t address,
        Py_ssize_t total,
        unsigned char *target,
        Py_ssize_t position,
        Py_ssize_t length,
    ) except -1:
        if length < NOGIL_BYTES:
            self._copy_range(address, total, target, position, length)
        else:
            with nogil:
                self._copy_range(address, total, target, position, length)
        return 0

    cdef void _copy_range(
        self,
        uint32_t address,
        Py_ssize_t total,
        unsigned char *target,
        Py_ssize_t position,
        Py_ssize_t length,
    ) noexcept nogil:
        """Copy from the last block of the range back to its first, neighbours together."""
        cdef Block *block = self._block(address)
        cdef Py_ssize_t start = total - block.length  # offset in the entry of the block's data
        cdef Py_ssize_t end = position + length
        cdef Py_ssize_t run_end, low
        if length == 0:
            return
        while start >= end:
            address = block.previous
            block = self._block(address)
            start -= BLOCK_BYTES
        run_end = end
        while True:
            while start > position and self._continues(address):
                address -= 1
                start -= BLOCK_BYTES
            low = max(start, position)
            memcpy(target + (low - position), self._data(address) + (low - start), run_end - low)
            if low == position:
                return
            run_end = start
            address = self._block(address).previous
            start -= BLOCK_BYTES

    cdef void _unpin(self, uint32_t first):
        count = self._pins[first] - 1
        if count:
            self._pins[first] = count
            return
        del self._pins[first]
        address = self._doomed.pop(first, None)
        if address is not None:
            self._release(address)


cdef inline uint64_t _block_count(Py_ssize_t length) noexcept nogil:
    """How many blocks ``length`` bytes take; an empty entry has one."""
    return <uint64_t>max(1, (length + BLOCK_BYTES - 1) // BLOCK_BYTES)


cdef inline Py_ssize_t _entry_length(Block *last) noexcept nogil:
    return <Py_ssize_t>(last.state & INDEX_MASK) * BLOCK_BYTES + last.length
