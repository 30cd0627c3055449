"""A journal is read once: what a recovery needs of its entries is kept, within bounds."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TypeVar

import pytest
import trio

from segstore.errors import DataLogCorruptError, DataLogError
from segstore.tiers.api import DigestedEntry, LogAddress, LogPart
from segstore.tiers.journal import ContainerLog, Journal, JournalSettings, open_journal
from segstore.tiers.journal.disk import Disk, LocalDisk
from segstore.tiers.journal.log_reader import KeptDigests
from segstore.tiers.journal.runner import InlineRunner
from support.simulated.simulated_disk import SimulatedDisk
from support.simulated.simulated_journal import run_in_place

T = TypeVar("T")
SETTINGS = JournalSettings(file_bytes=8 * 1024 * 1024, journal_bytes_max=64 * 1024 * 1024)


class CountingDisk(LocalDisk):
    """A disk that counts how often each file was opened."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.opened: dict[str, int] = {}

    def open_file(self, name: str):  # type: ignore[no-untyped-def]
        self.opened[name] = self.opened.get(name, 0) + 1
        return super().open_file(name)


def head_of(entry: memoryview) -> bytes:
    if entry[:3] == b"bad":
        raise ValueError("no digest of that")
    return bytes(entry[:100])


def opened(path: Path, disk: Disk | None = None) -> AbstractAsyncContextManager[Journal]:
    return open_journal(path, SETTINGS, digest=head_of, disk=disk)


async def append(log: ContainerLog, data: bytes) -> int:
    done = trio.Event()
    errors: list[DataLogError | None] = []

    def complete(error: DataLogError | None) -> None:
        errors.append(error)
        done.set()

    address = log.append_nowait([data], complete)
    await done.wait()
    assert errors == [None]
    return address.position


async def digests_of(log: ContainerLog) -> list[DigestedEntry]:
    return [entry async for batch in log.read_digests() for entry in batch]


async def test_entries_come_as_digests_where_those_are_worth_it(tmp_path: Path) -> None:
    entries = [b"first" * 100, b"x" * 10, b"bad" * 500, b"y" * 399, b"z" * 400, b"end" * 400_000]
    entries[5] = entries[5][:1_000_000]
    async with opened(tmp_path) as journal:
        log = await journal.open_log(3)
        positions = [await append(log, data) for data in entries]
        await log.aclose()
    async with opened(tmp_path) as journal:
        log = await journal.open_log(3)
        found = await digests_of(log)
        kept = (0, 4, 5)
        assert found == [
            DigestedEntry(LogAddress(position), data[:100], b"")
            if number in kept
            else DigestedEntry(LogAddress(position), None, data)
            for number, (position, data) in enumerate(zip(positions, entries, strict=True))
        ]
        await log.aclose()


async def test_the_files_of_many_entries_are_read_once(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        log, other = await journal.open_log(0), await journal.open_log(1)
        for number in range(40):
            await append(log if number % 2 else other, bytes([number]) * 1_000_000)
    disk = CountingDisk(tmp_path)
    async with opened(tmp_path, disk) as journal:
        at_the_journal = dict(disk.opened)
        assert len(at_the_journal) > 4
        for container_id in (0, 1):
            log = await journal.open_log(container_id)
            found = await digests_of(log)
            numbers = range(1 - container_id, 40, 2)
            assert [entry.digest for entry in found] == [bytes([n]) * 100 for n in numbers]
        assert disk.opened.items() >= at_the_journal.items()
        assert [n for name, n in disk.opened.items() if name in at_the_journal] == [1] * len(
            at_the_journal
        )


async def test_a_log_opened_twice_by_one_process_is_read_from_its_files(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        log = await journal.open_log(0)
        position = await append(log, b"data" * 1000)
        again = await journal.open_log(0)
        entry = DigestedEntry(LogAddress(position), None, b"data" * 1000)
        assert await digests_of(again) == [entry]
        assert await again.read_parts([LogPart(position, 2, 4)]) == [b"tada"]


def test_digests_are_kept_up_to_a_bound() -> None:
    digest = KeptDigests(head_of, bytes_max=250)
    entry = memoryview(bytes(1000))
    assert [digest(entry) for _ in range(5)] == [bytes(100)] * 3 + [None] * 2


async def test_parts_of_an_entry_behind_the_end_of_a_file_are_damage() -> None:
    disk = SimulatedDisk()
    async with open_journal(
        Path(), SETTINGS, disk=disk, runner=InlineRunner(), run_blocking=run_in_place
    ) as journal:
        log = await journal.open_log(0)
        position = await append(log, b"data")
    async with open_journal(
        Path(), SETTINGS, disk=disk, runner=InlineRunner(), run_blocking=run_in_place
    ) as journal:
        log = await journal.open_log(0)
        with pytest.raises(DataLogCorruptError, match=r"\.journal ends at"):
            await log.read_parts([LogPart(position, 0, 100_000_000)])


async def test_parts_in_files_that_are_gone_are_an_error(tmp_path: Path) -> None:
    async with opened(tmp_path) as journal:
        log = await journal.open_log(0)
        positions = [await append(log, bytes(1_000_000)) for _ in range(20)]
    async with opened(tmp_path) as journal:
        log = await journal.open_log(0)
        first = LogPart(positions[0], 10, 10)
        assert await log.read_parts([first]) == [bytes(10)]
        await log.truncate(LogAddress(positions[-1]))
        with pytest.raises(DataLogError, match="not in the journal any more"):
            await log.read_parts([first])
        assert await log.read_parts([LogPart(positions[-1], 0, 3)]) == [bytes(3)]
