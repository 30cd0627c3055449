"""The journal on a disk that loses what was not synced.

Invariants checked, after every crash:
1. Every acknowledged entry that was not truncated is there, byte for byte, at its address.
2. There is no hole, no entry that nobody appended, and nothing of an entry that was never written.
3. Epochs grow; the journal goes on; crashes during the recovery itself change nothing of this.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random

import pytest
import trio
import trio.testing
from hypothesis import example, given, settings
from hypothesis import strategies as st

from segstore.errors import DataLogError
from segstore.tiers.api import LogAddress
from segstore.tiers.journal import ContainerLog, Journal, JournalSettings, contents
from support.simulated.simulated_disk import PowerCutError, SimulatedDisk
from support.simulated.simulated_journal import open_simulated_journal

KIB = 1024
SETTINGS = JournalSettings(
    file_bytes=512 * KIB,
    journal_bytes_max=4096 * KIB,
    batch_bytes_max=384 * KIB,
    files_spare_max=2,
)


@dataclass
class ContainerModel:
    """The entries that one container appended, and the answers it got."""

    entries: dict[int, bytes] = field(default_factory=dict)
    acknowledged: int = 0
    truncated: int = 1
    epoch: int = 0


class Crash(Exception):
    """The workload ends here: the process is killed."""


@asynccontextmanager
async def until_crash() -> AsyncIterator[None]:
    """Run a body that a simulated crash may end."""
    try:
        yield
    except (PowerCutError, Crash):
        pass
    except BaseExceptionGroup as group:
        _, others = group.split((PowerCutError, Crash, trio.Cancelled))
        if others is not None:
            raise


class Workload:
    """A workload that appends and truncates at random in three containers, and keeps the model."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.models = {container: ContainerModel() for container in range(3)}

    async def run(self, disk: SimulatedDisk, notes: SimulatedDisk) -> None:
        async with open_simulated_journal(
            disk, SETTINGS, random=self.random, notes=notes
        ) as journal:
            logs = {}
            for container in self.models:
                logs[container] = await self.open_and_check(journal, container)
            for _ in range(self.random.randrange(60)):
                if logs:
                    await self.step(journal, logs)
            raise Crash

    async def open_and_check(self, journal: Journal, container: int) -> ContainerLog:
        model = self.models[container]
        log = await journal.open_log(container)
        assert log.epoch > model.epoch
        model.epoch = log.epoch
        found = {entry.address.position: entry.data async for entry in log.read()}
        positions = list(found)
        if positions:
            assert positions == list(range(positions[0], positions[-1] + 1))
            assert positions[0] <= model.truncated
        for position, data in found.items():
            assert model.entries[position] == data
        for position in range(model.truncated, model.acknowledged + 1):
            assert position in found, f"acknowledged entry {position} of {container} is lost"
        model.entries = found
        model.acknowledged = max([model.acknowledged, *positions])
        return log

    async def step(self, journal: Journal, logs: dict[int, ContainerLog]) -> None:
        container = self.random.choice(list(logs))
        model = self.models[container]
        choice = self.random.randrange(20)
        if choice == 0:
            del logs[container]
            with trio.move_on_after(5):  # a full journal opens nothing
                logs[container] = await self.open_and_check(journal, container)
        elif choice <= 3 and model.acknowledged >= model.truncated:
            position = self.random.randint(model.truncated, model.acknowledged + 1)
            model.truncated = position
            await logs[container].truncate(LogAddress(position))
        elif choice <= 6:
            await trio.sleep(self.random.choice([0, 0.01, 1]))
        else:
            for _ in range(self.random.randrange(1, 8)):
                self.append(logs[container], model)

    def append(self, log: ContainerLog, model: ContainerModel) -> None:
        length = self.random.choice([0, 7, 100, 5000, 70_000, SETTINGS.entry_bytes_max])
        data = self.random.randbytes(length)

        def on_durable(error: DataLogError | None) -> None:
            if error is None:
                model.acknowledged = max(model.acknowledged, address.position)

        address = log.append_nowait([data[: length // 2], data[length // 2 :]], on_durable)
        model.entries[address.position] = data


def crash_and_recover(seed: int, *, rounds: int) -> None:
    random = Random(seed)

    async def main() -> None:
        disk, notes = SimulatedDisk(), SimulatedDisk()
        workload = Workload(random)
        for _ in range(rounds):
            if random.randrange(4):
                disk.power_cut_at = random.randrange(1, random.choice([12, 60, 200]))
            async with until_crash():
                await workload.run(disk, notes)
            if random.randrange(4):
                disk, notes = disk.after_power_cut(random), notes.after_power_cut(random)
            else:
                disk, notes = disk.after_kill(), notes.after_kill()

    with pytest.MonkeyPatch.context() as patch:
        # A journal of this length would have no notes.
        patch.setattr(contents, "FILES_WITHOUT_NOTES", 0)
        patch.setattr(contents, "NEWEST_FILES", 1)
        trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@settings(max_examples=25, deadline=None)
@example(seed=7428)  # an unused first file was being made again when the power went
@given(seed=st.integers(0, 2**32))
def test_a_crash_at_any_point_loses_nothing_acknowledged(seed: int) -> None:
    crash_and_recover(seed, rounds=8)
