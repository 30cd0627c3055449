"""Keeps a container's chunk metadata in tier 2, by snapshots and journals of what changed since.

Owns: the container's system chunks, and who may change its metadata;
docs/formats/chunk-metadata.md describes them, docs/adr/0180 tells why.

Invariants:
1. A change is applied in memory only when it is durable. One whose write failed is written again
   before any other: what was tried once happens, at the latest in the next call.
2. System chunks are named by epoch. A new owner claims its epoch before it reads, and writes a
   snapshot of its own before it changes anything: what an older owner writes from then on counts
   for nobody.
3. An owner deletes nothing on the strength of a change before it has seen, after the change was
   durable, that nobody claimed a later epoch: then every later owner has read that change.
4. A system chunk whose write failed is never appended to again.
5. Sequence numbers have no gap. Where one is missing, the metadata is damaged and is not used.
6. Checksums of what was appended to open chunks are written with the next change of the segment's
   chunks, with the next snapshot, or by ``record_checksums``: an append waits for no write of them.
7. An owner that ends in order says so in its claim, with the number of its last change and of the
   last operation in the log: a successor that finds fewer changes, or a log that is shorter, has
   lost some.
8. A claim tells on which start of the machine its owner ran, and whether it came to the end of its
   recovery. What was not synced when another start ended is in doubt for every owner until one of
   them has come to that end (docs/adr/0198).
"""

from __future__ import annotations

import re
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Final

import structlog
import trio

from _fast.crc import crc32c
from segstore.chunks.checksums import Checksums
from segstore.chunks.chunk_metadata import ChunkMetadata, SnapshotUnfinishedError, segments_of
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
    frame_at,
    sum_of_name,
)
from segstore.errors import (
    ChunkNotFoundError,
    EpochUsedError,
    FencedOutError,
    InvalidChunkOffsetError,
    LogBehindError,
    PermanentError,
    StorageDamagedError,
    StorageError,
)
from segstore.tiers.api import ChunkInfo, ChunkStorage

SNAPSHOT_BYTES_MIN: Final = 256 * 1024
"""Minimum length, in bytes, of the journals since the last snapshot at which the next one is
written; they must also be longer than that snapshot."""
JOURNALS_MAX: Final = 16
CHECKSUMS_SECONDS_MAX: Final = 10.0
"""Maximum time until checksums of appended bytes are durable. After a crash, bytes without
checksums are read as they are."""
CHECKSUMS_PER_STEP: Final = 256
"""Maximum number of chunks whose checksums are recorded in one step of the event loop."""
LOOKS_MAX: Final = 3

_CLAIM: Final = "claim"
_SNAPSHOT: Final = "snapshot"
_JOURNAL: Final = "journal"
_CONTAINER: Final = "container"
_NAME: Final = re.compile(r"(claim|snapshot|journal|container)-([0-9]{10})-([0-9]{10})", re.ASCII)
_RECOVERED: Final = b"recovered\n"
_CLOSED: Final = re.compile(rb"closed ([0-9]+) ([0-9]+)\n")
_CONTAINER_HEADER: Final = struct.Struct(">4sHQI")
_CONTAINER_MAGIC: Final = b"SGCN"

logger = structlog.get_logger(__name__)


LastEpoch = Callable[[], Awaitable[int]]
"""Returns the epoch under which a container's log was opened last."""


@dataclass(frozen=True, slots=True)
class _SystemChunk:
    kind: str
    epoch: int
    number: int
    name: str
    length: int


@dataclass(frozen=True, slots=True)
class StoredState:
    """The content of a container's system chunks for a reader that does not own them."""

    epoch: int
    """The latest epoch of any of them; 0 when there are none."""
    metadata: ChunkMetadata
    container: bytes | None
    """The last copy of the container's snapshot."""
    last_operation: int
    """Number of an operation that the log had when its last owner ended in order; 0 if it did not.
    """
    names: tuple[str, ...]


class SystemJournal:
    """The system chunks of one container. ``metadata`` may be read once ``ready`` has returned.

    ``boot_id`` names the start of the machine on which this owner runs; without one a power cut
    leaves no incomplete chunk. ``compare`` checks that the metadata fit the log, before they are
    used by anything that comes after the recovery.
    """

    def __init__(
        self,
        chunks: ChunkStorage,
        *,
        container_id: int,
        epoch: Callable[[], int],
        snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN,
        boot_id: str | None = None,
        compare: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._chunks = chunks
        self._compare = compare
        self._claim = b"" if boot_id is None else boot_id.encode() + b"\n"
        self._prefix = f"_system/chunks-{container_id}$"
        self._container_id = container_id
        self._epoch = epoch
        self._snapshot_bytes_min = snapshot_bytes_min
        self.metadata = ChunkMetadata()
        self.opened = trio.Event()
        self.is_in_doubt = False
        """True if a chunk may be longer than what was synced of it when the power went."""
        self._has_old_claim = self._is_recovered = self._is_closed = False
        self._has_noted_recovery = self._has_claims = False
        self._claims: dict[int, bytes] = {}
        self._container_number = 0
        self._last_operation = self._known_operation = 0
        self._is_fenced_out = False
        self._lock = trio.Lock()
        self._attempt_count = 0
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
        """Segments whose last chunk has more checksums than durable metadata, and how many bytes
        of it those in durable metadata cover."""
        self._begun: set[str] = set()
        """Segments whose last chunk is this owner's, and may be open."""
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
        """Return whether a change waits to be written again."""
        return bool(self._unfinished)

    async def check_log(self, last_epoch: LastEpoch) -> None:
        """Raise ``LogBehindError`` when an epoch later than the log's last one was claimed.

        Every claim is made after its epoch is durable in the log, which is asked after the claims
        for that reason: another owner may come in between. Call this before the log is opened under
        the next epoch: each opening that is refused would else bring the log's epoch closer to the
        claims.
        """
        claims = await self._chunks.list_chunks(f"{self._prefix}{_CLAIM}-")
        latest = max((each.epoch for each in map(self._parsed, claims) if each), default=0)
        self._has_claims = latest > 0
        known = await last_epoch()
        if latest > known:
            raise LogBehindError(
                f"tier 2 of container {self._container_id} was written under epoch {latest}, and"
                f" its log in the journal knows none after {known}: the journal is an older"
                " copy, or was lost"
            )

    async def ready(self) -> None:
        """Claim the epoch and read the metadata, at the first call that succeeds."""
        if self.opened.is_set():
            return
        async with self._lock:
            if not self.opened.is_set():
                await self._open()
                if self._is_recovered:
                    self._check_last_operation()
                    if self._compare is not None:
                        await self._compare()
                    await self._record_recovered(found_out=False)
                self.opened.set()

    async def look(self) -> None:
        """Read the metadata that the present owner has made durable, without changing anything.

        The owner goes on meanwhile: the result is a state that was durable once.
        """
        for look in range(1, LOOKS_MAX + 1):
            found = await self._found()
            try:
                self.is_in_doubt = await self._doubts(found)
                await self._read(found)
                return
            except (ChunkNotFoundError, StorageDamagedError):
                if look == LOOKS_MAX:
                    raise

    async def recovered(self, *, last_operation: int = 0, was_used: bool = False) -> None:
        """Record for later owners that the lengths of all chunks in doubt are known now.

        If that fails they are in doubt for the next owner, too. ``was_used`` when the log knows of
        bytes in tier 2, whether there are claims or not. Raises ``LogBehindError`` when the log
        ends with ``last_operation``, and the last owner knew of a later one.
        """
        self._is_recovered = True
        self._known_operation = last_operation
        if self._has_claims or was_used:
            await self._open_early()
        async with self._lock:
            if self.opened.is_set():
                self._check_last_operation()
                await self._record_recovered(found_out=self.is_in_doubt or self._has_old_claim)

    async def _open_early(self) -> None:
        """Find damage now, and not when the container serves. A tier 2 that is away may wait."""
        try:
            await self.ready()
        except PermanentError:
            raise
        except StorageError as error:
            logger.warning("chunks are looked at later", chunks=self._prefix, error=str(error))

    def _check_last_operation(self) -> None:
        if self._is_recovered and self._known_operation < self._last_operation:
            raise LogBehindError(
                f"the log of container {self._container_id} ends with operation"
                f" {self._known_operation}, and its last owner ended with {self._last_operation}:"
                " the journal is an older copy"
            )

    async def close(self, *, last_operation: int) -> None:
        """Record that nothing is written any more, and which change and operation were the last."""
        async with self._lock:
            if not (self._claim and self.opened.is_set()) or self._is_closed or self._unfinished:
                return
            self._is_closed = True
            length = len(self._claim) + len(_RECOVERED) * self._has_noted_recovery
            note = b"closed %d %d\n" % (self._sequence, last_operation)
            try:
                await self._chunks.write(self._name(_CLAIM, 0), offset=length, data=[note])
            except StorageError as error:
                logger.warning("an end is not noted", chunks=self._prefix, error=str(error))

    async def keep_container(self, snapshot: bytes, sequence_number: int) -> None:
        """Store a copy of the container's snapshot, for a recovery without the log."""
        await self.ready()
        async with self._lock:
            self._refuse_when_fenced_out()
            self._number += 1
            number = self._number
            head = _CONTAINER_HEADER.pack(_CONTAINER_MAGIC, 1, sequence_number, len(snapshot))
            checksum = crc32c(snapshot, crc32c(head)).to_bytes(4, "big")
            data = [head, snapshot, checksum]
            await self._chunks.write(self._name(_CONTAINER, number), offset=0, data=data)
            self._container_number = number
            self.has_obsolete_chunks = True
            self._garbage.set()

    async def inspect(self) -> StoredState:
        """Read the state of a container that does not run, without claiming it.

        Raises ``StorageDamagedError`` when the metadata are damaged.
        """
        found = await self._found()
        self.is_in_doubt = True
        await self._read(found)
        copies = [each for each in found if each.kind == _CONTAINER]
        container = None
        for each in sorted(copies, key=_order, reverse=True):
            if (container := _snapshot_in(await self._read_chunk(each))) is not None:
                break
        return StoredState(
            max((each.epoch for each in found), default=0),
            self.metadata,
            container,
            self._last_operation,
            tuple(each.name for each in found),
        )

    async def replace_records(self, records: Mapping[str, StoredSegment]) -> None:
        """Replace the records of some segments, durably."""
        await self.ready()
        async with self._lock:
            for segment, record in records.items():
                self.metadata.put(segment, record)
            await self._write_snapshot()

    async def _record_recovered(self, *, found_out: bool) -> None:
        if not self._claim:
            return
        try:
            if found_out:  # lengths, which are in no journal
                await self._write_snapshot()
                # An owner that claims a later epoch now reads them; an earlier one has others.
                await self.confirm_ownership()
            await self._chunks.write(
                self._name(_CLAIM, 0), offset=len(self._claim), data=[_RECOVERED]
            )
            self._has_noted_recovery = True
        except StorageError as error:
            logger.warning("a recovery is not noted", chunks=self._prefix, error=str(error))

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Hold the lock for changes of the metadata, once earlier changes have either happened or
        failed."""
        await self.ready()
        async with self._lock:
            self._refuse_when_fenced_out()
            if self._unfinished:
                await self._write(self._unfinished)
            yield

    async def commit(self, *changes: Change) -> None:
        """Make changes durable, together, then apply them. Only inside ``changing``.

        Raises ``InvalidChunkOffsetError`` when they do not fit: a journal that had them could never
        be read again.
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
        """Record that the segment's last chunk was appended to; ``known`` of its bytes had
        checksums before."""
        self._unrecorded.setdefault(segment, known)

    async def record_checksums(self) -> None:
        """Make the known checksums of open chunks durable."""
        waiting = list(self._unrecorded)
        for start in range(0, len(waiting), CHECKSUMS_PER_STEP):
            segments = waiting[start : start + CHECKSUMS_PER_STEP]
            async with self.changing():
                if changes := self._checksums_of(segments):
                    await self.commit(*changes)

    async def adopt_checksums(self, adopted: Sequence[tuple[str, Chunk, Checksums]]) -> None:
        """Set the checksums of all bytes of chunks that have ended, durably."""
        async with self.changing():
            changes: list[Change] = []
            for segment, chunk, checksums in adopted:
                record = self.metadata.get(segment)
                if record is not None and chunk in record.chunks:
                    changes.append(_checked(segment, chunk, checksums, chunk.checksums.length))
            if changes:
                await self.commit(*changes)

    async def settle(self) -> None:
        """End the chunks that this owner has begun, and write a snapshot that tells where."""
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
        """Return the changes, preceded by the checksums of the chunks that they end."""
        named = {segment for change in changes for segment in segments_of(change)}
        noted = {change.segment for change in changes if isinstance(change, Checked)}
        return (*self._checksums_of(sorted(named - noted)), *changes)

    def _checksums_of(self, segments: Iterable[str]) -> list[Change]:
        """Return the checksums of these segments' last chunks that are not recorded yet."""
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
        """Forget the checksums that are to be recorded, as far as a durable change contains
        them."""
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
        """Wait until there is something to be deleted."""
        while not self.metadata.condemned and not self.has_obsolete_chunks:
            self._garbage = trio.Event()
            await self._garbage.wait()

    async def confirm_ownership(self) -> None:
        """Check that no owner has claimed a later epoch. Raises ``FencedOutError``."""
        self._refuse_later(await self._found())

    async def clean_up(self) -> None:
        """Delete system chunks that no recovery reads, and condemn the chunks that a late writer
        named in them. Call this after ``confirm_ownership``."""
        self.has_obsolete_chunks = False
        try:
            obsolete = [each for each in await self._found() if self._is_obsolete(each)]
            # A snapshot without the changes after it must not stay where an owner finds it.
            for each in sorted(obsolete, key=lambda each: each.kind != _SNAPSHOT):
                if orphans := await self._orphans(each):
                    async with self.changing():
                        await self.commit(Condemn(tuple(orphans)))
                await self._chunks.delete(each.name)
        except BaseException:
            self.has_obsolete_chunks = True
            raise

    def _is_obsolete(self, each: _SystemChunk) -> bool:
        if each.kind == _CONTAINER:
            return _order(each) < (self.epoch, self._container_number) and bool(
                self._container_number
            )
        if each.epoch == self.epoch:
            return each.kind != _CLAIM and each.number < self._snapshot_number
        return each.epoch < self.epoch

    # ---- Opening ---------------------------------------------------------------------------------

    async def _open(self) -> None:
        epoch = self.epoch
        self._attempt_count += 1
        await self._chunks.write(self._name(_CLAIM, 0), offset=0, data=[self._claim])
        older: list[_SystemChunk] | None = None
        for look in range(1, LOOKS_MAX + 1):
            found, before = await self._found(), older
            self._refuse_later(found)
            own = [each for each in found if each.epoch == epoch and each.kind != _CLAIM]
            if own and self._attempt_count == 1:
                raise EpochUsedError(
                    f"{own[0].name} is there already: epoch {epoch} of container"
                    f" {self._container_id} was used before"
                )
            older = [each for each in found if each.epoch < epoch]
            try:
                self.is_in_doubt = await self._doubts(older)
                await self._read(older)
                break
            except ChunkNotFoundError:  # an older owner still cleans up
                if look == LOOKS_MAX:
                    raise
            except StorageDamagedError as error:
                # A look may find a part of what an older owner writes meanwhile.
                if older == before:
                    raise
                if look == LOOKS_MAX:
                    raise StorageError(f"an earlier owner still writes: {error}") from error
        self._number = max([self._number, *(each.number for each in own)])
        self.has_obsolete_chunks = bool(older)
        await self._write_snapshot()

    async def _doubts(self, found: list[_SystemChunk]) -> bool:
        """Return whether the machine was restarted since an owner last completed its recovery."""
        self._claims.clear()
        claims = [each for each in found if each.kind == _CLAIM and self._claim]
        for each in sorted(claims, key=_order, reverse=True):
            if not each.length:  # by an older segstore, which did not ask
                self._has_old_claim = True
                return False
            data = await self._read_claim(each)
            if not data.startswith(self._claim):
                return True
            if _RECOVERED in data:
                return False
        return bool(claims)

    async def _read(self, found: list[_SystemChunk]) -> None:
        """Read the metadata that the last owner left."""
        self.metadata, self._sequence = ChunkMetadata(), 0
        base = await self._read_snapshot([each for each in found if each.kind == _SNAPSHOT])
        epoch, number = (base.epoch, base.number) if base is not None else (0, 0)
        journals = sorted(
            (each for each in found if each.kind == _JOURNAL and each.epoch >= epoch), key=_order
        )
        if base is None:
            await self._refuse_lost_snapshot(found)
        closed_at = await self._closed_at(found, epoch)
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

    async def _refuse_lost_snapshot(self, found: list[_SystemChunk]) -> None:
        """Raise if no snapshot is there although an owner has completed its recovery."""
        for each in found:
            if each.kind != _CLAIM or not each.length:
                continue
            if _RECOVERED in await self._read_claim(each):
                raise StorageDamagedError(
                    f"{each.name} tells of a recovery that ended, and no snapshot of the chunk"
                    f" metadata of container {self._container_id} is whole"
                )

    async def _closed_at(self, found: list[_SystemChunk], epoch: int) -> int | None:
        """Return the number of the last change of that epoch's owner, if it was closed in order."""
        claim = next((each for each in found if (each.kind, each.epoch) == (_CLAIM, epoch)), None)
        closed = _CLOSED.search(await self._read_claim(claim)) if claim and claim.length else None
        if closed is None:
            return None
        self._last_operation = int(closed[2])
        return int(closed[1])

    async def _read_claim(self, each: _SystemChunk) -> bytes:
        if each.epoch not in self._claims:
            self._claims[each.epoch] = await self._read_chunk(each)
        return self._claims[each.epoch]

    async def _read_chunk(self, each: _SystemChunk) -> bytes:
        return bytes(await self._chunks.read(each.name, offset=0, length=each.length))

    async def _read_snapshot(self, snapshots: list[_SystemChunk]) -> _SystemChunk | None:
        """Read the last complete snapshot.

        An incomplete snapshot may be behind it; the journals behind both then continue from the
        complete one. If no snapshot is complete, nothing was changed yet, unless one was complete
        once.
        """
        damage: tuple[str, ChunkRecordError] | None = None
        for each in sorted(snapshots, key=_order, reverse=True):
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

    async def _replay(self, each: _SystemChunk, data: bytes) -> int:
        """Make the changes in a journal; return where its whole frames end."""
        name = each.name if self.metadata.version > 1 else ""
        changes, end = decode_frames(data, journal=name, may_have_holes=self.is_in_doubt)
        for sequence, change in changes:
            if sequence <= self._sequence:  # written again when the first reply was lost
                continue
            if sequence != self._sequence + 1:
                raise ChunkRecordError(
                    f"the changes from {self._sequence + 1} to {sequence} are missing"
                )
            self.metadata.apply(change)
            self._sequence = sequence
        await trio.lowlevel.checkpoint()
        return end

    async def _found(self) -> list[_SystemChunk]:
        listed = await self._chunks.list_chunks(self._prefix)
        return [each for info in listed if (each := self._parsed(info)) is not None]

    def _parsed(self, info: ChunkInfo) -> _SystemChunk | None:
        match = _NAME.fullmatch(info.name.removeprefix(self._prefix))
        if match is None:
            return None
        return _SystemChunk(match[1], int(match[2]), int(match[3]), info.name, info.length)

    def _refuse_later(self, found: list[_SystemChunk]) -> None:
        latest = max((each.epoch for each in found), default=0)
        if latest > self.epoch:
            self._is_fenced_out = True
        self._refuse_when_fenced_out(latest)

    def _refuse_when_fenced_out(self, latest: int = 0) -> None:
        if self._is_fenced_out:
            later = f" ({latest})" if latest else ""
            raise FencedOutError(
                f"the chunks of container {self._container_id} belong to a later epoch{later}:"
                f" epoch {self.epoch} changes nothing more"
            )

    # ---- Writing ---------------------------------------------------------------------------------

    def _name(self, kind: str, number: int) -> str:
        return f"{self._prefix}{kind}-{self.epoch:010d}-{number:010d}"

    async def _write(self, changes: tuple[Change, ...]) -> None:
        if self._journal is None:
            self._number += 1
            self._journal = self._name(_JOURNAL, self._number), 0
            self._journal_count += 1
        name, position = self._journal
        frames = [
            encode_frame(self._sequence + index, change, journal=name)
            for index, change in enumerate(changes, start=1)
        ]
        self._journal, self._unfinished = None, changes
        await self._chunks.write(name, offset=position, data=frames)
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
        """Write a snapshot. Even if that fails, later changes go to a later journal."""
        self._number += 1
        self._journal = None
        name = self._name(_SNAPSHOT, self._number)
        data = self.metadata.encode(epoch=self.epoch, sequence=self._sequence, name=name)
        noted = self._checksums_of(list(self._unrecorded))
        await self._chunks.write(name, offset=0, data=[data])
        for change in noted:
            self._forget_recorded(change)
        self.has_obsolete_chunks |= self._snapshot_number > 0
        self._snapshot_number = self._number
        self._garbage.set()
        self._journal_count = self._journal_bytes = 0
        self._snapshot_due_bytes = max(self._snapshot_bytes_min, len(data))

    # ---- What late writers left ------------------------------------------------------------------

    async def _orphans(self, each: _SystemChunk) -> list[str]:
        """Return the chunks that an older owner made after its epoch had ended, by one of its
        journals."""
        if each.kind != _JOURNAL or each.epoch == self.epoch:
            return []
        data = await self._read_chunk(each)
        counted = self._counted.get(each.epoch, 0)
        try:
            # System chunks of an older version do not have the name in their checksums.
            name = each.name if frame_at(data, 0, sum_of_name(each.name)) is not None else ""
            frames, _ = decode_frames(data, journal=name)
        except ChunkRecordError:
            return []  # its changes have no effect
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
    """Record checksums of appended bytes from time to time, until cancelled."""
    while True:
        await trio.sleep(CHECKSUMS_SECONDS_MAX)
        try:
            await journal.record_checksums()
        except FencedOutError:
            return
        except StorageError as error:
            logger.warning("checksums are noted later", error=str(error))


def _checked(segment: str, chunk: Chunk, sums: Checksums, known: int) -> Checked:
    """Return the change by which a chunk of which ``known`` bytes have checksums gets these."""
    return Checked(segment, chunk.start, sums.phase, known, sums.length, sums.sums_from(known))


def _order(each: _SystemChunk) -> tuple[int, int]:
    return each.epoch, each.number


def _snapshot_in(data: bytes) -> bytes | None:
    """Return the container's snapshot from a copy of it, or None when the copy is not whole."""
    if len(data) < _CONTAINER_HEADER.size + 4:
        return None
    magic, version, _, length = _CONTAINER_HEADER.unpack_from(data)
    end = _CONTAINER_HEADER.size + length
    if (magic, version) != (_CONTAINER_MAGIC, 1) or len(data) != end + 4:
        return None
    if crc32c(data[:end]) != int.from_bytes(data[end:], "big"):
        return None
    return data[_CONTAINER_HEADER.size : end]
