"""Journal files: how they are made."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from segstore.errors import DataLogError
from segstore.tiers.journal import JournalSettings
from segstore.tiers.journal.disk import LocalDisk
from segstore.tiers.journal.files import FilePool, choose_length, make_file, open_existing
from segstore.tiers.journal.format import FILE_HEADER_BYTES, FileHeader
from segstore.tiers.journal.state import JournalState
from segstore.tiers.journal.writer import BatchWriter, RecordQueue, Tail
from support.simulated.simulated_disk import SimulatedDisk, SimulatedFile
from support.simulated.simulated_journal import open_simulated_journal

KIB = 1024
HEADER = FileHeader(generation=7, salt=99, file_bytes=512 * KIB)
SETTINGS = JournalSettings(
    file_bytes=512 * KIB, journal_bytes_max=8192 * KIB, batch_bytes_max=384 * KIB
)


@pytest.mark.parametrize("sync_bytes", [None, 64 * KIB])
def test_a_new_file_has_all_its_blocks_and_reads_as_zeros(
    tmp_path: Path, sync_bytes: int | None
) -> None:
    disk = LocalDisk(tmp_path)
    file = make_file(disk, HEADER, sync_bytes=sync_bytes, reuse=False)
    found = os.stat(tmp_path / file.name)
    assert found.st_size == HEADER.file_bytes
    assert found.st_blocks * 512 >= HEADER.file_bytes
    rest = memoryview(bytearray(HEADER.file_bytes - FILE_HEADER_BYTES))
    assert file.disk_file.read_into(rest, FILE_HEADER_BYTES) == len(rest)
    assert not any(rest)
    file.disk_file.close()
    opened = open_existing(disk, file.name)
    assert opened is not None
    assert opened.header == HEADER
    opened.disk_file.close()


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.mark.parametrize(("pause", "allocated"), [(0.1, True), (10.0, False)])
async def test_files_are_only_allocated_while_they_fill_quickly(
    pause: float,
    allocated: bool,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    lengths: list[int] = []
    allocate = SimulatedFile.allocate

    def note(self: SimulatedFile, length: int) -> None:
        lengths.append(length)
        allocate(self, length)

    monkeypatch.setattr(SimulatedFile, "allocate", note)
    async with open_simulated_journal(SimulatedDisk(), SETTINGS) as journal:
        log = await journal.open_log(0)
        for _ in range(20):
            log.append_nowait([bytes(300 * KIB)], lambda _: None)
            await trio.sleep(pause)
    assert bool(lengths) == allocated
    assert set(lengths) <= {SETTINGS.file_bytes}


MIB = 1024 * KIB


@pytest.mark.parametrize(
    ("freed_bytes", "room", "shares_disk", "length"),
    [
        (0, 64 * MIB, False, 64 * MIB),
        (0, 63 * MIB, False, 8 * MIB),
        (0, 8 * MIB, False, 8 * MIB),
        (0, 8 * MIB - 1, False, None),
        (64 * MIB, -1, False, 64 * MIB),
        (8 * MIB, 56 * MIB, False, 64 * MIB),
        (8 * MIB, 55 * MIB, False, 8 * MIB),
        (8 * MIB, -1, False, 8 * MIB),
        (4 * MIB, 4 * MIB, False, 8 * MIB),
        (4 * MIB, 4 * MIB - 1, False, None),
        # What a file takes in may have to go to tier 2 on the same disk.
        (0, 128 * MIB, True, 64 * MIB),
        (0, 127 * MIB, True, 8 * MIB),
        (0, 16 * MIB - 1, True, None),
        (64 * MIB, 64 * MIB, True, 64 * MIB),
        (64 * MIB, 63 * MIB, True, 8 * MIB),
        (64 * MIB, 7 * MIB, True, None),
    ],
)
def test_a_file_takes_no_more_than_the_disk_can_spare(
    freed_bytes: int, room: int, shares_disk: bool, length: int | None
) -> None:
    choose = partial(
        choose_length,
        room,
        freed_bytes,
        wanted=64 * MIB,
        shortest=8 * MIB,
        shares_disk=shares_disk,
    )
    if length is None:
        with pytest.raises(OSError, match="No space") as caught:
            choose()
        assert caught.value.errno == errno.ENOSPC
    else:
        assert choose() == length


async def test_freed_files_are_removed_when_others_need_their_space(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = SimulatedDisk()
    settings = replace(SETTINGS, free_bytes_min=512 * KIB, shares_disk=True)
    async with open_simulated_journal(disk, settings) as journal:
        log = await journal.open_log(0)
        for _ in range(8):
            address = log.append_nowait([bytes(300 * KIB)], lambda _: None)
        await trio.sleep(1)
        await log.truncate(address)
        await trio.sleep(10)
        spare_count = len(disk.list_files())
        assert spare_count > 4
        disk.capacity_bytes = disk.used_bytes
        await trio.sleep(10)
        assert len(disk.list_files()) < spare_count
        assert disk.free_bytes() >= 512 * KIB


async def test_a_journal_that_can_make_no_file_tells_how_much_of_the_last_is_used(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk = SimulatedDisk(capacity_bytes=3 * SETTINGS.file_bytes)
    async with open_simulated_journal(disk, SETTINGS) as journal:
        log = await journal.open_log(0)
        seen = []
        for _ in range(40):
            address = log.append_nowait([bytes(50 * KIB)], lambda _: None)
            await trio.sleep(0.1)
            seen.append(journal.reserve_percent())
        assert seen == sorted(seen)
        assert (seen[0], seen[-1] > 75) == (0, True)
        # A truncation needs no room of its own, and makes some.
        await log.truncate(address)
        await trio.sleep(5)
        assert journal.reserve_percent() == 0


LARGE = JournalSettings(file_bytes=8 * MIB, free_bytes_min=2 * MIB, shares_disk=True)


async def test_what_is_on_its_way_when_the_last_file_is_full_gets_short_files(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """It may be in the way of what frees space: a checkpoint, and then a truncation."""
    # Two files, what stays free beside them, and no room for a third one.
    disk = SimulatedDisk(capacity_bytes=(2 + 2) * LARGE.file_bytes + LARGE.free_bytes_min)
    async with open_simulated_journal(disk, LARGE) as journal:
        log = await journal.open_log(0)
        answers: list[DataLogError | None] = []
        while journal.reserve_percent() == 0:
            log.append_nowait([bytes(500 * KIB)], answers.append)
            await trio.sleep(0.1)
        count = len(answers) + 24
        for _ in range(24):
            address = log.append_nowait([bytes(500 * KIB)], answers.append)
        await trio.sleep(10)
        assert answers == [None] * count
        lengths = {len(disk.content(name)) for name in disk.list_files()}
        assert lengths == {LARGE.file_bytes, LARGE.short_file_bytes}
        # Writers of users stay stopped, those of system segments do not.
        assert 50 <= journal.reserve_percent() < 75
        await log.truncate(address)
        await trio.sleep(5)
        assert journal.reserve_percent() == 0
        # Not of all the disk: a part stays free for tier 2.
        for _ in range(100):
            log.append_nowait([bytes(500 * KIB)], answers.append)
        await trio.sleep(10)
        assert len(answers) < count + 100
        assert disk.free_bytes() >= LARGE.free_bytes_min // 2
        disk.capacity_bytes = None
        await trio.sleep(10)
        assert answers == [None] * (count + 100)


async def test_what_tier_2_lacks_is_not_taken_for_a_file_again(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The two filled the disk together: then nothing was left for what frees space."""
    entry = bytes(500 * KIB)
    capacity = 8 * LARGE.file_bytes
    disk = SimulatedDisk(capacity_bytes=capacity)
    async with open_simulated_journal(disk, LARGE) as journal:
        log = await journal.open_log(0)
        for _ in range(8):
            written = 0
            while journal.reserve_percent() < 25:
                address = log.append_nowait([entry], lambda _: None)
                written += len(entry)
                await trio.sleep(0.1)
            # Tier 2 gets what was written, as far as there is room.
            capacity -= min(written, disk.free_bytes())
            disk.capacity_bytes = capacity
            await log.truncate(address)
            await trio.sleep(10)
        assert disk.free_bytes() >= LARGE.short_file_bytes + LARGE.free_bytes_min // 2


def test_a_short_file_before_an_ordinary_one_stops_nobody() -> None:
    """An ordinary one was made behind it, and writers waited for ever for it to be taken."""
    disk, pool = SimulatedDisk(), FilePool()
    writer = BatchWriter(RecordQueue(), pool, Tail(None, 0, 1), JournalState(), LARGE)
    assert writer.used_percent(0) == 100
    for generation, length, percent in ((1, LARGE.short_file_bytes, 50), (2, 8 * MIB, 0)):
        header = FileHeader(generation, salt=5, file_bytes=length)
        pool.add(make_file(disk, header, sync_bytes=length, reuse=False))
        assert writer.used_percent(0) == percent
