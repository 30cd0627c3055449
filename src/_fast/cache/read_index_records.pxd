"""The cached entries of all segments as records in lists, in plain C.

Owns: the records by number, and the lists of those that may be evicted.

A record is in at most one list; ``next`` is 0 when it is in none. A list is a ring that starts and
ends at a head, which is also a record, so a record is removed without a search. A record number is
valid until ``record_free``. A pointer to a record is valid until the next ``record_take``, which
may move all records.

Invariants:
1. There is one list for each of the latest GENERATIONS generations. Records of older generations
   are moved to the front of the oldest list and keep their order. Held by
   ``test_generations_that_are_not_told_apart_any_more_keep_their_order``.
2. Within a list, the record that was added first is evicted first. Held by ``TestEntries``.
"""

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport realloc

cdef enum:
    # Number of lists. The caller lets unused entries expire after fewer generations.
    GENERATIONS = 2048
    HISTORY_HEAD = GENERATIONS + 1
    CONSUMED_HEAD = GENERATIONS + 2
    RECORDS_FIRST = GENERATIONS + 3
    LENGTH_MASK = 0x3FFFFFF
    # The bytes came from tier 2, for a read of history.
    HISTORY = 0x80000000


cdef struct Record:
    int64_t offset
    uint32_t address
    uint32_t length  # combined with HISTORY
    uint32_t generation  # of the last use
    uint32_t previous
    uint32_t next
    uint32_t owner


cdef struct Records:
    # Number 0 stands for none; the heads of the lists follow.
    Record *all
    uint32_t capacity
    uint32_t unused  # the first unused record; these are chained by `previous`
    uint32_t in_use
    uint32_t current  # generation
    # The lists of all earlier generations are empty.
    uint32_t oldest
    uint64_t history_bytes
    uint64_t evictable_bytes


cdef struct Owner:
    void *entries  # NULL in an unused number
    uint32_t next  # unused number


cdef struct Owners:
    # Number 0 stands for no owner.
    Owner *all
    uint32_t capacity
    uint32_t unused


cdef inline uint32_t length_of(const Record *record) noexcept nogil:
    return record.length & LENGTH_MASK


cdef inline int64_t end_of(const Record *record) noexcept nogil:
    return record.offset + length_of(record)


cdef inline uint32_t head_of(uint32_t generation) noexcept nogil:
    return generation % GENERATIONS + 1


cdef inline int records_grow(Records *records) noexcept nogil:
    """Allocate unused records; return -1 without memory."""
    cdef uint32_t number = records.capacity
    cdef uint32_t capacity = 2 * number if number else 2 * RECORDS_FIRST
    cdef void *grown
    if capacity < number:
        return -1
    grown = realloc(records.all, capacity * sizeof(Record))
    if grown == NULL:
        return -1
    records.all = <Record *>grown
    while number < capacity:
        records.all[number].next = 0
        records.all[number].owner = 0
        if number < RECORDS_FIRST:
            records.all[number].previous = records.all[number].next = number
        number += 1
    number = records.capacity if records.capacity else RECORDS_FIRST
    records.capacity = capacity
    # The lowest is used first: neighbours in time are neighbours in memory.
    while capacity > number:
        capacity -= 1
        records.all[capacity].previous = records.unused
        records.unused = capacity
    return 0


cdef inline uint32_t record_take(Records *records) noexcept nogil:
    """Return an unused record; 0 without memory."""
    cdef uint32_t number
    if records.unused == 0 and records_grow(records) != 0:
        return 0
    number = records.unused
    records.unused = records.all[number].previous
    records.all[number].next = 0
    records.in_use += 1
    return number


cdef inline void record_free(Records *records, uint32_t number) noexcept nogil:
    """Free a record that is in no list."""
    records.all[number].owner = 0
    records.all[number].previous = records.unused
    records.unused = number
    records.in_use -= 1


cdef inline void link_behind(Records *records, uint32_t head, uint32_t number) noexcept nogil:
    """Link a record to a list's end."""
    cdef uint32_t last = records.all[head].previous
    records.all[number].previous = last
    records.all[number].next = head
    records.all[last].next = number
    records.all[head].previous = number


cdef inline void unlink(Records *records, uint32_t number) noexcept nogil:
    cdef Record *record = &records.all[number]
    records.all[record.previous].next = record.next
    records.all[record.next].previous = record.previous
    record.next = 0


cdef inline void enlist(Records *records, uint32_t number, bint consumed) noexcept nogil:
    """Make the entry evictable, because tier 2 has all of it."""
    cdef Record *record = &records.all[number]
    cdef uint32_t generation = record.generation
    records.evictable_bytes += length_of(record)
    if record.length & HISTORY:
        link_behind(records, CONSUMED_HEAD if consumed else HISTORY_HEAD, number)
        return
    if records.current - generation >= GENERATIONS:
        generation = records.current - (GENERATIONS - 1)
    if generation < records.oldest:
        records.oldest = generation
    link_behind(records, head_of(generation), number)


cdef inline void delist(Records *records, uint32_t number) noexcept nogil:
    """Make the entry unevictable."""
    if records.all[number].next:
        records.evictable_bytes -= length_of(&records.all[number])
        unlink(records, number)


cdef inline void touch(Records *records, uint32_t number, bint consumed) noexcept nogil:
    """Record a use of the entry; ``consumed`` tells that it was read up to its end."""
    cdef Record *record = &records.all[number]
    cdef bint enlisted = record.next != 0
    if record.generation == records.current and not record.length & HISTORY:
        return
    record.generation = records.current
    if enlisted:
        delist(records, number)
        enlist(records, number, consumed)


cdef inline void next_generation(Records *records) noexcept nogil:
    """Make the list of the oldest generation that of a new one."""
    cdef Record *all = records.all
    cdef uint32_t head, heir, first, last
    records.current += 1
    head = head_of(records.current)
    heir = head_of(records.current + 1)
    if records.current >= GENERATIONS and records.oldest <= records.current - GENERATIONS:
        records.oldest = records.current - GENERATIONS + 1
    first = all[head].next
    if first == head:
        return
    last = all[head].previous
    # The records go in front of those of the next generation.
    all[last].next = all[heir].next
    all[all[heir].next].previous = last
    all[heir].next = first
    all[first].previous = heir
    all[head].next = all[head].previous = head


cdef inline uint32_t oldest_record(Records *records, uint32_t generation_end) noexcept nogil:
    """Return the first record of the oldest non-empty list before ``generation_end``, or 0."""
    cdef uint32_t head, end = min(generation_end, records.current + 1)
    while records.oldest < end:
        head = head_of(records.oldest)
        if records.all[head].next != head:
            return records.all[head].next
        records.oldest += 1
    return 0


cdef inline uint32_t first_in(const Records *records, uint32_t head) noexcept nogil:
    """Return the first record of a list; 0 when it is empty."""
    cdef uint32_t number = records.all[head].next
    return 0 if number == head else number


cdef inline int owners_grow(Owners *owners) noexcept nogil:
    """Allocate unused numbers; return -1 without memory."""
    cdef uint32_t number = owners.capacity if owners.capacity else 1
    cdef uint32_t capacity = 2 * owners.capacity if owners.capacity else 64
    cdef void *grown = NULL
    if capacity > number:
        grown = realloc(owners.all, capacity * sizeof(Owner))
    if grown == NULL:
        return -1
    owners.all = <Owner *>grown
    owners.capacity = capacity
    while capacity > number:
        capacity -= 1
        owners.all[capacity].entries = NULL
        owners.all[capacity].next = owners.unused
        owners.unused = capacity
    return 0


cdef inline uint32_t owner_enter(Owners *owners, void *entries) noexcept nogil:
    """Return a number for a segment's entries; 0 without memory."""
    cdef uint32_t number
    if owners.unused == 0 and owners_grow(owners) != 0:
        return 0
    number = owners.unused
    owners.unused = owners.all[number].next
    owners.all[number].entries = entries
    return number


cdef inline void owner_leave(Owners *owners, uint32_t number) noexcept nogil:
    owners.all[number].entries = NULL
    owners.all[number].next = owners.unused
    owners.unused = number
