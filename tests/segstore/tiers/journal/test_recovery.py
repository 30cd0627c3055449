"""Recovery of a journal with torn tails, damage and stale bytes."""

from __future__ import annotations

import errno
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
import trio
import trio.lowlevel
import trio.testing

from segstore.errors import DataLogCorruptError, DataLogError
from segstore.tiers.api import LogAddress
from segstore.tiers.journal import ContainerLog, JournalSettings
from segstore.tiers.journal.files import journal_name, open_existing
from segstore.tiers.journal.format import (
    BATCH_HEADER_BYTES,
    FILE_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    Kind,
    Record,
)
from segstore.tiers.journal.recovery import recover
from segstore.tiers.journal.scan import scan_file
from segstore.tiers.journal.state import JournalState, LogExtent
from support.rare_parameters import mark_rare
from support.simulated.simulated_disk import SimulatedDisk
from support.simulated.simulated_journal import open_simulated_journal

KIB = 1024
SETTINGS = JournalSettings(
    file_bytes=512 * KIB, journal_bytes_max=8192 * KIB, batch_bytes_max=384 * KIB
)


async def append(log: ContainerLog, data: bytes) -> None:
    durable = trio.Event()

    def on_durable(error: DataLogError | None) -> None:
        assert error is None
        durable.set()

    log.append_nowait([data], on_durable)
    await durable.wait()


@asynccontextmanager
async def opened(disk: SimulatedDisk, container: int = 1) -> AsyncIterator[ContainerLog]:
    async with open_simulated_journal(disk, SETTINGS, random=Random(7)) as journal:
        yield await journal.open_log(container)


async def entries_of(disk: SimulatedDisk, container: int = 1) -> list[bytes]:
    """Return the entries of a copy of the disk."""
    try:
        async with opened(disk.after_kill(), container) as log:
            return [entry.data async for entry in log.read()]
    except* DataLogError as group:
        raise group.exceptions[0] from None
    raise AssertionError


def batch_starts(disk: SimulatedDisk, name: str) -> list[int]:
    """Return the start offset of each batch of a file, and the end of the last one."""
    file = open_existing(disk, name)
    assert file is not None
    starts: list[int] = []
    end = scan_file(file).end_offset
    offset = FILE_HEADER_BYTES
    while offset < end:
        starts.append(offset)
        length = int.from_bytes(disk.content(name)[offset + 28 : offset + 32], "little")
        offset += -(-(BATCH_HEADER_BYTES + length) // 512) * 512
    return [*starts, end]


async def disk_with_batches(
    count: int, *, length: int = 700, marked: bool = True
) -> tuple[SimulatedDisk, list[bytes]]:
    """Make a disk with ``count`` batches of one entry each."""
    disk = SimulatedDisk()
    entries = [bytes([65 + index % 26]) * length for index in range(count)]
    async with opened(disk) as log:
        for data in entries:
            await append(log, data)
        if not marked:
            return disk.after_kill(), entries
    return disk, entries


FIRST = journal_name(1)


async def recycled_disk() -> tuple[SimulatedDisk, list[bytes]]:
    """Make a disk whose current file was written before, with other bytes at the same places."""
    disk = SimulatedDisk()
    async with opened(disk) as log:
        for _ in range(24):  # through several files, each freed at once
            await append(log, b"old" * 40_000)
            await log.truncate(LogAddress(2**62))
            await trio.lowlevel.checkpoint()
    entries = []
    async with opened(disk) as log:
        for index in range(6):
            entries.append(bytes([97 + index]) * 1500)
            await append(log, entries[-1])
        return disk.after_kill(), entries
    raise AssertionError


@pytest.mark.parametrize("behind", mark_rare(["stale", "garbage", "zeros"], 2))
async def test_a_tail_torn_at_any_byte_recovers_to_the_last_full_batch(behind: str) -> None:
    if behind == "stale":
        disk, entries = await recycled_disk()
        name = sorted(n for n in disk.list_files() if batch_starts(disk, n)[-1] > 4096)[-1]
    else:
        disk, entries = await disk_with_batches(5, marked=False)
        name = FIRST
    content = disk.content(name)
    *_, start, end = batch_starts(disk, name)
    if behind == "zeros":
        rest = bytes(end - start)
    elif behind == "garbage":
        rest = Random(1).randbytes(end - start)
    else:
        rest = bytes(byte ^ 0x55 for byte in content[start:end])
    length = BATCH_HEADER_BYTES + RECORD_HEADER_BYTES + len(entries[-1])
    for kept in range(0, length, 1 if behind == "zeros" else 11):
        torn = disk.after_kill()
        torn.overwrite(name, start, content[start : start + kept] + rest[kept:])
        assert await entries_of(torn) == entries[:-1], f"torn after {kept} bytes"
    whole = disk.after_kill()
    whole.overwrite(name, start + length, rest[length:])
    assert await entries_of(whole) == entries


async def test_a_batch_that_a_failed_sync_left_in_the_kernel_is_not_recovered() -> None:
    disk, entries = await disk_with_batches(3)
    async with opened(disk) as log:
        errors: list[DataLogError | None] = []
        disk.sync_errors = {disk.step_count + 2: errno.EIO}
        log.append_nowait([b"not acknowledged"], errors.append)
        await trio.testing.wait_all_tasks_blocked()
        assert isinstance(errors[0], DataLogError)
    disk = disk.after_kill()
    async with opened(disk) as log:
        assert [entry.data async for entry in log.read()] == entries
        await append(log, b"new")
        for seed in range(10):
            assert await entries_of(disk.after_power_cut(Random(seed))) == [*entries, b"new"]


async def test_the_journal_goes_on_after_a_torn_tail() -> None:
    disk, entries = await disk_with_batches(5, marked=False)
    *_, start, _ = batch_starts(disk, FIRST)
    disk.flip_bit(FIRST, start + 100, 3)
    for index in range(5):
        async with opened(disk) as log:
            assert [e.data async for e in log.read()] == entries[:4] + [b"new"] * index
            await append(log, b"new")


async def test_a_flipped_bit_in_any_durable_batch_is_reported_with_file_and_offset() -> None:
    disk, _ = await disk_with_batches(12)
    starts = batch_starts(disk, FIRST)
    assert len(starts) == 14  # opening, 12 entries, end
    for number, start in enumerate(starts[:-1]):
        for offset, bit in [(0, 0), (3, 1), (4, 2), (20, 7), (28, 4), (39, 3), (50, 6), (70, 0)]:
            damaged = disk.after_kill()
            damaged.flip_bit(FIRST, start + offset, bit)
            with pytest.raises(DataLogCorruptError) as caught:
                await entries_of(damaged)
            expected = f"journal file {FIRST}, offset {start}: "
            assert str(caught.value).startswith(expected), (number, offset)


async def test_the_last_batch_is_protected_as_soon_as_the_journal_is_idle() -> None:
    disk = SimulatedDisk()
    async with opened(disk) as log:
        await append(log, b"first" * 100)
        await append(log, b"last" * 100)
        *_, start, _ = batch_starts(disk, FIRST)
        at_once, later = disk.after_kill(), None
        await trio.sleep(3 * SETTINGS.mark_delay_seconds)
        later = disk.after_kill()
    for damaged in (at_once, later):
        damaged.flip_bit(FIRST, start + 200, 0)
    assert await entries_of(at_once) == [b"first" * 100]
    with pytest.raises(DataLogCorruptError, match=f"{FIRST}, offset {start}: "):
        await entries_of(later)


async def test_random_flips_never_lose_an_entry_silently() -> None:
    random = Random(20)
    disk = SimulatedDisk()
    entries = []
    async with opened(disk) as log:
        for _ in range(60):
            entries.append(random.randbytes(random.choice([10, 900, 20_000, 90_000])))
            await append(log, entries[-1])
    used = {name: batch_starts(disk, name)[-1] for name in disk.list_files()}
    used = {name: end for name, end in used.items() if end > FILE_HEADER_BYTES}
    assert len(used) >= 3
    reported = 0
    for _ in range(300):
        name = random.choice(list(used))
        offset = random.randrange(used[name]) if random.randrange(3) else random.randrange(40)
        damaged = disk.after_kill()
        damaged.flip_bit(name, offset, random.randrange(8))
        try:
            assert await entries_of(damaged) == entries
        except DataLogCorruptError as error:
            reported += 1
            match = re.match(r"journal file (\S+), offset (\d+): ", str(error))
            assert match is not None
            assert match[1] == name
            assert int(match[2]) <= offset
    assert reported > 150


async def test_a_missing_file_is_reported() -> None:
    disk = SimulatedDisk()
    async with opened(disk) as log:
        for _ in range(30):
            await append(log, bytes(50_000))
    needed = [name for name in disk.list_files() if batch_starts(disk, name)[-1] > 4096]
    assert len(needed) >= 3
    for name in needed[:-1]:
        damaged = disk.after_kill()
        damaged.forget(name)
        with pytest.raises(DataLogCorruptError, match=name):
            await entries_of(damaged)
    damaged = disk.after_kill()
    damaged.forget(needed[-1])
    with pytest.raises(DataLogCorruptError, match=needed[-1]):
        await entries_of(damaged)


async def test_a_file_that_was_cut_is_reported() -> None:
    disk = SimulatedDisk()
    async with opened(disk) as log:
        for _ in range(30):
            await append(log, bytes(50_000))
    first, second = disk.list_files()[:2]
    for name, length in [(first, 100_000), (first, 5000), (second, 4096), (second, 10)]:
        damaged = disk.after_kill()
        damaged.cut(name, length)
        with pytest.raises(DataLogCorruptError, match=name):
            await entries_of(damaged)


async def test_files_swapped_by_name_are_reported() -> None:
    disk = SimulatedDisk()
    async with opened(disk) as log:
        for _ in range(30):
            await append(log, bytes(50_000))
    first, second = disk.list_files()[:2]
    disk.rename(first, "aside")
    disk.rename(second, first)
    disk.rename("aside", second)
    with pytest.raises(DataLogCorruptError, match=first):
        await entries_of(disk)


async def test_a_foreign_file_is_refused() -> None:
    disk, _ = await disk_with_batches(1)
    disk.create_file("notes.txt")
    with pytest.raises(DataLogError, match=r"notes\.txt is not a journal file"):
        recover(disk)


async def test_what_clients_store_cannot_pose_as_a_batch() -> None:
    disk, _ = await disk_with_batches(3)
    forged = disk.content(FIRST)[FILE_HEADER_BYTES : batch_starts(disk, FIRST)[-1]]
    victim = SimulatedDisk()
    async with open_simulated_journal(victim, SETTINGS, random=Random(99)) as journal:
        log = await journal.open_log(1)
        for shift in range(0, 600, 8):
            await append(log, bytes(shift) + forged)
        victim = victim.after_kill()
    *_, start, _ = batch_starts(victim, FIRST)
    victim.flip_bit(FIRST, start, 0)  # only the last batch is damaged: a torn tail
    assert len(await entries_of(victim)) == 74


async def test_damage_after_the_recovery_is_found_when_it_is_read() -> None:
    disk, entries = await disk_with_batches(5)
    starts = batch_starts(disk, FIRST)

    async def read_all(log: ContainerLog) -> None:
        async for entry in log.read():
            read.append(entry.data)

    read: list[bytes] = []
    offset = starts[3] + BATCH_HEADER_BYTES
    async with opened(disk) as log:
        disk.flip_bit(FIRST, starts[3] + 200, 1)
        with pytest.raises(DataLogCorruptError, match=f"{FIRST}, offset {offset}: "):
            await read_all(log)
    assert entries[: len(read)] == read


def test_a_snapshot_gives_the_same_state_again() -> None:
    state = JournalState()
    for record in (
        Record(Kind.OPEN, 1, 3, 1),
        Record(Kind.ENTRY, 1, 3, 1),
        Record(Kind.ENTRY, 1, 3, 2),
        Record(Kind.OPEN, 7, 1, 1),
        Record(Kind.TRUNCATE, 1, 3, 2),
        Record(Kind.LIVE, 0, 0, 4),
        Record(Kind.LIVE, 0, 0, 5),
        Record(Kind.FREE, 0, 0, 4),
    ):
        state.apply(record)
    again = JournalState()
    for record in state.snapshot_records():
        again.apply(record)
    assert again == state
    assert again.containers == {1: LogExtent(3, 2, 3), 7: LogExtent(1, 1, 1)}
    assert again.live == {5}


async def test_an_unreadable_disk_is_an_error_of_the_log() -> None:
    disk, _ = await disk_with_batches(5)
    disk.read_error = errno.EIO
    with pytest.raises(DataLogError, match="cannot be read"):
        recover(disk)


async def test_a_lack_of_descriptors_when_a_log_is_opened_again_is_an_error_of_the_log() -> None:
    disk, _ = await disk_with_batches(5)
    async with open_simulated_journal(disk, SETTINGS, random=Random(7)) as journal:
        log = await journal.open_log(1)
        await append(log, b"more")
        log = await journal.open_log(1)
        disk.open_errors = {disk.open_count + 1: errno.EMFILE}
        with pytest.raises(DataLogError, match=r"cannot be read: .* Too many open files"):
            await anext(log.read())


async def test_an_interrupted_preparation_is_cleaned_up() -> None:
    disk, entries = await disk_with_batches(3)
    disk.create_file("00000000000000000077.new")
    assert await entries_of(disk) == entries
    async with opened(disk):
        assert "00000000000000000077.new" not in disk.list_files()
        await trio.sleep(0.1)
        assert max(disk.list_files()) > journal_name(77)


@pytest.mark.parametrize("left", [0.0, 0.3, 0.9])
async def test_a_file_that_is_shorter_than_its_header_says_is_damage(left: float) -> None:
    disk = SimulatedDisk()
    async with opened(disk) as log:
        for number in range(20):
            await append(log, b"%d" % number * 1000)
    [name] = [each for each in disk.list_files() if b"19" * 1000 in disk.content(each)]
    length = int(FILE_HEADER_BYTES + left * len(disk.content(name)))
    disk.cut(name, length)
    with pytest.raises(DataLogCorruptError, match=rf"{name}, offset {length}: the file ends there"):
        await entries_of(disk)


async def test_a_file_that_nobody_needs_may_not_be_short_either() -> None:
    """It may be the newest one, of which nothing but its header is left."""
    disk = SimulatedDisk()
    async with opened(disk) as log:
        await append(log, b"kept")
    spare = disk.list_files()[-1]
    disk.cut(spare, FILE_HEADER_BYTES)
    with pytest.raises(DataLogCorruptError, match=f"{spare}, offset {FILE_HEADER_BYTES}"):
        await entries_of(disk)
