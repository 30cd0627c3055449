"""``segstore recover``: makes a store usable again after it lost a journal or a part of tier 2.

Owns: the search for problems of a store that does not run, the plan, which says what a recovery
would keep and drop, and the recovery, which puts a new journal in place of the old one.

Invariants:
1. Planning changes no file of the store. Held by ``test_planning_changes_nothing``.
2. A recovery drops what its plan says, and nothing else. Held by
   ``test_events_on_both_sides_of_a_gap_are_kept_where_they_were``.
3. Before a recovery replaces the journals and the metadata of chunks, its backup directory has
   them. Chunks with bytes of segments are neither changed nor deleted. Held by
   ``test_a_recovery_backs_up_what_it_replaces``.
4. When a recovery ends before any of its steps, a second one keeps the same data. The old journal
   is in its place until the new one is durable under a name that says so; then renames exchange
   them. Held by ``test_a_recovery_that_ends_before_any_step_is_repeated_without_a_loss``.
5. After a recovery, a container's epoch is later than all that were claimed in tier 2, also when
   the journal with the old epoch was lost. Held by
   ``test_a_recovered_container_has_a_later_epoch``.

A segment has events of 300 bytes and chunks of 1,000 bytes. Tier 2 has the chunks from 0 and from
2,000, the one from 1,000 is lost; the journal has one more event, from 3,000.

    plan: lost are 900 to 2,100, because the events at 900 and 1,800 are incomplete
    after the recovery, readers get 0 to 900, 2,100 to 3,000 and 3,000 to 3,300; the length is 3,300
"""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final

import trio

from pravega_wire.names import container_of
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.system_journal import StoredState
from segstore.errors import (
    DataDirectoryError,
    DataLogCorruptError,
    DataLogError,
    IdentityError,
    IdentityProblem,
)
from segstore.model.metadata import ContainerMetadata
from segstore.ownership.claims import check_claims, renew_journal_identity
from segstore.ownership.data_directory import DataDirectory, StoreState
from segstore.ownership.journal_identity import check_journal, write_journal_identity
from segstore.ownership.tier_two_identity import TierTwoIdentity, check_tier_two
from segstore.process.config import SegmentStoreConfig
from segstore.process.tier_two import name_start, open_storage
from segstore.repair.pieces import SegmentPieces
from segstore.repair.salvage import (
    BegunCommit,
    Entries,
    Finding,
    OpenTransaction,
    Replayed,
    Required,
    RequiredSegment,
    Salvage,
    StreamHead,
    encode_log,
    find_missing_chunks,
    replay_metadata,
    skip_to_checkpoint,
)
from segstore.repair.unrecorded_chunks import add_unrecorded_chunks
from segstore.runtime.boot import boot_id
from segstore.runtime.durable_files import sync_directory, write_durably
from segstore.tiers.api import ChunkStorage
from segstore.tiers.journal import JournalSettings, open_journal
from segstore.tiers.journal.disk import DamagedDisk, UntouchedDisk
from segstore.tiers.journal.log_reader import LogReader
from segstore.tiers.journal.recovery import Recovered, recover
from segstore.tiers.journal.sound_prefix import SoundPrefix, read_sound_prefix
from segstore.tiers.vendor import StorageOfOwner, TierTwo

CONTROLLER_TABLES: Final = "_system/_tables/controller/"

BACKUP: Final = "before-recover-"
"""Beginning of the names of backups in the data directory."""
FINDINGS: Final = "findings.txt"
"""Name of the file in a backup that has the sentences of the plan."""

Tables = dict[str, dict[bytes, bytes]]
"""Keys and values of tables, by name."""

FindRequired = Callable[[Tables], Required]

SUPERVISOR: Final = "standalone"
"""Name of the lock of the process that runs the store's processes."""


def _now() -> datetime:
    return datetime.now(UTC)


def no_streams(_: Tables) -> Required:
    """Return that no segment is required. It is for callers that cannot read the controller's
    records."""
    return Required()


def find_disagreements(
    metadata: ContainerMetadata, required: Sequence[RequiredSegment]
) -> list[str]:
    """Return the differences between a container and the segments that streams require, as
    sentences."""
    found: list[str] = []
    for each in required:
        segment = metadata.by_name.get(each.name)
        if segment is None:
            found.append(f"the controller has {each.name}, and the store does not")
            continue
        if segment.length < each.head:
            found.append(
                f"{each.name} ends at {segment.length}, and the controller has its head at"
                f" {each.head}"
            )
        if each.is_sealed is not None and segment.sealed != each.is_sealed:
            word = "sealed" if each.is_sealed else "open"
            found.append(f"{each.name} is {word} for the controller, and not in the store")
    return found


def _abort_transactions(
    containers: Sequence[ContainerRemains], transactions: Sequence[OpenTransaction]
) -> None:
    """Let a recovery abort the open transactions that have lost events, because a commit would not
    notice the loss."""
    there, lost = _owners(containers), _lost_segments(containers)
    for transaction in transactions:
        if there.keys() >= set(transaction.segments) and lost.isdisjoint(transaction.segments):
            continue
        container = there[transaction.table]
        update = transaction.key, transaction.aborting
        container.updates.setdefault(transaction.table, []).append(update)
        container.problems.append(
            f"container {container.container_id}: {transaction.called} has lost events: it is"
            " aborted"
        )


def _tell_commits(containers: Sequence[ContainerRemains], commits: Sequence[BegunCommit]) -> None:
    """Add to the problems which transactions have lost events after their commit was accepted.

    A controller will commit what is left of them. If a segment is gone, it was merged, unless the
    metadata of its container are older than the merge.
    """
    there, lost = _owners(containers), _lost_segments(containers)
    for commit in commits:
        for name in commit.segments:
            container = containers[container_of(name, len(containers))]
            number = container.container_id
            if name in lost:
                container.problems.append(
                    f"container {number}: {commit.called} is being committed, and has lost events"
                    f" in {name}: what is left of it is committed"
                )
            elif name not in there and container.problems and not container.is_log_last:
                container.problems.append(
                    f"container {number}: {commit.called} is being committed, and {name} is not"
                    " there: it was merged before, or its events are lost"
                )


def _owners(containers: Sequence[ContainerRemains]) -> dict[str, ContainerRemains]:
    """Return the container of each segment that exists after the recovery, by the segment's
    name."""
    return {
        name: each for each in containers if each.planned for name in each.planned.metadata.by_name
    }


def _lost_segments(containers: Sequence[ContainerRemains]) -> set[str]:
    """Return the names of the segments of which the plan drops bytes."""
    return {
        finding.segment
        for each in containers
        for finding in each.findings
        if finding.what == "lost"
    }


def _move_heads(containers: Sequence[ContainerRemains], heads: Sequence[StreamHead]) -> None:
    """Let a recovery move the heads of streams whose first bytes are lost to the first bytes that
    are left.

    Readers begin at the head, and some wait there until it is moved. Segments of containers without
    problems are left out: if they begin after the head, clients have truncated them.
    """
    there = _owners(containers)
    harmed = {each.container_id for each in containers if each.problems}
    for head in heads:
        container = there[head.table]
        begins: dict[str, int] = {}
        for name, offset in head.offsets.items():
            owner = there.get(name)
            if owner is None or harmed.isdisjoint((owner.container_id, container.container_id)):
                continue
            assert owner.planned is not None
            begin = owner.planned.metadata.by_name[name].start_offset
            if begin > offset:
                begins[name] = begin
                container.problems.append(
                    f"container {container.container_id}: {name} begins at {begin}, and the"
                    f" controller has the head of {head.called} there at {offset}: it is moved"
                )
        if begins:
            container.updates.setdefault(head.table, []).extend(head.move(begins))


@dataclass(slots=True)
class JournalRemains:
    """The readable part of one journal."""

    number: int
    path: Path
    left: Recovered | SoundPrefix | None
    """The result of reading the journal, up to its end or to damage; None when it is missing or
    cannot be read at all."""
    problem: str
    """The reason why the journal cannot be read; empty when it can."""

    @property
    def dropped_bytes_max(self) -> int | None:
        """Return the maximum number of bytes after the damage; None when the journal is not
        damaged."""
        return self.left.dropped_bytes_max if isinstance(self.left, SoundPrefix) else None

    @property
    def missing(self) -> tuple[str, ...]:
        """Return the names of the missing files after the damage."""
        return self.left.missing if isinstance(self.left, SoundPrefix) else ()

    @property
    def let_go_or_lost(self) -> tuple[str, ...]:
        """Return the names of missing first files. They may be lost, or entries after the damage
        may have freed them."""
        return self.left.let_go_or_lost if isinstance(self.left, SoundPrefix) else ()


@dataclass(slots=True)
class ContainerRemains:
    """The readable part of one container, and its problems."""

    container_id: int
    stored: StoredState
    log_epoch: int
    entries: Entries | None
    replayed: Replayed
    missing: list[Finding]
    """Ranges of segments that chunks lack, whether the log has them or not."""
    problems: list[str] = field(default_factory=list)
    is_cut: bool = False
    """True if the log ends at damage."""
    is_completed: bool = False
    """True if chunks that the metadata lacked were found by their names and added to ``stored``."""
    headless: frozenset[str] = frozenset()
    """The segments whose first known chunk was found by its name: earlier ones may be missing."""
    is_ahead: bool = False
    """True if tier 2 has bytes that the log does not have."""
    required: tuple[RequiredSegment, ...] = ()
    """The segments that streams need, by the controller's records."""
    updates: dict[str, list[tuple[bytes, bytes]]] = field(default_factory=dict)
    """Keys and values that a recovery would put into the controller's tables."""
    planned: Salvage | None = None
    """The container as a recovery would leave it."""
    findings: list[Finding] = field(default_factory=list)
    """The data that a recovery would drop, or has dropped."""

    @property
    def was_interrupted(self) -> bool:
        """Return whether the last use of tier 2 after this log was a recovery that did not end."""
        return 0 < self.log_epoch == self.stored.recovering_from

    @property
    def is_log_last(self) -> bool:
        """Return whether the log is the one that the last owner of tier 2 used."""
        replayed = self.replayed
        if self.is_cut or replayed.problem or replayed.is_empty:
            return False
        return self.was_interrupted or (
            not self.is_ahead
            and self.stored.epoch <= self.log_epoch
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
        """Return the problems, as sentences; none when nothing has to be recovered."""
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

    async def plan(self, *, find_required: FindRequired = no_streams) -> RecoveryPlan:
        """Read everything and plan the recovery. Changes nothing.

        ``find_required`` returns the segments that streams need, by the controller's tables.
        """
        self._lengths = {each.name: each.length for each in await self._chunks.list_chunks("")}
        read: list[tuple[JournalRemains, list[ContainerRemains]]] = []
        for number in self._directory.journals_with(range(self._directory.container_count)):
            journal = await self._read_journal(number)
            mine = self._directory.containers_of(number)
            read.append((journal, [await self._look_at(journal, each) for each in mine]))
        containers = [each for _, mine in read for each in mine]
        for container in containers:
            await self._plan_container(container)
        required = find_required(await self._read_controller_tables(containers))
        for container in containers:
            self._compare_with(container, required.segments)
        if any(journal.problem or any(each.problems for each in mine) for journal, mine in read):
            _move_heads(containers, required.heads)
            _abort_transactions(containers, required.transactions)
            _tell_commits(sorted(containers, key=lambda each: each.container_id), required.commits)
        journals: list[JournalRemains] = []
        touched: list[ContainerRemains] = []
        for journal, found in read:
            if journal.problem or any(each.problems for each in found):
                journals.append(journal)
                touched += found
        for container in touched:
            await self._plan_container(container)  # Again, because required segments are known now.
        return RecoveryPlan(journals, touched)

    async def _plan_container(self, container: ContainerRemains) -> None:
        """Plan the recovery of one container. If the container has problems, or would lose data,
        plan it again with the chunks that its metadata lack. Each loss is a problem."""
        await self._salvage(container, self._pieces_of(container, self._chunks))
        if not container.is_completed and (container.problems or container.findings):
            lacking = container.findings
            count = self._directory.container_count
            container.stored, container.headless = add_unrecorded_chunks(
                container.stored, container.container_id, count, self._lengths
            )
            container.is_completed = True
            await self._salvage(container, self._pieces_of(container, self._chunks))
            # If the end of a file of chunk metadata is damaged, it looks like an unfinished write,
            # so the chunks that it recorded were not known.
            container.problems += [
                f"container {container.container_id}: the metadata of chunks lack chunks of"
                f" {each.segment} from {each.offset} on, which are in tier 2"
                for each in lacking
                if each not in container.findings
            ]
        if not container.problems:
            container.problems += [
                f"container {container.container_id}: {each.what}, {each.length} bytes of"
                f" {each.segment} from {each.offset} on"
                for each in container.findings
            ]

    def _pieces_of(
        self, container: ContainerRemains, chunks: ChunkStorage, epoch: int | None = None
    ) -> SegmentPieces:
        """Return the bytes of a container in tier 2. Without an epoch, they are for planning
        only."""
        metadata, headless = container.stored.metadata, container.headless
        return SegmentPieces(chunks, metadata, self._lengths, epoch=epoch, headless=headless)

    async def _read_controller_tables(self, containers: Sequence[ContainerRemains]) -> Tables:
        """Return the content of all tables of the controller, as a recovery would leave them."""
        tables: Tables = {}
        for container in containers:
            assert container.planned is not None
            for name in container.planned.metadata.by_name:
                if name.startswith(CONTROLLER_TABLES):
                    tables[name] = await container.planned.read_table(name)
        return tables

    def _compare_with(
        self, container: ContainerRemains, required: Sequence[RequiredSegment]
    ) -> None:
        """Record the segments of a container that streams require. Each one that the planned
        container lacks is a problem."""
        assert container.planned is not None
        number, count = container.container_id, self._directory.container_count
        container.required = tuple(
            each for each in required if container_of(each.name, count) == number
        )
        lacks = find_disagreements(container.planned.metadata, container.required)
        container.problems += [f"container {number}: {each}" for each in lacks]

    async def run(self, plan: RecoveryPlan, *, now: Callable[[], datetime] = _now) -> Path:
        """Carry out the plan; return the directory with the backup."""
        name = f"{BACKUP}{now():%Y%m%dT%H%M%S}"
        backup = await trio.to_thread.run_sync(_make_backup, self._directory.path, name)
        findings = "".join(f"{each}\n" for each in _sentences_of(plan))
        await trio.to_thread.run_sync(write_durably, backup / FINDINGS, findings)
        for container in plan.containers:
            await self._save_metadata(container, backup)
        await trio.to_thread.run_sync(sync_directory, backup)
        for journal in plan.journals:
            place = self._directory.journal_path(journal.number)
            if journal.path != place:
                await trio.to_thread.run_sync(_rename, journal.path, place)
                journal.path = place
        storages = await self._tier.open([journal.number for journal in plan.journals])
        containers: dict[int, list[ContainerRemains]] = {each.number: [] for each in plan.journals}
        for container in plan.containers:
            containers[self._directory.journal_of(container.container_id)].append(container)
        # The containers with updates of the controller's tables come first. The updates follow from
        # losses in the others, which a repeated recovery would not find again.
        for journal in sorted(
            plan.journals, key=lambda each: not any(one.updates for one in containers[each.number])
        ):
            mine = sorted(containers[journal.number], key=lambda each: not each.updates)
            await self._make_journal(journal, mine, storages[journal.number], backup)
        return backup

    # ---- What is there ---------------------------------------------------------------------------

    async def _read_journal(self, number: int) -> JournalRemains:
        path, problem = self._directory.journal_path(number), ""
        finished = self._directory.recovered_path(number)
        if finished.is_dir() and not path.exists():
            try:
                recovered = await trio.to_thread.run_sync(recover, UntouchedDisk(finished))
            except DataLogError as error:
                return JournalRemains(number, path, None, str(error))
            problem = (
                f"journal {number}: a recovery was interrupted before {finished} became {path}"
            )
            return JournalRemains(number, finished, recovered, problem)
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
        stored = await self._owner(container_id, 0, self._chunks).inspect(tolerates_damage=True)
        epoch, entries = self._log_of(journal, container_id)
        container = ContainerRemains(
            container_id,
            stored,
            epoch,
            entries,
            await replay_metadata(container_id, entries),
            find_missing_chunks(container_id, stored.metadata, self._lengths),
            is_cut=isinstance(journal.left, SoundPrefix),
        )
        self._find_problems(container)
        return container

    def _log_of(self, journal: JournalRemains, container_id: int) -> tuple[int, Entries | None]:
        """Return the epoch of a container's log, and a function that reads its entries; (0, None)
        if it cannot be read."""
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
        if stored.damage:
            container.problems.append(f"container {number}: {stored.damage}")
        if log.problem:
            container.problems.append(f"container {number}: {log.problem}")
        elif container.was_interrupted:
            container.problems.append(
                f"container {number}: a recovery was interrupted; {FINDINGS} in its"
                f" {BACKUP}… directory has what it found"
            )
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
        # After an interrupted recovery, tier 2 may have bytes and updates that this recovery added.
        is_compared = not container.was_interrupted
        for segment in log.metadata.segments.values() if is_compared else ():
            record = stored.metadata.get(segment.storage_name)
            if record is not None and record.chunks:
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
            for each in container.missing
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
        self, container: ContainerRemains, pieces: SegmentPieces
    ) -> tuple[bytes, int]:
        """Return a new snapshot of the container, and its sequence number."""
        salvage = container.planned = Salvage(
            container.container_id,
            pieces,
            container.stored.metadata,
            self._lengths,
            container.stored.container,
            keeps_indexes=container.is_log_last,
            required=container.required,
            updates=container.updates,
        )
        last_operation = container.stored.last_operation
        snapshot, number = await salvage.run(container.replayed, container.entries, last_operation)
        container.findings = salvage.findings
        # Replay the metadata again for the next call, because this one has changed them.
        container.replayed = await replay_metadata(container.container_id, container.entries)
        return snapshot, number

    async def _save_metadata(self, container: ContainerRemains, backup: Path) -> None:
        for name in container.stored.names:
            data = await self._chunks.read(name, offset=0, length=self._lengths[name])
            file = backup / name.replace("/", "_")
            await trio.to_thread.run_sync(write_durably, file, bytes(data))

    async def _make_journal(
        self,
        journal: JournalRemains,
        containers: Sequence[ContainerRemains],
        storage_of: StorageOfOwner,
        backup: Path,
    ) -> None:
        """Make a new journal with the snapshots of its containers, and put it in place of the old
        one."""
        new = journal.path.with_name(f"{journal.path.name}.recovering")
        finished = self._directory.recovered_path(journal.number)
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
                storage.adopt(container.stored)
                if container.is_log_last:
                    await storage.begin_recovery(container.log_epoch)
                await storage.segment_names()  # Claims the epoch, so that names of chunks are new.
                pieces = self._pieces_of(container, chunks, epoch)
                snapshot, number = await self._salvage(container, pieces)
                await storage.replace_records(
                    pieces.records, forgotten=pieces.forgotten, condemned=pieces.condemned()
                )
                log = await opened.open_log(container.container_id, epoch_min=epoch)
                for entry in encode_log(snapshot, number):
                    log.append_nowait((entry,), _ignore)
                await log.aclose()
                if opened.failure is not None:
                    raise opened.failure
                await storage.recovered(last_operation=number)
                await storage.close(last_operation=number)
        await trio.to_thread.run_sync(_put_into_place, journal.path, new, finished, backup)


def _number(number: int) -> int:
    return number


def _ignore(error: DataLogError | None) -> None:
    """Ignore the result, because the journal keeps its failure."""


def _put_into_place(path: Path, new: Path, finished: Path, backup: Path) -> None:
    """Move the old journal, and the file that describes it, into the backup, and the new journal to
    its place.

    Between the two steps, the new journal has the name ``finished``, which says that it is
    complete.
    """
    shutil.rmtree(finished, ignore_errors=True)
    _rename(new, finished)
    for old in (path.with_name(f"{path.name}-contents"), path):
        if old.exists():
            _rename(old, backup / old.name)
    _rename(finished, path)


def _rename(old: Path, new: Path) -> None:
    """Rename a file or directory durably: the directory with the new name is synced first."""
    old.rename(new)
    for directory in dict.fromkeys((new.parent, old.parent)):
        sync_directory(directory)


def _make_backup(parent: Path, name: str) -> Path:
    """Make a directory for the backup durably, with a number in its name if ``name`` exists."""
    for number in count(1):
        backup = parent / (name if number == 1 else f"{name}-{number}")
        try:
            backup.mkdir()
        except FileExistsError:
            continue
        sync_directory(parent)
        return backup
    raise AssertionError("there are always more numbers")


def _sentences_of(plan: RecoveryPlan) -> list[str]:
    """Return the problems and findings of a plan, as sentences."""
    return plan.problems + [
        f"{each.what}: {each.length} bytes of {each.segment} from {each.offset} on"
        for each in plan.findings
    ]


@asynccontextmanager
async def open_recovery(
    config: SegmentStoreConfig, *, given: ChunkStorage | None = None
) -> AsyncIterator[StoreRecovery]:
    """Yield the recovery of a store that does not run, and lock the store until the block ends.
    Tier 2 is the configured one, unless it is ``given``.

    Raises ``DataDirectoryError`` when the store is in use, and what ``open_storage`` raises.
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
        tier = await stack.enter_async_context(open_storage(config, directory, given=given))
        identity = await check_tier_two(directory, tier)
        yield StoreRecovery(config, directory, tier, identity)
