"""The bytes of a container's segments that a recovery has found, and the chunks that have them.

Owns: ``SegmentPieces``: the ranges of segments in chunks, the ranges that it adds from the log, and
the new records of segments. Added chunks have names that no owner uses again, because the recovery
has claimed an epoch of its own.

Invariants:
1. Where a chunk has bytes, no bytes of the log are added. Held by
   ``test_bytes_are_added_only_where_no_chunk_has_them``.
2. Without an epoch, that is, while a recovery is planned, nothing is written to tier 2. Held by
   ``test_planning_changes_nothing``.
3. Planning and recovering come to the same result. Held by
   ``test_events_on_both_sides_of_a_gap_are_kept_where_they_were``. While planning, added bytes are
   kept in memory only for the segments that are read again: those named with ``OWN_PREFIX``.
4. When a closed chunk has more bytes than its record says, they are not found, also when the chunk
   with the next bytes is missing: they may be those of a write that was never synced
   (docs/adr/0198). Held by ``test_bytes_behind_the_recorded_end_of_a_chunk_fill_no_gap``.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Final

from segstore.chunks.checksums import Checksums
from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.chunks.chunked import ROLLOVER_BYTES_MAX
from segstore.chunks.records import Chunk, StoredSegment, new_chunk_name
from segstore.errors import ChunkNotFoundError
from segstore.tiers.api import Buffer, ChunkStorage

OWN_PREFIX: Final = "_system/"
"""Prefix of the names of segments whose added bytes are kept in memory while planning, because the
plan reads them: the container's records, and the controller's tables."""
COPY_BYTES_MAX: Final = 4 * 1024 * 1024
UNWRITTEN_BYTES_MAX: Final = 1024 * 1024
UNWRITTEN_TOTAL_MAX: Final = 64 * 1024 * 1024

Range = tuple[int, int]


@dataclass(slots=True)
class FoundPiece:
    """The bytes of a segment in one chunk. ``added`` has those that are not written yet, or, while
    planning, are never written."""

    chunk: Chunk
    is_new: bool = False
    may_grow: bool = False
    added: bytearray = field(default_factory=bytearray)

    @property
    def start(self) -> int:
        """Return the offset of the first byte in the segment."""
        return self.chunk.start

    @property
    def end(self) -> int:
        """Return the offset after the last byte."""
        return self.chunk.end


def found_length(chunk: Chunk, lengths: Mapping[str, int]) -> int:
    """Return how many bytes of a recorded chunk exist; ``lengths`` has those of all existing
    chunks."""
    found = 0 if chunk.is_lost else lengths.get(chunk.name, 0)
    return found if chunk.is_open else min(found, chunk.length)


class SegmentPieces:
    """The pieces of all segments of one container, by the names of segments in tier 2.

    Chunks are added under ``epoch``; None means that nothing is written. For segments in
    ``headless``, chunks before the first one in the metadata may be missing.
    """

    def __init__(
        self,
        chunks: ChunkStorage,
        metadata: ChunkMetadata,
        lengths: Mapping[str, int],
        *,
        epoch: int | None = None,
        headless: Collection[str] = (),
    ) -> None:
        self._chunks = chunks
        self._headless = headless
        self._metadata = metadata
        self._lengths = lengths
        self._epoch = epoch
        self._pieces: dict[str, list[FoundPiece]] = {}
        self._unwritten: dict[int, FoundPiece] = {}
        self._unwritten_bytes = 0
        self._chunk_count = 0
        self.records: dict[str, StoredSegment] = {}
        """The new records of changed segments."""
        self.forgotten: list[str] = []
        """The names of segments that were deleted, or merged into another one."""

    def of(self, name: str) -> list[FoundPiece]:
        """Return the pieces of a segment, by offset."""
        pieces = self._pieces.get(name)
        if pieces is None:
            record = self._metadata.get(name)
            pieces = self._pieces[name] = []
            for chunk in record.chunks if record is not None else ():
                if length := found_length(chunk, self._lengths):
                    whole = replace(chunk, length=max(length, chunk.length), is_open=False)
                    pieces.append(FoundPiece(whole.cut(length)))
        return pieces

    def end(self, name: str) -> int:
        """Return the offset after the last byte that was found; 0 when none was."""
        pieces = self.of(name)
        return pieces[-1].end if pieces else 0

    def recorded(self, name: str) -> Range:
        """Return the range of a segment's chunks by its record, whether they exist or not. Only a
        truncation removes the first chunks from the record."""
        record = self._metadata.get(name)
        if record is None or record.is_moved or not record.chunks:
            return 0, 0
        start = 0 if name in self._headless else record.chunks[0].start
        return start, record.chunks[-1].end

    def ranges(self, name: str, start: int, end: int) -> list[Range]:
        """Return the ranges between two offsets of which all bytes were found."""
        found: list[Range] = []
        pieces = self.of(name)
        first = max(0, bisect_right(pieces, start, key=_start) - 1)
        for piece in islice(pieces, first, None):
            if piece.start >= end:
                break
            begin, stop = max(piece.start, start), min(piece.end, end)
            if begin >= stop:
                continue
            if found and found[-1][1] == begin:
                begin = found.pop()[0]
            found.append((begin, stop))
        return found

    def gaps(self, name: str, start: int, end: int) -> Iterator[Range]:
        """Yield the ranges between two offsets of which no byte was found."""
        position = start
        for begin, stop in self.ranges(name, start, end):
            if begin > position:
                yield position, begin
            position = stop
        if position < end:
            yield position, end

    def was_lost(self, name: str, start: int, end: int) -> bool:
        """Return whether an earlier recovery recorded a range as lost."""
        record = self._metadata.get(name)
        chunks = record.chunks if record is not None else ()
        return any(each.is_lost and each.start <= start and end <= each.end for each in chunks)

    # ---- Changes ---------------------------------------------------------------------------------

    async def add(
        self, name: str, offset: int, data: Buffer, *, rollover_bytes: int, start: int = 0
    ) -> None:
        """Add those of these bytes that no piece has. Bytes before offset ``start`` are left
        out."""
        view = memoryview(data)
        for begin, end in list(self.gaps(name, max(offset, start), offset + len(view))):
            await self._add(name, begin, view[begin - offset : end - offset], rollover_bytes)

    async def copy(
        self, source: str, target: str, *, offset: int, length: int, rollover_bytes: int
    ) -> None:
        """Add the first ``length`` bytes of ``source``, as far as they were found, to ``target`` at
        ``offset``."""
        for begin, end in list(self.gaps(target, offset, offset + length)):
            for position, stop in self.ranges(source, begin - offset, end - offset):
                while position < stop:
                    part = min(COPY_BYTES_MAX, stop - position)
                    data: Buffer = memoryview(bytes(part))
                    if self._epoch is not None:
                        data = await self.read(source, offset=position, length=part)
                    await self._add(target, offset + position, memoryview(data), rollover_bytes)
                    position += len(data)

    async def drop(self, name: str, start: int, end: int) -> None:
        """Drop the bytes between two offsets."""
        kept: list[FoundPiece] = []
        behind: FoundPiece | None = None
        for piece in self.of(name):
            if piece.end <= start or piece.start >= end:
                kept.append(piece)
                continue
            await self._write(piece)
            if piece.end > end:
                behind = piece
            if piece.start < start:
                length = start - piece.start
                chunk, added = piece.chunk.cut(length), piece.added[:length]
                kept.append(replace(piece, chunk=chunk, may_grow=False, added=added))
        pieces = self._pieces[name]
        if behind is not None:
            # A record cannot leave out the first bytes of a chunk, so the bytes after the dropped
            # ones need a new chunk.
            rest = bytearray()
            while end + len(rest) < behind.end and (self._epoch is not None or not behind.is_new):
                position = end + len(rest)
                rest += await self.read(name, offset=position, length=behind.end - position)
            data = bytes(rest) if rest else bytes(behind.end - end)
            pieces[:] = kept
            await self.add(name, end, data, rollover_bytes=0)
            return
        pieces[:] = kept

    def forget(self, name: str) -> None:
        """Forget a segment that was deleted, or merged into another one."""
        if self._metadata.peek(name) is not None:
            self.forgotten.append(name)
        self._pieces[name] = []

    async def _add(self, name: str, offset: int, data: memoryview, rollover_bytes: int) -> None:
        limit = min(rollover_bytes or ROLLOVER_BYTES_MAX, ROLLOVER_BYTES_MAX)
        while len(data):
            piece = self._growing(name, offset, limit)
            part = data[: limit - piece.chunk.length]
            checksums = piece.chunk.checksums
            if self._epoch is not None:
                checksums = checksums.extended([part])
            piece.chunk = replace(
                piece.chunk, length=piece.chunk.length + len(part), checksums=checksums
            )
            if self._epoch is not None:
                piece.added += part
                self._unwritten[id(piece)] = piece
                self._unwritten_bytes += len(part)
                if len(piece.added) >= UNWRITTEN_BYTES_MAX:
                    await self._write(piece)
                elif self._unwritten_bytes >= UNWRITTEN_TOTAL_MAX:
                    await self.write_all()
            elif name.startswith(OWN_PREFIX):
                piece.added += part
            offset += len(part)
            data = data[len(part) :]

    def _growing(self, name: str, offset: int, limit: int) -> FoundPiece:
        """Return the piece to which bytes at ``offset`` are added: the new one that ends there and
        is shorter than ``limit``, or another new one."""
        pieces = self.of(name)
        index = bisect_right(pieces, offset, key=_start)
        before = pieces[index - 1] if index else None
        if before is not None and before.may_grow and before.end == offset:
            if before.chunk.length < limit:
                return before
            before.may_grow = False
        chunk = self._new_chunk(name, offset, Checksums.at(offset))
        piece = FoundPiece(chunk, is_new=True, may_grow=True)
        insort(pieces, piece, key=_start)
        return piece

    def _new_chunk(self, name: str, start: int, checksums: Checksums) -> Chunk:
        self._chunk_count += 1
        epoch = self._epoch or 0
        chunk = new_chunk_name(name, start=start, epoch=epoch, number=self._chunk_count)
        return Chunk(start, 0, chunk, epoch, checksums=checksums)

    async def _write(self, piece: FoundPiece) -> None:
        """Write the added bytes of a piece to its chunk, unless the recovery is only planned."""
        if self._epoch is None or not piece.added:
            return
        added, piece.added = piece.added, bytearray()
        self._unwritten.pop(id(piece), None)
        self._unwritten_bytes -= len(added)
        offset = piece.chunk.length - len(added)
        await self._chunks.write(piece.chunk.name, offset=offset, data=[added])

    async def write_all(self) -> None:
        """Write all added bytes, and delete the chunks that were added for segments which got no
        record."""
        for piece in list(self._unwritten.values()):
            await self._write(piece)
        for name, pieces in self._pieces.items():
            if name not in self.records and self._epoch is not None:
                for piece in pieces:
                    if piece.is_new:
                        await self._chunks.delete(piece.chunk.name)

    # ---- Reads -----------------------------------------------------------------------------------

    async def read(self, name: str, *, offset: int, length: int) -> Buffer:
        """Return up to ``length`` bytes from ``offset``, which was found. Raises
        ``StorageError``."""
        pieces = self.of(name)
        index = bisect_right(pieces, offset, key=_start) - 1
        if index < 0 or offset >= pieces[index].end:
            raise ChunkNotFoundError(f"segment {name} has no byte at {offset}")
        piece = pieces[index]
        await self._write(piece)
        position, end = offset - piece.start, min(offset + length, piece.end) - piece.start
        if self._epoch is None and piece.is_new:
            if not piece.added:
                raise ChunkNotFoundError(f"the bytes of {name} at {offset} are only planned")
            return bytes(piece.added[position:end])
        return await self._chunks.read(piece.chunk.name, offset=position, length=end - position)

    async def read_until(
        self, name: str, start: int, end: int, *, with_added: bool = True
    ) -> bytes:
        """Return the bytes from ``start`` to ``end``, but no more than up to the first missing one,
        or without ``with_added`` the first added one.

        A plan does not keep all added bytes. So decisions that depend on bytes leave out added
        ones, and are the same in a plan and a recovery.
        """
        data = bytearray()
        pieces = self.of(name)
        while (offset := start + len(data)) < end:
            index = bisect_right(pieces, offset, key=_start) - 1
            if not with_added and index >= 0 and pieces[index].is_new:
                break
            try:
                data += await self.read(name, offset=offset, length=end - offset)
            except ChunkNotFoundError:
                break
        return bytes(data)

    # ---- The result ------------------------------------------------------------------------------

    def settle(self, name: str, *, start: int, end: int) -> None:
        """Make the new record of a segment from ``start`` to ``end``, in which gaps are lost
        ranges."""
        pieces = self.of(name)
        chunks: list[Chunk] = []
        position = start
        for piece in pieces:
            if piece.end <= start:
                # Keep a chunk before the start offset in the record, so that the next truncation
                # deletes it. A record must have no gap between its chunks and the start offset.
                if chunks and chunks[-1].end != piece.start:
                    chunks.clear()
                chunks.append(piece.chunk)
                continue
            if piece.start > position:
                if chunks and chunks[-1].end != position:
                    chunks.clear()
                chunks.append(self._lost_chunk(name, position, piece.start))
            elif chunks and chunks[-1].end != piece.start:
                chunks.clear()
            chunks.append(piece.chunk)
            position = piece.end
        if position < end:
            if chunks and chunks[-1].end != position:
                chunks.clear()
            chunks.append(self._lost_chunk(name, position, end))
        elif chunks and chunks[-1].end != end:
            chunks.clear()
        found = StoredSegment(tuple(chunks), end)
        record = self._metadata.get(name)
        if not self._is_same(record, found):
            self.records[name] = found

    def _lost_chunk(self, name: str, start: int, end: int) -> Chunk:
        chunk = self._new_chunk(name, start, Checksums())
        return replace(chunk, length=end - start, is_lost=True)

    def _is_same(self, old: StoredSegment | None, new: StoredSegment) -> bool:
        """Return whether the old record of a segment is equal to the new one."""
        if old is None:
            return not new.chunks and not new.end_without_chunks
        if old.is_moved:
            return False
        known = [
            (chunk.start, chunk.length if chunk.is_lost else found_length(chunk, self._lengths))
            for chunk in old.chunks
        ]
        lengths = zip(old.chunks, known, strict=True)
        if any(found < chunk.length for chunk, (_, found) in lengths):
            return False
        found = [(chunk.start, chunk.length) for chunk in new.chunks]
        return [each for each in known if each[1]] == found and (
            bool(found) or old.end_without_chunks == new.end_without_chunks
        )

    def condemned(self) -> list[str]:
        """Return the names of the chunks that no new record has, and which may exist."""
        names: list[str] = []
        for segment, record in self.records.items():
            old = self._metadata.get(segment)
            kept = {chunk.name for chunk in record.chunks}
            if old is not None and not old.is_moved:
                names += [
                    each.name for each in old.chunks if each.name not in kept and not each.is_lost
                ]
        return names


def _start(piece: FoundPiece) -> int:
    return piece.start
