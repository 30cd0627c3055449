"""Pins keep the memory of cache entries that have views: one pin for each such entry, in C.

Owns: the pins, by number. The first block of a pinned entry holds its pin's number.

Invariants:
1. While an entry has views, its blocks stay allocated, also after the entry was deleted. They are
   freed with the last view. Held by
   ``test_blocks_of_a_deleted_entry_come_back_with_its_last_view``.
2. When a pin number in the mapping is damaged, the operation raises ``CacheCorruptedError`` instead
   of using another entry's pin: the pin must name the entry's first block. Held by
   ``test_a_corrupted_pin_is_an_error``.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport realloc

from _fast.cache.pool cimport Pool, block_at, release

cdef enum:
    PINS_MIN = 64


cdef struct Pin:
    uint32_t first  # the entry's first block; 0 in an unused pin
    uint32_t last  # the entry's last block once it is deleted; until then 0
    uint32_t count  # the number of its views
    uint32_t next  # in the chain of unused pins, or of waiting ones


cdef struct Pins:
    # Pin 0 is not used: 0 stands for no pin.
    Pin *pins
    uint32_t capacity
    uint32_t unused
    uint32_t in_use
    # The pins that must be dropped when no thread copies any more.
    uint32_t waiting


cdef inline bint is_pin_of(const Pins *pins, uint32_t number, uint32_t first) noexcept nogil:
    """Return whether this is the pin of the entry with this first block."""
    return number < pins.capacity and pins.pins[number].first == first


cdef inline int pins_grow(Pins *pins) noexcept nogil:
    """Allocate unused pins; return -1 when there is no memory."""
    cdef uint32_t capacity = 2 * pins.capacity if pins.capacity else PINS_MIN
    cdef uint32_t number = pins.capacity if pins.capacity else 1
    cdef void *grown = realloc(pins.pins, capacity * sizeof(Pin))
    if grown == NULL:
        return -1
    pins.pins = <Pin *>grown
    pins.unused = number
    pins.capacity = capacity
    while number < capacity:
        pins.pins[number].first = 0
        pins.pins[number].count = 0
        pins.pins[number].next = number + 1 if number + 1 < capacity else 0
        number += 1
    return 0


cdef inline uint32_t pin_take(Pool *pool, Pins *pins, uint32_t first) noexcept nogil:
    """Return a pin with count 0 for an entry that has none; an unused pin exists."""
    cdef uint32_t number = pins.unused
    cdef Pin *pin = &pins.pins[number]
    pins.unused = pin.next
    pins.in_use += 1
    pin.first = first
    pin.last = 0
    pin.count = 0
    block_at(pool, first).previous = number
    return number


cdef inline int pin_drop(Pool *pool, Pins *pins, uint32_t number) noexcept nogil:
    """Remove the pin of an entry without views. Frees a deleted entry; return -1 when it is
    corrupted."""
    cdef Pin *pin = &pins.pins[number]
    cdef uint32_t last = pin.last
    block_at(pool, pin.first).previous = 0
    pin.first = 0
    pin.next = pins.unused
    pins.unused = number
    pins.in_use -= 1
    return release(pool, last, 0) if last else 0
