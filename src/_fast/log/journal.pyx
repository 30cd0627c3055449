"""Reads the journal's batches: checks their sums, and finds the places of entries.

Owns: ``EntryIndex`` and ``BatchScan``. docs/formats/journal.md has the format.

The scan records where entries lie. An entry becomes a Python object only when it is read.

Invariants:
1. Bytes that are no valid batch end the scan, and no byte outside the buffer is read. Held by
   ``test_no_bytes_harm``.
2. When a record of a batch is wrong, no record of that batch is indexed. Held by
   ``test_records_that_do_not_fill_their_batch_do_not_pass``.
"""

from cpython.buffer cimport PyBUF_READ, PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.memoryview cimport PyMemoryView_FromMemory
from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcpy

from _fast.crc cimport crc32c_of

cdef enum:
    BATCH_MAGIC = 0x424A4753
    BATCH_HEADER_BYTES = 40
    BATCH_ALIGNMENT = 512
    RECORD_HEADER_BYTES = 32
    RECORD_ALIGNMENT = 8
    KIND_ENTRY = 1
    KIND_END = 6
    GROUP_BYTES = 65536

INVALID = 0
MARK = 1
INCOMPLETE = 2
END = 3


cdef struct Batch:
    uint64_t number
    uint32_t length
    uint32_t record_count


cdef struct RecordHeader:
    uint32_t length
    uint32_t container_id
    uint16_t kind
    uint64_t epoch
    uint64_t position


cdef inline uint32_t load32(const unsigned char *data) noexcept nogil:
    return (<uint32_t>data[0] | <uint32_t>data[1] << 8 | <uint32_t>data[2] << 16
            | <uint32_t>data[3] << 24)


cdef inline uint64_t load64(const unsigned char *data) noexcept nogil:
    return <uint64_t>load32(data) | <uint64_t>load32(data + 4) << 32


cdef class EntryIndex:
    """The places of one container's entries in one file, in order of their positions."""

    cdef readonly uint64_t first_position
    cdef readonly uint64_t byte_count
    cdef readonly list groups
    cdef uint32_t *places
    cdef Py_ssize_t count
    cdef Py_ssize_t capacity
    cdef uint64_t group_bytes

    def __cinit__(self, uint64_t first_position):
        self.first_position = first_position
        self.groups = []

    def __dealloc__(self):
        free(self.places)

    def __len__(self):
        return self.count

    @property
    def end_position(self):
        return self.first_position + <uint64_t>self.count

    def offset_of(self, uint64_t position):
        if not self.first_position <= position < self.first_position + <uint64_t>self.count:
            raise IndexError(f"no entry has position {position}")
        return <uint64_t>self.places[position - self.first_position] * RECORD_ALIGNMENT

    @property
    def places_bytes(self):
        """Return the places of the entries, four bytes each, for ``restored``."""
        return PyBytes_FromStringAndSize(
            <const char *>self.places, self.count * <Py_ssize_t>sizeof(uint32_t)
        )

    @staticmethod
    def restored(uint64_t first_position, bytes places not None, list groups not None):
        """Return an index from its parts; ``groups`` are (first position, bytes) of each group."""
        cdef EntryIndex index = EntryIndex(first_position)
        cdef Py_ssize_t length = len(places)
        if length == 0 or length % <Py_ssize_t>sizeof(uint32_t) or not groups:
            raise ValueError("these are not the places of entries")
        index.places = <uint32_t *>malloc(length)
        if index.places == NULL:
            raise MemoryError
        memcpy(index.places, PyBytes_AS_STRING(places), length)
        index.count = index.capacity = length // <Py_ssize_t>sizeof(uint32_t)
        index.groups = [list(group) for group in groups]
        index.group_bytes = index.groups[len(groups) - 1][1]
        index.byte_count = sum(group[1] for group in groups)
        return index

    cdef int add(self, uint32_t place, uint32_t length) except -1:
        cdef Py_ssize_t capacity
        cdef uint32_t *places
        if self.count == self.capacity:
            capacity = max(64, self.capacity * 2)
            places = <uint32_t *>realloc(self.places, capacity * sizeof(uint32_t))
            if places == NULL:
                raise MemoryError
            self.places, self.capacity = places, capacity
        if self.count == 0 or self.group_bytes >= GROUP_BYTES:
            self.groups.append([self.first_position + <uint64_t>self.count, 0])
            self.group_bytes = 0
        self.places[self.count] = place
        self.count += 1
        self.byte_count += length
        self.group_bytes += length
        self.groups[len(self.groups) - 1][1] = self.group_bytes
        return 0


cdef bint read_batch_header(
    const unsigned char *data, uint64_t generation, uint32_t salt, Batch *batch
) noexcept nogil:
    """Return whether ``data`` begins with a valid batch header."""
    if load32(data) != BATCH_MAGIC or load64(data + 4) != generation:
        return False
    if crc32c_of(data, BATCH_HEADER_BYTES - 4, salt) != load32(data + BATCH_HEADER_BYTES - 4):
        return False
    batch.number = load64(data + 12)
    batch.length = load32(data + 28)
    batch.record_count = load32(data + 32)
    return True


cdef bint read_record_header(
    const unsigned char *data, Py_ssize_t length, uint32_t salt, RecordHeader *record
) noexcept nogil:
    """Return whether ``data`` begins with a whole valid record."""
    if length < RECORD_HEADER_BYTES:
        return False
    record.length = load32(data + 4)
    if <uint64_t>record.length > <uint64_t>(length - RECORD_HEADER_BYTES):
        return False
    record.container_id = load32(data + 8)
    record.kind = <uint16_t>(load32(data + 12) & 0xFFFF)
    record.epoch = load64(data + 16)
    record.position = load64(data + 24)
    return crc32c_of(
        data + 4, RECORD_HEADER_BYTES - 4 + <size_t>record.length, salt
    ) == load32(data)


cdef inline Py_ssize_t stored_bytes(uint32_t length) noexcept nogil:
    cdef Py_ssize_t whole = RECORD_HEADER_BYTES + <Py_ssize_t>length
    return (whole + RECORD_ALIGNMENT - 1) & ~(RECORD_ALIGNMENT - 1)


cdef bint records_pass(
    const unsigned char *data, Py_ssize_t length, uint32_t count, uint32_t salt
) noexcept nogil:
    """Return whether ``count`` valid records fill ``data`` exactly."""
    cdef RecordHeader record
    cdef Py_ssize_t start = 0
    cdef uint32_t _
    for _ in range(count):
        if start > length or not read_record_header(data + start, length - start, salt, &record):
            return False
        start += stored_bytes(record.length)
    return start == length


cdef class BatchScan:
    """Scans a file's batches, window by window.

    ``end_offset`` is the file offset after the last valid batch; ``next_number`` the number that
    the batch after it must have, 0 before the first; ``controls`` the records besides entries as
    (kind, container id, epoch, position); ``indexes`` the entries by container, and ``digests`` the
    results of ``digest``, if there is one, for each of them.
    """

    cdef readonly uint64_t end_offset
    cdef readonly uint64_t next_number
    cdef readonly list controls
    cdef readonly dict indexes
    cdef readonly dict digests
    cdef readonly uint64_t bytes_wanted
    cdef readonly object misplaced
    cdef uint64_t generation
    cdef uint32_t salt
    cdef object digest

    def __init__(self, *, uint64_t generation, uint32_t salt, uint64_t offset, digest=None):
        self.digest = digest
        self.digests = {}
        self.generation = generation
        self.salt = salt
        self.end_offset = offset
        self.controls = []
        self.indexes = {}
        self.misplaced = None

    def run(self, data):
        """Scan ``data``, the file's bytes from ``end_offset`` on; return why it stopped."""
        cdef Py_buffer view
        cdef Py_ssize_t start = 0
        cdef int outcome = -1
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        try:
            while outcome < 0:
                outcome = self.scan_batch(
                    <const unsigned char *>view.buf + start, view.len - start, &start
                )
        finally:
            PyBuffer_Release(&view)
        return outcome

    cdef int scan_batch(
        self, const unsigned char *data, Py_ssize_t length, Py_ssize_t *start
    ) except -2:
        """Scan the batch at the beginning of ``data``; return -1 to continue with the next one."""
        cdef Batch batch
        cdef bint passed
        cdef Py_ssize_t whole
        cdef int outcome
        if length < BATCH_HEADER_BYTES:
            self.bytes_wanted = BATCH_HEADER_BYTES
            return INCOMPLETE
        if not read_batch_header(data, self.generation, self.salt, &batch):
            return INVALID
        if self.next_number != 0 and batch.number != self.next_number:
            return INVALID
        if batch.record_count == 0:
            return MARK
        whole = BATCH_HEADER_BYTES + <Py_ssize_t>batch.length
        if length < whole:
            self.bytes_wanted = whole
            return INCOMPLETE
        with nogil:
            passed = records_pass(
                data + BATCH_HEADER_BYTES, batch.length, batch.record_count, self.salt
            )
        if not passed:
            return INVALID
        outcome = self.scan_records(data + BATCH_HEADER_BYTES, batch.record_count)
        whole = (whole + BATCH_ALIGNMENT - 1) & ~(BATCH_ALIGNMENT - 1)
        self.end_offset += whole
        self.next_number = batch.number + 1
        start[0] += min(whole, length)
        return outcome

    cdef int scan_records(self, const unsigned char *data, uint32_t count) except -2:
        cdef RecordHeader record
        cdef uint64_t offset = self.end_offset + BATCH_HEADER_BYTES
        cdef EntryIndex index = None
        cdef list digests = None
        cdef uint32_t indexed = 0
        cdef int outcome = -1
        cdef Py_ssize_t stored
        cdef uint32_t _
        for _ in range(count):
            record.length = load32(data + 4)
            record.container_id = load32(data + 8)
            record.kind = <uint16_t>(load32(data + 12) & 0xFFFF)
            record.epoch = load64(data + 16)
            record.position = load64(data + 24)
            if record.kind == KIND_ENTRY:
                if index is None or indexed != record.container_id:
                    index = self.indexes.get(record.container_id)
                    if index is None:
                        index = EntryIndex(record.position)
                        self.indexes[record.container_id] = index
                        self.digests[record.container_id] = []
                    digests = self.digests[record.container_id]
                    indexed = record.container_id
                if record.position != index.first_position + <uint64_t>index.count:
                    if self.misplaced is None:
                        self.misplaced = (
                            offset, record.container_id, record.position, index.end_position
                        )
                else:
                    index.add(<uint32_t>(offset // RECORD_ALIGNMENT), record.length)
                    if self.digest is not None:
                        digests.append(
                            self.digest_of(data + RECORD_HEADER_BYTES, record.length)
                        )
            else:
                self.controls.append(
                    (record.kind, record.container_id, record.epoch, record.position)
                )
                if record.kind == KIND_END:
                    outcome = END
            stored = stored_bytes(record.length)
            data += stored
            offset += <uint64_t>stored
        return outcome

    cdef object digest_of(self, const unsigned char *data, uint32_t length):
        view = PyMemoryView_FromMemory(<char *>data, length, PyBUF_READ)
        try:
            return self.digest(view)
        finally:
            view.release()


def read_entries(
    data,
    uint64_t offset,
    EntryIndex index,
    *,
    uint64_t start,
    uint64_t end,
    uint32_t container_id,
    uint32_t salt,
):
    """Read the entries from position ``start`` on that lie whole in ``data``.

    ``data`` is the file's bytes from ``offset``, which is not after the first requested entry.
    Returns the entries, and how many bytes from the next entry's offset on are needed to continue:
    0 when ``end`` is reached, -1 when the next entry is damaged.
    """
    cdef Py_buffer view
    cdef const unsigned char *record_start
    cdef RecordHeader record
    cdef uint64_t position = start
    cdef Py_ssize_t place, left
    cdef bint passed
    cdef list entries = []
    assert index.first_position <= start <= end <= index.first_position + <uint64_t>index.count
    PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
    try:
        while position < end:
            place = <Py_ssize_t>(
                <uint64_t>index.places[position - index.first_position] * RECORD_ALIGNMENT - offset
            )
            left = view.len - place
            if left < RECORD_HEADER_BYTES:
                return entries, RECORD_HEADER_BYTES
            record_start = <const unsigned char *>view.buf + place
            record.length = load32(record_start + 4)
            if <uint64_t>record.length > <uint64_t>(left - RECORD_HEADER_BYTES):
                return entries, RECORD_HEADER_BYTES + <Py_ssize_t>record.length
            if record.length > GROUP_BYTES:
                with nogil:
                    passed = read_record_header(record_start, left, salt, &record)
            else:
                passed = read_record_header(record_start, left, salt, &record)
            if (
                not passed
                or record.kind != KIND_ENTRY
                or record.container_id != container_id
                or record.position != position
            ):
                return entries, -1
            entries.append(
                PyBytes_FromStringAndSize(
                    <const char *>record_start + RECORD_HEADER_BYTES, <Py_ssize_t>record.length
                )
            )
            position += 1
        return entries, 0
    finally:
        PyBuffer_Release(&view)
