"""Stores that are started on each other's tiers: copied, restored, swapped, killed, all at once.

Owns: ``simulate_owners``: data directories and a tier 2, the processes that are started on them,
and an operator who does everything that identities (``process.identity``) and the checks of a
container's recovery are there for.

A process here has one container, the real one with the real journal, which adds numbered lines to a
segment and brings them to tier 2. Data directories are real, but for the journal's disk. Its chunks
are behind delays, errors and lost replies.

Invariants:
1. Of all processes on one tier 2 at most one is let in at a time.
2. One that serves has all that was acknowledged by its journal, whatever tier 2 it has, and all
   that tier 2 has, whatever journal it has: nothing is missing, nothing will be overwritten.
3. After every run a data directory with all that was ever acknowledged can still be started.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest.mock import patch

import trio

from _fast.cache.streaming_cache import StreamingCache
from segstore.api import SegmentContainer
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.container import open_container
from segstore.errors import (
    ContainerOfflineError,
    DataDirectoryError,
    DataLogError,
    NoSuchSegmentError,
    StorageError,
    leaf_errors,
)
from segstore.process.config import SegmentStoreConfig
from segstore.process.data_directory import DataDirectory
from segstore.process.identity import owned
from segstore.process.tier_two import EpochRecordingLogs, open_storage
from segstore.testing.faulty_chunks import Fault, FaultyChunkStorage
from segstore.testing.simulated_disk import PowerCutError, SimulatedDisk
from segstore.testing.simulated_journal import open_simulated_journal
from segstore.tiers.journal import JournalSettings
from segstore.tiers.memory import MemoryChunkStorage
from segstore.writer.flush_policy import FlushPolicy
from simulation.logs import logs_dropped
from simulation.scheduler import Trace, run_seeded
from simulation.stored import parse_chunk_name

KIB = 1024
HISTORY = "scope/stream/0.#epoch.0"
DISK_FILE = "simulated-disk"
"""Tells which of the simulated disks is a journal's."""
BOOT_ID = "8d0b4ea6-3c1c-4f58-8d5b-3d4a2f4a9d55"
ROUNDS = 30
COPIES_MAX = 5
BACKUPS_MAX = 8
LIFE_SECONDS = 2.0
TRY_SECONDS_MAX = 20.0
LOOK_SECONDS_MAX = 10.0
RETRY_SECONDS = 0.05
CACHE_BYTES = 2048 * KIB
LINE_BYTES_MAX = 400
SETTINGS = JournalSettings(
    file_bytes=384 * KIB,
    journal_bytes_max=8 * 384 * KIB,
    batch_bytes_max=384 * KIB,
    files_spare_max=1,
)


class OwnersError(AssertionError):
    """A store was let in that must not be, or the right one was not."""


@dataclass
class Journal:
    """A journal: its disk, and the promises of the processes that used it."""

    disk: SimulatedDisk = field(default_factory=SimulatedDisk)
    acknowledged: list[int] = field(default_factory=list)
    """The numbers of the lines."""
    life_count: int = 0
    """Number of processes that have served with it."""

    def copied(self) -> Journal:
        """Return a copy of its current state."""
        return Journal(self.disk.after_kill(), list(self.acknowledged), self.life_count)


class TierTwoDisk:
    """A tier 2 that outlives processes."""

    def __init__(self) -> None:
        self.chunks = MemoryChunkStorage()
        self.owner: Process | None = None
        self.life_count = 0
        """Number of processes that have served on it."""

    def copied(self) -> TierTwoDisk:
        """Return a backup of it."""
        other = TierTwoDisk()
        other.chunks = copy.deepcopy(self.chunks)
        other.life_count = self.life_count
        return other

    async def foreign_chunk(self, content: bytes) -> str | None:
        """Return a chunk of the history that has other bytes than ``content``."""
        for chunk in await self.chunks.list_chunks(""):
            name, start = parse_chunk_name(chunk.name)
            if name == HISTORY and start is not None and chunk.length:
                data = await self.chunks.read(chunk.name, offset=0, length=chunk.length)
                if content[start : start + chunk.length] != bytes(data):
                    return chunk.name
        return None


class Process:
    """A start of a store on a data directory."""

    def __init__(self, world: World, path: Path) -> None:
        self.world = world
        self.path = path
        self.tier = world.tier
        self.is_dead = False
        self.was_let_in = False
        self.found: set[int] = set()
        """The numbers of the lines that it had when it began to serve."""
        self.refusal: BaseException | None = None
        self.scope = trio.CancelScope()
        self.stopping = trio.Event()
        self.journal: Journal | None = None
        self.chunks = FaultyChunkStorage(
            self.tier.chunks,
            next_fault=lambda _: world.next_fault(),
            next_delay=lambda _: world.next_delay(),
            next_reply_delay=lambda _: world.next_delay(),
        )

    def kill(self) -> None:
        """Kill the process: nothing that it does has an effect from now on."""
        self.is_dead = True
        self.chunks.abandon()
        if self.journal is not None:
            self.world.replace_journal(self.journal, self.journal.copied())
            self.journal.disk.power_cut_at = 0
        if self.tier.owner is self:
            self.tier.owner = None
        self.scope.cancel()

    async def run(self) -> None:
        """Start, do some work, and stop when told to."""
        config = SegmentStoreConfig(data_dir=self.path, container_count=1)
        with self.scope:
            try:
                directory = DataDirectory.open(self.path, container_count=1)
                with directory.lock_journal(0):
                    async with (
                        open_storage(config, directory, given=self.chunks) as tier,
                        owned(directory, tier, [0], random_bytes=self.world.random.randbytes),
                        self.owning(),
                    ):
                        await self.serve()
            except* PowerCutError:
                assert self.is_dead
            except* (DataDirectoryError, StorageError, DataLogError) as group:
                self.refusal = next(leaf_errors(group))

    @asynccontextmanager
    async def owning(self) -> AsyncIterator[None]:
        """Own tier 2, alone."""
        if self.tier.owner is not None:
            raise OwnersError(f"{self.path} was let in beside {self.tier.owner.path}")
        self.tier.owner = self
        try:
            yield
        finally:
            if self.tier.owner is self:
                self.tier.owner = None

    async def serve(self) -> None:
        """Recover the container, and work with it."""
        world, random = self.world, self.world.random
        self.journal = world.journal_in(self.path / "journal-0")
        async with open_simulated_journal(self.journal.disk, SETTINGS, random=random) as journal:
            logs = EpochRecordingLogs(journal)
            segments = ChunkedSegmentStorage(
                self.chunks,
                epoch=logs.epoch_now,
                garbage_delay_seconds=random.choice([0.05, 60]),
                snapshot_bytes_min=random.choice([1, 4]) * KIB,
                boot_id=BOOT_ID,
            )
            logs.check_log = segments.check_log
            async with open_container(
                0,
                logs,
                segments,
                CacheManager(StreamingCache(CACHE_BYTES)),
                now_ms=lambda: int(trio.current_time() * 1000),
                drain_seconds=random.choice([0, 1, 5]),
                flush_policy=FlushPolicy(held_bytes_max=random.choice([1, 1000, 1_000_000])),
            ) as container:
                try:
                    await self.work(container)
                except ContainerOfflineError:
                    await trio.sleep_forever()  # its own end comes, and tells why

    async def work(self, container: SegmentContainer) -> None:
        """Add lines to the history until it is told to stop."""
        world, journal = self.world, self.journal
        assert journal is not None
        content = await self.read(container)
        if content is None:
            return
        await self.check(content)
        self.was_let_in = True
        journal.life_count += 1
        self.tier.life_count += 1
        world.note("let in")
        while not self.stopping.is_set():
            with trio.move_on_after(world.random.random() / 4):
                await self.stopping.wait()
            number = world.line_count = world.line_count + 1
            filler = b"x" * world.random.randrange(LINE_BYTES_MAX)
            await container.append(HISTORY, b"%d %s\n" % (number, filler))
            if self.is_dead:
                return
            journal.acknowledged.append(number)
            world.acknowledged.append(number)

    async def read(self, container: SegmentContainer) -> bytes | None:
        """Read all lines; return None when it is to stop before it has them."""
        content = bytearray()
        began = trio.current_time()
        while not self.stopping.is_set():
            try:
                await container.activate(HISTORY)
                length = container.segment_info(HISTORY).length
                while len(content) < length:
                    offset = len(content)
                    found = await container.read(HISTORY, offset=offset, length_max=64 * KIB)
                    content += found.data
                return bytes(content)
            except NoSuchSegmentError:
                await container.create_segment(HISTORY)
            except StorageError as error:
                # What tier 2 refused to tell the recovery is looked for soon after.
                if trio.current_time() > began + LOOK_SECONDS_MAX:
                    raise OwnersError(
                        f"{self.path} was let in with an older or empty tier 2: {error}"
                    ) from error
                await trio.sleep(RETRY_SECONDS)
        return None

    async def check(self, content: bytes) -> None:
        """See that the tiers fit each other."""
        assert self.journal is not None
        self.found = {int(line.split()[0]) for line in content.splitlines()}
        if lost := set(self.journal.acknowledged) - self.found:
            raise OwnersError(
                f"{self.path} was let in with an older or empty tier 2: it has lost {sorted(lost)}"
            )
        if chunk := await self.tier.foreign_chunk(content):
            raise OwnersError(
                f"{self.path} was let in with an older or foreign journal: it does not have {chunk}"
            )


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.tier = TierTwoDisk()
        self.acknowledged: list[int] = []
        self.line_count = 0
        self.trace = Trace()
        self.counts: Counter[str] = Counter()
        self.is_calm = False
        self.path_count = 0
        self.paths = [self.new_path()]
        self.processes: list[Process] = []
        self.tier_backups: list[TierTwoDisk] = []
        self.journals: dict[int, Journal] = {}
        self.journal_count = 0
        self.journal_backups: list[tuple[Path, Path]] = []
        """Data directories, and where an older state of their journals is."""

    def new_path(self) -> Path:
        self.path_count += 1
        return self.folder / str(self.path_count)

    def next_fault(self) -> Fault:
        if self.is_calm or self.random.random() < 0.95:
            return Fault.NONE
        return self.random.choice([Fault.REFUSED, Fault.REPLY_LOST, Fault.PARTIAL])

    def next_delay(self) -> float:
        return self.random.choice([0.0, 0.001, 0.01, 0.05])

    def note(self, what: str) -> None:
        self.counts[what] += 1
        self.trace(what)

    # ---- What the operator does ------------------------------------------------------------------

    async def run(self) -> None:
        """Do something, again and again; then see whether the right store still starts."""
        async with trio.open_nursery() as nursery:
            for _ in range(ROUNDS):
                actions = [
                    self.start_some,
                    self.start_some,
                    self.start_some,
                    self.copy_one,
                    self.try_new_store,
                    self.try_other_tier,
                    self.try_other_journal,
                ]
                await self.random.choice(actions)(nursery)
                await self.end_some()
            await self.end_all()
        await self.finish()

    async def start_some(self, nursery: trio.Nursery) -> None:
        """Start a few of the data directories at almost the same time."""
        for path in self.random.sample(self.paths, self.random.randint(1, len(self.paths))):
            await trio.sleep(self.random.choice([0.0, 0.0, 0.02, 0.3]))
            self.start(path, nursery)
        await trio.sleep(self.random.random() * LIFE_SECONDS)

    def start(self, path: Path, nursery: trio.Nursery) -> Process:
        process = Process(self, path)
        self.processes.append(process)
        nursery.start_soon(self.run_process, process)
        return process

    async def run_process(self, process: Process) -> None:
        await process.run()
        self.processes.remove(process)
        if process.refusal is not None and not process.is_dead:
            self.note(f"refused: {type(process.refusal).__name__}")
        # What a dead process had under way may still arrive, much later.
        await trio.sleep(self.random.choice([0.0, 0.1, 1.0]))
        await process.chunks.settle(self.random)

    async def end_some(self) -> None:
        """Stop or kill some of those that run, at any step."""
        for process in list(self.processes):
            kind = self.random.randrange(3)
            if kind == 0:
                self.note("killed")
                process.kill()
            elif kind == 1:
                process.stopping.set()
        await trio.sleep(self.random.random())

    async def end_all(self) -> None:
        for process in list(self.processes):
            if self.random.random() < 0.5:
                process.kill()
            process.stopping.set()
        while self.processes:  # noqa: ASYNC110 - simulated time
            await trio.sleep(0.1)
        await trio.sleep(2)  # nothing is under way any more

    async def copy_one(self, nursery: trio.Nursery) -> None:
        """Copy a data directory, a journal and tier 2 like ``cp -r``, whether they are in use or
        not."""
        source = self.random.choice(self.paths)
        if source.exists() and len(self.paths) < COPIES_MAX:
            self.paths.append(self.new_path())
            self.copy_directory(source, self.paths[-1])
            self.note("copied")
        self.tier_backups.append(self.tier.copied())
        source = self.random.choice(self.paths)
        if (source / "journal-0").exists() and len(self.journal_backups) < BACKUPS_MAX:
            self.journal_backups.append((source, self.new_path()))
            self.copy_directory(source / "journal-0", self.journal_backups[-1][1])

    async def try_new_store(self, nursery: trio.Nursery) -> None:
        """Start another store on this tier 2, once it has data."""
        if self.acknowledged:
            self.note("new store on a tier 2 in use")
            process = self.start(self.new_path(), nursery)
            await trio.sleep(1)
            if process.was_let_in:
                raise OwnersError("a new store was let in to a tier 2 that has data")

    async def try_other_tier(self, nursery: trio.Nursery) -> None:
        """Try another tier 2 for a while: an empty one, an older one, or that of another store."""
        if not self.acknowledged:
            return
        await self.end_all()
        kind = self.random.choice(["empty", "older", "older", "foreign"])
        if kind == "older" and not self.tier_backups:
            return
        async with self.in_a_copy():
            if kind == "empty":
                self.tier = TierTwoDisk()
            elif kind == "older":
                right, self.tier = self.tier, self.random.choice(self.tier_backups).copied()
                if right.life_count == self.tier.life_count:
                    kind = "older, of the same life"
            else:
                self.tier = TierTwoDisk()
                if not (await self.try_alone(self.new_path(), nursery)).was_let_in:
                    return
            self.note(f"tier 2 is {kind}")
            for path in self.paths:
                process = await self.try_alone(path, nursery)
                if process.was_let_in:
                    self.note(f"let in, tier 2 is {kind}")
                if kind == "foreign" and process.was_let_in:
                    raise OwnersError(f"{path} was let in to another store's tier 2")

    async def try_other_journal(self, nursery: trio.Nursery) -> None:
        """Try another journal for a while: none, an empty one, an older one, or a foreign one of
        another data directory or store."""
        await self.end_all()
        path = self.random.choice(self.paths)
        journal = path / "journal-0"
        if not (journal / DISK_FILE).exists():
            return
        older = [backup for of, backup in self.journal_backups if of == path]
        kind = self.random.choice(["gone", "empty", "copied", "foreign", *["older"] * len(older)])
        async with self.in_a_copy():
            right = self.journal_in(journal)
            shutil.rmtree(journal)
            if kind == "empty":
                journal.mkdir()
            elif kind == "copied":
                other = self.random.choice(self.paths)
                if other == path or not (other / "journal-0" / DISK_FILE).exists():
                    return
                self.copy_directory(other / "journal-0", journal)
            elif kind == "foreign":
                tier, self.tier = self.tier, TierTwoDisk()
                foreign = self.new_path()
                if not (await self.try_alone(foreign, nursery)).was_let_in:
                    return
                self.tier = tier
                self.copy_directory(foreign / "journal-0", journal)
            elif kind == "older":
                self.copy_directory(self.random.choice(older), journal)
                if (journal / DISK_FILE).exists():
                    same = self.journal_in(journal).life_count == right.life_count
                    kind = "older, of the same life" if same else "older"
            self.note(f"journal is {kind}")
            process = await self.try_alone(path, nursery)
            if process.was_let_in:
                self.note(f"let in, journal is {kind}")
            if process.was_let_in and kind in ("gone", "empty", "foreign"):
                raise OwnersError(f"{path} was let in without its journal")
            if process.was_let_in and kind == "older" and set(right.acknowledged) - process.found:
                raise OwnersError(f"{path} was let in with an older or foreign journal")

    async def try_alone(self, path: Path, nursery: trio.Nursery) -> Process:
        """Start a store, and stop it when it has served a little, or was refused."""
        process = self.start(path, nursery)
        with trio.move_on_after(TRY_SECONDS_MAX):
            while not process.was_let_in and process in self.processes:  # noqa: ASYNC110
                await trio.sleep(0.1)
        await trio.sleep(self.random.random())
        await self.end_all()
        return process

    # ---- Data directories ------------------------------------------------------------------------

    def journal_in(self, path: Path) -> Journal:
        """Return the journal that lies in a directory."""
        file = path / DISK_FILE
        if not file.exists():
            self._put_journal(path, Journal())
        return self.journals[int(file.read_text())]

    def _put_journal(self, path: Path, journal: Journal) -> None:
        self.journal_count += 1
        self.journals[self.journal_count] = journal
        (path / DISK_FILE).write_text(f"{self.journal_count}")

    def replace_journal(self, old: Journal, new: Journal) -> None:
        """Replace a journal wherever it is found."""
        for number, journal in self.journals.items():
            if journal is old:
                self.journals[number] = new

    def copy_directory(
        self, source: Path, target: Path, copy_file: Callable[[str, str], object] = shutil.copy2
    ) -> None:
        """Copy a directory like ``cp -r``: its journals are separate ones from then on."""
        shutil.copytree(source, target, copy_function=copy_file)
        for file in target.rglob(DISK_FILE):
            self._put_journal(file.parent, self.journals[int(file.read_text())].copied())

    @asynccontextmanager
    async def in_a_copy(self) -> AsyncIterator[None]:
        """Run the block on copies; nothing that happens in it counts."""
        tier, acknowledged = self.tier, list(self.acknowledged)
        self.tier = tier.copied()
        with self.paths_restored():
            yield
            await self.end_all()
        self.tier, self.acknowledged = tier, acknowledged

    @contextmanager
    def paths_restored(self) -> Iterator[None]:
        """Put all data directories back as they were."""
        aside = self.folder / "aside"
        aside.mkdir()
        existing = [path for path in self.paths if path.exists()]
        for path in existing:
            self.copy_directory(path, aside / path.name, _copy_keeping_locks)
        yield
        for path in existing:
            shutil.rmtree(path)
            (aside / path.name).rename(path)
        aside.rmdir()

    async def finish(self) -> None:
        """Check that with everything in its place and no faults one data directory has all and
        starts."""
        self.is_calm = True
        let_in = 0
        async with trio.open_nursery() as nursery:
            # One that was killed at its start may have to find that out first.
            for path in [*self.paths, *self.paths]:
                if not path.exists():
                    continue
                acknowledged = set(self.acknowledged)
                process = await self.try_alone(path, nursery)
                if process.was_let_in:
                    let_in += 1
                    if acknowledged - process.found:
                        raise OwnersError(f"{path} has lost what was acknowledged")
        if self.acknowledged and not let_in:
            raise OwnersError("no data directory can be started any more")


def _copy_keeping_locks(source: str, target: str) -> None:
    if source.endswith(".lock"):
        os.link(source, target)
    else:
        shutil.copy2(source, target)


def simulate_owners(seed: int, folder: Path) -> tuple[Counter[str], int]:
    """Run one seed; what happened how often, and the trace's hash. Raises ``OwnersError``."""
    world = World(seed, folder)
    # Here processes die, machines do not.
    with patch("os.fsync", lambda _: None), logs_dropped():
        try:
            run_seeded(seed, world.run, world.trace, lambda: None, lambda _: None)
        except BaseExceptionGroup as group:
            raise next(leaf_errors(group)) from group
    return world.counts, world.trace.hash
