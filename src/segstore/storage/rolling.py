"""Segments as lists of chunks in tier 2.

Owns: ``RollingSegmentStorage``; docs/formats/chunks.md tells the names and what is in them.

Invariants:
1. The chunks of a segment are named ``<segment>$<start offset, 20 digits>``, hold the segment's
   raw bytes, and follow each other without a hole: each starts where the one before it ends.
2. Tier 2 is the only state; the cache of chunk lists may be dropped at any time. It is right as
   long as nobody else writes the segment: one instance serves one run of a container.
3. Every step leaves chunks that keep invariant 1, so that after a crash or an error between two
   steps the same call completes the work.
4. ``stored_length`` never goes back except by ``delete``: truncation keeps the segment's end.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError, StorageError
from segstore.tiers.api import Buffer, ChunkStorage

MIB = 1024 * 1024
ROLLOVER_BYTES_MAX = 128 * MIB
COPY_BYTES_MAX = 4 * MIB
CACHED_SEGMENTS_MAX = 4096
OFFSET_DIGITS = 20


@dataclass(frozen=True, slots=True)
class _Chunk:
    """One chunk of a segment: the bytes from ``start`` to before ``end``."""

    start: int
    end: int


_Chunks = tuple[_Chunk, ...]


def chunk_name(segment: str, start: int) -> str:
    """The name of the chunk that begins at an offset of a segment."""
    return f"{segment}${start:0{OFFSET_DIGITS}d}"


class RollingSegmentStorage:
    """Stores segments as chunks of bounded length. Calls that change one segment come one at a
    time; reads may come at any time."""

    def __init__(
        self, chunks: ChunkStorage, *, cached_segments_max: int = CACHED_SEGMENTS_MAX
    ) -> None:
        self._storage = chunks
        self._cached_segments_max = cached_segments_max
        self._cache: OrderedDict[str, _Chunks] = OrderedDict()

    async def stored_length(self, segment: str) -> int:
        """The offset up to which the segment's bytes are stored; 0 when nothing is."""
        chunks = await self._chunks(segment)
        return chunks[-1].end if chunks else 0

    async def write(
        self, segment: str, *, offset: int, data: Sequence[Buffer], rollover_bytes: int
    ) -> None:
        """Store ``data`` at ``offset``; see ``SegmentStorage.write``."""
        chunks = await self._chunks(segment)
        if chunks and offset > chunks[-1].end:
            raise InvalidChunkOffsetError(
                f"segment {segment} has {chunks[-1].end} stored bytes: nothing can be stored at"
                f" {offset}"
            )
        remaining = _Buffers(data)
        if chunks and offset < chunks[0].start:  # truncated since it was written first
            remaining.take(min(chunks[0].start - offset, remaining.length))
            offset = chunks[0].start
        rollover_bytes = min(rollover_bytes or ROLLOVER_BYTES_MAX, ROLLOVER_BYTES_MAX)
        while remaining.length > 0:
            offset = await self._write_into_one(segment, offset, remaining, rollover_bytes)

    async def read(self, segment: str, *, offset: int, length: int) -> bytes:
        """Read up to ``length`` bytes at ``offset``: as many as lie in the same chunk.

        Raises ``InvalidChunkOffsetError`` when no byte is stored there.
        """
        assert length > 0, "a read is for at least one byte"
        chunks = await self._chunks(segment)
        index = bisect_right(chunks, offset, key=_start) - 1
        if index < 0 or offset >= chunks[index].end:
            raise InvalidChunkOffsetError(f"segment {segment} has no stored byte at {offset}")
        chunk = chunks[index]
        try:
            return await self._storage.read(
                chunk_name(segment, chunk.start),
                offset=offset - chunk.start,
                length=min(length, chunk.end - offset),
            )
        except StorageError:
            self._cache.pop(segment, None)
            raise

    async def truncate(self, segment: str, *, offset: int) -> None:
        """Delete the chunks that end at or before ``offset``."""
        chunks = await self._chunks(segment)
        if not chunks or offset <= chunks[0].start:
            return
        if offset >= chunks[-1].end and chunks[-1].end > chunks[-1].start:
            # An empty chunk keeps the segment's end.
            end = chunks[-1].end
            await self._write_chunk(segment, _Chunk(end, end), offset=end, data=[])
            chunks = (*chunks, _Chunk(end, end))
        for index, chunk in enumerate(chunks[:-1]):
            if chunk.end > offset:
                break
            await self._delete_chunk(segment, chunk)
            self._remember(segment, chunks[index + 1 :])

    async def concat(
        self, target: str, *, offset: int, source: str, length: int, rollover_bytes: int
    ) -> None:
        """Copy the first ``length`` bytes of ``source`` to ``offset`` of ``target``.

        When the source is gone and the target reaches to the copy's end, an earlier call did it.
        """
        if not await self._chunks(source):
            if length == 0 or await self.stored_length(target) >= offset + length:
                return
            raise ChunkNotFoundError(f"segment {source} is not stored: {target} cannot get it")
        copied = 0
        while copied < length:
            data = await self.read(
                source, offset=copied, length=min(COPY_BYTES_MAX, length - copied)
            )
            await self.write(
                target, offset=offset + copied, data=[data], rollover_bytes=rollover_bytes
            )
            copied += len(data)

    async def delete(self, segment: str) -> None:
        """Delete all of the segment's chunks, the last one first."""
        for chunk in reversed(await self._listed(segment)):
            await self._delete_chunk(segment, chunk)

    async def _write_into_one(
        self, segment: str, offset: int, remaining: _Buffers, rollover_bytes: int
    ) -> int:
        """Write what goes into one chunk, and return the offset behind it."""
        chunks = await self._chunks(segment)
        index = bisect_right(chunks, offset, key=_start) - 1
        if index < 0 or (
            index == len(chunks) - 1
            and offset == chunks[index].end
            and offset - chunks[index].start >= rollover_bytes
        ):
            chunk = _Chunk(offset, offset)
            chunks = (*chunks, chunk)
            index = len(chunks) - 1
        chunk = chunks[index]
        if index < len(chunks) - 1:  # bytes that are stored already are written over themselves
            limit = chunk.end
        else:
            limit = max(chunk.end, chunk.start + rollover_bytes)
        length = min(remaining.length, limit - offset)
        end = offset + length
        data = remaining.take(length)
        await self._write_chunk(segment, chunk, offset=offset, data=data)
        grown = _Chunk(chunk.start, max(chunk.end, end))
        self._remember(segment, (*chunks[:index], grown, *chunks[index + 1 :]))
        return end

    async def _write_chunk(
        self, segment: str, chunk: _Chunk, *, offset: int, data: Sequence[Buffer]
    ) -> None:
        """Write to a chunk. What an error or a cancellation leaves is listed anew."""
        name = chunk_name(segment, chunk.start)
        try:
            await self._storage.write(name, offset=offset - chunk.start, data=data)
        finally:
            self._cache.pop(segment, None)

    async def _delete_chunk(self, segment: str, chunk: _Chunk) -> None:
        try:
            await self._storage.delete(chunk_name(segment, chunk.start))
        finally:
            self._cache.pop(segment, None)

    async def _chunks(self, segment: str) -> _Chunks:
        chunks = self._cache.get(segment)
        if chunks is not None:
            self._cache.move_to_end(segment)
            return chunks
        chunks = _joined(segment, await self._listed(segment))
        self._remember(segment, chunks)
        return chunks

    async def _listed(self, segment: str) -> list[_Chunk]:
        """The segment's chunks as tier 2 lists them, by start offset."""
        prefix = f"{segment}$"  # names of other segments may begin with it too
        chunks = []
        for info in await self._storage.list_chunks(prefix):
            digits = info.name.removeprefix(prefix)
            if len(digits) == OFFSET_DIGITS and digits.isascii() and digits.isdigit():
                start = int(digits)
                chunks.append(_Chunk(start, start + info.length))
        chunks.sort(key=_start)
        return chunks

    def _remember(self, segment: str, chunks: _Chunks) -> None:
        self._cache[segment] = chunks
        self._cache.move_to_end(segment)
        while len(self._cache) > self._cached_segments_max:
            self._cache.popitem(last=False)


def _joined(segment: str, chunks: list[_Chunk]) -> _Chunks:
    """Chunks that follow each other.

    A chunk may be longer than to where the next one starts: a write that failed left more than it
    knew of. The bytes are the same in both, since a segment's bytes never change.
    """
    joined = list(chunks)
    for index, (chunk, following) in enumerate(pairwise(chunks)):
        if chunk.end < following.start:
            raise StorageError(
                f"segment {segment} is damaged in tier 2: {chunk_name(segment, chunk.start)}"
                f" ends at {chunk.end}, the next chunk starts at {following.start}"
            )
        joined[index] = _Chunk(chunk.start, following.start)
    return tuple(joined)


class _Buffers:
    """Buffers that are used up from the front, without copying."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._views = [memoryview(buffer) for buffer in reversed(buffers)]
        self.length = sum(map(len, self._views))

    def take(self, length: int) -> list[Buffer]:
        """Remove the first ``length`` bytes and return them."""
        taken: list[Buffer] = []
        self.length -= length
        while length > 0:
            view = self._views.pop()
            if len(view) > length:
                self._views.append(view[length:])
                view = view[:length]
            taken.append(view)
            length -= len(view)
        return taken


def _start(chunk: _Chunk) -> int:
    return chunk.start
