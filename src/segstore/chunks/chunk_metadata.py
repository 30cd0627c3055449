"""The segments in tier 2 and their chunks: the state to which changes are applied.

Owns: ``ChunkMetadata`` and its snapshot; docs/formats/chunk-metadata.md describes the bytes. A
chunk is *condemned* when no segment needs it and it waits to be deleted. An open chunk grows
without a change of the metadata: its owner knows the length, and a later owner looks it up.

Invariants:
1. When a snapshot is read and later changes are applied in order, the state is that of the owner
   that wrote them. Held by ``test_a_snapshot_has_all`` and ``TestChunked``.
2. When a segment is forgotten, the chunks that only it has are condemned. Chunks that were moved to
   another segment are condemned with that one. Held by ``test_a_snapshot_has_all``.
3. When a container has many segments, the records that are not in use are kept in memory as bytes.
   So a snapshot is their concatenation, and opening a container does not decode them. Held by
   ``test_records_that_are_not_in_use_are_kept_as_bytes``.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from _fast.crc import crc32c
from segstore.chunks.records import (
    AddChunk,
    Change,
    Checked,
    Chunk,
    ChunkRecordError,
    Collected,
    Condemn,
    Forget,
    MoveChunks,
    Reader,
    StoredSegment,
    Truncate,
    decode_record,
    encode_record,
    encode_text,
    sum_of_name,
)

MAGIC: Final = b"SGCM"
VERSION: Final = 2
RECORDS_IN_USE_MAX: Final = 4096
_HEADER: Final = struct.Struct(">4sHIQIII")
_ENTRY: Final = struct.Struct(">I")


class SnapshotUnfinishedError(ChunkRecordError):
    """The bytes are only the beginning of a snapshot."""


class ChunkMetadata:
    """The chunk metadata of one container, in memory. No method waits."""

    def __init__(self) -> None:
        self._stored: dict[str, bytes] = {}
        self._in_use: OrderedDict[str, StoredSegment] = OrderedDict()
        self.condemned: dict[str, None] = {}

    def __len__(self) -> int:
        return len(self.segment_names())

    def segment_names(self) -> list[str]:
        """Return the names of all segments."""
        return sorted(self._stored.keys() | self._in_use.keys())

    def get(self, segment: str) -> StoredSegment | None:
        """Return a segment's record. Raises ``ChunkRecordError``."""
        record = self._in_use.get(segment)
        if record is not None:
            self._in_use.move_to_end(segment)
            return record
        data = self._stored.get(segment)
        if data is None:
            return None
        record = decode_record(segment, _record_of(data))
        self._use(segment, record)
        return record

    def peek(self, segment: str) -> StoredSegment | None:
        """Return a segment's record without counting it as used. Raises ``ChunkRecordError``."""
        record = self._in_use.get(segment)
        if record is None and (data := self._stored.get(segment)) is not None:
            record = decode_record(segment, _record_of(data))
        return record

    def put(self, segment: str, record: StoredSegment) -> None:
        """Replace a segment's record."""
        self._stored.pop(segment, None)
        self._use(segment, record)

    def _use(self, segment: str, record: StoredSegment) -> None:
        self._in_use[segment] = record
        self._in_use.move_to_end(segment)
        if len(self._in_use) > RECORDS_IN_USE_MAX:
            oldest, unused = self._in_use.popitem(last=False)
            if oldest not in self._stored:
                self._stored[oldest] = _entry(oldest, unused)

    def _remove(self, segment: str) -> None:
        self._in_use.pop(segment, None)
        self._stored.pop(segment, None)

    def chunk_names(self) -> Iterator[str]:
        """Yield the names of the chunks of all segments. The state must not change meanwhile."""
        for record in self._in_use.values():
            yield from (chunk.name for chunk in record.chunks)
        for segment, data in self._stored.items():
            if segment not in self._in_use:
                yield from (chunk.name for chunk in decode_record(segment, _record_of(data)).chunks)

    def check(self, changes: Iterable[Change]) -> None:
        """Raise ``ChunkRecordError`` when changes do not fit to the state. Changes nothing."""
        trial = ChunkMetadata()
        for segment in {segment for change in changes for segment in segments_of(change)}:
            if (record := self.get(segment)) is not None:
                trial.put(segment, record)
        for change in changes:
            trial.apply(change)

    def apply(self, change: Change) -> None:
        """Apply a change. Raises ``ChunkRecordError`` when it does not fit to the state."""
        match change:
            case AddChunk():
                self._add_chunk(change)
            case MoveChunks():
                self._move_chunks(change)
            case Truncate():
                self._truncate(change)
            case Forget(segment):
                record = self.get(segment)
                self._remove(segment)
                if record is not None and not record.is_moved:
                    self._condemn(record.chunks)
            case Checked():
                self._check_chunk(change)
            case Condemn(names):
                self.condemned |= dict.fromkeys(names)
            case Collected(names):
                for name in names:
                    self.condemned.pop(name, None)

    def _condemn(self, chunks: Iterable[Chunk]) -> None:
        self.condemned |= {chunk.name: None for chunk in chunks}

    def _ending_at(self, segment: str, offset: int) -> list[Chunk]:
        """Return the segment's chunks, with the last one closed so that it ends at ``offset``."""
        record = self.get(segment)
        if record is None:
            return []
        if record.is_moved:
            raise ChunkRecordError(f"{segment} is changed after its chunks were moved")
        chunks = list(record.chunks)
        while chunks and chunks[-1].start >= offset:
            if chunks[-1].length:
                raise ChunkRecordError(f"{segment} ends at {chunks[-1].end}, not at {offset}")
            self._condemn([chunks.pop()])
        if chunks:
            last = chunks[-1]
            if not last.is_open and last.end != offset:
                raise ChunkRecordError(f"{segment} ends at {last.end}, not at {offset}")
            chunks[-1] = replace(last, length=offset - last.start, is_open=False)
        elif not record.chunks and record.end_without_chunks != offset:
            raise ChunkRecordError(f"{segment} ends at {record.end_without_chunks}, not {offset}")
        return chunks

    def _add_chunk(self, change: AddChunk) -> None:
        chunks = self._ending_at(change.segment, change.start)
        chunks.append(Chunk(change.start, 0, change.name, change.epoch, is_open=True))
        self.put(change.segment, StoredSegment(tuple(chunks)))

    def _move_chunks(self, change: MoveChunks) -> None:
        source = self.get(change.source)
        if source is None or source.is_moved:
            raise ChunkRecordError(f"{change.source} has no chunks that could be moved")
        chunks = self._ending_at(change.target, change.offset)
        moved = [chunk for chunk in source.chunks if chunk.start < change.length]
        ends = [*(chunk.start for chunk in moved[1:]), change.length]
        for chunk, end in zip(moved, ends, strict=True):
            start, length = change.offset + chunk.start, end - chunk.start
            chunks.append(replace(chunk, start=start, length=length, is_open=False))
        self._condemn(source.chunks[len(moved) :])
        self.put(change.target, StoredSegment(tuple(chunks)))
        self.put(change.source, replace(source, chunks=tuple(moved), is_moved=True))

    def _check_chunk(self, change: Checked) -> None:
        record = self.get(change.segment)
        chunks = record.chunks if record is not None else ()
        index = bisect_right(chunks, change.start, key=_start) - 1
        if record is None or index < 0 or chunks[index].start != change.start:
            raise ChunkRecordError(f"{change.segment} has no chunk that begins at {change.start}")
        chunk = chunks[index]
        known = chunk.checksums
        if known.length < change.known or (known.length and known.phase != change.phase):
            raise ChunkRecordError(
                f"the checksums of {chunk.name} from {known.length} to {change.known} are missing"
            )
        if known.length >= change.length:
            return  # the owner knows them already, or they were in the snapshot
        checksums = replace(known, phase=change.phase).with_sums_from(
            change.known, change.length, change.sums
        )
        length = max(chunk.length, change.length) if chunk.is_open else chunk.length
        checked = replace(chunk, length=length, checksums=checksums)
        chunks = (*chunks[:index], checked, *chunks[index + 1 :])
        self.put(change.segment, replace(record, chunks=chunks))

    def _truncate(self, change: Truncate) -> None:
        record = self.get(change.segment)
        if record is None:
            raise ChunkRecordError(f"{change.segment} is truncated and not known")
        gone = gone_chunk_count(record, change.offset, change.end)
        self._condemn(record.chunks[:gone])
        chunks = record.chunks[gone:]
        if chunks and chunks[-1].is_open:
            last = chunks[-1]
            length = max(last.length, change.end - last.start)
            chunks = (*chunks[:-1], replace(last, length=length))
        self.put(change.segment, StoredSegment(chunks, change.end, record.is_moved))

    def encode(self, *, epoch: int, sequence: int, name: str) -> bytes:
        """Return the bytes of a snapshot with a name, which has all changes up to ``sequence``."""
        for segment, record in self._in_use.items():
            if segment not in self._stored:
                self._stored[segment] = _entry(segment, record)
        body = b"".join([*self._stored.values(), *map(encode_text, self.condemned)])
        header = _HEADER.pack(
            MAGIC, VERSION, epoch, sequence, len(self._stored), len(self.condemned), len(body)
        )
        # The bytes of records in use are dropped again, because these records may change.
        for segment in self._in_use:
            del self._stored[segment]
        checksum = crc32c(body, crc32c(header, sum_of_name(name)))
        return b"".join([header, body, _ENTRY.pack(checksum)])

    @classmethod
    def decode(cls, data: bytes, *, name: str) -> tuple[ChunkMetadata, int]:
        """Return a snapshot's state and sequence number. Raises ``ChunkRecordError``, and its
        subclass ``SnapshotUnfinishedError`` for a snapshot that is cut off."""
        if data[:4] != MAGIC[: len(data)]:
            raise ChunkRecordError("this is no snapshot of chunk metadata")
        if len(data) < _HEADER.size:
            raise SnapshotUnfinishedError("a snapshot ends in its header")
        _, version, _, sequence, count, condemned_count, length = _HEADER.unpack_from(data)
        if version != VERSION:
            raise ChunkRecordError(f"snapshot version {version} is not known, only {VERSION}")
        if len(data) < _HEADER.size + length + _ENTRY.size:
            raise SnapshotUnfinishedError(f"a snapshot ends early, after {len(data)} bytes")
        if len(data) > _HEADER.size + length + _ENTRY.size:
            raise ChunkRecordError(f"a snapshot has {len(data)} bytes, not those of its header")
        checksum = crc32c(memoryview(data)[: -_ENTRY.size], sum_of_name(name))
        if checksum != _ENTRY.unpack(data[-_ENTRY.size :])[0]:
            raise ChunkRecordError("a snapshot does not match its checksum")
        metadata = cls()
        body = data[_HEADER.size : -_ENTRY.size]
        position = metadata._store_entries(body, count)
        reader = Reader(memoryview(body)[position:])
        metadata.condemned = {reader.text(): None for _ in range(condemned_count)}
        reader.end()
        return metadata, sequence

    def _store_entries(self, body: bytes, count: int) -> int:
        """Store the entries of a snapshot without decoding them; return the position after them.

        For a container with many segments, most of the time of an opening is spent here."""
        position = 0
        try:
            for _ in range(count):
                start = position
                name_end = start + 2 + (body[start] << 8 | body[start + 1])
                name = body[start + 2 : name_end].decode("utf-8", "surrogatepass")
                position = name_end + 4 + _ENTRY.unpack_from(body, name_end)[0]
                self._stored[name] = body[start:position]
        except (IndexError, struct.error, UnicodeDecodeError) as error:
            raise ChunkRecordError(f"a snapshot's entry is damaged: {error}") from error
        if position > len(body):
            raise ChunkRecordError("a snapshot's last entry is not whole")
        return position


def segments_of(change: Change) -> tuple[str, ...]:
    """Return the segments whose records a change may change."""
    match change:
        case AddChunk() | Truncate() | Forget() | Checked():
            return (change.segment,)
        case MoveChunks():
            return (change.target, change.source)
        case Condemn() | Collected():
            return ()


def _start(chunk: Chunk) -> int:
    return chunk.start


def _entry(segment: str, record: StoredSegment) -> bytes:
    """Return a segment's name and record as they are encoded in a snapshot."""
    data = encode_record(segment, record)
    return b"".join([encode_text(segment), _ENTRY.pack(len(data)), data])


def _record_of(entry: bytes) -> bytes:
    return entry[2 + (entry[0] << 8 | entry[1]) + _ENTRY.size :]


def gone_chunk_count(record: StoredSegment, offset: int, end: int) -> int:
    """Return the number of a segment's chunks that end at or before an offset. The last chunk ends
    at ``end``."""
    chunks = record.chunks
    ends = [*(chunk.start for chunk in chunks[1:]), end]
    low, high = 0, len(chunks)
    while low < high:
        middle = (low + high) // 2
        if ends[middle] <= offset:
            low = middle + 1
        else:
            high = middle
    return low
