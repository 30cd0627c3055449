"""Records changes of the index that no index page has yet.

Owns: the replacements of leaves since the index was last written, as a log of entries, and applied
to the pages just above the leaves, each known by its offset in storage. An update that does not
write the index writes a delta: a record of the entries that it added to the log, with the entries
of earlier records wherever the chain of records would get too long otherwise.

The pages above the lowest index level are as they lie in storage, except that their lowest offsets
may be too low. An entry replaces one record of a page by any number of records; the first keeps the
old one's key.

Invariants:
1. The index in storage, with the log applied to it, gives the present tree. After a restart the
   records are read back and applied, with the same result. Held by ``TestTreeModel``.
2. Record number n repeats the entries from update n - b + 1 on, where b is the lowest bit of n, and
   has a link to the record with the entries before these. So a restart reads at most as many
   records as n has bits: two for record 3. Held by
   ``test_every_changed_byte_of_a_page_or_delta_is_refused``.
3. The first record of a changed page has the lowest key that belongs to the page, also when the
   pages before it are gone. Held by ``test_a_first_key_is_lowered_where_a_delta_needs_it``.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset

from _fast.btree.cache cimport PageCache, page_at
from _fast.btree.page cimport (
    DELTA_LEVEL,
    HEADER_BYTES,
    Footer,
    Pointer,
    load16,
    load32,
    load64,
    page_count,
    record_bytes,
    store16,
    store32,
    store64,
    store_pointer,
    write_delta_header,
)
from _fast.crc cimport crc32c_of

from _fast.btree.page import CorruptPageError

cdef enum:
    NONE = -1
    BUCKETS_MIN = 64


cdef inline uint64_t spread(uint64_t offset) noexcept nogil:
    cdef uint64_t hashed = offset * <uint64_t>0x9E3779B97F4A7C15
    return hashed ^ (hashed >> 32)


cdef class Deltas:
    """The log of one tree."""

    def __cinit__(self, Py_ssize_t key_length):
        self.key_length = key_length
        self.stride = record_bytes(1, key_length)
        self.awaited = []
        self._records = {}
        self.lowest = <uint64_t>-1

    def __dealloc__(self):
        self.clear()
        free(self.log)
        free(self.changed)
        free(self._buckets)
        free(self._splices)

    cdef void clear(self) noexcept:
        """Record that the index was written."""
        cdef int32_t index
        for index in range(self.changed_count):
            free(self.changed[index].records)
        self.changed_count = 0
        self._splice_count = 0
        self.log_bytes = 0
        self.changed_bytes = 0
        self.lowest = <uint64_t>-1
        self.number = 0
        self._link_count = 0
        if self._buckets != NULL:
            memset(self._buckets, 0xFF, (<size_t>self._mask + 1) * sizeof(int32_t))

    # ---- Reading records back ----

    cdef int restore(self, Footer footer) except -1:
        """Restore the changes from the records before a footer, once these are admitted."""
        self.clear()
        self.awaited = []
        self._records = {}
        self.number = footer.delta_number
        self._root_offset = footer.root_offset
        if footer.delta_number:
            self.awaited.append((footer.delta_offset, footer.delta_length, DELTA_LEVEL))
        return 0

    cdef int admit(self, object record, uint64_t offset) except -1:
        """Add a record that was read and checked; when none is missing, apply all."""
        cdef list left
        if not any(offset == awaited[0] for awaited in self.awaited):
            return 0
        left = [awaited for awaited in self.awaited if awaited[0] != offset]
        if not self._records:
            left = self.followed(record, offset)
        self._records[offset] = record
        self.awaited = left
        if not left:
            self._replay()
            self._records = {}
        return 0

    cdef list followed(self, object record, uint64_t offset):
        """Return the records that precede a record."""
        cdef const unsigned char *link = <const unsigned char *>PyBytes_AS_STRING(record)
        cdef Py_ssize_t count
        cdef uint64_t before = offset
        cdef list found = []
        link += HEADER_BYTES
        if PyBytes_GET_SIZE(record) < HEADER_BYTES + DELTA_HEAD_BYTES:
            raise CorruptPageError(offset, "the delta is too short")
        count = load16(link + 12)
        if (
            load64(link) != self._root_offset
            or load32(link + 8) != self.number
            or count >= LINKS_MAX
            or PyBytes_GET_SIZE(record) < HEADER_BYTES + DELTA_HEAD_BYTES + count * LINK_BYTES
        ):
            raise CorruptPageError(offset, "the delta belongs to another tree")
        link += DELTA_HEAD_BYTES
        for _ in range(count):
            found.append((load64(link + 8), load32(link + 4), DELTA_LEVEL))
            link += LINK_BYTES
        for later in reversed(found):
            if later[0] + later[1] > before:
                raise CorruptPageError(offset, "the delta names one that is behind it")
            before = later[0]
        return found

    cdef int _replay(self) except -1:
        """Apply the records, the oldest first."""
        cdef const unsigned char *body
        cdef Py_ssize_t length, count
        cdef Link *link
        for offset in sorted(self._records):
            record = self._records[offset]
            body = <const unsigned char *>PyBytes_AS_STRING(record) + HEADER_BYTES
            length = PyBytes_GET_SIZE(record) - HEADER_BYTES - DELTA_HEAD_BYTES
            count = load16(body + 12) if length >= 0 else LINKS_MAX
            length -= count * LINK_BYTES
            if length < 0 or count != self._link_count or load64(body) != self._root_offset:
                raise CorruptPageError(offset, "the delta does not follow on those before it")
            self._append_log(body + DELTA_HEAD_BYTES + count * LINK_BYTES, length, offset)
            link = self._links + self._link_count
            link.number = load32(body + 8)
            link.length = <uint32_t>PyBytes_GET_SIZE(record)
            link.offset = offset
            link.log_end = self.log_bytes
            self._link_count += 1
        return 0

    # ---- Looking at pages ----

    cdef Changed *find(self, uint64_t offset) noexcept:
        """Return the changed page at an offset, or NULL."""
        cdef int32_t index
        if self.changed_count == 0:
            return NULL
        index = self._buckets[spread(offset) & self._mask]
        while index != NONE:
            if self.changed[index].offset == offset:
                return self.changed + index
            index = self.changed[index].next
        return NULL

    cdef bint view(
        self,
        PageCache cache,
        uint32_t owner,
        dict held,
        Pointer child,
        int level,
        View *view,
    ) except -1:
        """Show the present records of a page, or return false if the page must be read first.

        The view ends when a page is admitted, an update is committed, or ``held`` goes away.
        """
        cdef Changed *changed = NULL
        cdef const unsigned char *page
        if level == 1:
            changed = self.find(child.offset)
        if changed == NULL or changed.records == NULL:
            page = page_at(cache, owner, held, child.offset, child.length, level)
            if page == NULL:
                return False
            if changed == NULL:
                view.page = page
                view.records = page + HEADER_BYTES
                view.count = page_count(page)
                return True
            self._build_records(changed, page)
        view.page = NULL
        view.records = changed.records
        view.count = changed.count
        return True

    cdef int _build_records(self, Changed *changed, const unsigned char *page) except -1:
        """Apply the recorded changes to a page."""
        cdef int32_t splice
        changed.count = 0
        self._reserve(changed, page_count(page) + 8)
        changed.count = page_count(page)
        memcpy(changed.records, page + HEADER_BYTES, <size_t>(changed.count * self.stride))
        splice = changed.first_splice
        try:
            while splice != NONE:
                self._splice(changed, self._splices[splice].position)
                splice = self._splices[splice].next
        except BaseException:
            self._forget_records(changed)
            raise
        changed.first_splice = changed.last_splice = NONE
        return 0

    cdef void _forget_records(self, Changed *changed) noexcept:
        free(changed.records)
        changed.records = NULL
        self.changed_bytes -= changed.capacity * self.stride
        changed.capacity = 0

    # ---- Adding to the log ----

    cdef int _links_kept(self) noexcept:
        """Return how many records the next one links to."""
        cdef uint32_t number = self.number + 1
        cdef uint32_t base = number & (number - 1)
        cdef int kept = self._link_count
        while kept and self._links[kept - 1].number > base:
            kept -= 1
        return kept

    cdef object encode(self, bytes entries, uint64_t offset, uint64_t root_offset):
        """Return the record that an update with these entries writes at an offset."""
        cdef int kept = self._links_kept()
        cdef Py_ssize_t begin = self._links[kept - 1].log_end if kept else 0
        cdef Py_ssize_t length = HEADER_BYTES + DELTA_HEAD_BYTES + kept * LINK_BYTES
        cdef Py_ssize_t repeated = self.log_bytes - begin
        cdef unsigned char *to
        cdef int index
        length += repeated + PyBytes_GET_SIZE(entries)
        record = PyBytes_FromStringAndSize(NULL, length)
        to = <unsigned char *>PyBytes_AS_STRING(record) + HEADER_BYTES
        store64(to, root_offset)
        store32(to + 8, self.number + 1)
        store16(to + 12, <uint16_t>kept)
        to += DELTA_HEAD_BYTES
        for index in range(kept):
            store32(to, self._links[index].number)
            store32(to + 4, self._links[index].length)
            store64(to + 8, self._links[index].offset)
            to += LINK_BYTES
        if repeated:
            memcpy(to, self.log + begin, <size_t>repeated)
        memcpy(to + repeated, PyBytes_AS_STRING(entries), <size_t>PyBytes_GET_SIZE(entries))
        to = <unsigned char *>PyBytes_AS_STRING(record)
        write_delta_header(
            to,
            length,
            self.key_length,
            offset,
            crc32c_of(to + HEADER_BYTES, <size_t>(length - HEADER_BYTES), 0),
        )
        return record

    cdef int append(self, bytes entries, uint64_t offset, Py_ssize_t length) except -1:
        """Record a committed update, whose record of that length is at an offset."""
        cdef Link *link
        self._link_count = self._links_kept()
        self.number += 1
        self._append_log(
            <const unsigned char *>PyBytes_AS_STRING(entries), PyBytes_GET_SIZE(entries), offset
        )
        link = self._links + self._link_count
        link.number = self.number
        link.length = <uint32_t>length
        link.offset = offset
        link.log_end = self.log_bytes
        self._link_count += 1
        return 0

    cdef int _append_log(
        self, const unsigned char *entries, Py_ssize_t length, uint64_t offset
    ) except -1:
        """Apply entries from a record at an offset."""
        cdef Py_ssize_t position = self.log_bytes
        cdef Py_ssize_t end = position + length
        cdef Py_ssize_t entry_bytes
        cdef Py_ssize_t added
        cdef const unsigned char *entry
        if end > self._log_capacity:
            log = <unsigned char *>realloc(self.log, <size_t>(2 * end))
            if log == NULL:
                raise MemoryError("no room for the changes of the index")
            self.log = log
            self._log_capacity = 2 * end
        memcpy(self.log + position, entries, <size_t>length)
        self.log_bytes = end
        while position < end:
            entry = self.log + position
            entry_bytes = end - position + 1
            if end - position >= ENTRY_BYTES:
                added = load16(entry + 10)
                entry_bytes = ENTRY_BYTES + added * (self.key_length + 10)
                if added:
                    entry_bytes -= self.key_length
                if entry[12]:
                    entry_bytes += self.key_length
            if position + entry_bytes > end:
                raise CorruptPageError(offset, "the delta's entries are longer than it")
            self._apply(position)
            position += entry_bytes
        return 0

    cdef int _apply(self, Py_ssize_t position) except -1:
        """Apply one entry now, or queue it until its page is needed."""
        cdef const unsigned char *entry = self.log + position
        cdef uint64_t offset = load64(entry)
        cdef Changed *changed = self.find(offset)
        if changed == NULL:
            if not entry[12]:
                raise CorruptPageError(offset, "a delta changes the page and does not tell its key")
            changed = self._add(offset, position + ENTRY_BYTES)
        if changed.records == NULL:
            self._queue(changed, position)
        else:
            self._splice(changed, position)
        return 0

    cdef Changed *_add(self, uint64_t offset, Py_ssize_t key_position) except NULL:
        """Begin to record the changes of a page."""
        cdef int32_t index
        cdef int32_t capacity
        cdef Changed *changed
        cdef int32_t *bucket
        if self.changed_count == self._changed_capacity:
            capacity = max(2 * self._changed_capacity, BUCKETS_MIN)
            all_changed = <Changed *>realloc(self.changed, <size_t>capacity * sizeof(Changed))
            if all_changed == NULL:
                raise MemoryError("no room for the changes of the index")
            self.changed = all_changed
            buckets = <int32_t *>realloc(self._buckets, <size_t>capacity * sizeof(int32_t))
            if buckets == NULL:
                raise MemoryError("no room for the changes of the index")
            self._buckets = buckets
            self._changed_capacity = capacity
            self._mask = <uint64_t>capacity - 1
            memset(buckets, 0xFF, <size_t>capacity * sizeof(int32_t))
            for index in range(self.changed_count):
                bucket = buckets + (spread(self.changed[index].offset) & self._mask)
                self.changed[index].next = bucket[0]
                bucket[0] = index
        changed = self.changed + self.changed_count
        bucket = self._buckets + (spread(offset) & self._mask)
        memset(changed, 0, sizeof(Changed))
        changed.offset = offset
        changed.key_position = key_position
        changed.first_splice = changed.last_splice = NONE
        changed.next = bucket[0]
        bucket[0] = self.changed_count
        self.changed_count += 1
        self.lowest = min(self.lowest, offset)
        return changed

    cdef int _queue(self, Changed *changed, Py_ssize_t position) except -1:
        """Keep an entry until its page is needed."""
        cdef int32_t capacity
        if self._splice_count == self._splice_capacity:
            capacity = max(2 * self._splice_capacity, BUCKETS_MIN)
            splices = <Splice *>realloc(self._splices, <size_t>capacity * sizeof(Splice))
            if splices == NULL:
                raise MemoryError("no room for the changes of the index")
            self._splices = splices
            self._splice_capacity = capacity
        self._splices[self._splice_count].position = position
        self._splices[self._splice_count].next = NONE
        if changed.last_splice == NONE:
            changed.first_splice = self._splice_count
        else:
            self._splices[changed.last_splice].next = self._splice_count
        changed.last_splice = self._splice_count
        self._splice_count += 1
        return 0

    cdef int _splice(self, Changed *changed, Py_ssize_t position) except -1:
        """Replace one record of a page by those of an entry."""
        cdef const unsigned char *entry = self.log + position
        cdef Py_ssize_t slot = load16(entry + 8)
        cdef Py_ssize_t added = load16(entry + 10)
        cdef Py_ssize_t stride = self.stride
        cdef Py_ssize_t key_length = self.key_length
        cdef Py_ssize_t behind = changed.count - slot - 1
        cdef unsigned char *record
        cdef unsigned char *lowest
        cdef Py_ssize_t index
        cdef Pointer pointer
        if behind < 0:
            raise CorruptPageError(changed.offset, "a delta changes a record that is not there")
        if added == 0 and changed.count == 1:
            raise CorruptPageError(changed.offset, "a delta leaves nothing of the page")
        self._reserve(changed, changed.count + added)
        record = changed.records + slot * stride
        entry += ENTRY_BYTES + (key_length if entry[12] else 0)
        if slot == 0:
            # Lower keys belong to the first child whatever its key says: now they may go elsewhere.
            lowest = record if added else record + stride
            if added or behind:
                memcpy(lowest, self.log + changed.key_position, <size_t>key_length)
        if added != 1:
            memmove(record + added * stride, record + stride, <size_t>(behind * stride))
        for index in range(added):
            if index:
                memcpy(record, entry, <size_t>key_length)
                entry += key_length
            pointer.offset = pointer.min_offset = load64(entry)
            pointer.length = load16(entry + 8)
            store_pointer(record + key_length, pointer)
            entry += 10
            record += stride
        changed.count += added - 1
        return 0

    cdef int _reserve(self, Changed *changed, Py_ssize_t count) except -1:
        if count <= changed.capacity:
            return 0
        capacity = count + count // 4
        records = <unsigned char *>realloc(changed.records, <size_t>(capacity * self.stride))
        if records == NULL:
            raise MemoryError("no room for the changes of the index")
        self.changed_bytes += (capacity - changed.capacity) * self.stride
        changed.records = records
        changed.capacity = capacity
        return 0
