"""Keeps a container's chunk metadata in tier 2, as snapshots and as journals of later changes.

Owns: the snapshots and journals among the container's system chunks; docs/formats/chunk-metadata.md
describes them, docs/adr/0180 explains why. The claim of the owner's epoch
(``ownership.epoch_claims``) gives the right to change the metadata. The names of system chunks
contain the epoch of their owner.

Invariants:
1. When the write of a change fails, it is written again before any other change, because it may
   have become durable. A change is applied in memory only when it is durable. Held by
   ``test_a_change_that_failed_happens_before_the_next``.
2. When a new owner has read the metadata, no later write of an earlier owner counts: the new owner
   claims its epoch, reads, and writes a snapshot under its own epoch before it changes anything.
   Held by ``test_what_an_owner_makes_after_it_was_replaced_is_collected``.
3. When a change lets a chunk be deleted, the owner lists the claims after the change is durable. If
   there is no later claim, each later owner will read the change, and the chunk can be deleted.
   Held by ``test_deleting_without_a_look_at_the_claims_would_be_found``.
4. When a write to a system chunk fails, it is repeated in another system chunk, to which later
   changes go, too. Held by ``test_a_missing_journal_is_told``.
5. When a change between two others is missing, the metadata are damaged and are not used. Held by
   ``test_a_missing_journal_is_told``.
6. When bytes are appended to a chunk, the append does not wait until their checksums are written.
   Held by ``test_an_append_is_one_write_however_short``. They are written with the next change of
   the segment's chunks. Held by
   ``test_a_new_chunk_is_named_and_the_last_one_noted_in_one_write``. They are also written with the
   next snapshot, and by ``record_checksums``. Held by ``test_a_later_owner_has_the_checksums``.

The system chunks of a container (epoch, then number) when the owner of epoch 4 begins:

    claim-2, snapshot-2-1, journal-2-2      of no use; will be deleted
    claim-3, snapshot-3-1, journal-3-2      the state: the snapshot, with the journal's changes
    claim-4                                 written before it reads the others
    snapshot-4-1                            the same state; from now on later changes to journal-3-2
                                            count for nobody
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from math import inf
from typing import Final

import structlog
import trio

from segstore.chunks.checksums import Checksums
from segstore.chunks.chunk_metadata import ChunkMetadata, SnapshotUnfinishedError, segments_of
from segstore.chunks.container_copies import decode_copy, encode_copy
from segstore.chunks.records import (
    AddChunk,
    Change,
    Checked,
    Chunk,
    ChunkRecordError,
    Condemn,
    Forget,
    MoveChunks,
    StoredSegment,
    decode_frames,
    encode_frame,
)
from segstore.chunks.reserve import Reserve
from segstore.chunks.space_lack import SpaceLack
from segstore.errors import (
    ChunkNotFoundError,
    FencedOutError,
    InvalidChunkOffsetError,
    StorageDamagedError,
    StorageError,
    StorageFullError,
)
from segstore.ownership.epoch_claims import EpochClaim
from segstore.ownership.states import Permission
from segstore.ownership.system_chunks import (
    CLAIM,
    CONTAINER,
    JOURNAL,
    RECOVERING,
    SNAPSHOT,
    SystemChunk,
    parse_system_chunk,
    system_name,
    system_prefix,
)
from segstore.ownership.token import OwnerToken
from segstore.tiers.api import Buffer, ChunkStorage

SNAPSHOT_BYTES_MIN: Final = 256 * 1024
"""Minimum length, in bytes, of the journals after a snapshot at which the next snapshot is written.
The journals must also be longer than the last snapshot."""
JOURNALS_MAX: Final = 16
CHECKSUMS_SECONDS_MAX: Final = 10.0
"""Maximum time, in seconds, until the checksums of appended bytes are durable. After a crash, bytes
without checksums are read without a check."""
CHECKSUMS_PER_STEP: Final = 256
"""Maximum number of chunks whose checksums are recorded in one step of the event loop."""
LOOKS_MAX: Final = 3

_BEGUN: Final = b"begun\n"

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StoredState:
    """The content of a container's system chunks for a reader that does not own them."""

    epoch: int
    """The latest epoch of the system chunks; 0 if there are none."""
    metadata: ChunkMetadata
    container: bytes | None
    """The last copy of the container's snapshot."""
    last_operation: int
    """Number of the last operation in the log when its last owner was closed; 0 if it was not."""
    names: tuple[str, ...]
    recovering_from: int = 0
    """Epoch of the log from which an interrupted recovery began, if the recovery claimed the latest
    epoch; otherwise 0."""
    sequence: int = 0
    """Number of the last change in ``metadata``."""
    damage: str = ""
    """The reason why ``metadata`` lack changes; empty if they are complete."""


class SystemJournal:
    """The system chunks of one container. ``metadata`` may be read once ``ready`` has returned.

    ``boot_id`` names the start of the machine on which this owner runs; it is None if no power cut
    can leave an incomplete chunk.
    """

    def __init__(
        self,
        chunks: ChunkStorage,
        *,
        container_id: int,
        epoch: Callable[[], int],
        snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN,
        reserve_bytes: int = 0,
        boot_id: str | None = None,
        lack: SpaceLack | None = None,
        token: OwnerToken | None = None,
    ) -> None:
        self._chunks = chunks
        self.claim = EpochClaim(
            chunks, container_id=container_id, epoch=epoch, boot_id=boot_id, token=token
        )
        """The claim of this owner's epoch."""
        self._prefix = system_prefix(container_id)
        self._reserve = Reserve(chunks, self._prefix, reserve_bytes)
        self.lack = lack or SpaceLack()
        self._container_id = container_id
        self._epoch = epoch
        self._snapshot_bytes_min = snapshot_bytes_min
        self.metadata = ChunkMetadata()
        self.opened = trio.Event()
        self._is_recovered = False
        self._adopted: StoredState | None = None
        self._container_number = 0
        self._known_operation = 0
        self._lock = trio.Lock()
        self._restoring = trio.Lock()
        self._sequence = 0
        self._number = 0
        self._journal: tuple[str, int] | None = None
        self._journal_count = 0
        self._journal_bytes = 0
        self._snapshot_due_bytes = 0
        self._unfinished: tuple[Change, ...] = ()
        self._snapshot_number = 0
        self.has_obsolete_chunks = False
        """True if there may be system chunks that ``clean_up`` would delete."""
        self._counted: dict[int, int] = {}
        self._unrecorded: dict[str, int] = {}
        """The segments whose last chunk has checksums that are not durable yet. The value is the
        number of the chunk's bytes whose checksums are durable."""
        self._begun: set[str] = set()
        """The segments whose last chunk this owner has made, and which may be open."""
        self._garbage = trio.Event()

    @property
    def epoch(self) -> int:
        """Return the epoch under which this owner writes."""
        return self._epoch()

    @property
    def container_id(self) -> int:
        """Return the container's number."""
        return self._container_id

    @property
    def is_unfinished(self) -> bool:
        """Return whether the write of a change failed, so that it has to be written again."""
        return bool(self._unfinished)

    async def ready(self) -> None:
        """Claim the epoch and read the metadata, unless an earlier call has done it."""
        if self.opened.is_set():
            return
        async with self._lock:
            if not self.opened.is_set():
                await self._open()
                if self._is_recovered:
                    self.claim.refuse_shorter_log(self._known_operation)
                    await self._record_recovered(found_out=False)
                self.claim.record_claimed()
                self.opened.set()

    async def look(self) -> None:
        """Read the durable metadata of the present owner, without changing anything.

        The owner may change them meanwhile, so the result is an earlier state.
        """
        for look in range(1, LOOKS_MAX + 1):
            found = await self._found()
            try:
                await self.claim.find_doubted(found)
                await self._read(found)
                return
            except (ChunkNotFoundError, StorageDamagedError):
                if look == LOOKS_MAX:
                    raise

    async def recovered(self, *, last_operation: int = 0, is_known: bool = False) -> None:
        """Record for later owners that the lengths of all chunks in doubt are known now.

        If that cannot be recorded, these chunks are in doubt for the next owner, too. This claims
        the epoch if tier 2 has claims, or if ``is_known`` says that the log has a segment;
        otherwise the first write claims it. Raises ``LogBehindError`` when the last owner knew of a
        later operation than ``last_operation``, with which the log ends, and ``StorageError`` when
        tier 2 does not answer.
        """
        self._is_recovered = True
        self._known_operation = last_operation
        if self.claim.are_known or is_known:
            await self.ready()
        async with self._lock:
            if self.opened.is_set():
                self.claim.refuse_shorter_log(last_operation)
                await self._record_recovered(found_out=self.claim.doubted_before > 0)

    async def close(self, *, last_operation: int) -> None:
        """Record that this owner has ended, with the numbers of its last change and operation."""
        async with self._lock:
            if not (self.claim.has_notes and self.opened.is_set()) or self._unfinished:
                return
            try:
                await self.claim.note_closed(self._sequence, last_operation)
            except StorageError as error:
                logger.warning("an end is not noted", chunks=self._prefix, error=str(error))

    async def keep_container(self, snapshot: bytes, sequence_number: int) -> None:
        """Write a copy of the container's snapshot, for a recovery without the log."""
        await self.ready()
        async with self._lock:
            self.claim.require(Permission.STORE)
            self._number += 1
            number = self._number
            data = encode_copy(snapshot, sequence_number)
            await self._chunks.write(self._name(CONTAINER, number), offset=0, data=data)
            self._container_number = number
            self.has_obsolete_chunks = True
            self._garbage.set()

    async def inspect(self, *, tolerates_damage: bool = False) -> StoredState:
        """Read the state of a container that does not run, without claiming it.

        Raises ``StorageDamagedError`` when the metadata are damaged. With ``tolerates_damage``, it
        returns the changes before the damage instead.
        """
        found = await self._found()
        if tolerates_damage:
            await self.claim.find_doubted(found)
        else:
            self.claim.doubted_before = inf
        damage = ""
        try:
            await self._read(found)
        except StorageDamagedError as error:
            if not tolerates_damage:
                raise
            damage = str(error)
        copies = [each for each in found if each.kind == CONTAINER]
        container = None
        for each in sorted(copies, key=lambda each: each.order, reverse=True):
            if (container := decode_copy(await self._read_chunk(each))) is not None:
                break
        latest = max((each.epoch for each in found), default=0)
        begun = [each.number for each in found if (each.kind, each.epoch) == (RECOVERING, latest)]
        return StoredState(
            latest,
            self.metadata,
            container,
            self.claim.last_operation,
            tuple(each.name for each in found),
            max(begun, default=0),
            self._sequence,
            damage,
        )

    def adopt(self, state: StoredState) -> None:
        """Use these metadata when the epoch is claimed, instead of those in tier 2."""
        self._adopted = state

    async def begin_recovery(self, log_epoch: int) -> None:
        """Record, before the epoch is claimed, that a recovery of the last owner's log claims it.
        That log has ``log_epoch``. If the recovery is interrupted, the next one uses the same log.
        """
        await self._put(self._name(RECOVERING, log_epoch), 0, [_BEGUN])

    async def replace_records(
        self,
        records: Mapping[str, StoredSegment],
        *,
        forgotten: Iterable[str] = (),
        condemned: Sequence[str] = (),
    ) -> None:
        """Replace the records of some segments, forget others, and condemn chunks, all in one
        durable snapshot."""
        await self.ready()
        async with self._lock:
            for segment, record in records.items():
                self.metadata.put(segment, record)
            for segment in forgotten:
                self.metadata.apply(Forget(segment))
            self.metadata.apply(Condemn(tuple(condemned)))
            await self._write_snapshot()

    async def _record_recovered(self, *, found_out: bool) -> None:
        if not self.claim.has_notes:
            return
        try:
            if found_out:  # the lengths that were looked up are not in a journal
                await self._write_snapshot()
                # If there is no later claim yet, each later owner reads this snapshot.
                await self.confirm_ownership()
            await self.claim.note_recovered()
        except StorageError as error:
            logger.warning("a recovery is not noted", chunks=self._prefix, error=str(error))

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Hold the lock for changes of the metadata, for the block. If the write of an earlier
        change failed, write it again first."""
        await self.ready()
        async with self._lock:
            self.claim.require(Permission.STORE)
            if self._unfinished:
                await self._write(self._unfinished)
            yield

    async def commit(self, *changes: Change) -> None:
        """Make changes durable with one write, and then apply them. Call this inside ``changing``.

        Raises ``InvalidChunkOffsetError`` when the changes do not fit to the metadata, because a
        journal with such changes could not be read.
        """
        assert not self._unfinished
        changes = self._with_checksums(changes)
        try:
            self.metadata.check(changes)
        except ChunkRecordError as error:
            raise InvalidChunkOffsetError(f"what is in tier 2 is another: {error}") from error
        await self._write(changes)
        if self._journal_bytes > self._snapshot_due_bytes or self._journal_count > JOURNALS_MAX:
            try:
                await self._write_snapshot()
            except StorageError as error:
                logger.warning("a snapshot is put off", chunks=self._prefix, error=str(error))
                self._snapshot_due_bytes = self._journal_bytes + self._snapshot_bytes_min
                self._journal_count = 0

    def record_append(self, segment: str, known: int) -> None:
        """Record that bytes were appended to the segment's last chunk, of which ``known`` bytes had
        checksums before."""
        self._unrecorded.setdefault(segment, known)

    async def restore_reserve(self) -> None:
        """Write the missing part of the reserve. Call this before bytes of segments are written.

        Raises ``StorageFullError`` when there is no space for the reserve.
        """
        if not self._reserve.is_whole:
            try:
                async with self._restoring:
                    await self._reserve.restore()
            except StorageFullError:
                self.lack.begin()
                raise
        self.lack.end()

    async def record_checksums(self) -> None:
        """Make the known checksums of open chunks durable."""
        waiting = list(self._unrecorded)
        for start in range(0, len(waiting), CHECKSUMS_PER_STEP):
            segments = waiting[start : start + CHECKSUMS_PER_STEP]
            async with self.changing():
                if changes := self._checksums_of(segments):
                    await self.commit(*changes)

    async def adopt_checksums(self, adopted: Sequence[tuple[str, Chunk, Checksums]]) -> None:
        """Record the checksums of closed chunks durably."""
        async with self.changing():
            changes: list[Change] = []
            for segment, chunk, checksums in adopted:
                record = self.metadata.get(segment)
                if record is not None and chunk in record.chunks:
                    changes.append(_checked(segment, chunk, checksums, chunk.checksums.length))
            if changes:
                await self.commit(*changes)

    async def settle(self) -> None:
        """Close the chunks that this owner has made, and write a snapshot with their lengths."""
        async with self.changing():
            if not self._begun:
                return
            for segment in self._begun:
                record = self.metadata.get(segment)
                if record is not None and record.chunks and not record.is_moved:
                    last = replace(record.chunks[-1], is_open=False)
                    self.metadata.put(segment, replace(record, chunks=(*record.chunks[:-1], last)))
            await self._write_snapshot()
            self._begun.clear()

    def _with_checksums(self, changes: tuple[Change, ...]) -> tuple[Change, ...]:
        """Return the changes, after changes with the checksums of the same segments' chunks."""
        named = {segment for change in changes for segment in segments_of(change)}
        noted = {change.segment for change in changes if isinstance(change, Checked)}
        return (*self._checksums_of(sorted(named - noted)), *changes)

    def _checksums_of(self, segments: Iterable[str]) -> list[Change]:
        """Return changes that record the checksums of the last chunks of these segments. Chunks
        whose checksums are recorded already are left out."""
        changes: list[Change] = []
        for segment in segments:
            known = self._unrecorded.get(segment)
            record = self.metadata.get(segment) if known is not None else None
            if known is None or record is None or not record.chunks:
                self._unrecorded.pop(segment, None)
                continue
            chunk = record.chunks[-1]
            changes.append(_checked(segment, chunk, chunk.checksums, known))
        return changes

    def _forget_recorded(self, change: Change) -> None:
        """Remove the checksums that a durable change contains from those that are not recorded."""
        match change:
            case Checked(segment, start, length=length):
                record = self.metadata.get(segment)
                last = record.chunks[-1] if record is not None and record.chunks else None
                if last is None or (last.start == start and last.checksums.length == length):
                    self._unrecorded.pop(segment, None)
                elif last.start == start and segment in self._unrecorded:
                    self._unrecorded[segment] = length
            case AddChunk(segment):
                self._unrecorded.pop(segment, None)
                self._begun.add(segment)
            case MoveChunks() | Forget():
                for segment in segments_of(change):
                    self._unrecorded.pop(segment, None)
                    self._begun.discard(segment)
            case _:
                pass

    async def wait_for_garbage(self) -> None:
        """Wait until there are chunks or system chunks to delete."""
        while not self.metadata.condemned and not self.has_obsolete_chunks:
            self._garbage = trio.Event()
            await self._garbage.wait()

    async def confirm_ownership(self) -> None:
        """Check that no owner has claimed a later epoch. Raises ``FencedOutError`` when one has,
        and ``StorageAbsentError`` when the listing lacks this owner's claim."""
        self.claim.compare(await self._found())

    async def clean_up(self) -> None:
        """Delete the system chunks that no recovery reads. An earlier owner may have added chunks
        to these after this owner had read them: condemn those chunks. Call this after
        ``confirm_ownership``."""
        self.has_obsolete_chunks = False
        try:
            obsolete = [each for each in await self._found() if self._is_obsolete(each)]
            # Snapshots are deleted before journals, so that no owner finds a snapshot without the
            # changes after it.
            for each in sorted(obsolete, key=lambda each: each.kind != SNAPSHOT):
                if orphans := await self._orphans(each):
                    async with self.changing():
                        await self.commit(Condemn(tuple(orphans)))
                await self._chunks.delete(each.name)
        except BaseException:
            self.has_obsolete_chunks = True
            raise

    def _is_obsolete(self, each: SystemChunk) -> bool:
        if each.kind == RECOVERING:  # the container runs, so no recovery needs this any more
            return each.epoch <= self.epoch
        if each.kind == CONTAINER:
            return each.order < (self.epoch, self._container_number) and bool(
                self._container_number
            )
        if each.epoch == self.epoch:
            return each.kind != CLAIM and each.number < self._snapshot_number
        return each.epoch < self.epoch

    # ---- Opening ---------------------------------------------------------------------------------

    async def _open(self) -> None:
        await self.claim.write(self._put)
        older: list[SystemChunk] | None = None
        for look in range(1, LOOKS_MAX + 1):
            found, before = await self._found(), older
            self.claim.compare(found)
            own = self.claim.own_chunks(found)
            older = [each for each in found if each.epoch < self.epoch]
            try:
                await self.claim.find_doubted(older)
                if self._adopted is None:
                    await self._read(older)
                else:
                    self.metadata, self._sequence = self._adopted.metadata, self._adopted.sequence
                break
            except ChunkNotFoundError:  # an earlier owner still deletes system chunks
                if look == LOOKS_MAX:
                    raise
            except StorageDamagedError as error:
                # A listing may show a part of what an earlier owner is writing. If the next listing
                # is the same, the metadata are damaged.
                if older == before:
                    raise
                if look == LOOKS_MAX:
                    raise StorageError(f"an earlier owner still writes: {error}") from error
        self._number = max([self._number, *(each.number for each in own)])
        self.has_obsolete_chunks = bool(older)
        await self._write_snapshot()

    async def _read(self, found: list[SystemChunk]) -> None:
        """Read the metadata that the last owner left."""
        self.metadata, self._sequence = ChunkMetadata(), 0
        base = await self._read_snapshot([each for each in found if each.kind == SNAPSHOT])
        epoch, number = (base.epoch, base.number) if base is not None else (0, 0)
        journals = sorted(
            (each for each in found if each.kind == JOURNAL and each.epoch >= epoch),
            key=lambda each: each.order,
        )
        if base is None:
            await self.claim.refuse_lost_snapshot(found)
        closed_at = await self.claim.closed_at(found, epoch)
        end = (base.name if base is not None else self._prefix), 0
        for each in journals:
            if each.epoch != epoch:
                raise StorageDamagedError(f"{each.name} follows no whole snapshot: it is damaged")
            if each.number < number:
                continue
            try:
                data = await self._read_chunk(each)
                end = each.name, await self._replay(each, data)
            except ChunkRecordError as error:
                raise StorageDamagedError(f"{each.name} is damaged: {error}") from error
        if closed_at is not None and self._sequence < closed_at:
            raise StorageDamagedError(
                f"{end[0]} is damaged at offset {end[1]}: the changes from {self._sequence + 1} to"
                f" {closed_at} are missing, which were there when the container was stopped"
            )
        self._counted = {epoch: self._sequence}

    async def _read_chunk(self, each: SystemChunk) -> bytes:
        return bytes(await self._chunks.read(each.name, offset=0, length=each.length))

    async def _read_snapshot(self, snapshots: list[SystemChunk]) -> SystemChunk | None:
        """Read the last complete snapshot; return None if there is none.

        A later snapshot may be incomplete; then the journals after both continue from the complete
        one. If no snapshot was ever complete, no change was made.
        """
        damage: tuple[str, ChunkRecordError] | None = None
        for each in sorted(snapshots, key=lambda each: each.order, reverse=True):
            data = await self._read_chunk(each)
            try:
                self.metadata, self._sequence = ChunkMetadata.decode(data, name=each.name)
            except ChunkRecordError as error:
                logger.warning("a snapshot is not whole", chunk=each.name, error=str(error))
                if not isinstance(error, SnapshotUnfinishedError):
                    damage = each.name, error
            else:
                return each
        if damage is not None:
            raise StorageDamagedError(f"{damage[0]} is damaged: {damage[1]}") from damage[1]
        return None

    async def _replay(self, each: SystemChunk, data: bytes) -> int:
        """Apply the changes in a journal; return the position after its last valid frame."""
        changes, end = decode_frames(
            data, journal=each.name, may_have_holes=self.claim.doubts(each.epoch)
        )
        for sequence, change in changes:
            if sequence <= self._sequence:  # it was written again, because the first reply was lost
                continue
            if sequence != self._sequence + 1:
                raise ChunkRecordError(
                    f"the changes from {self._sequence + 1} to {sequence} are missing"
                )
            self.metadata.apply(change)
            self._sequence = sequence
        await trio.lowlevel.checkpoint()
        return end

    async def _found(self) -> list[SystemChunk]:
        listed = await self._chunks.list_chunks(self._prefix)
        self._reserve.found({info.name: info.length for info in listed})
        parsed = (parse_system_chunk(self._prefix, info) for info in listed)
        return [each for each in parsed if each is not None]

    # ---- Writing ---------------------------------------------------------------------------------

    def _name(self, kind: str, number: int) -> str:
        return system_name(self._prefix, kind, self.epoch, number)

    async def _put(self, name: str, offset: int, data: Sequence[Buffer]) -> None:
        """Write to a system chunk. If tier 2 has no space, use the space of the reserve."""
        while True:
            try:
                await self._chunks.write(name, offset=offset, data=data)
            except StorageFullError:
                self.lack.begin()
                if not await self._reserve.spend():
                    raise
            else:
                return

    async def _write(self, changes: tuple[Change, ...]) -> None:
        if self._journal is None:
            self._number += 1
            self._journal = self._name(JOURNAL, self._number), 0
            self._journal_count += 1
        name, position = self._journal
        frames = [
            encode_frame(self._sequence + index, change, journal=name)
            for index, change in enumerate(changes, start=1)
        ]
        self._journal, self._unfinished = None, changes
        await self._put(name, position, frames)
        length = sum(map(len, frames))
        self._journal, self._unfinished = (name, position + length), ()
        self._journal_bytes += length
        for change in changes:
            self.metadata.apply(change)
            self._sequence += 1
            self._forget_recorded(change)
        if self.metadata.condemned:
            self._garbage.set()

    async def _write_snapshot(self) -> None:
        """Write a snapshot. Later changes go to a new journal, even if this fails."""
        self._number += 1
        self._journal = None
        name = self._name(SNAPSHOT, self._number)
        data = self.metadata.encode(epoch=self.epoch, sequence=self._sequence, name=name)
        noted = self._checksums_of(list(self._unrecorded))
        await self._put(name, 0, [data])
        self._reserve.record_snapshot(len(data))
        for change in noted:
            self._forget_recorded(change)
        self.has_obsolete_chunks |= self._snapshot_number > 0
        self._snapshot_number = self._number
        self._garbage.set()
        self._journal_count = self._journal_bytes = 0
        self._snapshot_due_bytes = max(self._snapshot_bytes_min, len(data))

    # ---- What late writers left ------------------------------------------------------------------

    async def _orphans(self, each: SystemChunk) -> list[str]:
        """Return the chunks in a journal of an earlier owner that this owner had not read when it
        opened the metadata."""
        if each.kind != JOURNAL or each.epoch == self.epoch:
            return []
        data = await self._read_chunk(each)
        counted = self._counted.get(each.epoch, 0)
        try:
            frames, _ = decode_frames(data, journal=each.name)
        except ChunkRecordError:
            return []  # no owner reads the changes of a damaged journal
        named = {
            change.name
            for sequence, change in frames
            if sequence > counted and isinstance(change, AddChunk)
        }
        if named:
            async with self._lock:
                named.difference_update(self.metadata.chunk_names())
        return sorted(named)


async def record_checksums(journal: SystemJournal) -> None:
    """Record the checksums of appended bytes every ``CHECKSUMS_SECONDS_MAX``, until cancelled or
    fenced out."""
    while True:
        await trio.sleep(CHECKSUMS_SECONDS_MAX)
        try:
            await journal.record_checksums()
        except FencedOutError:
            return
        except StorageError as error:
            logger.warning("checksums are noted later", error=str(error))


def _checked(segment: str, chunk: Chunk, sums: Checksums, known: int) -> Checked:
    """Return the change that records the checksums of a chunk; ``known`` of its bytes have durable
    checksums already."""
    return Checked(segment, chunk.start, sums.phase, known, sums.length, sums.sums_from(known))
