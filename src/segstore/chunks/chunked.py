"""Segments as lists of chunks in tier 2, whose truth is the chunk metadata.

Owns: ``ChunkedSegmentStorage``, and when a chunk is begun, moved and given up;
docs/formats/chunks.md tells what is in chunks, docs/adr/0180 why it is like this.

Invariants:
1. A chunk is named in durable metadata before its first byte is written, so that every chunk that
   exists can be found there, or in the list of those to be deleted.
2. An owner writes only to chunks that it has made itself, under names that no other owner ever
   uses. Of other owners' chunks it counts what was there when it looked first.
3. A chunk whose write failed is not written again; what is in it beyond what was told to be stored
   is ignored as long as this owner runs. The next write begins another chunk.
4. An append to a chunk changes no metadata: it costs one write. The end of a segment's last chunk
   is the chunk's own, and that of others is where the next one starts. Its checksums are noted
   later (docs/adr/0210).
5. ``stored_length`` never goes back except by ``delete``.
6. Where a power cut may have left a chunk longer than what is stored of it, its bytes count as far
   as metadata or the log know them to be stored (docs/adr/0198). A merged segment is forgotten
   together with a change that has its target's length.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog
import trio

from segstore.chunks.additions import Additions
from segstore.chunks.checked_reads import CheckedReads
from segstore.chunks.checksums import Checksums
from segstore.chunks.chunk_metadata import gone_chunk_count
from segstore.chunks.garbage import GARBAGE_DELAY_SECONDS, collect_garbage, collect_now
from segstore.chunks.leases import ChunkLeases, LeaseMarks
from segstore.chunks.records import (
    AddChunk,
    Change,
    Chunk,
    Forget,
    MoveChunks,
    StoredSegment,
    Truncate,
    new_chunk_name,
)
from segstore.chunks.scan_plan import ReadableTier, ScanPlan, choose_chunks, locate_all
from segstore.chunks.scrub import BackgroundScrub, ScrubPolicy
from segstore.chunks.system_journal import (
    SNAPSHOT_BYTES_MIN,
    LastEpoch,
    StoredState,
    SystemJournal,
    record_checksums,
)
from segstore.errors import (
    ChunkDamagedError,
    ChunkNotFoundError,
    DamageKind,
    InvalidChunkOffsetError,
    LogBehindError,
    PermanentError,
    StorageDamagedError,
    StorageError,
)
from segstore.tiers.api import Buffer, ChunkStorage

MIB: Final = 1024 * 1024
ROLLOVER_BYTES_MAX: Final = 128 * MIB
COPY_BYTES_MAX: Final = 4 * MIB
MOVE_BYTES_MIN: Final = MIB
"""Minimum average length of a merged segment's chunks to be moved; shorter ones are copied, because
each chunk has a cost, now and at every read."""

NEEDED_RETRY_SECONDS: Final = 1.0
CHUNKS_PER_TURN: Final = 1000
"""Count of chunk records that a check of all segments decodes, at 2 to 4 us each, before other
tasks run."""

logger = structlog.get_logger(__name__)


class ChunkedSegmentStorage:
    """The segments of one owner of a container. Calls that change one segment come one at a time;
    reads may come at any time.

    ``epoch`` returns the epoch of the container's log; it is called at the first use. ``boot_id``
    names the start of the machine if a power cut may leave incomplete chunks. ``readable`` is set
    if others may read the chunks themselves. Without ``scrub``, the lengths of chunks are checked
    once, and their bytes only when they are read.
    """

    def __init__(
        self,
        chunks: ChunkStorage,
        *,
        epoch: Callable[[], int],
        container_id: int = 0,
        garbage_delay_seconds: float = GARBAGE_DELAY_SECONDS,
        move_bytes_min: int = MOVE_BYTES_MIN,
        snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN,
        boot_id: str | None = None,
        scrub: ScrubPolicy | None = None,
        readable: ReadableTier | None = None,
    ) -> None:
        self._chunks = chunks
        self._reads = CheckedReads(chunks)
        self._journal = SystemJournal(
            chunks,
            container_id=container_id,
            epoch=epoch,
            snapshot_bytes_min=snapshot_bytes_min,
            boot_id=boot_id,
            compare=self._refuse_others,
        )
        self._additions = Additions(self._journal)
        self._scrub = BackgroundScrub(chunks, self._journal, self._reads, scrub)
        self._readable = readable
        self._leases = ChunkLeases()
        self._lease_marks = LeaseMarks(chunks, container_id, epoch)
        self._garbage_delay_seconds = garbage_delay_seconds
        self._move_bytes_min = move_bytes_min
        self._chunk_count = 0
        self._needed: dict[str, int] = {}
        """Bytes of each segment that the log relies on, until tier 2 is known to have them."""
        self._ends: Mapping[str, int] = {}
        """Length of each segment by the log, until tier 2 is known to have no more."""

    async def run(self) -> None:
        """Delete obsolete chunks, record checksums and look for damage, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._find_needed)
            nursery.start_soon(self._scrub.run)
            nursery.start_soon(record_checksums, self._journal)
            await collect_garbage(
                self._chunks,
                self._journal,
                self._leases,
                self._lease_marks,
                self._garbage_delay_seconds,
            )

    async def settle(self) -> None:
        """Record the lengths and checksums of all chunks; see ``SegmentStorage.settle``."""
        if self._journal.opened.is_set():
            await self._journal.settle()

    async def collect(self) -> None:
        """Delete obsolete chunks without a lease now, even if reads of them are under way."""
        await self._journal.ready()
        await collect_now(self._chunks, self._journal, self._leases)

    async def check_log(self, last_epoch: LastEpoch) -> None:
        """Raise ``LogBehindError`` when an owner of a later epoch has used these chunks.

        Asked before the container's log is opened under the next one.
        """
        await self._journal.check_log(last_epoch)

    async def recovered(
        self,
        *,
        last_operation: int = 0,
        next_segment_id: int | None = None,
        needed: Mapping[str, int] | None = None,
        ends: Mapping[str, int] | None = None,
    ) -> None:
        """End the recovery: from now on ``stored_length`` is not asked with ``certain``.

        See ``SegmentStorage.recovered``.
        """
        self._needed, self._ends = dict(needed or {}), ends or {}
        await self._journal.recovered(last_operation=last_operation, was_used=bool(needed))
        if not self._journal.opened.is_set():
            return
        if next_segment_id is not None:
            for segment in self._journal.metadata.segment_names():
                if _segment_id(segment) >= next_segment_id:
                    raise LogBehindError(
                        f"tier 2 has {segment}, which the log never knew: the journal is an older"
                        " copy"
                    )
        try:
            await self._refuse_others()
        except PermanentError:
            raise
        except StorageError as error:
            logger.warning("segments are looked for later", error=str(error))
            self._ends = {}  # they become longer from now on

    async def _find_needed(self) -> None:
        """Compare tier 2 with the log, if it was away during the recovery."""
        while (self._needed or self._ends) and not self._journal.opened.is_set():
            try:
                await self._journal.ready()
            except PermanentError:
                raise
            except StorageError:
                await trio.sleep(NEEDED_RETRY_SECONDS)
        await self._journal.opened.wait()
        while self._needed:
            try:
                await self._refuse_older()
            except PermanentError:
                raise
            except StorageError:
                await trio.sleep(NEEDED_RETRY_SECONDS)

    async def _refuse_others(self) -> None:
        """Raise what says that tier 2 or the log is an older copy."""
        await self._refuse_older()
        await self._refuse_newer()

    async def _refuse_newer(self) -> None:
        """Raise ``LogBehindError`` when tier 2 has bytes that the log never had."""
        metadata, unsettled = self._journal.metadata, dict[str, Chunk]()
        chunk_count = 0
        for segment, end in self._ends.items():
            if chunk_count >= CHUNKS_PER_TURN:
                chunk_count = 0
                await trio.lowlevel.checkpoint()
            record = metadata.peek(segment)
            if record is None or record.is_moved:
                continue
            chunk_count += 1 + len(record.chunks)
            last = record.chunks[-1] if record.chunks else None
            if record.end > end:
                raise _newer(segment, end, record.end)
            if last is not None and last.is_open and last.epoch != self._journal.epoch:
                unsettled[segment] = last
        # Bytes that a power cut left behind the end of a chunk do not count.
        if unsettled and not self._journal.is_in_doubt:
            lengths = await self._chunks.lengths([chunk.name for chunk in unsettled.values()])
            for (segment, chunk), length in zip(unsettled.items(), lengths, strict=True):
                if (found := chunk.start + (length or 0)) > self._ends[segment]:
                    raise _newer(segment, self._ends[segment], found)
        self._ends = {}

    async def _refuse_older(self) -> None:
        """Raise ``StorageDamagedError`` when tier 2 lacks bytes that the log has dropped."""
        metadata = self._journal.metadata
        unsettled: dict[str, tuple[Chunk, int]] = {}
        chunk_count = 0
        for segment, end in list(self._needed.items()):
            if chunk_count >= CHUNKS_PER_TURN:
                chunk_count = 0
                await trio.lowlevel.checkpoint()
            if segment not in self._needed:
                continue  # it was deleted meanwhile
            record = metadata.peek(segment)
            chunk_count += 1 + (len(record.chunks) if record is not None else 0)
            if record is None or record.end < end:
                last = record.chunks[-1] if record is not None and record.chunks else None
                if last is None or not last.is_open:
                    raise _older(segment, end, record.end if record is not None else 0)
                unsettled[segment] = last, end
        lengths = await self._chunks.lengths([chunk.name for chunk, _ in unsettled.values()])
        for (segment, (chunk, end)), length in zip(unsettled.items(), lengths, strict=True):
            found = chunk.start + (length or 0)
            if found < end and segment in self._needed:  # else it was deleted meanwhile
                raise _older(segment, end, found)
        self._needed = {}

    async def keep_container(self, snapshot: bytes, sequence_number: int) -> None:
        """See ``SegmentStorage.keep_container``."""
        await self._journal.keep_container(snapshot, sequence_number)

    async def close(self, *, last_operation: int) -> None:
        """See ``SegmentStorage.close``."""
        await self._journal.close(last_operation=last_operation)

    async def inspect(self) -> StoredState:
        """Return what the last owner of a stopped container left. See ``SystemJournal.inspect``."""
        return await self._journal.inspect()

    async def replace_records(self, records: Mapping[str, StoredSegment]) -> None:
        """Replace the chunks of some segments, durably."""
        await self._journal.replace_records(records)

    async def stored_length(self, segment: str, *, certain: int | None = None) -> int:
        """Return the offset up to which the segment's bytes are stored; 0 when none are.

        See ``SegmentStorage.stored_length``.
        """
        record = await self._settled(segment, certain)
        return record.end if record is not None else 0

    async def shorten(self, ends: Mapping[str, int]) -> None:
        """Make segments end earlier, durably. Chunks behind their ends stay, and do not count."""
        records = {}
        for segment, end in ends.items():
            record = await self._unchanging(segment)
            assert record is not None
            chunks = [chunk for chunk in record.chunks if chunk.start < end]
            if chunks:
                chunks[-1] = chunks[-1].cut(end - chunks[-1].start)
            records[segment] = replace(record, chunks=tuple(chunks), end_without_chunks=end)
        await self.replace_records(records)

    async def segment_names(self) -> list[str]:
        """Return the names of all stored segments."""
        await self._journal.ready()
        return self._journal.metadata.segment_names()

    async def chunks_of(self, segment: str) -> tuple[Chunk, ...]:
        """Return the segment's chunks, by offset."""
        record = await self._settled(segment)
        return record.chunks if record is not None else ()

    async def read(self, segment: str, *, offset: int, length: int) -> Buffer:
        """Read up to ``length`` bytes at ``offset``: as many as lie in the same chunk.

        Raises ``InvalidChunkOffsetError`` when no byte is stored there.
        """
        assert length > 0, "a read is for at least one byte"
        record = await self._settled(segment)
        chunks = record.chunks if record is not None else ()
        index = bisect_right(chunks, offset, key=_start) - 1
        if index < 0 or offset >= chunks[index].end:
            raise InvalidChunkOffsetError(f"segment {segment} has no stored byte at {offset}")
        chunk = chunks[index]
        end = min(offset + length, chunk.end)
        try:
            return await self._reads.read(segment, chunk, offset - chunk.start, end - chunk.start)
        except ChunkDamagedError as error:
            if self._has_chunk(segment, chunk):
                self._reads.record_damage(segment, chunk, error)
                raise
            raise ChunkNotFoundError(f"segment {segment} has changed: {error}") from error

    async def plan_scan(
        self, segment: str, *, start: int, end: int, lease_id: bytes, lease_seconds: float
    ) -> ScanPlan | None:
        """Return where the bytes of a range are; see ``SegmentStorage.plan_scan``."""
        if self._readable is None:
            return None
        await self._journal.ready()
        await self._lease_marks.make()
        record = await self._settled(segment)
        # Without an await in between: a chunk in the record is not being deleted, and will not be.
        chunks = choose_chunks(record.chunks if record is not None else (), start, end)
        self._leases.hold(lease_id, [chunk.name for chunk in chunks], lease_seconds)
        planned = await locate_all(self._readable.locate, chunks)
        stored_end = min(end, record.end) if record is not None else start
        planned_end = min(stored_end, chunks[-1].end) if chunks else start
        return ScanPlan(self._readable.address, planned_end, stored_end, planned)

    async def hold_chunks(
        self, segment: str | None, *, lease_id: bytes, names: Sequence[str], lease_seconds: float
    ) -> bool:
        """Extend or end a lease; see ``SegmentStorage.hold_chunks``."""
        if lease_seconds <= 0:
            self._leases.end(lease_id)
            return True
        await self._journal.ready()
        await self._lease_marks.make()
        record = await self._settled(segment) if segment is not None else None
        known = set(self._journal.metadata.condemned).intersection(names)
        if record is not None:
            known.update(chunk.name for chunk in record.chunks)
        if not self._leases.may_hold(names, known):
            return False
        self._leases.hold(lease_id, names, lease_seconds)
        return True

    async def write(
        self, segment: str, *, offset: int, data: Sequence[Buffer], rollover_bytes: int
    ) -> None:
        """Store ``data`` at ``offset``; see ``SegmentStorage.write``."""
        record = await self._unchanging(segment)
        remaining = _Buffers(data)
        if record is not None:
            if offset > record.end:
                raise InvalidChunkOffsetError(
                    f"segment {segment} has {record.end} stored bytes: nothing can be stored at"
                    f" {offset}"
                )
            stored = min(record.end - offset, remaining.length)
            await self._compare(segment, offset, remaining.pop(stored))
            offset += stored
            if remaining.length > 0:
                _refuse_moved(segment, record)
        rollover_bytes = min(rollover_bytes or ROLLOVER_BYTES_MAX, ROLLOVER_BYTES_MAX)
        while remaining.length > 0:
            chunk = await self._chunk_with_room(segment, offset, rollover_bytes)
            taken = remaining.pop(min(remaining.length, rollover_bytes - chunk.length))
            offset = await self._append(segment, chunk, taken)

    async def _compare(self, segment: str, offset: int, data: Sequence[Buffer]) -> None:
        """Compare bytes that are written again with the stored ones; raises if they differ."""
        for part in data:
            view = memoryview(part)
            while len(view) > 0:
                try:
                    stored = await self.read(segment, offset=offset, length=len(view))
                except InvalidChunkOffsetError:  # it was truncated meanwhile
                    return
                if stored != view[: len(stored)]:
                    raise ChunkDamagedError(
                        f"segment {segment} has other bytes in tier 2, from {offset} on, than the"
                        " log: a chunk has more bytes than were written to it",
                        kind=DamageKind.FOREIGN,
                        offset=offset,
                    )
                view = view[len(stored) :]
                offset += len(stored)

    async def truncate(self, segment: str, *, offset: int) -> None:
        """Drop the chunks that end at or before ``offset``."""
        record = await self._unchanging(segment)
        if record is None or gone_chunk_count(record, offset, record.end) == 0:
            return
        _refuse_moved(segment, record)
        async with self._journal.changing():
            await self._journal.commit(Truncate(segment, offset, record.end))

    async def concat(
        self, target: str, *, offset: int, source: str, length: int, rollover_bytes: int
    ) -> None:
        """Append the first ``length`` bytes of ``source`` at ``offset`` of ``target``: move their
        chunks, or copy the bytes if they are few and sound.

        When the target reaches to their end, an earlier call did it.
        """
        to, given = await self._unchanging(target), await self._unchanging(source)
        self._needed.pop(source, None)
        end = to.end if to is not None else 0
        if length == 0 or end >= offset + length:
            return
        if given is None:
            raise ChunkNotFoundError(f"segment {source} is not stored: {target} cannot get it")
        _refuse_moved(target, to)
        _refuse_moved(source, given)
        if given.end < length or not given.chunks or given.chunks[0].start > 0:
            raise InvalidChunkOffsetError(
                f"segment {source} lacks bytes before {length}: they cannot be merged into {target}"
            )
        may_move = to is None or end == offset
        is_long = length >= self._move_bytes_min * len(given.chunks)
        first = [] if is_long or not may_move else await self._read_sound(source, length)
        if may_move and (is_long or first is None):
            async with self._journal.changing():
                await self._journal.commit(MoveChunks(target, offset, source, length))
            return
        copied = max(0, end - offset)
        while copied < length:
            data = first or [
                await self.read(source, offset=copied, length=min(COPY_BYTES_MAX, length - copied))
            ]
            first = None
            await self.write(
                target, offset=offset + copied, data=data, rollover_bytes=rollover_bytes
            )
            copied += sum(map(len, data))

    async def _read_sound(self, segment: str, length: int) -> list[Buffer] | None:
        """Read the first ``length`` bytes of a segment; returns as many as one write may have, None
        if some of them are damaged.

        These are moved with their checksums: reads of them are refused in their new place as well,
        and the log need not keep what comes behind.
        """
        first: list[Buffer] = []
        position = 0
        while position < length:
            size = min(COPY_BYTES_MAX, length - position)
            try:
                data = await self.read(segment, offset=position, length=size)
            except ChunkDamagedError:
                return None
            position += len(data)
            if position <= COPY_BYTES_MAX:
                first.append(data)
        return first

    async def delete(self, segment: str, *, merged_into: str | None = None) -> None:
        """Forget the segment. Its chunks are deleted later."""
        await self._journal.ready()
        if not self._journal.is_unfinished and self._journal.metadata.get(segment) is None:
            # Changes of others at this moment are not about this segment.
            self._needed.pop(segment, None)
            return
        target = None if merged_into is None else await self._unchanging(merged_into)
        self._needed.pop(segment, None)
        async with self._journal.changing():
            if self._journal.metadata.get(segment) is None:
                return
            known: list[Change] = []
            if merged_into is not None and target is not None and target.end > 0:
                # After this its bytes are nowhere else: the target's must not come into doubt.
                known.append(Truncate(merged_into, 0, target.end))
            await self._journal.commit(*known, Forget(segment))

    # ---- Chunks ----------------------------------------------------------------------------------

    async def _unchanging(self, segment: str) -> StoredSegment | None:
        """Return the segment's record, as soon as no change that failed can still take effect."""
        await self._journal.ready()
        if self._journal.is_unfinished:
            async with self._journal.changing():
                pass
        return await self._settled(segment)

    async def _settled(self, segment: str, certain: int | None = None) -> StoredSegment | None:
        """Return the segment's record, with the length of an older owner's last chunk found out."""
        await self._journal.ready()
        metadata = self._journal.metadata
        record = metadata.get(segment)
        while record is not None and record.chunks:
            last = record.chunks[-1]
            if not last.is_open or last.epoch == self._journal.epoch:
                break
            length = await self._length_of(segment, last)
            if certain is not None and self._journal.is_in_doubt:
                length = min(length, max(last.length, certain - last.start))
            if metadata.get(segment) == record:  # else another task found it out meanwhile
                record = _with_last(record, replace(last, length=length, is_open=False))
                metadata.put(segment, record)
            else:
                record = metadata.get(segment)
        return record

    async def _length_of(self, segment: str, chunk: Chunk) -> int:
        try:
            length = (await self._chunks.info(chunk.name)).length
        except ChunkNotFoundError:  # its owner ended before the first byte
            length = 0
        if length < chunk.length:
            raise StorageDamagedError(
                f"segment {segment} is damaged in tier 2: {chunk.name} has {length} bytes, it had"
                f" {chunk.length}"
            )
        return length

    async def _chunk_with_room(self, segment: str, offset: int, rollover_bytes: int) -> Chunk:
        """Return the segment's last chunk if it can be appended to, else a new one."""
        metadata, epoch = self._journal.metadata, self._journal.epoch
        record = metadata.get(segment)
        if record is not None and record.chunks:
            last = record.chunks[-1]
            if last.is_open and last.length < rollover_bytes:
                return last
        self._chunk_count += 1
        name = new_chunk_name(segment, start=offset, epoch=epoch, number=self._chunk_count)
        await self._additions.add(AddChunk(segment, offset, epoch, name))
        record = metadata.get(segment)
        assert record is not None, "it has a chunk now"
        assert record.chunks[-1].name == name
        return record.chunks[-1]

    async def _append(self, segment: str, chunk: Chunk, data: Sequence[Buffer]) -> int:
        """Append to a chunk, and return the segment's offset behind."""
        known = chunk.checksums if chunk.length else Checksums.at(chunk.start)
        checksums = known

        def extend() -> None:
            nonlocal checksums
            checksums = known.extended(data)

        try:
            await self._chunks.write(chunk.name, offset=chunk.length, data=data, meanwhile=extend)
        except BaseException:
            self._replace_last(segment, chunk, replace(chunk, is_open=False))
            raise
        assert checksums.length == chunk.length + sum(map(len, data)), "the storage did not call it"
        grown = replace(chunk, length=checksums.length, checksums=checksums)
        if self._replace_last(segment, chunk, grown):
            self._journal.record_append(segment, known.length)
        elif self._has_chunk(segment, chunk):
            # The metadata end the chunk where it ended before: these bytes would never be read.
            raise StorageError(f"chunk {chunk.name} was closed while it was written to")
        return grown.end

    def _has_chunk(self, segment: str, chunk: Chunk) -> bool:
        record = self._journal.metadata.get(segment)
        return record is not None and any(each.name == chunk.name for each in record.chunks)

    def _replace_last(self, segment: str, old: Chunk, new: Chunk) -> bool:
        """Record the result of a write to a chunk, unless the chunk was removed meanwhile."""
        record = self._journal.metadata.get(segment)
        if record is None or not record.chunks or record.chunks[-1] != old:
            return False
        self._journal.metadata.put(segment, _with_last(record, new))
        return True


class _Buffers:
    """Buffers that are used up from the front, without copying."""

    def __init__(self, buffers: Sequence[Buffer]) -> None:
        self._views = [memoryview(buffer) for buffer in reversed(buffers)]
        self.length = sum(map(len, self._views))

    def pop(self, length: int) -> list[Buffer]:
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


def _with_last(record: StoredSegment, last: Chunk) -> StoredSegment:
    return replace(record, chunks=(*record.chunks[:-1], last))


def _refuse_moved(segment: str, record: StoredSegment | None) -> None:
    """Raise for a segment whose chunks belong to another one since a merge: changes would affect
    that one."""
    if record is not None and record.is_moved:
        raise InvalidChunkOffsetError(f"segment {segment} was merged: it can only be deleted")


def _newer(segment: str, end: int, found: int) -> LogBehindError:
    return LogBehindError(
        f"tier 2 has {found} bytes of {segment}, and the log only {end}: the journal is an older"
        " copy"
    )


def _older(segment: str, needed: int, found: int) -> StorageDamagedError:
    return StorageDamagedError(
        f"tier 2 has {segment} up to {found}, and had it up to {needed} when the log let go of it:"
        " tier 2 is an older copy, or was damaged"
    )


def _segment_id(segment: str) -> int:
    """Return the number in the name of a segment in tier 2; -1 for one that no container has
    made."""
    digits = segment.rpartition(".S-")[2].partition("$")[0]
    return int(digits) if digits.isdecimal() else -1


def _start(chunk: Chunk) -> int:
    return chunk.start
