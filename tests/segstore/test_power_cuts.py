"""A machine that loses its power: no acknowledged byte is lost, and none is another."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from segstore.container import Container
from segstore.errors import StorageError
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from support.faults.crashing_tiers import CrashingTiers, checkpoint, evict
from support.faults.faulty_chunks import Fault
from support.models.memory_container import MemoryContainer
from support.models.model_workload import ModelWorkload
from support.rare_parameters import mark_rare
from support.simulated.power_cuts import PowerCuts

NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
WRITERS = [bytes([number]) * 16 for number in range(2)]
KINDS = {
    "append": 8,
    "create": 4,
    "seal": 1,
    "truncate": 2,
    "merge": 2,
    "delete": 1,
    "attributes": 2,
    "flush": 8,
    "evict": 4,
    "checkpoint": 2,
    "compact": 1,
    "kill": 1,
}
MIB = 1024 * 1024
LENGTHS = [[0, 1, 50, 700, 3000], [1, 3000, 100_000], [700, 3000, 300_000]]
CHOICES = [kind for kind, weight in KINDS.items() for _ in range(weight)]


class Machine:
    """A machine that runs a container on files, next to a model.

    ``watching`` must be entered for every start.
    """

    def __init__(self, random: Random, path: Path, *, knows_starts: bool = True) -> None:
        self.random = random
        self.path = path
        self.knows_starts = knows_starts
        self.tiers = CrashingTiers()
        self.model = MemoryContainer(0)
        self.workload = ModelWorkload(
            random, NAMES, WRITERS, lengths=random.choice(LENGTHS), truncate_max=4000
        )
        self.start_count = 0
        self.cuts: PowerCuts
        self.root = path

    @contextmanager
    def start(self) -> Iterator[None]:
        """Start the machine with what the last power cut has left."""
        self.start_count += 1
        self.root = self.path / str(self.start_count)
        self.root.mkdir()
        if self.start_count > 1:
            self.cuts.restore(self.root)
        self.cuts = PowerCuts(self.root, self.random)
        if self.knows_starts:
            self.tiers.boot_id = f"start {self.start_count}"
        with self.cuts.watching():
            yield
        self.cuts.cut()

    async def run(self, steps: list[str], *, dies_early: bool = False, **options: Any) -> None:
        """Run one process; it ends when the power goes, at a ``kill``, or when no step is left.

        One that ``dies_early`` may do so in its recovery.
        """
        self.tiers.chunks = files = FilesystemChunkStorage(self.root)
        self.tiers.next_fault = lambda _: Fault.NONE
        if dies_early:
            calls_left = iter(range(self.random.randrange(12)))
            self.tiers.next_fault = lambda _: (
                Fault.REFUSED if next(calls_left, None) is None else Fault.NONE
            )
            steps = []
        try:
            async with self.tiers.open(drain_seconds=0, **options) as container:
                await self.compare(container)
                while steps and not self.cuts.is_off:
                    kind = steps.pop(0)
                    if kind == "kill":
                        break
                    with trio.fail_after(60):
                        await self.step(container, kind)
                self.tiers.crash()
        except* StorageError:
            if not self.cuts.is_off and not dies_early:
                raise
            self.tiers.crash()
        finally:
            files.close()

    async def step(self, container: Container, kind: str) -> None:
        try:
            if kind == "flush":
                await container.flush()
            elif kind == "evict":
                await evict(container)
            elif kind == "checkpoint":
                await checkpoint(container)
            elif kind == "compact":
                if container.parts.metadata.records is not None:
                    await container.parts.eviction.compaction.step()
            else:
                await self.workload.operate(container, self.model, kind)
        except StorageError:
            if not self.cuts.is_off:
                raise

    async def compare(self, container: Container) -> None:
        try:
            await self.workload.compare(container, self.model)
        except StorageError:
            if not self.cuts.is_off and not self.tiers.faulty.fault_count:
                raise


def at_append(number: int) -> Callable[[str], bool]:
    """Return a test that is true at one of the appends to segments' chunks, when the power goes."""
    numbers = count()
    return lambda path: ".#epoch." in path and "$attributes" not in path and next(numbers) == number


def live(seed: int, path: Path, *, knows_starts: bool = True) -> None:
    """Run some starts of a machine, some processes in each, and a last check."""
    random = Random(seed)
    machine = Machine(random, path, knows_starts=knows_starts)
    options: dict[str, Any] = {
        "segment_count_max": random.choice([1, 4096]),
        "cache_bytes": random.choice([2 * MIB, 64 * MIB]),
    }
    for _ in range(random.randrange(2, 6)):
        with machine.start():
            if random.randrange(2):
                machine.cuts.cut_when = at_append(random.randrange(6))
            elif random.randrange(4):
                machine.cuts.cut_at = random.randrange(1, 120)
            steps = random.choices(CHOICES, k=random.randrange(60))
            if not random.randrange(3):
                trio.run(lambda: machine.run([], dies_early=True, **options))
            while steps and not machine.cuts.is_off:
                trio.run(lambda: machine.run(steps, **options))  # noqa: B023
    with machine.start():
        trio.run(lambda: machine.run([], **options))


async def append_and_flush(container: Container, machine: Machine, length: int) -> None:
    for name in NAMES:
        data = machine.random.randbytes(length)
        await container.append(name, data)
        await machine.model.append(name, data)
    try:
        await container.flush()
    except StorageError:
        assert machine.cuts.is_off


def cut_during_short_appends(seed: int, path: Path, cut_at: int) -> bool:
    """Cut the power at a step of a second flush; return whether there was such a step."""
    machine = Machine(Random(seed), path)

    async def first() -> None:
        machine.tiers.chunks = files = FilesystemChunkStorage(machine.root)
        async with machine.tiers.open(drain_seconds=0) as container:
            for name in NAMES:
                await container.create_segment(name)
                await machine.model.create_segment(name)
            await append_and_flush(container, machine, 700)
            machine.cuts.cut_at = machine.cuts.step_count + cut_at
            await append_and_flush(container, machine, 900)
            machine.tiers.crash()
        files.close()

    with machine.start():
        trio.run(first)
        was_cut = machine.cuts.is_off
    for _ in range(2):
        with machine.start():
            trio.run(machine.run, [])
    return was_cut


@pytest.mark.parametrize("seed", range(4))
def test_the_power_goes_at_any_step_of_short_appends(seed: int, tmp_path: Path) -> None:
    cut_at = 1
    while cut_during_short_appends(seed, make(tmp_path / str(cut_at)), cut_at):
        cut_at += 1
    assert cut_at > 2 * len(NAMES), "each is written and synced"


def make(path: Path) -> Path:
    path.mkdir()
    return path


def test_the_power_goes_when_a_file_is_longer_than_what_was_synced(tmp_path: Path) -> None:
    """The file's length counts bytes that are zeros; the log has what they should be."""
    machine = Machine(Random(1), tmp_path)
    lengths: list[int] = []

    async def first() -> None:
        machine.tiers.chunks = files = FilesystemChunkStorage(machine.root)
        async with machine.tiers.open(drain_seconds=0) as container:
            await container.create_segment(NAMES[0])
            await container.append(NAMES[0], b"a" * 700)
            await container.flush()
            await container.append(NAMES[0], b"b" * 900)
            machine.cuts.cut_when = lambda path: not path.startswith("_system")
            with pytest.raises(StorageError):
                await container.flush()
            machine.tiers.crash()
        files.close()

    async def second() -> None:
        machine.tiers.chunks = files = FilesystemChunkStorage(machine.root)
        async with machine.tiers.open(drain_seconds=0) as container:
            lengths.append(container.segment_info(NAMES[0]).storage_length)
            result = await container.read(NAMES[0], offset=0, length_max=1600)
            data = bytes(result.data)
            if len(data) < 1600:
                result = await container.read(NAMES[0], offset=len(data), length_max=1600)
                data += bytes(result.data)
            assert data == b"a" * 700 + b"b" * 900
            machine.tiers.crash()
        files.close()

    with machine.start():
        trio.run(first)
    assert machine.cuts.left is not None
    [path] = [path for path in machine.cuts.left if not path.startswith("_system")]
    machine.cuts.left[path] = b"a" * 700 + bytes(900)
    for _ in range(2):  # the second one is killed before it has written anything
        with machine.start():
            trio.run(second)
    assert lengths[0] in (0, 700)


@pytest.mark.parametrize("first", mark_rare(range(0, 100, 10), 2))
def test_a_container_equals_the_model_whenever_the_power_goes(first: int, tmp_path: Path) -> None:
    for seed in range(first, first + 10):
        live(seed, make(tmp_path / str(seed)))
