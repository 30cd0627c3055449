"""Segments as lists of chunks in tier 2. The chunk metadata say which chunks a segment has.

Owns: ``ChunkedSegmentStorage``, which begins chunks, moves them to other segments and gives them
up; docs/formats/chunks.md describes the contents of chunks, docs/adr/0180 explains why.

Invariants:
1. When an owner crashes at any time, the metadata name every chunk that exists, so that the next
   owner can delete those that it does not need. Each chunk is named in durable metadata before its
   first byte is written. Held by ``TestChunked``.
2. When an earlier owner continues writing, the present one ignores the bytes. Each owner writes
   only to chunks that it has made itself, and reads from a chunk of an earlier owner only the bytes
   that it had when its length was looked up. Held by
   ``test_bytes_that_a_late_write_brings_back_count_for_nobody``.
3. When a write to a chunk fails, the chunk is closed at its last known length, and the next write
   begins another chunk. Held by ``test_a_write_that_failed_is_not_appended_to``.
4. When bytes are appended to a chunk, one write is enough: the metadata do not change. Held by
   ``test_an_append_costs_one_write``. The checksums are recorded later (docs/adr/0210). Held by
   ``test_checksums_are_noted_in_time_and_not_when_nothing_was_written``.
5. When a segment is truncated, its ``stored_length`` stays or grows; only ``delete`` lowers it.
   Held by ``test_truncation_frees_whole_chunks_and_keeps_the_length``.
6. When a power cut may have left unsynced bytes in a chunk, the chunk counts up to the length that
   the metadata or the log know (docs/adr/0198). Held by
   ``test_after_another_start_of_the_machine_a_chunk_counts_as_far_as_is_certain``. When a merged
   segment is deleted, the metadata get the length of its target first. Held by
   ``test_a_length_in_metadata_is_certain``.

The owner of epoch 1 writes a segment (``test_a_write_that_failed_is_not_appended_to``):

    5 bytes at 0    chunk 0.E1.1 has 5 bytes
    8 bytes at 5    the write fails after 4 bytes: tier 2 has 9, of which the first 5 count
    5 bytes at 5    a new chunk, 5.E1.2, has them; readers get 10 bytes, from both chunks
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import structlog
import trio

from segstore.chunks.additions import Additions
from segstore.chunks.checked_reads import CheckedReads
from segstore.chunks.checksums import Checksums
from segstore.chunks.chunk_metadata import gone_chunk_count
from segstore.chunks.garbage import GARBAGE_DELAY_SECONDS, collect_garbage, collect_now
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
from segstore.chunks.scan_plan import ScanPlan, choose_chunks, locate_all
from segstore.chunks.scrub import BackgroundScrub, ScrubPolicy
from segstore.chunks.space_lack import SpaceLack
from segstore.chunks.system_journal import (
    SNAPSHOT_BYTES_MIN,
    StoredState,
    SystemJournal,
    record_checksums,
)
from segstore.errors import (
    BytesLostError,
    ChunkDamagedError,
    ChunkNotFoundError,
    DamageKind,
    InvalidChunkOffsetError,
    LogBehindError,
    StorageDamagedError,
    StorageError,
    StorageFullError,
)
from segstore.ownership.epoch_claims import LastEpoch
from segstore.ownership.leases import ChunkLeases, LeaseMarks
from segstore.ownership.token import OwnerToken
from segstore.tiers.api import Buffer, ChunkStorage
from segstore.tiers.vendor import ReadableTier

MIB: Final = 1024 * 1024
ROLLOVER_BYTES_MAX: Final = 128 * MIB
COPY_BYTES_MAX: Final = 4 * MIB
MOVE_BYTES_MIN: Final = MIB
"""Minimum average length, in bytes, of a merged segment's chunks, from which on they are moved.
Bytes of shorter chunks are copied instead, because each chunk has a cost at every read."""

CHUNKS_PER_TURN: Final = 1000
"""Number of chunk records that a check of all segments decodes before it lets other tasks run. Each
takes 2 to 4 us."""

logger = structlog.get_logger(__name__)


class ChunkedSegmentStorage:
    """The segments of one owner of a container. For each segment, the caller makes one change at a
    time; it may read at any time.

    ``epoch`` returns the epoch of the container's log; it is called at the first use. ``boot_id``
    names the start of the machine if a power cut may leave incomplete chunks. ``readable`` is set
    if other processes may read the chunks. Without ``scrub``, the lengths of chunks are checked
    once, and their bytes only when they are read. The owners in one process share ``lack``. Without
    the owner's ``token``, the storage makes its own.
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
        reserve_bytes: int = 0,
        boot_id: str | None = None,
        scrub: ScrubPolicy | None = None,
        readable: ReadableTier | None = None,
        lack: SpaceLack | None = None,
        token: OwnerToken | None = None,
    ) -> None:
        self._chunks = chunks
        self._reads = CheckedReads(chunks)
        self.journal = SystemJournal(
            chunks,
            container_id=container_id,
            epoch=epoch,
            snapshot_bytes_min=snapshot_bytes_min,
            reserve_bytes=reserve_bytes,
            boot_id=boot_id,
            lack=lack,
            token=token,
        )
        self._additions = Additions(self.journal)
        self._scrub = BackgroundScrub(chunks, self.journal, self._reads, scrub)
        self._readable = readable
        self._leases = ChunkLeases()
        self._lease_marks = LeaseMarks(chunks, container_id, epoch)
        self._garbage_delay_seconds = garbage_delay_seconds
        self._move_bytes_min = move_bytes_min
        self._chunk_count = 0

    async def run(self) -> None:
        """Delete obsolete chunks, record checksums and look for damage, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._scrub.run)
            nursery.start_soon(record_checksums, self.journal)
            await collect_garbage(
                self._chunks,
                self.journal,
                self._leases,
                self._lease_marks,
                self._garbage_delay_seconds,
            )

    async def settle(self) -> None:
        """Record the lengths and checksums of all chunks; see ``SegmentStorage.settle``."""
        if self.journal.opened.is_set():
            await self.journal.settle()

    async def collect(self) -> None:
        """Delete condemned chunks without a lease now, even if reads of them are under way."""
        await self.journal.ready()
        await collect_now(self._chunks, self.journal, self._leases)

    async def check_log(self, last_epoch: LastEpoch) -> None:
        """Raise ``LogBehindError`` when tier 2 was used under a later epoch than the log had.

        Call this before the log is opened under its next epoch.
        """
        await self.journal.claim.check_log(last_epoch)

    async def recovered(
        self,
        *,
        last_operation: int = 0,
        next_segment_id: int | None = None,
        needed: Mapping[str, int] | None = None,
        ends: Mapping[str, int] | None = None,
    ) -> None:
        """End the recovery; see ``SegmentStorage.recovered``. After this, no call passes
        ``certain``."""
        needed, ends = needed or {}, ends or {}
        known = bool(needed or ends)
        await self.journal.recovered(last_operation=last_operation, is_known=known)
        if not self.journal.opened.is_set():
            return
        if next_segment_id is not None:
            for segment in self.journal.metadata.segment_names():
                if _segment_id(segment) >= next_segment_id:
                    raise LogBehindError(
                        f"tier 2 has {segment}, which the log never knew: the journal is an older"
                        " copy"
                    )
        # This is the last moment for the comparison: after it, the segments grow.
        await self._refuse_older(needed)
        await self._refuse_newer(ends)

    async def _refuse_newer(self, ends: Mapping[str, int]) -> None:
        """Raise ``LogBehindError`` when tier 2 has bytes that the log never had."""
        metadata, unsettled = self.journal.metadata, dict[str, Chunk]()
        chunk_count = 0
        for segment, end in ends.items():
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
            if last is None or not last.is_open or last.epoch == self.journal.epoch:
                continue
            # A chunk in doubt is not compared: it may have unsynced bytes, which do not count.
            if not self.journal.claim.doubts(last.epoch):
                unsettled[segment] = last
        if unsettled:
            lengths = await self._chunks.lengths([chunk.name for chunk in unsettled.values()])
            for (segment, chunk), length in zip(unsettled.items(), lengths, strict=True):
                if (found := chunk.start + (length or 0)) > ends[segment]:
                    raise _newer(segment, ends[segment], found)

    async def _refuse_older(self, needed: Mapping[str, int]) -> None:
        """Raise ``StorageDamagedError`` when tier 2 lacks bytes that the log has dropped."""
        metadata = self.journal.metadata
        unsettled: dict[str, tuple[Chunk, int]] = {}
        chunk_count = 0
        for segment, end in needed.items():
            if chunk_count >= CHUNKS_PER_TURN:
                chunk_count = 0
                await trio.lowlevel.checkpoint()
            record = metadata.peek(segment)
            chunk_count += 1 + (len(record.chunks) if record is not None else 0)
            if record is None or record.end < end:
                last = record.chunks[-1] if record is not None and record.chunks else None
                if last is None or not last.is_open:
                    raise _older(segment, end, record.end if record is not None else 0)
                unsettled[segment] = last, end
        if unsettled:
            lengths = await self._chunks.lengths([chunk.name for chunk, _ in unsettled.values()])
            for (segment, (chunk, end)), length in zip(unsettled.items(), lengths, strict=True):
                found = chunk.start + (length or 0)
                if found < end:
                    raise _older(segment, end, found)

    async def keep_container(self, snapshot: bytes, sequence_number: int) -> None:
        """See ``SegmentStorage.keep_container``."""
        await self.journal.keep_container(snapshot, sequence_number)

    async def close(self, *, last_operation: int) -> None:
        """See ``SegmentStorage.close``."""
        await self.journal.close(last_operation=last_operation)

    async def inspect(self, *, tolerates_damage: bool = False) -> StoredState:
        """Return what the last owner of a stopped container left. See ``SystemJournal.inspect``."""
        return await self.journal.inspect(tolerates_damage=tolerates_damage)

    def adopt(self, state: StoredState) -> None:
        """Use these metadata when the epoch is claimed. See ``SystemJournal.adopt``."""
        self.journal.adopt(state)

    async def begin_recovery(self, log_epoch: int) -> None:
        """Record that a recovery of the last owner's log begins. See
        ``SystemJournal.begin_recovery``."""
        await self.journal.begin_recovery(log_epoch)

    async def replace_records(
        self,
        records: Mapping[str, StoredSegment],
        *,
        forgotten: Iterable[str] = (),
        condemned: Sequence[str] = (),
    ) -> None:
        """Replace the records of some segments, forget others, and condemn chunks, all in one
        durable change."""
        await self.journal.replace_records(records, forgotten=forgotten, condemned=condemned)

    async def stored_length(self, segment: str, *, certain: int | None = None) -> int:
        """Return the offset up to which the segment's bytes are stored; 0 if it has none.

        See ``SegmentStorage.stored_length``.
        """
        record = await self._settled(segment, certain)
        return record.end if record is not None else 0

    async def segment_names(self) -> list[str]:
        """Return the names of all stored segments."""
        await self.journal.ready()
        return self.journal.metadata.segment_names()

    async def chunks_of(self, segment: str) -> tuple[Chunk, ...]:
        """Return the segment's chunks, by offset."""
        record = await self._settled(segment)
        return record.chunks if record is not None else ()

    async def read(self, segment: str, *, offset: int, length: int) -> Buffer:
        """Read up to ``length`` bytes at ``offset``, up to the end of the chunk that has the first.

        Raises ``InvalidChunkOffsetError`` when no byte is stored at ``offset``, and
        ``BytesLostError`` when the byte there was lost.
        """
        assert length > 0, "a read is for at least one byte"
        record = await self._settled(segment)
        chunks = record.chunks if record is not None else ()
        index = bisect_right(chunks, offset, key=_start) - 1
        if index < 0 or offset >= chunks[index].end:
            raise InvalidChunkOffsetError(f"segment {segment} has no stored byte at {offset}")
        chunk = chunks[index]
        end = min(offset + length, chunk.end)
        if chunk.is_lost:
            raise BytesLostError(segment, chunk.start, chunk.end)
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
        await self.journal.ready()
        await self._lease_marks.make()
        record = await self._settled(segment)
        # There is no await between reading the record and holding its chunks, so that no deletion
        # of a chunk can begin in between.
        chunks = choose_chunks(record.chunks if record is not None else (), start, end)
        self._leases.hold(lease_id, [chunk.name for chunk in chunks], lease_seconds)
        planned = await locate_all(self._readable.locate, chunks)
        stored_end = min(end, _readable_end(record, start)) if record is not None else start
        planned_end = min(stored_end, chunks[-1].end) if chunks else start
        return ScanPlan(self._readable.address, planned_end, stored_end, planned)

    async def hold_chunks(
        self, segment: str | None, *, lease_id: bytes, names: Sequence[str], lease_seconds: float
    ) -> bool:
        """Extend or end a lease; see ``SegmentStorage.hold_chunks``."""
        if lease_seconds <= 0:
            self._leases.end(lease_id)
            return True
        await self.journal.ready()
        await self._lease_marks.make()
        record = await self._settled(segment) if segment is not None else None
        known = set(self.journal.metadata.condemned).intersection(names)
        if record is not None:
            known.update(chunk.name for chunk in record.chunks)
        if not self._leases.may_hold(names, known):
            return False
        self._leases.hold(lease_id, names, lease_seconds)
        return True

    async def write(
        self,
        segment: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        rollover_bytes: int,
        on_stored: Callable[[int], None] | None = None,
    ) -> None:
        """Store ``data`` at ``offset``; see ``SegmentStorage.write``."""
        record = await self._unchanging(segment)
        await self.journal.restore_reserve()
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
            if on_stored is not None:
                on_stored(offset)
            if remaining.length > 0:
                _refuse_moved(segment, record)
        rollover_bytes = min(rollover_bytes or ROLLOVER_BYTES_MAX, ROLLOVER_BYTES_MAX)
        while remaining.length > 0:
            chunk = await self._chunk_with_room(segment, offset, rollover_bytes)
            taken = remaining.pop(min(remaining.length, rollover_bytes - chunk.length))
            offset = await self._append(segment, chunk, taken)
            if on_stored is not None:
                on_stored(offset)

    async def _compare(self, segment: str, offset: int, data: Sequence[Buffer]) -> None:
        """Compare bytes that are written again with the stored bytes. Raises ``ChunkDamagedError``
        when they differ."""
        for part in data:
            view = memoryview(part)
            while len(view) > 0:
                try:
                    stored = await self.read(segment, offset=offset, length=len(view))
                except InvalidChunkOffsetError:  # the segment was truncated meanwhile
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
        """Drop the chunks that end at or before ``offset``; see ``SegmentStorage.truncate``."""
        record = await self._unchanging(segment)
        if record is None:
            return
        end = max(offset, record.end)
        if end == record.end and gone_chunk_count(record, offset, end) == 0:
            return
        _refuse_moved(segment, record)
        async with self.journal.changing():
            await self.journal.commit(Truncate(segment, offset, end))

    async def concat(
        self, target: str, *, offset: int, source: str, length: int, rollover_bytes: int
    ) -> None:
        """Store the first ``length`` bytes of ``source`` at ``offset`` of ``target``: move their
        chunks, or copy the bytes if they are few and undamaged.

        Does nothing when the target has these bytes already, from an earlier call.
        """
        to, given = await self._unchanging(target), await self._unchanging(source)
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
            async with self.journal.changing():
                await self.journal.commit(MoveChunks(target, offset, source, length))
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
        """Read the first ``length`` bytes of a segment, and return as many of them as one write may
        have; return None if some of them are damaged.

        Chunks with damaged bytes are moved with their checksums instead of being copied. So reads
        of these bytes are refused in the target, too, and the merge does not hold the log back.
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
        await self.journal.ready()
        if not self.journal.is_unfinished and self.journal.metadata.get(segment) is None:
            # No lock is needed: changes that are under way concern other segments.
            return
        target = None if merged_into is None else await self._unchanging(merged_into)
        async with self.journal.changing():
            if self.journal.metadata.get(segment) is None:
                return
            known: list[Change] = []
            if merged_into is not None and target is not None and target.end > 0:
                # After this change only the target has the bytes. The target's length is recorded
                # with the change, so that these bytes are not in doubt after a power cut.
                known.append(Truncate(merged_into, 0, target.end))
            await self.journal.commit(*known, Forget(segment))

    # ---- Chunks ----------------------------------------------------------------------------------

    async def _unchanging(self, segment: str) -> StoredSegment | None:
        """Return the segment's record, after repeating a change that failed, which may have taken
        effect."""
        await self.journal.ready()
        if self.journal.is_unfinished:
            async with self.journal.changing():
                pass
        return await self._settled(segment)

    async def _settled(self, segment: str, certain: int | None = None) -> StoredSegment | None:
        """Return the segment's record. If its last chunk is one of an earlier owner, look up and
        record the length of that chunk first."""
        await self.journal.ready()
        metadata = self.journal.metadata
        record = metadata.get(segment)
        while record is not None and record.chunks:
            last = record.chunks[-1]
            if not last.is_open or last.epoch == self.journal.epoch:
                break
            length = await self._length_of(segment, last)
            if certain is not None and self.journal.claim.doubts(last.epoch):
                length = min(length, max(last.length, certain - last.start))
            if metadata.get(segment) == record:  # otherwise another task has recorded the length
                record = _with_last(record, replace(last, length=length, is_open=False))
                metadata.put(segment, record)
            else:
                record = metadata.get(segment)
        return record

    async def _length_of(self, segment: str, chunk: Chunk) -> int:
        try:
            length = (await self._chunks.info(chunk.name)).length
        except ChunkNotFoundError:  # its owner ended before it wrote the first byte
            length = 0
        if length < chunk.length:
            raise StorageDamagedError(
                f"segment {segment} is damaged in tier 2: {chunk.name} has {length} bytes, it had"
                f" {chunk.length}"
            )
        return length

    async def _chunk_with_room(self, segment: str, offset: int, rollover_bytes: int) -> Chunk:
        """Return the segment's last chunk if bytes can be appended to it, otherwise a new one."""
        metadata, epoch = self.journal.metadata, self.journal.epoch
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
        """Append to a chunk, and return the offset after the new bytes in the segment."""
        known = chunk.checksums if chunk.length else Checksums.at(chunk.start)
        checksums = known

        def extend() -> None:
            nonlocal checksums
            checksums = known.extended(data)

        try:
            await self._chunks.write(chunk.name, offset=chunk.length, data=data, meanwhile=extend)
        except BaseException as error:
            if isinstance(error, StorageFullError):
                self.journal.lack.begin()
            self._replace_last(segment, chunk, replace(chunk, is_open=False))
            raise
        assert checksums.length == chunk.length + sum(map(len, data)), "the storage did not call it"
        grown = replace(chunk, length=checksums.length, checksums=checksums)
        if self._replace_last(segment, chunk, grown):
            self.journal.record_append(segment, known.length)
        elif self._has_chunk(segment, chunk):
            # In the metadata the chunk ends before these bytes, so they would never be read.
            raise StorageError(f"chunk {chunk.name} was closed while it was written to")
        return grown.end

    def _has_chunk(self, segment: str, chunk: Chunk) -> bool:
        record = self.journal.metadata.get(segment)
        return record is not None and any(each.name == chunk.name for each in record.chunks)

    def _replace_last(self, segment: str, old: Chunk, new: Chunk) -> bool:
        """Record the result of a write to a chunk, unless the chunk was removed meanwhile."""
        record = self.journal.metadata.get(segment)
        if record is None or not record.chunks or record.chunks[-1] != old:
            return False
        self.journal.metadata.put(segment, _with_last(record, new))
        return True


class _Buffers:
    """Buffers from which bytes are taken at the front, without copying."""

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


def _readable_end(record: StoredSegment, start: int) -> int:
    """Return the offset up to which the segment can be read from ``start`` on: its end, or the
    beginning of the next lost range."""
    lost = (chunk.start for chunk in record.chunks if chunk.is_lost and chunk.end > start)
    return max(start, next(lost, record.end))


def _refuse_moved(segment: str, record: StoredSegment | None) -> None:
    """Raise ``InvalidChunkOffsetError`` for a segment whose chunks were moved to another one: a
    change would affect that one."""
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
    """Return the id that is in the name of a segment in tier 2; -1 if the name has none."""
    digits = segment.rpartition(".S-")[2].partition("$")[0]
    return int(digits) if digits.isdecimal() else -1


def _start(chunk: Chunk) -> int:
    return chunk.start
