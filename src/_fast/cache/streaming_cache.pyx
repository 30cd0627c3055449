"""The streaming cache: entries of any length in chains of 4 KiB blocks, with appends in place.

Owns: entries by address, views of them, and the behavior when there is no room. The memory is that
of pool.pxd, laid out as docs/formats/cache-layout.md says.

Every block of an entry except the last is full, so the index of a block in the chain gives the
offset of its bytes. The address of an entry is that of its last block, so an append that needs a
new block changes the address.

Example, in an empty cache (docs/formats/cache-layout.md shows the blocks of another one):

    address = cache.insert(bytes(10_000))         # blocks 1, 2, 3 of buffer 0: address 3
    address = cache.append(address, bytes(2000))  # fits into block 3 (3 * 4096 = 12,288): address 3
    address = cache.append(address, bytes(500))   # 12,500 bytes need block 4: address 4
    views = cache.views(address)                  # the blocks adjoin: one view of 12,500 bytes
    cache.delete(address)                         # used_bytes stays 20,480: 4 blocks, 1 of metadata
    del views                                     # used_bytes is 4096: the metadata block

Invariants:
1. An address that is not that of an existing entry raises ``EntryMissingError``. Held by
   ``test_a_block_inside_an_entry_is_no_address``. A deleted entry has no address, even while views
   keep its memory. Held by ``test_a_deleted_entry_has_no_address_while_views_keep_it``.
2. The bytes that a view shows do not change until the last view of that entry is released, whatever
   happens to the entry. Held by ``TestCacheModel``.
3. When an operation raises, the cache is unchanged, except for what ``on_full`` did. Held by
   ``test_what_the_callback_raises_comes_out_and_changes_nothing``.
4. ``on_full`` may use the cache. An operation that it calls does not call ``on_full`` again. Held
   by ``test_the_callback_may_insert_but_is_not_called_by_that``.
5. While one thread copies without the interpreter lock, calls of other threads raise
   ``RuntimeError``. Held by ``test_large_copies_let_other_threads_run_but_not_in``. Views that
   another thread releases meanwhile are recorded, and their blocks are freed after the copy. Held
   by ``test_views_may_go_away_in_another_thread_while_one_copies``.
6. After corrupted metadata were found, every call raises ``CacheCorruptedError``. Held by
   ``test_a_corrupted_chain_is_an_error``.
"""

cimport cython
from cpython.buffer cimport (
    PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_FillInfo, PyBuffer_Release, PyObject_GetBuffer,
)
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free

from _fast.cache.audit cimport audit
from _fast.cache.copy cimport copy_bytes, prefetch_block
from _fast.cache.memory cimport BUFFER_BYTES
from _fast.cache.pins cimport is_pin_of, pin_drop, pin_take, pins_grow
from _fast.cache.pool cimport (
    BLOCK_BYTES, BLOCKS_PER_BUFFER, INDEX_MASK, LAST, Block, Walk,
    block_at, block_count, claim, copy_out, data_at, entry_length, first_block, free_blocks,
    is_address, is_entry, pool_close, pool_open, pool_used, release, walk_begin, walk_step,
    would_fault,
)

cdef enum:
    ENTRY_BYTES_MAX_ = 0x3FFFFFF
    # A copy of at least this many bytes releases the interpreter lock.
    NOGIL_BYTES = 262144
    CLEANUP_ATTEMPTS = 5

BLOCK_LENGTH = BLOCK_BYTES
BUFFER_LENGTH = BUFFER_BYTES
ENTRY_BYTES_MAX = ENTRY_BYTES_MAX_
CAPACITY_BYTES_MAX = 256 * 1024**3


class CacheFullError(MemoryError):
    """There is no room for the bytes, even after the cleanup callback; nothing was changed."""


class EntryMissingError(ValueError):
    """No entry has this address."""


class CacheCorruptedError(RuntimeError):
    """Something has overwritten the cache's metadata."""


@cython.final
@cython.no_gc_clear  # the cache is needed when the view goes away
@cython.freelist(64)
cdef class _View:
    """A read-only run of bytes inside the cache, which holds a pin."""

    cdef StreamingCache cache
    cdef uint32_t pin
    cdef unsigned char *start
    cdef Py_ssize_t length

    def __init__(self):
        raise TypeError("views come from StreamingCache.views")

    def __getbuffer__(self, Py_buffer *view, int flags):
        PyBuffer_FillInfo(view, self, self.start, self.length, 1, flags)

    def __dealloc__(self):
        if self.cache is not None:
            self.cache._unpin(self.pin)


@cython.final
cdef class StreamingCache:
    """See cache.pyi."""

    def __cinit__(self, capacity_bytes, on_full=None):
        if not BUFFER_BYTES <= capacity_bytes <= CAPACITY_BYTES_MAX:
            raise ValueError(
                f"the capacity is from {BUFFER_BYTES} to {CAPACITY_BYTES_MAX} bytes,"
                f" not {capacity_bytes}"
            )
        self._on_full = on_full
        if pool_open(&self._pool, capacity_bytes // BUFFER_BYTES) != 0:
            raise MemoryError(f"a cache of {capacity_bytes} bytes cannot be reserved")

    def __dealloc__(self):
        pool_close(&self._pool)
        free(self._pins.pins)

    # ---- counters ----

    @property
    def capacity_bytes(self):
        """Return the hard bound of the memory that the cache uses, metadata included."""
        return <uint64_t>self._pool.buffer_count * BUFFER_BYTES

    @property
    def stored_bytes(self):
        """Return the bytes of data in entries, and in deleted entries that have views."""
        return self._pool.stored_bytes

    @property
    def used_bytes(self):
        """Return the bytes of blocks of such entries, and of the metadata of touched buffers."""
        return pool_used(&self._pool)

    @property
    def reserved_bytes(self):
        """Return the bytes of touched buffers: they stay with the process."""
        return <uint64_t>self._pool.touched_count * BUFFER_BYTES

    @property
    def pinned_count(self):
        """Return how many entries, deleted or not, have views."""
        return self._pins.in_use

    @property
    def on_full(self):
        """Return the function that frees entries when there is no room, or None.

        It returns whether it freed any.
        """
        return self._on_full

    @on_full.setter
    def on_full(self, callback):
        self._on_full = callback

    # ---- operations ----

    def insert(self, data not None):
        """Copy ``data`` into a new entry and return its address."""
        cdef Py_buffer source
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            return self.insert_bytes(<const unsigned char *>source.buf, source.len)
        finally:
            PyBuffer_Release(&source)

    def append(self, int64_t address, data not None):
        """Extend the entry in place; return its new address."""
        cdef Py_buffer source
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            return self.append_bytes(address, <const unsigned char *>source.buf, source.len)
        finally:
            PyBuffer_Release(&source)

    def replace(self, int64_t address, data not None):
        """Replace an entry's bytes with ``data``; return its new address."""
        cdef Py_buffer source
        cdef uint32_t result
        cdef int attempts = 0
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            while True:
                self._enter()
                self._last_block(address)
                self._check_length(0, source.len)
                if block_count(source.len) <= free_blocks(&self._pool):
                    break
                attempts = self._clean_up(attempts, block_count(source.len), <uint32_t>address)
            result = self._claim(0, 0, <const unsigned char *>source.buf, source.len)
            self._remove(<uint32_t>address)
        finally:
            PyBuffer_Release(&source)
        return result

    def delete(self, int64_t address):
        """Free an entry and return how many bytes of data it held."""
        return self.delete_entry(address)

    def length(self, int64_t address):
        """Return how many bytes the entry has."""
        self._enter()
        return entry_length(self._last_block(address))

    def get(self, int64_t address, Py_ssize_t position=0, Py_ssize_t length=-1):
        """Return a copy of ``length`` bytes (of all that follow, when -1) from ``position`` on."""
        cdef bytes result
        self._enter()
        length = self._range(address, position, length)
        result = PyBytes_FromStringAndSize(NULL, length)
        self._copy_out(address, <unsigned char *>PyBytes_AS_STRING(result), position, length)
        return result

    def get_into(self, int64_t address, target not None, Py_ssize_t position=0):
        """Copy bytes from ``position`` on into ``target``; return their number."""
        cdef Py_buffer view
        cdef Py_ssize_t length
        PyObject_GetBuffer(target, &view, PyBUF_WRITABLE)
        try:
            self._enter()
            length = min(self._range(address, position, -1), view.len)
            self._copy_out(address, <unsigned char *>view.buf, position, length)
        finally:
            PyBuffer_Release(&view)
        return length

    def views(self, int64_t address, Py_ssize_t position=0, Py_ssize_t length=-1):
        """Return a range of the entry as read-only memory views, in order, without a copy."""
        return self.get_views(address, position, length)

    cdef uint32_t insert_bytes(self, const unsigned char *data, Py_ssize_t length) except 0:
        cdef int attempts = 0
        self._enter()
        self._check_length(0, length)
        while block_count(length) > free_blocks(&self._pool):
            attempts = self._clean_up(attempts, block_count(length), 0)
        return self._claim(0, 0, data, length)

    cdef uint32_t append_bytes(
        self, int64_t address, const unsigned char *data, Py_ssize_t length
    ) except 0:
        cdef Block *last
        cdef Py_ssize_t here, beyond
        cdef uint32_t result
        cdef int attempts = 0
        while True:
            # Look again after each cleanup: it may have changed this entry.
            self._enter()
            last = self._last_block(address)
            self._check_length(entry_length(last), length)
            here = min(BLOCK_BYTES - last.length, length)
            beyond = length - here
            if beyond == 0 or block_count(beyond) <= free_blocks(&self._pool):
                break
            attempts = self._clean_up(attempts, block_count(beyond), <uint32_t>address)
        result = <uint32_t>address
        if beyond:
            result = self._claim(result, (last.state & INDEX_MASK) + 1, data + here, beyond)
            last.state &= <int>~LAST
        copy_bytes(data_at(&self._pool, <uint32_t>address) + last.length, data, here)
        last.length += here
        self._pool.stored_bytes += here
        return result

    cdef Py_ssize_t delete_entry(self, int64_t address) except -1:
        cdef Py_ssize_t length
        self._enter()
        length = entry_length(self._last_block(address))
        self._remove(<uint32_t>address)
        return length

    cdef int get_bytes(
        self, int64_t address, unsigned char *target, Py_ssize_t position, Py_ssize_t length
    ) except -1:
        self._enter()
        self._range(address, position, length)
        return self._copy_out(address, target, position, length)

    cdef list get_views(self, int64_t address, Py_ssize_t position, Py_ssize_t length):
        cdef Walk walk
        cdef uint32_t pin
        cdef int found
        cdef list result
        self._enter()
        length = self._range(address, position, length)
        # Pin first: making objects may run any code, and the memory must stay.
        pin = self._pin(<uint32_t>address)
        try:
            if length == 0:
                return [self._view(pin, data_at(&self._pool, <uint32_t>address), 0)]
            result = []
            walk_begin(&self._pool, &walk, <uint32_t>address, position, length)
            while True:
                found = walk_step(&self._pool, &walk)
                if found != 1:
                    break
                result.append(self._view(pin, walk.run, walk.run_length))
            if found == -1:
                self._fail()
            result.reverse()
            return result
        finally:
            self._unpin(pin)

    # ---- when there is no room ----

    cdef int _clean_up(self, int attempts, uint64_t blocks, uint32_t address) except -1:
        """Call ``on_full`` to free blocks, or raise an error; return the number of attempts so far.

        The entry at ``address``, if not 0, is pinned meanwhile. Raises ``EntryMissingError`` if it
        is deleted, even if another entry gets its blocks and its address.
        """
        cdef uint32_t pin = 0
        cdef bint deleted
        if self._on_full is None or self._cleaning or attempts >= CLEANUP_ATTEMPTS:
            raise CacheFullError(
                f"the cache has {free_blocks(&self._pool)} free blocks, not {blocks}"
            )
        if address:
            pin = self._pin(address)
        self._cleaning = True
        try:
            attempts = attempts + 1 if self._on_full() else CLEANUP_ATTEMPTS
        finally:
            self._cleaning = False
            deleted = pin != 0 and self._pins.pins[pin].last != 0
            if pin:
                self._unpin(pin)
        if deleted:
            raise EntryMissingError(f"cache entry {address:#x} was deleted to make room for it")
        self._enter()
        return attempts

    # ---- pins ----

    cdef uint32_t _pin(self, uint32_t address) except 0:
        """Pin the entry's memory until ``_unpin`` of the number that this returns."""
        cdef uint32_t first = first_block(&self._pool, address)
        cdef uint32_t pin
        if first == 0:
            self._fail()
        pin = block_at(&self._pool, first).previous
        if pin == 0:
            if self._pins.unused == 0 and pins_grow(&self._pins) != 0:
                raise MemoryError("no memory for views of cache entries")
            pin = pin_take(&self._pool, &self._pins, first)
        elif not is_pin_of(&self._pins, pin, first):
            self._fail()
        self._pins.pins[pin].count += 1
        return pin

    cdef void _unpin(self, uint32_t pin) noexcept:
        self._pins.pins[pin].count -= 1
        if self._pins.pins[pin].count:
            return
        if self._copying:
            self._pins.pins[pin].next = self._pins.waiting
            self._pins.waiting = pin
        else:
            self._drop_pin(pin)

    cdef void _drop_pin(self, uint32_t pin) noexcept:
        if pin_drop(&self._pool, &self._pins, pin) != 0:
            # No caller can receive an exception here, so the next call raises.
            self._corrupted = True

    cdef object _view(self, uint32_t pin, unsigned char *start, Py_ssize_t length):
        cdef _View view = _View.__new__(_View)
        view.start = start
        view.length = length
        view.pin = pin
        self._pins.pins[pin].count += 1
        view.cache = self
        return memoryview(view)

    # ---- inside ----

    cdef inline int _enter(self) except -1:
        if self._copying:
            raise RuntimeError("the cache is used from two threads at once")
        if self._corrupted:
            self._fail()
        return 0

    cdef int _fail(self) except -1:
        self._corrupted = True
        raise CacheCorruptedError("the metadata of the cache is corrupted")

    cdef inline int _check_length(self, Py_ssize_t length, Py_ssize_t added) except -1:
        if added > ENTRY_BYTES_MAX_ - length:
            raise ValueError(
                f"a cache entry has at most {ENTRY_BYTES_MAX_} bytes, not {length}+{added}"
            )
        return 0

    cdef inline Block *_last_block(self, int64_t address) except NULL:
        """Return the last block of the entry, or raise an error: addresses are not trusted."""
        cdef Block *last
        # An address has 32 bits and is not negative.
        if address >> 32 != 0 or not is_entry(&self._pool, <uint32_t>address):
            raise EntryMissingError(f"there is no cache entry {address:#x}")
        last = block_at(&self._pool, <uint32_t>address)
        if last.length > BLOCK_BYTES:
            self._fail()
        return last

    cdef inline Py_ssize_t _range(
        self, int64_t address, Py_ssize_t position, Py_ssize_t length
    ) except -1:
        """Return the length of the requested range if the entry has it; -1 requests all bytes from
        ``position`` on."""
        cdef Py_ssize_t total
        if address >> 32 == 0 and is_address(&self._pool, <uint32_t>address):
            # The data are often as far away in memory as the metadata: fetch both at once.
            prefetch_block(data_at(&self._pool, <uint32_t>address))
        total = entry_length(self._last_block(address))
        if length == -1 and 0 <= position <= total:
            return total - position
        if position < 0 or length < 0 or position > total - length:
            raise IndexError(
                f"cache entry {address:#x} has {total} bytes, not {length} from {position} on"
            )
        return length

    cdef uint32_t _claim(
        self, uint32_t previous, uint32_t index, const unsigned char *data, Py_ssize_t length
    ) except 0:
        """Copy ``data`` into free blocks, of which there are enough."""
        cdef uint32_t address
        if length < NOGIL_BYTES and not would_fault(&self._pool, block_count(length)):
            address = claim(&self._pool, previous, index, data, length)
        else:
            self._copying = True
            with nogil:
                address = claim(&self._pool, previous, index, data, length)
            self._copied()
        if address == 0:
            self._fail()
        return address

    cdef inline int _copy_out(
        self, int64_t address, unsigned char *target, Py_ssize_t position, Py_ssize_t length
    ) except -1:
        cdef int outcome
        if length < NOGIL_BYTES:
            outcome = copy_out(&self._pool, <uint32_t>address, target, position, length)
        else:
            self._copying = True
            with nogil:
                outcome = copy_out(&self._pool, <uint32_t>address, target, position, length)
            self._copied()
        if outcome != 0:
            self._fail()
        return 0

    cdef void _copied(self) noexcept:
        """Process the views that were released while the interpreter lock was not held."""
        cdef uint32_t pin
        self._copying = False
        while self._pins.waiting:
            pin = self._pins.waiting
            self._pins.waiting = self._pins.pins[pin].next
            self._drop_pin(pin)

    cdef inline int _remove(self, uint32_t address) except -1:
        """Free the entry's blocks, or leave that to the last of its views."""
        cdef uint32_t first
        cdef uint32_t pin = 0
        if self._pins.in_use:
            first = first_block(&self._pool, address)
            if first == 0:
                self._fail()
            pin = block_at(&self._pool, first).previous
        if pin == 0:
            if release(&self._pool, address, 0) != 0:
                self._fail()
            return 0
        if not is_pin_of(&self._pins, pin, first):
            self._fail()
        block_at(&self._pool, address).state &= <int>~LAST
        self._pins.pins[pin].last = address
        return 0

    def check(self):
        """Raise ``CacheCorruptedError`` if the metadata break an invariant. Slow."""
        cdef bytearray marks = bytearray(self._pool.touched_count * BLOCKS_PER_BUFFER)
        cdef const char *problem
        self._enter()
        problem = audit(&self._pool, &self._pins, marks)
        if problem != NULL:
            self._corrupted = True
            raise CacheCorruptedError(problem.decode())
