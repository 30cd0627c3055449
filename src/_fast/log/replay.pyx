"""Replays a log without its bulk: digests of data frames, and the operations in them.

Owns: the digest of a data frame, and the reading of digests back into operations. A digest lives in
memory, and in the notes beside a journal; only this version of segstore on this machine reads it.

Consecutive appends are replayed together, by segment. Any other operation ends such a batch, so
that it finds the same state as when it was first executed.

Example: a frame of 400,234 bytes has append 1 (100 bytes, segment 7, offset 0) and append 2
(400,000 bytes, offset 100). Its digest has 252 bytes, and ``DigestReader.feed(digest, 5)`` returns
one ``AppendBatch`` with one run:

    first_sequence_number 1, last_sequence_number 2, first_offset 0
    pieces  (0, <100 bytes>, ...)                 a short body is in the digest
            (100, 400000, 5, 234, 4044236001)     a long one is at byte 234 of log entry 5, with its
                                                  CRC32C

Invariants:
1. A replay of digests gives the same operations and the same bytes as a replay of the frames. After
   a ``feed`` that raises ``EntryNeededError``, the same feed with the whole entry gives this result
   too. Held by ``test_a_replay_of_digests_is_one_of_the_frames``.
2. A digest leaves out the bodies of long appends, and has their place, length and checksum instead.
   Held by ``test_a_digest_is_small``.
3. A damaged frame is refused with ``FrameDamagedError`` and gets no digest. Held by
   ``test_a_flipped_bit_is_damage``.
4. An operation that is not an append is replayed at its place between the appends. Held by
   ``test_other_operations_keep_their_place_between_appends``.
"""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport (
    PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE,
)
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from _fast.big_endian cimport load16_big, load32_big, load64_big
from _fast.crc cimport crc32c_of
from _fast.log.data_frame cimport FIRST_PART, LAST_PART, PART_HEADER_BYTES, check_frame
from _fast.log.operations cimport AppendOperation, read_attributes

from _fast.log.data_frame import FrameDamagedError
from _fast.log.operations import ignore

cdef enum:
    APPEND = 1
    APPEND_HEAD_BYTES = 31
    ATTRIBUTE_ID_BYTES_MAX = 256
    VALUE_BYTES = 8
    # A shorter body is in the digest: reading it later would take longer.
    LONG_BYTES = 4096
    # Consecutive short bodies go to the cache together, up to this length.
    JOINED_BYTES_MAX = 65536

LOGGED_BYTES_MIN = LONG_BYTES

ShortPiece = tuple

DIGEST_FORMAT = 1
"""Version of the digests' bytes; digests of other versions are not read."""


class EntryNeededError(Exception):
    """The digest lacks what the replay needs: feed the digest of the whole entry."""


cdef struct Item:
    uint32_t length
    uint32_t start
    uint32_t kept
    uint32_t sum
    uint8_t flags


cdef struct ShortPlace:
    uint64_t position
    uint32_t start
    uint32_t length


cdef Py_ssize_t append_head_bytes(const unsigned char *data, Py_ssize_t length) noexcept:
    """Return the length of the append head at the beginning of ``data``; -1 if incomplete."""
    cdef Py_ssize_t position = APPEND_HEAD_BYTES
    cdef Py_ssize_t id_bytes
    cdef int _
    if length < APPEND_HEAD_BYTES:
        return -1
    for _ in range(load16_big(data + 29)):
        if position >= length:
            return -1
        id_bytes = data[position]
        if id_bytes == 0:
            id_bytes = ATTRIBUTE_ID_BYTES_MAX
        position += 1 + id_bytes + VALUE_BYTES
    return position if position <= length else -1


cdef Py_ssize_t kept_bytes(
    const unsigned char *part, Py_ssize_t length, int flags, bint is_head
) noexcept:
    """Return how much of a part its frame's digest has."""
    cdef Py_ssize_t kept = length
    if flags & FIRST_PART:
        if length > 0 and part[0] == APPEND:
            kept = append_head_bytes(part, length)
            if kept < 0:
                kept = length
    elif is_head:
        kept = 0  # the rest of a record that began in an earlier frame
    return kept if length - kept >= LONG_BYTES else length


def digest_frame(frame not None, bint whole=False):
    """Return a frame's digest; ``whole`` includes the bodies of all its appends."""
    cdef Py_buffer view
    PyObject_GetBuffer(frame, &view, PyBUF_SIMPLE)
    try:
        return digest_of(<const unsigned char *>view.buf, view.len, whole)
    finally:
        PyBuffer_Release(&view)


cdef bytes digest_of(const unsigned char *data, Py_ssize_t length, bint whole):
    cdef Py_ssize_t begin = check_frame(data, length)
    cdef Py_ssize_t total = digest_parts(data, begin, length, whole, NULL)
    cdef bytes digest = PyBytes_FromStringAndSize(NULL, total)
    digest_parts(data, begin, length, whole, <unsigned char *>PyBytes_AS_STRING(digest))
    return digest


cdef Py_ssize_t digest_parts(
    const unsigned char *data, Py_ssize_t begin, Py_ssize_t length, bint whole,
    unsigned char *target,
) except -1:
    """Write the digest to ``target`` if that is not NULL; return its length."""
    cdef Item item
    cdef Py_ssize_t position = begin
    cdef Py_ssize_t total = 0
    cdef Py_ssize_t part_length, kept
    cdef int flags
    while position < length:
        if position + PART_HEADER_BYTES > length:
            raise FrameDamagedError(f"it ends in a part's header, at byte {position}")
        part_length = load32_big(data + position)
        flags = data[position + 4]
        if flags & ~(FIRST_PART | LAST_PART):
            raise FrameDamagedError(f"a part's flags are {flags}, at byte {position + 4}")
        position += PART_HEADER_BYTES
        if part_length > length - position:
            raise FrameDamagedError(f"it ends in a record, at byte {position}")
        kept = part_length
        if not whole:
            kept = kept_bytes(
                data + position, part_length, flags, position == begin + PART_HEADER_BYTES
            )
        if target != NULL:
            memset(&item, 0, sizeof(Item))
            item.length = <uint32_t>part_length
            item.start = <uint32_t>position
            item.kept = <uint32_t>kept
            item.flags = <uint8_t>flags
            item.sum = crc32c_of(data + position + kept, part_length - kept, 0)
            memcpy(target + total, &item, sizeof(Item))
            memcpy(target + total + sizeof(Item), data + position, kept)
        total += <Py_ssize_t>sizeof(Item) + kept
        position += part_length
    return total


cdef class AppendRun:
    """Consecutive appends to one segment, without any other operation in between.

    ``last`` is the last one, with the attributes of all of them and without bytes. ``pieces`` has
    their bytes: (offset, length, position, start, sum) for bytes in the log entry at ``position``;
    otherwise (offset, bytes, places), whose places in the log ``logged_pieces`` returns.
    """

    cdef readonly AppendOperation last
    cdef readonly long long first_offset
    cdef readonly long long first_sequence_number
    cdef readonly list pieces
    cdef list parts
    cdef list places
    cdef long long parts_offset
    cdef Py_ssize_t parts_length

    cdef int add_bytes(
        self, long long offset, const unsigned char *data, Py_ssize_t length,
        long long position, Py_ssize_t start,
    ) except -1:
        cdef ShortPlace place
        if self.parts_length + length > JOINED_BYTES_MAX:
            self.end_parts()
        if not self.parts:
            self.parts_offset = offset
        self.parts.append(PyBytes_FromStringAndSize(<const char *>data, length))
        place.position = <uint64_t>position
        place.start = <uint32_t>start
        place.length = <uint32_t>length
        self.places.append(
            PyBytes_FromStringAndSize(<const char *>&place, <Py_ssize_t>sizeof(ShortPlace))
        )
        self.parts_length += length
        return 0

    cdef int end_parts(self) except -1:
        if self.parts:
            if len(self.parts) == 1:
                data, places = self.parts[0], self.places[0]
            else:
                data, places = b"".join(self.parts), b"".join(self.places)
            self.pieces.append((self.parts_offset, data, places))
            self.parts = []
            self.places = []
            self.parts_length = 0
        return 0


def logged_pieces(long long offset, bytes data not None, bytes places not None):
    """Return a piece's places in the log, each (offset, length, position, start, sum)."""
    cdef const unsigned char *found = <const unsigned char *>PyBytes_AS_STRING(data)
    cdef const char *given = PyBytes_AS_STRING(places)
    cdef Py_ssize_t count = PyBytes_GET_SIZE(places) // <Py_ssize_t>sizeof(ShortPlace)
    cdef Py_ssize_t begin = 0
    cdef Py_ssize_t number
    cdef ShortPlace place
    cdef list pieces = []
    for number in range(count):
        memcpy(&place, given + number * <Py_ssize_t>sizeof(ShortPlace), sizeof(ShortPlace))
        if begin + place.length > PyBytes_GET_SIZE(data):
            raise ValueError(f"the places are of more than {PyBytes_GET_SIZE(data)} bytes")
        pieces.append((
            offset + begin, place.length, place.position, place.start,
            crc32c_of(found + begin, place.length, 0),
        ))
        begin += place.length
    return pieces


cdef class AppendBatch:
    """Appends with consecutive sequence numbers, by segment in the order of their first ones."""

    cdef readonly long long first_sequence_number
    cdef readonly long long last_sequence_number
    cdef dict by_segment

    @property
    def runs(self):
        return list(self.by_segment.values())


cdef class DigestReader:
    """Joins operations from digests that are fed in log order."""

    # The incomplete record: the address at which it began, the bytes kept of it, and, once an
    # append's head is complete, the pieces of its body.
    cdef object began
    cdef bytearray kept
    cdef Py_ssize_t head_bytes
    cdef Py_ssize_t body_bytes
    cdef list pieces
    cdef AppendBatch batch

    def feed(self, digest not None, long long position):
        """Return the batches of appends and the other (position, record) that end in a frame."""
        cdef Py_buffer view
        cdef list operations = []
        PyObject_GetBuffer(digest, &view, PyBUF_SIMPLE)
        try:
            self.batch = None
            self.read_items(<const unsigned char *>view.buf, view.len, position, operations)
        finally:
            PyBuffer_Release(&view)
        self.end_batch(operations)
        return operations

    cdef int read_items(
        self, const unsigned char *data, Py_ssize_t length, long long position, list operations
    ) except -1:
        cdef Item item
        cdef Py_ssize_t place = 0
        while place < length:
            memcpy(&item, data + place, sizeof(Item))
            place += sizeof(Item)
            if item.flags & FIRST_PART:
                # A crash cut off this record before its end: it was never acknowledged.
                self.kept = None
            if item.flags == FIRST_PART | LAST_PART:
                self.read_whole(data + place, &item, position, operations)
            else:
                self.read_part(data + place, &item, position, operations)
            place += item.kept
        return 0

    cdef int read_whole(
        self, const unsigned char *data, const Item *item, long long position, list operations
    ) except -1:
        cdef Py_ssize_t head
        cdef AppendRun run
        if item.length == 0 or data[0] != APPEND:
            self.end_batch(operations)
            operations.append(
                (position, PyBytes_FromStringAndSize(<const char *>data, item.kept))
            )
            return 0
        head = append_head_bytes(data, item.kept)
        if head < 0:
            raise FrameDamagedError(f"an append ends early, at byte {item.start + item.length}")
        run = self.add_append(data, head, item.length - head, operations)
        self.add_piece(
            run, run.last.offset, data + head, item.kept - head, item, position
        )
        return 0

    cdef int read_part(
        self, const unsigned char *data, const Item *item, long long position, list operations
    ) except -1:
        """Add a part of a record that is spread over frames."""
        if item.flags & FIRST_PART:
            self.began = position
            self.kept = bytearray()
            self.head_bytes = -1
            self.body_bytes = 0
            self.pieces = []
        elif self.kept is None:
            raise FrameDamagedError(f"it has a part without a head, at byte {item.start}")
        elif item.kept < item.length and self.head_bytes < 0:
            raise EntryNeededError
        if self.head_bytes >= 0:
            self.keep_piece(data, item.kept, item, position)
        else:
            self.kept += PyBytes_FromStringAndSize(<const char *>data, item.kept)
            self.find_head(item, position)
        if item.flags & LAST_PART:
            self.end_record(operations)
        return 0

    cdef int find_head(self, const Item *item, long long position) except -1:
        """Remove the body from ``kept`` once that has the whole head of an append."""
        cdef const unsigned char *data = <const unsigned char *>self.kept
        cdef Py_ssize_t length = len(self.kept)
        cdef Py_ssize_t body
        if length == 0 or data[0] != APPEND:
            return 0
        self.head_bytes = append_head_bytes(data, length)
        if self.head_bytes < 0:
            return 0
        body = length - self.head_bytes
        if body or item.length > item.kept:
            self.keep_piece(data + self.head_bytes, body, item, position)
        del self.kept[self.head_bytes:]
        return 0

    cdef int keep_piece(
        self, const unsigned char *data, Py_ssize_t length, const Item *item, long long position
    ) except -1:
        """Record a part of a body: ``length`` bytes at ``data``, or bytes that the digest lacks."""
        if item.kept < item.length:
            if length:
                raise FrameDamagedError(f"a digest is torn, at byte {item.start}")
            length = item.length - item.kept
            self.pieces.append((length, position, item.start + item.kept, item.sum))
        else:
            # The body ends with its part.
            self.pieces.append((
                PyBytes_FromStringAndSize(<const char *>data, length), position,
                item.start + item.length - length,
            ))
        self.body_bytes += length
        return 0

    cdef int end_record(self, list operations) except -1:
        cdef bytes kept = bytes(self.kept)
        cdef AppendRun run
        cdef long long offset
        self.kept = None
        if self.head_bytes < 0:
            if kept[:1] == b"\x01":
                raise FrameDamagedError("an append ends in its head")
            self.end_batch(operations)
            operations.append((self.began, kept))
            return 0
        run = self.add_append(
            <const unsigned char *>PyBytes_AS_STRING(kept), self.head_bytes, self.body_bytes,
            operations,
        )
        offset = run.last.offset
        for piece in self.pieces:
            if isinstance(piece[0], bytes):
                data, position, start = piece
                run.add_bytes(
                    offset, <const unsigned char *>PyBytes_AS_STRING(data),
                    PyBytes_GET_SIZE(data), position, start,
                )
                offset += PyBytes_GET_SIZE(data)
            else:
                run.end_parts()
                run.pieces.append((offset, *piece))
                offset += <long long>piece[0]
        self.pieces = None
        return 0

    cdef AppendRun add_append(
        self, const unsigned char *head, Py_ssize_t head_bytes, Py_ssize_t body_bytes,
        list operations,
    ):
        """Add an append to the batch; the caller adds its bytes to the run."""
        cdef long long sequence_number = <long long>load64_big(head + 1)
        cdef long long segment_id = <long long>load64_big(head + 9)
        cdef long long offset = <long long>load64_big(head + 17)
        cdef Py_ssize_t length = load32_big(head + 25)
        cdef AppendRun run = None
        cdef AppendOperation last
        if length != body_bytes:
            raise FrameDamagedError(f"an append of {length} bytes has {body_bytes}")
        if self.batch is not None:
            run = self.batch.by_segment.get(segment_id)
            if self.batch.last_sequence_number + 1 != sequence_number or (
                run is not None and run.last.offset + run.last.length != offset
            ):
                # The caller that replays decides what this means.
                self.end_batch(operations)
                run = None
        if self.batch is None:
            self.batch = AppendBatch.__new__(AppendBatch)
            self.batch.by_segment = {}
            self.batch.first_sequence_number = sequence_number
        self.batch.last_sequence_number = sequence_number
        if run is None:
            run = new_run(segment_id, offset, sequence_number)
            self.batch.by_segment[segment_id] = run
        last = run.last
        last.sequence_number = sequence_number
        last.offset = offset
        last.length = length
        read_attributes(
            head, APPEND_HEAD_BYTES, head_bytes, load16_big(head + 29), last.attribute_values
        )
        return run

    cdef int add_piece(
        self, AppendRun run, long long offset, const unsigned char *data, Py_ssize_t kept,
        const Item *item, long long position,
    ) except -1:
        """Add the body of an append that lies in one frame."""
        cdef Py_ssize_t left_out = item.length - item.kept
        if left_out:
            run.end_parts()
            run.pieces.append(
                (offset, left_out, position, item.start + item.kept, item.sum)
            )
        elif kept:
            run.add_bytes(offset, data, kept, position, item.start + item.length - kept)
        return 0

    cdef int end_batch(self, list operations) except -1:
        if self.batch is not None:
            for run in self.batch.by_segment.values():
                (<AppendRun>run).end_parts()
            operations.append(self.batch)
            self.batch = None
        return 0


cdef AppendRun new_run(long long segment_id, long long offset, long long sequence_number):
    cdef AppendOperation last = AppendOperation.__new__(AppendOperation)
    cdef AppendRun run = AppendRun.__new__(AppendRun)
    last.name = ""
    last.on_complete = ignore
    last.segment_id = segment_id
    last.updates = ()
    last.attribute_values = {}
    last.data = b""
    run.last = last
    run.first_offset = offset
    run.first_sequence_number = sequence_number
    run.pieces = []
    run.parts = []
    run.places = []
    return run
