"""``segstore recover``: goes on after a journal, or a part of tier 2, was lost.

Owns: the search for what is wrong with a store that does not run, the plan that tells what a
recovery would keep and drop, and the recovery: a new journal in place of the old one.

Invariants:
1. Planning changes nothing. A recovery does what its plan says.
2. Before a recovery changes or removes something, its backup directory has it: the journals, and
   the metadata of chunks. Chunks with segments' bytes are neither changed nor deleted.
3. The new journal replaces the old one by a rename when it is durable. A recovery that was
   interrupted before can be repeated; what it has written to tier 2 stays there.
4. The logs of the new journal are opened under an epoch of their own, which is later than any that
   was claimed in tier 2.
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final

import trio

from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.system_journal import StoredState
from segstore.errors import (
    DataDirectoryError,
    DataLogCorruptError,
    DataLogError,
    IdentityError,
    IdentityProblem,
)
from segstore.process.config import SegmentStoreConfig
from segstore.process.data_directory import DataDirectory, StoreState
from segstore.process.identity import (
    TierTwoIdentity,
    check_claims,
    check_journal,
    check_tier_two,
    renew_journal_identity,
    write_journal_identity,
)
from segstore.process.tier_two import name_start, open_storage
from segstore.process.tier_two_vendors import StorageOfOwner, TierTwo
from segstore.repair.salvage import (
    ChunkLosses,
    Entries,
    Finding,
    PlannedStorage,
    Replayed,
    Salvage,
    encode_log,
    find_chunk_losses,
    replay_metadata,
    skip_to_checkpoint,
)
from segstore.runtime.boot import boot_id
from segstore.runtime.durable_files import sync_directory
from segstore.tiers.api import ChunkStorage
from segstore.tiers.journal import JournalSettings, open_journal
from segstore.tiers.journal.disk import DamagedDisk, UntouchedDisk
from segstore.tiers.journal.log_reader import LogReader
from segstore.tiers.journal.recovery import Recovered, recover
from segstore.tiers.journal.sound_prefix import SoundPrefix, read_sound_prefix

SUPERVISOR: Final = "standalone"
"""Name of the lock of the process that runs the store's processes."""


def _now() -> datetime:
    return datetime.now(UTC)


@dataclass(slots=True)
class JournalRemains:
    """One journal as far as it can be read."""

    number: int
    path: Path
    left: Recovered | SoundPrefix | None
    """The result of a recovery; None when the journal cannot be read, or is missing."""
    problem: str
    """The reason why the journal cannot be read; empty when it can."""

    @property
    def dropped_bytes_max(self) -> int | None:
        """Return the maximum number of bytes that are behind damage; None when the journal is not
        damaged."""
        return self.left.dropped_bytes_max if isinstance(self.left, SoundPrefix) else None

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the names of files behind the damage that do not exist."""
        return self.left.missing if isinstance(self.left, SoundPrefix) else ()

    @property
    def let_go_or_lost(self) -> tuple[str, ...]:
        """Return the names of the first files that cannot be read; what is behind the damage may
        have freed them."""
        return self.left.let_go_or_lost if isinstance(self.left, SoundPrefix) else ()


@dataclass(slots=True)
class ContainerRemains:
    """One container as far as it can be read, and its problems."""

    container_id: int
    stored: StoredState
    log_epoch: int
    entries: Entries | None
    replayed: Replayed
    losses: ChunkLosses
    problems: list[str] = field(default_factory=list)
    is_cut: bool = False
    """True if the log ends at damage."""
    is_ahead: bool = False
    """True if tier 2 has bytes that the log does not have."""
    findings: list[Finding] = field(default_factory=list)
    """The data that a recovery would drop, or has dropped."""

    @property
    def is_log_last(self) -> bool:
        """Return whether the log is the one that the last owner of tier 2 used."""
        replayed = self.replayed
        return (
            not self.is_ahead
            and not self.is_cut
            and self.stored.epoch <= self.log_epoch
            and not replayed.problem
            and not replayed.is_empty
            and self.stored.last_operation <= replayed.metadata.sequence_number
        )

    @property
    def next_epoch(self) -> int:
        """Return an epoch later than all that were used."""
        return max(self.stored.epoch, self.log_epoch) + 1


@dataclass(slots=True)
class RecoveryPlan:
    """The plan of a recovery for these journals and containers."""

    journals: list[JournalRemains]
    containers: list[ContainerRemains]

    @property
    def problems(self) -> list[str]:
        """Return the problems, one sentence each; none when nothing has to be recovered."""
        found = [each.problem for each in self.journals if each.problem]
        return found + [problem for each in self.containers for problem in each.problems]

    @property
    def findings(self) -> list[Finding]:
        """Return what a recovery drops or changes in segments."""
        return [finding for each in self.containers for finding in each.findings]


class StoreRecovery:
    """The recovery of one store. Made by ``open_recovery``."""

    def __init__(
        self,
        config: SegmentStoreConfig,
        directory: DataDirectory,
        tier: TierTwo,
        identity: TierTwoIdentity,
    ) -> None:
        self._config = config
        self._directory = directory
        self._tier = tier
        self._identity = identity
        self._chunks = tier.chunks_under(1)
        self._lengths: dict[str, int] = {}

    async def plan(self) -> RecoveryPlan:
        """Read everything and plan the recovery. Changes nothing."""
        self._lengths = {each.name: each.length for each in await self._chunks.list_chunks("")}
        journals: list[JournalRemains] = []
        containers: list[ContainerRemains] = []
        for number in self._directory.journals_with(range(self._directory.container_count)):
            journal = await self._read_journal(number)
            mine = self._directory.containers_of(number)
            found = [await self._look_at(journal, each) for each in mine]
            for container in found:
                await self._plan_container(container)
            if journal.problem or any(each.problems for each in found):
                journals.append(journal)
                containers += found
        return RecoveryPlan(journals, containers)

    async def _plan_container(self, container: ContainerRemains) -> None:
        """Find out what a recovery would drop; a container that would lose something has a
        problem."""
        metadata = container.stored.metadata
        for segment, record in container.losses.shortened.items():
            metadata.put(segment, record)
        await self._salvage(container, PlannedStorage(self._chunks, metadata, self._lengths))
        if not container.problems:
            container.problems += [
                f"container {container.container_id}: {each.length} bytes of {each.segment} from"
                f" {each.offset} on are in neither the journal nor tier 2"
                for each in container.findings
            ]

    async def run(self, plan: RecoveryPlan, *, now: Callable[[], datetime] = _now) -> Path:
        """Carry out the plan; return the directory with the backup."""
        backup = self._directory.path / f"before-recover-{now():%Y%m%dT%H%M%S}"
        await trio.to_thread.run_sync(partial(backup.mkdir))
        for container in plan.containers:
            await self._save_metadata(container, backup)
        storages = await self._tier.open([journal.number for journal in plan.journals])
        for journal in plan.journals:
            mine = [
                each
                for each in plan.containers
                if self._directory.journal_of(each.container_id) == journal.number
            ]
            await self._make_journal(journal, mine, storages[journal.number], backup)
        return backup

    # ---- What is there ---------------------------------------------------------------------------

    async def _read_journal(self, number: int) -> JournalRemains:
        path, problem = self._directory.journal_path(number), ""
        try:
            await trio.to_thread.run_sync(check_journal, self._directory, number)
            await check_claims(self._directory, self._tier, number, self._identity)
        except IdentityError as error:
            if error.problem is IdentityProblem.CHANGED:
                raise
            problem = str(error)
            if error.problem is IdentityProblem.FOREIGN or not path.is_dir():
                return JournalRemains(number, path, None, problem)
        try:
            recovered = await trio.to_thread.run_sync(recover, UntouchedDisk(path))
        except DataLogCorruptError as error:
            prefix = await trio.to_thread.run_sync(read_sound_prefix, DamagedDisk(path))
            return JournalRemains(number, path, prefix, str(error))
        except DataLogError as error:
            return JournalRemains(number, path, None, str(error))
        return JournalRemains(number, path, recovered, problem)

    async def _look_at(self, journal: JournalRemains, container_id: int) -> ContainerRemains:
        stored = await self._owner(container_id, 0, self._chunks).inspect()
        epoch, entries = self._log_of(journal, container_id)
        container = ContainerRemains(
            container_id,
            stored,
            epoch,
            entries,
            await replay_metadata(container_id, entries),
            find_chunk_losses(container_id, stored.metadata, self._lengths),
            is_cut=isinstance(journal.left, SoundPrefix),
        )
        self._find_problems(container)
        return container

    def _log_of(self, journal: JournalRemains, container_id: int) -> tuple[int, Entries | None]:
        """Yield the epoch of a container's log, and what reads it, if it can be read."""
        left = journal.left
        if left is None or container_id not in left.state.containers:
            return 0, None
        state, scans = left.state, left.scans

        lacks_beginning = isinstance(left, SoundPrefix) and container_id in left.without_beginning

        async def read_all() -> AsyncIterator[bytes]:
            disk, run_blocking = DamagedDisk(journal.path), trio.to_thread.run_sync
            reader = LogReader.of_scans(disk, run_blocking, container_id, state, scans)
            async for entry in reader.read():
                yield entry.data

        def read() -> AsyncIterator[bytes]:
            return skip_to_checkpoint(read_all()) if lacks_beginning else read_all()

        return state.containers[container_id].epoch, read

    def _find_problems(self, container: ContainerRemains) -> None:
        number, stored, log = container.container_id, container.stored, container.replayed
        if log.problem:
            container.problems.append(f"container {number}: {log.problem}")
        elif stored.epoch > container.log_epoch:
            container.problems.append(
                f"container {number}: the journal knows no epoch after {container.log_epoch}, and"
                f" tier 2 was written under epoch {stored.epoch}: the journal is older, or was lost"
            )
        elif stored.last_operation > log.metadata.sequence_number:
            container.problems.append(
                f"container {number}: the journal ends with operation"
                f" {log.metadata.sequence_number}, the store with {stored.last_operation}"
            )
        for segment in log.metadata.segments.values():
            record = stored.metadata.get(segment.storage_name)
            if record is not None and record.chunks and not segment.merged:
                last = record.chunks[-1]
                end = last.end
                if last.is_open:
                    end = max(end, last.start + self._lengths.get(last.name, 0))
                if end > segment.length:
                    container.is_ahead = True
                    container.problems.append(
                        f"container {number}: tier 2 has {end} bytes of {segment.name}, and the"
                        f" journal only {segment.length}: the journal is older"
                    )
        container.problems += [
            f"container {number}: {each.length} bytes of {each.segment} from {each.offset} on are"
            " missing in tier 2"
            for each in container.losses.findings
        ]

    # ---- Building the plan -----------------------------------------------------------------------

    def _owner(self, container_id: int, epoch: int, chunks: ChunkStorage) -> ChunkedSegmentStorage:
        return ChunkedSegmentStorage(
            chunks,
            epoch=lambda: epoch,
            container_id=container_id,
            boot_id=name_start(self._config.tier2, boot_id),
        )

    async def _salvage(
        self, container: ContainerRemains, storage: PlannedStorage | ChunkedSegmentStorage
    ) -> tuple[bytes, int]:
        """Return a new snapshot of the container, and its number."""
        salvage = Salvage(
            container.container_id,
            storage,
            container.stored.metadata,
            container.stored.container,
            keeps_indexes=container.is_log_last,
            is_cut=container.is_cut,
        )
        last_operation = container.stored.last_operation
        snapshot, number = await salvage.run(container.replayed, container.entries, last_operation)
        gaps = [each for each in container.losses.findings if each.what == "gap"]
        container.findings = gaps + salvage.findings
        # Replaying is done once more when it is not only planned: the metadata were changed.
        container.replayed = await replay_metadata(container.container_id, container.entries)
        return snapshot, number

    async def _save_metadata(self, container: ContainerRemains, backup: Path) -> None:
        for name in container.stored.names:
            data = await self._chunks.read(name, offset=0, length=self._lengths[name])
            file = backup / name.replace("/", "_")
            await trio.to_thread.run_sync(file.write_bytes, bytes(data))

    async def _make_journal(
        self,
        journal: JournalRemains,
        containers: Sequence[ContainerRemains],
        storage_of: StorageOfOwner,
        backup: Path,
    ) -> None:
        """Make a journal that begins with the new snapshots, and put it into its place."""
        new = journal.path.with_name(f"{journal.path.name}.recovering")
        await trio.to_thread.run_sync(partial(shutil.rmtree, new, ignore_errors=True))
        await trio.to_thread.run_sync(new.mkdir)
        identity = renew_journal_identity(self._directory, journal.number, self._identity)
        await trio.to_thread.run_sync(write_journal_identity, new, identity)
        settings = JournalSettings(
            file_bytes=self._config.journal_file_bytes,
            journal_bytes_max=self._config.journal_bytes_max,
        )
        async with open_journal(new, settings) as opened:
            for container in containers:
                epoch = container.next_epoch
                chunks = storage_of(partial(_number, epoch))
                storage = self._owner(container.container_id, epoch, chunks)
                if container.losses.shortened:
                    await storage.replace_records(container.losses.shortened)
                snapshot, number = await self._salvage(container, storage)
                log = await opened.open_log(container.container_id, epoch_min=epoch)
                for entry in encode_log(snapshot, number):
                    log.append_nowait((entry,), _ignore)
                await log.aclose()
                if opened.failure is not None:
                    raise opened.failure
                await storage.recovered(last_operation=number)
                await storage.close(last_operation=number)
        await trio.to_thread.run_sync(_put_into_place, journal.path, new, backup)


def _number(number: int) -> int:
    return number


def _ignore(error: DataLogError | None) -> None:
    """Ignore the result: the caller that closes the log gets the journal's failure."""


def _put_into_place(path: Path, new: Path, backup: Path) -> None:
    """Move a journal and the notes about it into the backup, and the new journal to its place."""
    for old in (path.with_name(f"{path.name}-contents"), path):
        if old.exists():
            old.rename(backup / old.name)
    new.rename(path)
    for directory in (backup, path.parent):
        sync_directory(directory)


@asynccontextmanager
async def open_recovery(config: SegmentStoreConfig) -> AsyncIterator[StoreRecovery]:
    """Lock a store that does not run, for the block.

    Raises ``DataDirectoryError`` when it is in use, and what ``open_storage`` raises.
    """
    directory = DataDirectory.open(config.data_dir, container_count=config.container_count)
    if directory.state is not StoreState.COMPLETE:
        raise DataDirectoryError(
            f"data directory {directory.path} was never started with this version: nothing can be"
            " said of what belongs to it; start the store, or go on with the version that made it"
        )
    async with AsyncExitStack() as stack:
        stack.enter_context(directory.lock(SUPERVISOR))
        journals = directory.journals_with(range(directory.container_count))
        directory = stack.enter_context(directory.lock_journals(journals))
        tier = await stack.enter_async_context(open_storage(config, directory))
        identity = await check_tier_two(directory, tier)
        yield StoreRecovery(config, directory, tier, identity)
