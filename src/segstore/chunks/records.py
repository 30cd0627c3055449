"""Records of segments and chunks, the changes to them, and the bytes of both.

Owns: ``Chunk``, ``StoredSegment``, the changes, and their codec; docs/formats/chunk-metadata.md
describes the bytes. No function reads or writes tier 2.

Invariants:
1. When a record or change is encoded and decoded, it is the same. Held by
   ``test_a_record_is_read_as_it_was_written`` and ``test_a_change_is_read_as_it_was_written``.
2. When bytes are not those of a change, decoding them raises ``ChunkRecordError``. Held by
   ``test_damaged_bytes_of_a_change_are_another_change_or_an_error`` and
   ``test_bytes_behind_a_change_or_missing_from_it_are_an_error``.
3. When a bit of a frame is wrong, or the frame is in another journal, its checksum does not match.
   Held by ``test_a_wrong_bit_before_the_last_frame_is_damage`` and
   ``test_a_system_chunk_counts_only_under_its_name``.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from typing import Final

from _fast.crc import crc32c
from segstore.chunks.checksums import (
    BLOCK_BYTES,
    SUM_BYTES,
    Checksums,
    sum_count,
    whole_blocks,
)

CLOSED: Final = 0
OPEN: Final = 1
FOREIGN_NAME: Final = 2
"""Flag of a chunk that was moved from another segment, so that its name does not begin with the
name of its segment."""

HAS_CHECKSUMS: Final = 4

LOST: Final = 8
"""Flag of a range whose bytes are lost: there is no chunk with its name."""

MOVED: Final = 1

FRAME = struct.Struct(">IIQ")
"""Length of the change, checksum, sequence number."""
_PART: Final = struct.Struct(">IQ")
_CHUNK: Final = struct.Struct(">QQIB")
_RECORD: Final = struct.Struct(">BQI")
_U16: Final = struct.Struct(">H")
_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_CHECKSUMS: Final = struct.Struct(">IQ")
_CHECKED: Final = struct.Struct(">QIQQ")
NO_CHECKSUMS: Final = Checksums()


class ChunkRecordError(ValueError):
    """The bytes are not those of a record."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """The bytes of a segment that are in one chunk: ``length`` bytes from the offset ``start``,
    which begin with the chunk's first byte.

    Only the last chunk of a segment may be open. The owner that made it, under ``epoch``, can
    append to it, and knows its exact length; for other owners, it has at least ``length`` bytes.
    Bytes after those that ``checksums`` cover are not checked. A chunk that ``is_lost`` stands for
    a range of bytes that ``segstore recover`` did not find.
    """

    start: int
    length: int
    name: str
    epoch: int
    is_open: bool = False
    checksums: Checksums = NO_CHECKSUMS
    is_lost: bool = False

    @property
    def end(self) -> int:
        """Return the offset after the chunk's last byte."""
        return self.start + self.length

    def cut(self, length: int) -> Chunk:
        """Return the closed chunk that has only the first ``length`` bytes."""
        checksums = self.checksums.cut(length)
        return replace(self, length=length, is_open=False, checksums=checksums)


@dataclass(frozen=True, slots=True)
class StoredSegment:
    """The record of a segment: its chunks in the order of their offsets, without gaps, and the
    offset at which it ends if it has no chunks.

    The chunks of a segment that ``is_moved`` belong to another segment now.
    """

    chunks: tuple[Chunk, ...] = ()
    end_without_chunks: int = 0
    is_moved: bool = False

    @property
    def end(self) -> int:
        """Return the offset after the last stored byte."""
        return self.chunks[-1].end if self.chunks else self.end_without_chunks


@dataclass(frozen=True, slots=True)
class AddChunk:
    """A new chunk begins at ``start``, where the earlier chunks end. Chunks that begin at or after
    ``start`` had no bytes, and are condemned."""

    segment: str
    start: int
    epoch: int
    name: str


@dataclass(frozen=True, slots=True)
class MoveChunks:
    """The chunks with the first ``length`` bytes of ``source`` move to ``target``, which ends at
    ``offset``."""

    target: str
    offset: int
    source: str
    length: int


@dataclass(frozen=True, slots=True)
class Truncate:
    """The chunks that end at or before ``offset`` are condemned. The segment ends at ``end``."""

    segment: str
    offset: int
    end: int


@dataclass(frozen=True, slots=True)
class Forget:
    """The record of the segment is removed, and the chunks that are its own are condemned."""

    segment: str


@dataclass(frozen=True, slots=True)
class Condemn:
    """These chunks belong to no segment, and wait to be deleted."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Collected:
    """These chunks were deleted."""

    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Checked:
    """The chunk that begins at ``start`` of the segment has these checksums.

    ``sums`` are the checksums of the blocks with bytes from ``known`` up to ``length``. Earlier
    changes have those of earlier blocks.
    """

    segment: str
    start: int
    phase: int
    known: int
    length: int
    sums: bytes


Change = AddChunk | MoveChunks | Truncate | Forget | Condemn | Collected | Checked

_KINDS: Final[dict[type[Change], int]] = {
    AddChunk: 1,
    MoveChunks: 2,
    Truncate: 3,
    Forget: 4,
    Condemn: 5,
    Collected: 6,
    Checked: 7,
}


def new_chunk_name(segment: str, *, start: int, epoch: int, number: int) -> str:
    """Return the name of the ``number``-th chunk that an owner makes."""
    return f"{segment}${start:020d}.E{epoch}.{number}"


def encode_text(text: str) -> bytes:
    """Return a name with its length in front."""
    data = text.encode("utf-8", "surrogatepass")
    return _U16.pack(len(data)) + data


class Reader:
    """Reads the fields of a buffer, one after the other. Its methods raise ``ChunkRecordError``
    when the buffer does not have the field."""

    def __init__(self, data: bytes | memoryview) -> None:
        self._data = memoryview(data)
        self.position = 0

    @property
    def remaining(self) -> int:
        """Return the number of bytes that were not read yet."""
        return len(self._data) - self.position

    def read_bytes(self, length: int) -> bytes:
        """Return the next ``length`` bytes. Raises ``ChunkRecordError`` when there are fewer."""
        end = self.position + length
        if end > len(self._data):
            raise ChunkRecordError(f"{length} bytes are missing at {self.position}")
        data = bytes(self._data[self.position : end])
        self.position = end
        return data

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        """Return the next numbers."""
        return layout.unpack(self.read_bytes(layout.size))

    def checksums(self) -> Checksums:
        """Return the checksums of a chunk's first bytes."""
        phase, length = self.fields(_CHECKSUMS)
        if phase >= BLOCK_BYTES:
            raise ChunkRecordError(f"a block of {BLOCK_BYTES} bytes has no byte {phase}")
        return Checksums(phase, length, self.read_bytes(SUM_BYTES * sum_count(phase, length)))

    def u32(self) -> int:
        """Return the next number of four bytes."""
        return self.fields(_U32)[0]

    def u64(self) -> int:
        """Return the next number of eight bytes."""
        return self.fields(_U64)[0]

    def text(self) -> str:
        """Return the next name."""
        (length,) = self.fields(_U16)
        try:
            return self.read_bytes(length).decode("utf-8", "surrogatepass")
        except UnicodeDecodeError as error:
            raise ChunkRecordError(f"a name is no text: {error}") from error

    def end(self) -> None:
        """Raise ``ChunkRecordError`` if bytes are left."""
        if self.remaining:
            raise ChunkRecordError(f"{self.remaining} bytes are left at {self.position}")


def encode_record(segment: str, record: StoredSegment) -> bytes:
    """Return the bytes of a segment's record, without its name."""
    parts = [
        _RECORD.pack(MOVED if record.is_moved else 0, record.end_without_chunks, len(record.chunks))
    ]
    prefix = f"{segment}$"
    for chunk in record.chunks:
        flags = (OPEN if chunk.is_open else CLOSED) | (LOST if chunk.is_lost else 0)
        name = chunk.name
        if name.startswith(prefix):
            name = name[len(prefix) :]
        else:
            flags |= FOREIGN_NAME
        checksums = chunk.checksums
        if checksums != NO_CHECKSUMS:
            flags |= HAS_CHECKSUMS
        parts.append(_CHUNK.pack(chunk.start, chunk.length, chunk.epoch, flags))
        parts.append(encode_text(name))
        if flags & HAS_CHECKSUMS:
            parts += (_CHECKSUMS.pack(checksums.phase, checksums.length), checksums.sums)
    return b"".join(parts)


def decode_record(segment: str, data: bytes) -> StoredSegment:
    """Return the record that ``encode_record`` encoded."""
    reader = Reader(data)
    moved, end, count = reader.fields(_RECORD)
    if moved & ~MOVED:
        raise ChunkRecordError(f"unknown flags {moved} of a segment")
    chunks = []
    for _ in range(count):
        start, length, epoch, flags = reader.fields(_CHUNK)
        name = reader.text()
        if flags & ~(OPEN | FOREIGN_NAME | HAS_CHECKSUMS | LOST):
            raise ChunkRecordError(f"unknown flags {flags} of a chunk")
        if not flags & FOREIGN_NAME:
            name = f"{segment}${name}"
        checksums = reader.checksums() if flags & HAS_CHECKSUMS else NO_CHECKSUMS
        is_open, is_lost = bool(flags & OPEN), bool(flags & LOST)
        chunks.append(Chunk(start, length, name, epoch, is_open, checksums, is_lost))
    reader.end()
    return StoredSegment(tuple(chunks), end, bool(moved))


def encode_change(change: Change) -> bytes:
    """Return the bytes of a change, which begin with its kind."""
    kind = bytes([_KINDS[type(change)]])
    match change:
        case AddChunk(segment, start, epoch, name):
            body = encode_text(segment) + _U64.pack(start) + _U32.pack(epoch) + encode_text(name)
        case MoveChunks(target, offset, source, length):
            body = encode_text(target) + _U64.pack(offset)
            body += encode_text(source) + _U64.pack(length)
        case Truncate(segment, offset, end):
            body = encode_text(segment) + _U64.pack(offset) + _U64.pack(end)
        case Forget(segment):
            body = encode_text(segment)
        case Condemn(names) | Collected(names):
            body = _U32.pack(len(names)) + b"".join(map(encode_text, names))
        case Checked(segment, start, phase, known, length, sums):
            body = encode_text(segment) + _CHECKED.pack(start, phase, known, length) + sums
    return kind + body


def decode_change(data: bytes) -> Change:
    """Return the change that ``encode_change`` encoded."""
    reader = Reader(data)
    change: Change
    match reader.read_bytes(1)[0]:
        case 1:
            change = AddChunk(reader.text(), reader.u64(), reader.u32(), reader.text())
        case 2:
            change = MoveChunks(reader.text(), reader.u64(), reader.text(), reader.u64())
        case 3:
            change = Truncate(reader.text(), reader.u64(), reader.u64())
        case 4:
            change = Forget(reader.text())
        case 5:
            change = Condemn(tuple(reader.text() for _ in range(reader.u32())))
        case 6:
            change = Collected(tuple(reader.text() for _ in range(reader.u32())))
        case 7:
            change = _decode_checked(reader)
        case kind:
            raise ChunkRecordError(f"there is no change of kind {kind}")
    reader.end()
    return change


def _decode_checked(reader: Reader) -> Checked:
    segment = reader.text()
    start, phase, known, length = reader.fields(_CHECKED)
    if phase >= BLOCK_BYTES or known > length:
        raise ChunkRecordError(f"there are no checksums of {known} to {length} at {phase}")
    count = sum_count(phase, length) - whole_blocks(phase, known)
    return Checked(segment, start, phase, known, length, reader.read_bytes(SUM_BYTES * count))


def sum_of_name(name: str) -> int:
    """Return the start value of the checksums in a system chunk. With it, the bytes are valid only
    in a chunk with this name."""
    return crc32c(name.encode("utf-8", "surrogatepass"))


def encode_frame(sequence: int, change: Change, *, journal: str) -> bytes:
    """Return the frame of a change in a journal."""
    body = encode_change(change)
    checksum = crc32c(body, crc32c(_PART.pack(len(body), sequence), sum_of_name(journal)))
    return FRAME.pack(len(body), checksum, sequence) + body


def frame_at(data: bytes, position: int, name_sum: int) -> tuple[int, Change, int] | None:
    """Return the sequence number, the change and the end of the frame at a position; None if there
    is no valid frame."""
    if position + FRAME.size > len(data):
        return None
    length, checksum, sequence = FRAME.unpack_from(data, position)
    start, end = position + FRAME.size, position + FRAME.size + length
    if end > len(data):
        return None
    body = data[start:end]
    if crc32c(body, crc32c(_PART.pack(length, sequence), name_sum)) != checksum:
        return None
    return sequence, decode_change(body), end


def decode_frames(
    data: bytes, *, journal: str, may_have_holes: bool = False
) -> tuple[list[tuple[int, Change]], int]:
    """Return the changes in a journal's bytes, and the position after the last one. A frame that
    was not written completely ends the journal.

    Raises ``ChunkRecordError`` when a valid frame follows one that is not valid, unless the journal
    ``may_have_holes``: after a power cut, any of several frames that were written together may be
    missing.
    """
    changes = []
    position = 0
    name_sum = sum_of_name(journal)
    while (frame := frame_at(data, position, name_sum)) is not None:
        sequence, change, position = frame
        changes.append((sequence, change))
    for later in () if may_have_holes else range(position + 1, len(data) - FRAME.size + 1):
        if frame_at(data, later, name_sum) is not None:
            raise ChunkRecordError(f"the frame at {position} is damaged, one at {later} is whole")
    return changes, position
