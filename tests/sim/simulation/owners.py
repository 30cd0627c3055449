"""Stores that are started on each other's tiers: copied, restored, swapped, killed, all at once.

Owns: ``simulate_owners``: data directories and a tier 2, the processes that are started on them,
and an operator who does everything that identities (``ownership.claims``) and the checks of a
container's recovery are there for.

A process here has one container, the real one with the real journal, which adds numbered lines to a
segment and brings them to tier 2. Data directories are real, but for the journal's disk. Its chunks
are behind delays, errors and lost replies. If tier 2 hides, its listings are empty, or show an
earlier state, for a while, now and then, and a process opens its container again as a registry
does.

Invariants:
1. Of all processes on one tier 2 at most one is let in at a time.
2. One that serves has all that was acknowledged by its journal, whatever tier 2 it has, and all
   that tier 2 has, whatever journal it has: nothing is missing, nothing will be overwritten.
3. After every run a data directory with all that was ever acknowledged can still be started.
4. A process that served before tier 2 hid serves soon after it has come back, if it lives.
"""

from __future__ import annotations

import copy
import os
import shutil
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from unittest.mock import patch

import trio

from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.container import Container, open_container
from segstore.errors import (
    ContainerOfflineError,
    DataDirectoryError,
    DataLogError,
    NoContainerLeftError,
    NoSuchSegmentError,
    StorageError,
    leaf_errors,
)
from segstore.ownership.claims import OwnedTier, owned
from segstore.ownership.data_directory import DataDirectory
from segstore.process.config import SegmentStoreConfig
from segstore.process.registry import ContainerRegistry, ContainerState
from segstore.process.tier_two import EpochRecordingLogs, open_storage
from segstore.tables.settings import TableSettings
from segstore.tiers.api import DurableDataLogFactory
from segstore.tiers.journal import JournalSettings
from segstore.writer.flush_policy import FlushPolicy
from simulation.logs import logs_dropped
from simulation.scheduler import Trace, run_seeded
from simulation.stored import parse_chunk_name
from support.faults.faulty_chunks import Fault, FaultyChunkStorage
from support.faults.hidden_chunks import HidingChunkStorage
from support.simulated.simulated_disk import PowerCutError, SimulatedDisk
from support.simulated.simulated_journal import open_simulated_journal

KIB = 1024
SAME_LIFE = "older, of the same life"
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
RESTART_SECONDS_MAX = 1.0
OPENINGS_MAX = 10
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
        self.chunks = HidingChunkStorage()
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
        self.container: Container | None = None
        self.registry: ContainerRegistry | None = None
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
                        owned(
                            directory, tier, [0], random_bytes=self.world.random.randbytes
                        ) as ours,
                        self.owning(),
                    ):
                        await self.serve(ours)
            except* PowerCutError:
                assert self.is_dead
            except* (
                DataDirectoryError,
                StorageError,
                DataLogError,
                NoContainerLeftError,
            ) as group:
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

    async def serve(self, ours: OwnedTier) -> None:
        """Recover the container, and work with it."""
        world, random = self.world, self.world.random
        self.journal = world.journal_in(self.path / "journal-0")
        async with open_simulated_journal(self.journal.disk, SETTINGS, random=random) as journal:
            if world.hides:
                await self.serve_again_and_again(journal, ours)
                return
            async with self.open_container(journal, confirm=None) as container:
                try:
                    await self.work(container)
                except ContainerOfflineError:
                    await trio.sleep_forever()  # its own end comes, and tells why

    async def serve_again_and_again(self, journal: DurableDataLogFactory, ours: OwnedTier) -> None:
        """Work with the container whenever it is online; it is opened again when it fails."""

        @asynccontextmanager
        async def open_confirmed(_: int) -> AsyncIterator[Container]:
            await ours.confirm(0)
            async with self.open_container(journal, confirm=partial(ours.confirm, 0)) as opened:
                yield opened

        self.registry = ContainerRegistry(
            open_confirmed,
            container_count=1,
            container_ids=[0],
            tables=TableSettings(),
            restart_seconds_min=0.1,
            restart_seconds_max=RESTART_SECONDS_MAX,
        )
        async with trio.open_nursery() as nursery:
            await nursery.start(self.registry.run)
            while not self.stopping.is_set():
                with trio.CancelScope() as waiting:
                    nursery.start_soon(self.cancel_when_stopped, waiting)
                    await self.registry.hosted(0).wait_online()
                if self.container is None:
                    break  # it was told to stop before its first opening
                try:
                    await self.work(self.container)
                except ContainerOfflineError:
                    await trio.sleep(RETRY_SECONDS)  # its end takes a moment
            nursery.cancel_scope.cancel()

    async def cancel_when_stopped(self, scope: trio.CancelScope) -> None:
        await self.stopping.wait()
        scope.cancel()

    @asynccontextmanager
    async def open_container(
        self, journal: DurableDataLogFactory, *, confirm: Callable[[], Awaitable[None]] | None
    ) -> AsyncIterator[Container]:
        """Open the container on its journal, as this process does with each opening anew."""
        random = self.world.random
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
            confirm_owner=confirm,
            flush_policy=FlushPolicy(
                held_bytes_max=random.choice([1, 1000, 1_000_000]), checkpoint_seconds=0.1
            ),
        ) as self.container:
            yield self.container

    async def work(self, container: Container) -> None:
        """Add lines to the history until it is told to stop."""
        world, journal = self.world, self.journal
        assert journal is not None
        content = await self.read(container)
        if content is None:
            return
        await self.check(content)
        if not self.was_let_in:
            self.was_let_in = True
            journal.life_count += 1
            self.tier.life_count += 1
            world.note("let in")
        while not self.stopping.is_set():
            with trio.move_on_after(world.random.random() / 4):
                await self.stopping.wait()
            if world.random.random() < 0.1:
                # The log is truncated then, for which the owner looks at tier 2.
                if world.random.random() < 0.5:
                    await self.move_to_tier_two()
                await container.checkpoint()
            number = world.line_count = world.line_count + 1
            filler = b"x" * world.random.randrange(LINE_BYTES_MAX)
            await container.append(HISTORY, b"%d %s\n" % (number, filler))
            if self.is_dead:
                return
            journal.acknowledged.append(number)
            world.acknowledged.append(number)

    async def move_to_tier_two(self) -> None:
        """Bring all lines to tier 2 and truncate the log, as far as tier 2 is there."""
        assert self.container is not None
        with suppress(ContainerOfflineError, StorageError):
            await self.container.flush()
            await self.container.checkpoint()
            await self.container.flush()

    async def read(self, container: Container) -> bytes | None:
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
                    if not found.data:  # it ends
                        raise ContainerOfflineError(f"{self.path} reads no more")
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

    def __init__(self, seed: int, folder: Path, *, hides: bool) -> None:
        self.random = Random(seed)
        self.hides = hides
        """True if tier 2 hides now and then."""
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
                    *[self.hide_tier] * 3 * self.hides,
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

    async def hide_tier(self, nursery: trio.Nursery) -> None:
        """Let the listings of tier 2 be empty, or show an earlier state, for a while; stores start
        and work meanwhile."""
        kind = self.random.choice(["nothing", "an earlier state"])
        self.note(f"tier 2 shows {kind}")
        shown = await self.tier.chunks.names() if kind == "an earlier state" else frozenset()
        # Others are added, and some processes are in the middle of their start.
        for path in self.random.sample(self.paths, self.random.randint(0, len(self.paths))):
            self.start(path, nursery)
        await trio.sleep(self.random.choice([0.05, 0.2, 0.5, 1]) * self.random.random())
        served = [each for each in self.processes if each.was_let_in and not each.stopping.is_set()]
        self.tier.chunks.listed = shown
        await trio.sleep(self.random.choice([0.1, 0.5]))
        await self.start_some(nursery)
        await trio.sleep(self.random.choice([0, 1, 5]))
        self.tier.chunks.listed = None
        await trio.sleep(2 * RESTART_SECONDS_MAX + LOOK_SECONDS_MAX)
        for process in served:
            if not process.is_dead:
                await self.wait_until_serving(process)

    async def wait_until_serving(self, process: Process) -> None:
        """Wait as long as some openings in a row that meet errors of tier 2 take."""
        assert process.registry is not None
        for _ in range(OPENINGS_MAX):
            [status] = process.registry.statuses()
            if process not in self.processes or process.is_dead:
                break
            if status.state is ContainerState.ONLINE:
                return
            await trio.sleep(RESTART_SECONDS_MAX)
        if not process.is_dead:
            raise OwnersError(f"{process.path} does not serve again: {status.failure}")

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
        kind = self.random.choice(["empty", "older", SAME_LIFE, "foreign"])
        if kind == "older" and not self.tier_backups:
            return
        async with self.in_a_copy():
            if kind == "empty":
                self.tier = TierTwoDisk()
            elif kind == "older":
                right, self.tier = self.tier, self.random.choice(self.tier_backups).copied()
                if right.life_count == self.tier.life_count:
                    kind = SAME_LIFE
            elif kind == SAME_LIFE:
                backups: list[TierTwoDisk] = []
                path = self.random.choice(self.paths)
                if not await self.kill_after(
                    lambda: backups.append(self.tier.copied()), path, nursery
                ):
                    return
                [self.tier] = backups
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
        kind = self.random.choice(
            ["gone", "empty", "copied", "foreign", SAME_LIFE, *["older"] * len(older)]
        )
        async with self.in_a_copy():
            if kind == SAME_LIFE:
                backup = self.new_path()
                if not await self.kill_after(
                    lambda: self.copy_directory(journal, backup), path, nursery
                ):
                    return
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
            elif kind == SAME_LIFE:
                self.copy_directory(backup, journal)
            elif kind == "older":
                self.copy_directory(self.random.choice(older), journal)
                if (journal / DISK_FILE).exists():
                    same = self.journal_in(journal).life_count == right.life_count
                    kind = SAME_LIFE if same else "older"
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
        process = await self.start_alone(path, nursery)
        await trio.sleep(self.random.random())
        await self.end_all()
        return process

    async def start_alone(self, path: Path, nursery: trio.Nursery) -> Process:
        """Start a store, and wait until it serves or was refused."""
        process = self.start(path, nursery)
        with trio.move_on_after(TRY_SECONDS_MAX):
            while not process.was_let_in and process in self.processes:  # noqa: ASYNC110
                await trio.sleep(0.1)
        return process

    async def kill_after(
        self, back_up: Callable[[], None], path: Path, nursery: trio.Nursery
    ) -> bool:
        """Let a store serve, back something up, and kill the store some time later. Return whether
        it served."""
        process = await self.start_alone(path, nursery)
        await trio.sleep(self.random.random())
        if was_let_in := process.was_let_in and process in self.processes:
            back_up()
            await trio.sleep(self.random.random() * LIFE_SECONDS)
            if self.random.random() < 0.5:
                await process.move_to_tier_two()
            process.kill()
        await self.end_all()
        return was_let_in

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
        """Run the block on copies, sometimes without faults; nothing that happens in it counts."""
        tier, acknowledged = self.tier, list(self.acknowledged)
        self.tier = tier.copied()
        self.is_calm = self.random.random() < 0.5
        with self.paths_restored():
            yield
            await self.end_all()
        self.is_calm = False
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


def simulate_owners(seed: int, folder: Path, *, hides: bool = False) -> tuple[Counter[str], int]:
    """Run one seed; what happened how often, and the trace's hash. Raises ``OwnersError``. With
    ``hides`` tier 2 shows too little now and then."""
    world = World(seed, folder, hides=hides)
    # Here processes die, machines do not.
    with patch("os.fsync", lambda _: None), logs_dropped():
        try:
            run_seeded(seed, world.run, world.trace, lambda: None, lambda _: None)
        except BaseExceptionGroup as group:
            raise next(leaf_errors(group)) from group
    return world.counts, world.trace.hash
