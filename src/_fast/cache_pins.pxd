"""What keeps the memory of cache entries that are looked at: one pin for each such entry, in C.

Owns: the pins, by number. The first block of a pinned entry holds its pin's number.

Invariants:
1. A pinned entry's blocks are freed when it is deleted *and* its count is 0, whichever comes last.
2. Numbers come out of the mapping and are looked at before they are used: a pin belongs to the
   entry whose first block it names.
"""

from libc.stdint cimport uint32_t
from libc.stdlib cimport realloc

from _fast.cache_pool cimport Pool, block_at, release

cdef enum:
    PINS_MIN = 64


cdef struct Pin:
    uint32_t first  # the entry's first block; 0 of a pin that is not in use
    uint32_t last  # the entry's last block once it is deleted; until then 0
    uint32_t count  # of those who look at it
    uint32_t next  # in the chain of pins that are not in use, or that wait


cdef struct Pins:
    # Pin 0 is not used: 0 is no pin.
    Pin *pins
    uint32_t capacity
    uint32_t unused
    uint32_t in_use
    # Pins to be dropped when no thread copies any more.
    uint32_t waiting


cdef inline bint is_pin_of(const Pins *pins, uint32_t number, uint32_t first) noexcept nogil:
    """Return whether this pin is that of the entry with this first block."""
    return number < pins.capacity and pins.pins[number].first == first


cdef inline int pins_grow(Pins *pins) noexcept nogil:
    """Allocate pins that are not in use; return -1 when there is no memory."""
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
    """Return a pin for an entry that has none, with count 0; there is one that is not in use."""
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
