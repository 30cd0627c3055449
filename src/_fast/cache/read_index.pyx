"""The cached byte ranges of segments: sorted within a segment, listed by generation across all.

Owns: the places in the streaming cache of each segment's bytes; the time of the last use of each
entry, and the entries that may be evicted. read_index_tree.pxd has the trees,
read_index_records.pxd the lists.

Invariants:
1. The entries of a segment do not overlap. An entry belongs to one segment, and its cache memory is
   freed when the entry is removed. Held by ``TestEntries``.
2. An entry can be evicted only if tier 2 has all of its bytes: ``set_stored_length`` said so, or
   they were read from tier 2. Held by ``test_only_what_tier_2_has_is_evicted``. An append to such
   an entry protects it from eviction again. Held by
   ``test_an_entry_that_grows_again_is_not_evicted_any_more``.
3. Eviction takes time in proportion to the number of evicted entries, however many entries are
   cached. Held by ``test_eviction_looks_at_nothing_but_what_it_evicts``.
4. When the cache is full, an append may evict entries, but not the entry that it extends. Held by
   ``test_an_append_may_evict_to_make_room_but_never_what_it_extends``.
5. When an append or insertion raises, no entry has changed, except for entries that were evicted to
   make room. Held by ``test_an_append_without_room_changes_nothing``.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport INT64_MAX, int64_t, uint32_t, uint64_t
from libc.stdlib cimport free

from _fast.cache.streaming_cache cimport StreamingCache
from _fast.cache.pool cimport pool_used
from _fast.cache.read_index_records cimport (
    CONSUMED_HEAD, GENERATIONS, HISTORY, HISTORY_HEAD, LENGTH_MASK, RECORDS_FIRST, Record, Records,
    delist, end_of, enlist, first_in, length_of, next_generation, oldest_record, owner_enter,
    owner_leave, record_free, record_take, records_grow, touch,
)
from _fast.cache.read_index_tree cimport (
    Place, node_audit, place_next, place_previous, place_settle, tree_first, tree_insert, tree_last,
    tree_remove, tree_seek,
)

cdef enum:
    # Maximum bytes of an entry that appends extend.
    ENTRY_BYTES = 131072
    # An entry that will be stored now is extended as long as it is shorter than this.
    ENDED_BYTES = 16384

ENTRY_BYTES_MAX = ENTRY_BYTES
GENERATIONS_MAX = GENERATIONS


@cython.final
@cython.no_gc_clear  # entries that go away later still need it
cdef class Generations:
    """See read_index.pyi."""

    def __cinit__(self, StreamingCache cache not None):
        self.cache = cache
        if records_grow(&self._records) != 0:
            raise MemoryError("no memory for cache entries")

    def __dealloc__(self):
        free(self._records.all)
        free(self._owners.all)

    @property
    def current(self):
        """Return the present generation."""
        return self._records.current

    @property
    def oldest(self):
        """Return the generation before which no evictable appended entry was used last."""
        oldest_record(&self._records, self._records.current)
        return min(self._records.oldest, self._records.current)

    @property
    def entry_count(self):
        """Return how many entries all segments have."""
        return self._records.in_use

    @property
    def evictable_bytes(self):
        """Return the number of bytes of entries that may be evicted."""
        return self._records.evictable_bytes

    @property
    def history_bytes(self):
        """Return the bytes of entries that came from tier 2 for reads of history."""
        return self._records.history_bytes

    @property
    def memory_bytes(self):
        """Return the bytes of the records of all entries, without the trees' nodes."""
        return self._records.capacity * sizeof(Record)

    def advance(self, uint32_t count=1):
        """Begin ``count`` generations; those before the latest ``GENERATIONS_MAX`` share a list."""
        cdef uint32_t _step
        for _step in range(min(count, <uint32_t>GENERATIONS)):
            next_generation(&self._records)

    def evict(
        self,
        *,
        uint64_t used_bytes_max,
        uint32_t count_max,
        uint32_t generation_end=0xFFFFFFFF,
        uint64_t history_bytes_min=0,
    ):
        """Evict entry by entry until the cache uses so little; return the number of entries."""
        cdef Records *records = &self._records
        cdef uint32_t number, count = 0
        while count < count_max and pool_used(&self.cache._pool) > used_bytes_max:
            number = first_in(records, CONSUMED_HEAD)
            if number == 0 and records.history_bytes > history_bytes_min:
                number = first_in(records, HISTORY_HEAD)
            if number == 0:
                number = oldest_record(records, generation_end)
            if number == 0:
                break
            self._drop(number)
            count += 1
        return count

    def expire(self, uint32_t generation_end, *, uint32_t count_max):
        """Evict entries that were last used before a generation; return their number."""
        cdef Records *records = &self._records
        cdef uint32_t number, count = 0
        while count < count_max:
            number = first_in(records, CONSUMED_HEAD)
            if number == 0 or records.all[number].generation >= generation_end:
                number = first_in(records, HISTORY_HEAD)
            if number == 0 or records.all[number].generation >= generation_end:
                number = oldest_record(records, generation_end)
            if number == 0:
                break
            self._drop(number)
            count += 1
        return count

    cdef int _drop(self, uint32_t number) except -1:
        """Evict an entry."""
        cdef const Record *record = &self._records.all[number]
        cdef SegmentEntries owner = <SegmentEntries>self._owners.all[record.owner].entries
        cdef Place place
        self.evicted_bytes += length_of(record)
        self.evicted_count += 1
        owner._seek(record.offset, &place)
        return owner._remove(&place)


@cython.final
@cython.no_gc_clear  # the cache is needed when the entries go away
cdef class SegmentEntries:
    """See read_index.pyi."""

    def __cinit__(self, Generations generations not None):
        self._owner = owner_enter(&generations._owners, <void *>self)
        if self._owner == 0:
            raise MemoryError("no memory for a segment's cache entries")
        self.generations = generations

    def __dealloc__(self):
        cdef Place place
        if self.generations is None:
            return
        while tree_first(&self._tree, &place):
            try:
                self._remove(&place)
            except BaseException:
                # No caller can receive an exception here. The entry is forgotten, and the cache's
                # next call raises.
                continue
        owner_leave(&self.generations._owners, self._owner)

    def __len__(self):
        return self._tree.count

    @property
    def steps(self):
        """Return the number of nodes visited and slots moved so far."""
        return self._tree.steps

    @property
    def memory_bytes(self):
        """Return the number of bytes of the tree's nodes and of the entries' records."""
        return self._tree.node_bytes + self._tree.count * sizeof(Record)

    @property
    def end(self):
        """Return the end of the last entry; 0 when there is none."""
        return end_of(&self.generations._records.all[self._last]) if self._last else 0

    def entries(self):
        """Return offset, length and generation of every entry, in order."""
        cdef Place place
        cdef const Record *record
        cdef list result = []
        if tree_first(&self._tree, &place):
            while True:
                record = &self.generations._records.all[place.leaf.numbers[place.slot]]
                result.append((record.offset, length_of(record), record.generation))
                if not place_next(&self._tree, &place):
                    break
        return result

    def append(self, int64_t offset, data not None):
        """Add new bytes at the end of the segment."""
        cdef Py_buffer source
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        try:
            self.append_bytes(offset, <const unsigned char *>source.buf, source.len)
        finally:
            PyBuffer_Release(&source)

    cdef int append_bytes(
        self, int64_t offset, const unsigned char *data, Py_ssize_t length
    ) except -1:
        cdef Records *records = &self.generations._records
        cdef StreamingCache cache = self.generations.cache
        cdef Record *record = NULL
        cdef uint32_t address, number = self._last
        cdef int64_t end = 0
        if length == 0:
            return 0
        if number:
            record = &records.all[number]
            end = end_of(record)
        if offset < end:
            raise ValueError(f"bytes at {offset} cannot be appended to those up to {end}")
        if (
            number == 0
            or number == self._ended
            or offset > end
            or length_of(record) + length > ENTRY_BYTES
        ):
            address = cache.insert_bytes(data, length)
            return self._add(offset, address, <uint32_t>length)
        if record.next:
            # The entry must not be evicted now to make room for its own new bytes.
            delist(records, number)
            try:
                address = cache.append_bytes(record.address, data, length)
            except BaseException:
                enlist(records, number, False)
                raise
        else:
            address = cache.append_bytes(record.address, data, length)
        # Making room may have allocated records, too.
        record = &records.all[number]
        self._forget_history(record)
        record.address = address
        record.length += <uint32_t>length
        record.generation = records.current
        if end_of(record) <= self._stored:
            enlist(records, number, False)
        return 0

    def insert(self, int64_t offset, data not None):
        """Add bytes that were read from tier 2; return whether none of these bytes was cached
        yet."""
        cdef Py_buffer source
        cdef uint32_t address
        PyObject_GetBuffer(data, &source, PyBUF_SIMPLE)
        cdef const unsigned char *start = <const unsigned char *>source.buf
        try:
            if source.len == 0 or not self._is_free(offset, offset + source.len):
                return False
            address = self.generations.cache.insert_bytes(start, source.len)
            self._add(offset, address, <uint32_t>source.len | <uint32_t>HISTORY)
            return True
        finally:
            PyBuffer_Release(&source)

    cdef int _add(self, int64_t offset, uint32_t address, uint32_t length) except -1:
        """Add an entry that the cache holds, or free it in the cache."""
        cdef Records *records = &self.generations._records
        cdef uint32_t number = record_take(records)
        cdef Record *record = &records.all[number]
        if number == 0 or tree_insert(&self._tree, offset, number) != 0:
            if number:
                record_free(records, number)
            self.generations.cache.delete_entry(address)
            raise MemoryError("no memory for a cache entry")
        record.offset = offset
        record.address = address
        record.length = length
        record.generation = records.current
        record.owner = self._owner
        if length & HISTORY:
            records.history_bytes += length_of(record)
        if length & HISTORY or end_of(record) <= self._stored:
            enlist(records, number, False)
        if self._last == 0 or offset > records.all[self._last].offset:
            self._last = number
            self._ended = 0
        return 0

    def end_last(self):
        """End the last entry: the next append begins another, unless the last one is short."""
        if self._last and length_of(&self.generations._records.all[self._last]) >= ENDED_BYTES:
            self._ended = self._last

    def set_stored_length(self, int64_t stored_length):
        """Record that tier 2 has all bytes up to an offset; return whether these are all bytes."""
        cdef Records *records = &self.generations._records
        cdef Record *record
        cdef Place place
        cdef uint32_t number
        if self._last == 0:
            self._stored = max(self._stored, stored_length)
            return True
        if stored_length > self._stored:
            if not self._seek(self._stored, &place):
                tree_first(&self._tree, &place)
            self._stored = stored_length
            while True:
                number = place.leaf.numbers[place.slot]
                record = &records.all[number]
                if end_of(record) > stored_length:
                    break
                if record.next == 0:
                    enlist(records, number, False)
                if not place_next(&self._tree, &place):
                    break
        return end_of(&records.all[self._last]) <= self._stored

    def adopt_entries(self, SegmentEntries source not None, int64_t shift):
        """Move another segment's entries into this one, ``shift`` bytes further on."""
        cdef Records *records = &self.generations._records
        cdef Record *record
        cdef Place place
        cdef uint32_t number
        if source is self or source.generations is not self.generations:
            raise ValueError("entries move between segments of the same cache")
        while tree_first(&source._tree, &place):
            number = place.leaf.numbers[place.slot]
            record = &records.all[number]
            if not self._is_free(record.offset + shift, end_of(record) + shift):
                source._remove(&place)
                continue
            if tree_insert(&self._tree, record.offset + shift, number) != 0:
                raise MemoryError("no memory for a cache entry")
            tree_remove(&source._tree, &place)
            record.offset += shift
            record.owner = self._owner
            if self._last == 0 or record.offset > records.all[self._last].offset:
                self._last = number
            delist(records, number)
            self._forget_history(record)
            if end_of(record) <= self._stored:
                enlist(records, number, False)
        source._last = 0

    def gather(self, int64_t offset, Py_ssize_t length_max, bint use=True):
        """Return a copy of the contiguous cached bytes from ``offset`` on."""
        cdef Records *records = &self.generations._records
        cdef const Record *record
        cdef Place first, place
        cdef uint32_t number
        cdef Py_ssize_t length = 0, skipped, part, done = 0
        cdef bint history = False
        cdef bytes result
        cdef unsigned char *target
        self.read_history = False
        if length_max <= 0 or not self._seek(offset, &first):
            return b""
        place = first
        skipped = offset - records.all[place.leaf.numbers[place.slot]].offset
        part = skipped
        while True:
            number = place.leaf.numbers[place.slot]
            record = &records.all[number]
            if record.offset + part != offset + length or part >= length_of(record):
                break
            history |= record.length & HISTORY != 0
            length += length_of(record) - part
            if use:
                touch(records, number, length <= length_max)
            part = 0
            if length >= length_max or not place_next(&self._tree, &place):
                break
        length = min(length, length_max)
        result = PyBytes_FromStringAndSize(NULL, length)
        target = <unsigned char *>PyBytes_AS_STRING(result)
        place = first
        while done < length:
            record = &records.all[place.leaf.numbers[place.slot]]
            part = min(<Py_ssize_t>length_of(record) - skipped, length - done)
            self.generations.cache.get_bytes(record.address, target + done, skipped, part)
            skipped = 0
            done += part
            place_next(&self._tree, &place)
        self.read_history = history
        return result

    def views(self, int64_t offset, Py_ssize_t length_max):
        """Return the bytes as read-only memory views; this neither copies nor counts as a use."""
        cdef Records *records = &self.generations._records
        cdef const Record *record
        cdef Place place
        cdef Py_ssize_t skipped, part
        cdef list result = []
        # Looked up for each entry, because making objects may run any code.
        while length_max > 0 and self._seek(offset, &place):
            record = &records.all[place.leaf.numbers[place.slot]]
            skipped = offset - record.offset
            part = min(<Py_ssize_t>length_of(record) - skipped, length_max)
            if part <= 0:
                break
            result += self.generations.cache.get_views(record.address, skipped, part)
            offset += part
            length_max -= part
        return result

    def cached_end(self, int64_t offset, int64_t limit=INT64_MAX):
        """Return the end of the contiguous cached bytes from ``offset`` on, up to ``limit``."""
        cdef const Record *record
        cdef Place place
        if not self._seek(offset, &place):
            return offset
        while offset < limit:
            record = &self.generations._records.all[place.leaf.numbers[place.slot]]
            if not record.offset <= offset < end_of(record):
                break
            offset = end_of(record)
            if not place_next(&self._tree, &place):
                break
        return offset

    def next_cached_offset(self, int64_t offset):
        """Return the first offset of an entry at or after ``offset``; None when there is none."""
        cdef Place place
        if not tree_seek(&self._tree, offset - 1, &place) or not place_settle(&self._tree, &place):
            return None
        return place.leaf.node.offsets[place.slot]

    def drop_before(self, int64_t offset):
        """Free entries that lie wholly before ``offset``."""
        cdef Place place
        while tree_first(&self._tree, &place):
            if end_of(&self.generations._records.all[place.leaf.numbers[place.slot]]) > offset:
                break
            self._remove(&place)

    def clear(self):
        """Free everything."""
        cdef Place place
        while tree_first(&self._tree, &place):
            self._remove(&place)

    cdef bint _seek(self, int64_t offset, Place *place) noexcept:
        """Find the last entry that begins at or before ``offset``; return whether there is one."""
        return tree_seek(&self._tree, offset, place) and place_previous(&self._tree, place)

    cdef bint _is_free(self, int64_t offset, int64_t end) noexcept:
        """Return whether no entry has any of these bytes."""
        cdef const Record *record
        cdef Place place
        if not self._seek(end - 1, &place):
            return True
        record = &self.generations._records.all[place.leaf.numbers[place.slot]]
        return end_of(record) <= offset

    cdef int _remove(self, Place *place) except -1:
        """Drop the entry at the place, which is invalid afterwards."""
        cdef Records *records = &self.generations._records
        cdef uint32_t number = place.leaf.numbers[place.slot]
        cdef Record *record = &records.all[number]
        cdef uint32_t address = record.address
        tree_remove(&self._tree, place)
        if number == self._last:
            self._last = 0
            if tree_last(&self._tree, place):
                self._last = place.leaf.numbers[place.slot]
        delist(records, number)
        self._forget_history(record)
        record_free(records, number)
        self.generations.cache.delete_entry(address)
        return 0

    cdef void _forget_history(self, Record *record) noexcept:
        """Forget that the entry, which is in no list, came from tier 2."""
        if record.length & HISTORY:
            self.generations._records.history_bytes -= length_of(record)
        record.length &= <uint32_t>LENGTH_MASK

    def check(self):
        """Raise ``AssertionError`` if the entries break an invariant. Slow."""
        cdef Records *records = &self.generations._records
        cdef const Record *record
        cdef const char *problem
        cdef Place place
        cdef uint32_t number = 0, found = 0
        cdef int64_t end = 0
        if self._tree.root != NULL:
            problem = node_audit(&self._tree, self._tree.root, 0, -1, INT64_MAX, &found)
            if problem != NULL:
                raise AssertionError(problem.decode())
        if found != self._tree.count:
            raise AssertionError(f"{found} entries found, {self._tree.count} counted")
        if tree_first(&self._tree, &place):
            while True:
                number = place.leaf.numbers[place.slot]
                record = &records.all[number]
                if (
                    record.offset != place.leaf.node.offsets[place.slot]
                    or record.offset < end
                    or record.owner != self._owner
                    or number < RECORDS_FIRST
                ):
                    raise AssertionError(f"the entry at {record.offset} is not in its place")
                end = end_of(record)
                if self.generations.cache.length(record.address) != length_of(record):
                    raise AssertionError(f"the cache disagrees about the entry at {record.offset}")
                if (record.next != 0) != (end <= self._stored or record.length & HISTORY != 0):
                    raise AssertionError(f"the entry at {record.offset} is wrongly enlisted")
                if not place_next(&self._tree, &place):
                    break
        if number != self._last:
            raise AssertionError("the last entry is another")
