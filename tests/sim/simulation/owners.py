"""Stores that are started on each other's tiers: copied, restored, swapped, killed, all at once.

Owns: ``simulate_owners``: data directories and a tier 2, the processes that are started on them,
and an operator who does everything that identities (``segstore.identity``) are there for.

A process here has no containers: it adds lines to a history in its journal, and brings them to tier
2, which is what of a store matters here. Its chunks are behind delays, errors and lost replies.

Invariants:
1. Of all processes on one tier 2 at most one is let in at a time.
2. One that is let in has in its journal all that tier 2 has, and tier 2 has all that its journal
   let go: nothing acknowledged is missing, nothing will be overwritten.
3. After every run a data directory with all that was ever acknowledged can still be started.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from unittest.mock import patch

import trio

from segstore.config import SegmentStoreConfig
from segstore.data_directory import DataDirectory
from segstore.errors import DataDirectoryError, StorageError, leaf_errors
from segstore.identity import RELEASED, STORE_PREFIX, owned
from segstore.testing.faulty_chunks import Fault, FaultyChunkStorage
from segstore.tier_two import open_storage
from segstore.tiers.memory import MemoryChunkStorage
from simulation.scheduler import Trace, run_seeded

HISTORY = "history"
ROUNDS = 30
COPIES_MAX = 5
LIFE_SECONDS = 2.0


class OwnersError(AssertionError):
    """A store was let in that must not be, or the right one was not."""


@dataclass
class Journal:
    """What a journal's directory has: the lines that were acknowledged, of which the first
    ``let_go`` are in tier 2 alone."""

    lines: list[str] = field(default_factory=list)
    let_go: int = 0

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Read it from the directory."""
        try:
            let_go, *lines = (path / HISTORY).read_text().split()
        except FileNotFoundError:
            return cls()
        return cls(lines, int(let_go))

    def write(self, path: Path) -> None:
        """Write it there."""
        (path / HISTORY).write_text("\n".join([str(self.let_go), *self.lines]))


class TierTwoDisk:
    """A tier 2 that outlives processes: chunks, and the lines that it has."""

    def __init__(self) -> None:
        self.chunks = MemoryChunkStorage()
        self.lines: list[str] = []
        self.owner: Process | None = None

    async def is_of_killed_life(self, right: TierTwoDisk) -> bool:
        """Whether it was copied in the last life of a store that was killed: then only what is in
        it tells that it is older, which recoveries look at."""
        names = [each.name for each in await self.chunks.list_chunks("")]
        if names != [each.name for each in await right.chunks.list_chunks("")]:
            return False
        for each in await right.chunks.list_chunks(f"{STORE_PREFIX}claim"):
            data = await right.chunks.read(each.name, offset=0, length=each.length)
            if bytes(data).endswith(RELEASED):
                return False
        return True

    def copied(self) -> TierTwoDisk:
        """A backup of it."""
        other = TierTwoDisk()
        other.chunks = copy.deepcopy(self.chunks)
        other.lines = list(self.lines)
        return other


class Process:
    """A start of a store on a data directory."""

    def __init__(self, world: World, path: Path) -> None:
        self.world = world
        self.path = path
        self.was_let_in = False
        self.refusal: Exception | None = None
        self.scope = trio.CancelScope()
        self.stopping = trio.Event()
        self.chunks = FaultyChunkStorage(
            world.tier.chunks,
            next_fault=lambda _: world.next_fault(),
            next_delay=lambda _: world.next_delay(),
            next_reply_delay=lambda _: world.next_delay(),
        )

    @property
    def journal(self) -> Path:
        return self.path / "journal-0"

    def kill(self) -> None:
        """Nothing that it does has an effect from now on."""
        self.chunks.abandon()
        tier = self.world.tier
        if tier.owner is self:
            tier.owner = None
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
                    ):
                        await self.work()
            except (DataDirectoryError, StorageError) as error:
                self.refusal = error

    async def work(self) -> None:
        world, tier = self.world, self.world.tier
        world.check(self)
        self.was_let_in = True
        tier.owner = self
        journal = Journal.read(self.journal)
        while not self.stopping.is_set():
            with trio.move_on_after(world.random.random() / 4):
                await self.stopping.wait()
            if tier.owner is not self:
                return  # killed
            world.line_count += 1
            line = f"{world.line_count}"
            journal.lines.append(line)
            world.acknowledged.append(line)
            if world.random.random() < 0.5:
                tier.lines = list(journal.lines)
                if world.random.random() < 0.5:
                    journal.let_go = len(tier.lines)
            journal.write(self.journal)
        tier.owner = None


class World:
    """Everything of one seed."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.random = Random(seed)
        self.folder = folder
        self.tier = TierTwoDisk()
        self.acknowledged: list[str] = []
        self.line_count = 0
        self.trace = Trace()
        self.counts: Counter[str] = Counter()
        self.is_calm = False
        self.path_count = 0
        self.paths = [self.new_path()]
        self.processes: list[Process] = []
        self.tier_backups: list[TierTwoDisk] = []

    def new_path(self) -> Path:
        self.path_count += 1
        return self.folder / str(self.path_count)

    def next_fault(self) -> Fault:
        if self.is_calm or self.random.random() < 0.95:
            return Fault.NONE
        return self.random.choice([Fault.REFUSED, Fault.REPLY_LOST, Fault.PARTIAL])

    def next_delay(self) -> float:
        return self.random.choice([0.0, 0.001, 0.01, 0.05])

    def check(self, process: Process) -> None:
        """A process was let in: it must be alone, and its tiers must fit each other."""
        journal = Journal.read(process.journal)
        if self.tier.owner is not None:
            raise OwnersError(f"{process.path} was let in beside {self.tier.owner.path}")
        if journal.lines[: len(self.tier.lines)] != self.tier.lines:
            raise OwnersError(f"{process.path} was let in with an older or foreign journal")
        if journal.let_go > len(self.tier.lines):
            raise OwnersError(f"{process.path} was let in with an older or empty tier 2")
        self.note("let in")

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
        if process.refusal is not None:
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
        """``cp -r`` of a data directory, whether it is in use or not."""
        source = self.random.choice(self.paths)
        if source.exists() and len(self.paths) < COPIES_MAX:
            self.paths.append(self.new_path())
            shutil.copytree(source, self.paths[-1])
            self.note("copied")
        self.tier_backups.append(self.tier.copied())

    async def try_new_store(self, nursery: trio.Nursery) -> None:
        """Start another store on this tier 2, once it has data."""
        if self.acknowledged:
            process = self.start(self.new_path(), nursery)
            await trio.sleep(1)
            if process.was_let_in:
                raise OwnersError("a new store was let in to a tier 2 that has data")

    async def try_other_tier(self, nursery: trio.Nursery) -> None:
        """For a while tier 2 is an empty or older one."""
        if not self.acknowledged:
            return
        await self.end_all()
        right = self.tier
        self.tier = self.random.choice([TierTwoDisk(), *self.tier_backups]).copied()
        if await self.tier.is_of_killed_life(right):
            self.tier = right
            return
        self.note("other tier 2")
        with self.paths_restored():
            for path in self.paths:
                await self.try_alone(path, nursery)
        self.tier = right

    async def try_other_journal(self, nursery: trio.Nursery) -> None:
        """For a while the journal of a data directory is gone, empty, or that of another one."""
        await self.end_all()
        path, other = self.random.choice(self.paths), self.random.choice(self.paths)
        journal = path / "journal-0"
        if not (journal / HISTORY).exists() or not (other / "journal-0").exists():
            return
        self.note("other journal")
        right = self.folder / "right"
        journal.rename(right)
        kind = self.random.randrange(3)
        if kind == 1:
            journal.mkdir()
        elif kind == 2 and path != other:
            shutil.copytree(other / "journal-0", journal)
        if kind != 2:
            process = await self.try_alone(path, nursery)
            if process.was_let_in:
                raise OwnersError(f"{path} was let in without its journal")
        shutil.rmtree(journal, ignore_errors=True)
        right.rename(journal)

    async def try_alone(self, path: Path, nursery: trio.Nursery) -> Process:
        process = self.start(path, nursery)
        await trio.sleep(1)
        await self.end_all()
        return process

    @contextmanager
    def paths_restored(self) -> Iterator[None]:
        """What happens meanwhile happens to copies, and does not count."""
        aside, acknowledged = self.folder / "aside", list(self.acknowledged)
        aside.mkdir()
        existing = [path for path in self.paths if path.exists()]
        for path in existing:
            shutil.copytree(path, aside / path.name, copy_function=_copy_keeping_locks)
        yield
        for path in existing:
            shutil.rmtree(path)
            (aside / path.name).rename(path)
        aside.rmdir()
        self.acknowledged = acknowledged

    async def finish(self) -> None:
        """With everything in its place and no faults, one data directory has all and starts."""
        self.is_calm = True
        let_in = 0
        async with trio.open_nursery() as nursery:
            # One that was killed at its start may have to find that out first.
            for path in [*self.paths, *self.paths]:
                if not path.exists():
                    continue
                acknowledged = list(self.acknowledged)
                process = await self.try_alone(path, nursery)
                if process.was_let_in:
                    let_in += 1
                    lines = Journal.read(process.journal).lines
                    if lines[: len(acknowledged)] != acknowledged:
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
    with patch("os.fsync", lambda _: None):
        try:
            run_seeded(seed, world.run, world.trace, lambda: None, lambda _: None)
        except BaseExceptionGroup as group:
            raise next(leaf_errors(group)) from group
    return world.counts, world.trace.hash
