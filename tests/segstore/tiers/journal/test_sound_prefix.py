"""The usable part of a damaged journal: all that lies before the damage, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
import trio

from segstore.tiers.api import LogAddress
from segstore.tiers.journal import JournalSettings
from segstore.tiers.journal.files import parse_name
from segstore.tiers.journal.log_reader import LogReader
from segstore.tiers.journal.sound_prefix import SoundPrefix, read_sound_prefix
from support.simulated.simulated_disk import SimulatedDisk
from support.simulated.simulated_journal import open_simulated_journal

SETTINGS = JournalSettings(file_bytes=384 * 1024, journal_bytes_max=16 * 1024 * 1024)
CONTAINERS = (1, 2)


async def write_journal(disk: SimulatedDisk, random: Random) -> dict[int, list[bytes]]:
    """Write entries of two containers over several files; return them."""
    entries: dict[int, list[bytes]] = {number: [] for number in CONTAINERS}
    async with open_simulated_journal(disk, SETTINGS, random=Random(7)) as journal:
        logs = {number: await journal.open_log(number) for number in CONTAINERS}
        for _ in range(60):
            number = random.choice(CONTAINERS)
            data = random.randbytes(random.choice([10, 900, 20_000, 90_000]))
            durable = trio.Event()
            logs[number].append_nowait([data], lambda error, durable=durable: durable.set())
            await durable.wait()
            entries[number].append(data)
    return entries


async def entries_of(disk: SimulatedDisk, prefix: SoundPrefix, container: int) -> list[bytes]:
    if container not in prefix.state.containers:
        return []

    async def run(function):  # type: ignore[no-untyped-def]
        return function()

    reader = LogReader.of_scans(disk, run, container, prefix.state, prefix.scans)
    return [entry.data async for entry in reader.read()]


async def test_a_sound_journal_is_all_of_it() -> None:
    disk = SimulatedDisk()
    entries = await write_journal(disk, Random(1))
    prefix = read_sound_prefix(disk)
    assert len(prefix.scans) > 3
    for container in CONTAINERS:
        assert await entries_of(disk, prefix, container) == entries[container]


@pytest.mark.parametrize("seed", range(3))
async def test_whatever_is_damaged_all_before_it_is_there(seed: int) -> None:
    random = Random(seed)
    disk = SimulatedDisk()
    entries = await write_journal(disk, random)
    whole = read_sound_prefix(disk)
    names = [name for name in disk.list_files() if generation_of(name) in whole.scans]
    shorter = missing = 0
    for _ in range(60):
        damaged, name = disk.after_kill(), random.choice(names)
        generation, offset = generation_of(name), 0
        if random.randrange(4):
            offset = random.randrange(whole.scans[generation].end_offset)
            damaged.flip_bit(name, offset, random.randrange(8))
        else:
            damaged.forget(name)
        prefix = read_sound_prefix(damaged)
        for container in CONTAINERS:
            found = await entries_of(damaged, prefix, container)
            if prefix.let_go_or_lost:
                # Only the first file is gone, and all behind it is there.
                assert prefix.let_go_or_lost == (name,)
                assert (container in prefix.without_beginning) == (
                    container in whole.scans[generation].indexes
                )
                assert found == entries[container][len(entries[container]) - len(found) :]
                missing += 1
                continue
            assert found == entries[container][: len(found)]
            shorter += len(found) < len(entries[container])
            before = [
                scan.indexes[container].end_position - 1
                for number, scan in whole.scans.items()
                if number < generation and container in scan.indexes
            ]
            assert len(found) >= max(before, default=0)
            index = whole.scans[generation].indexes.get(container)
            if index is not None and offset:
                # A batch that begins before the damage may go with it, but no earlier one.
                sound = sum(
                    index.offset_of(place) + 2 * 100_000 < offset
                    for place in range(index.first_position, index.end_position)
                )
                assert len(found) >= max(before, default=0) + sound
    assert shorter > 20
    assert missing > 0


def generation_of(name: str) -> int:
    parsed = parse_name(name)
    assert parsed is not None
    return parsed[0]


@pytest.mark.parametrize("place", [0, 1, -2, -1])
@pytest.mark.parametrize("how", ["header", "missing"])
async def test_what_is_dropped_is_told_whatever_file_cannot_be_opened(how: str, place: int) -> None:
    disk = SimulatedDisk()
    entries = await write_journal(disk, Random(1))
    whole = read_sound_prefix(disk)
    assert whole.missing == ()
    names = [name for name in sorted(disk.list_files()) if generation_of(name) in whole.scans]
    damaged = disk.after_kill()
    if how == "header":
        damaged.flip_bit(names[place], 20, 1)
    else:
        damaged.forget(names[place])
    prefix = read_sound_prefix(damaged)
    lost = 0
    for container in CONTAINERS:
        found = await entries_of(damaged, prefix, container)
        lost += sum(map(len, entries[container])) - sum(map(len, found))
    assert lost > 0
    assert prefix.let_go_or_lost == ((names[0],) if place == 0 else ())
    if how == "header":
        assert (lost <= prefix.dropped_bytes_max, prefix.missing) == (True, ())
    else:
        assert prefix.missing == ((names[place],) if place else ())


async def test_files_are_used_although_an_earlier_one_was_let_go_behind_the_damage() -> None:
    disk, settings = SimulatedDisk(), replace(SETTINGS, files_spare_max=0)
    entries: list[bytes] = []
    async with open_simulated_journal(disk, settings, random=Random(7)) as journal:
        log = await journal.open_log(1)

        async def append(data: bytes) -> None:
            durable = trio.Event()
            log.append_nowait([data], lambda error: durable.set())
            await durable.wait()
            entries.append(data)

        for number in range(14):
            await append(bytes([number]) * 90_000)
        first, newest = min(disk.list_files()), max(written_files(disk))
        place = read_sound_prefix(disk).scans[generation_of(newest)].end_offset
        await append(b"damaged")
        await log.truncate(LogAddress(8))
        await append(b"behind the damage")
        while first in disk.list_files():  # noqa: ASYNC110 - files are removed in the background
            await trio.sleep(0.01)
        assert max(written_files(disk)) == newest
    disk.flip_bit(newest, place + 60, 1)
    prefix = read_sound_prefix(disk)
    assert first in prefix.let_go_or_lost
    assert prefix.without_beginning == {1}
    assert prefix.missing == ()
    found = await entries_of(disk, prefix, 1)
    assert found == entries[14 - len(found) : 14]
    assert len(found) > 6


def written_files(disk: SimulatedDisk) -> list[str]:
    return [name for name in disk.list_files() if any(disk.content(name)[4096:])]


async def test_reading_a_damaged_journal_changes_no_file() -> None:
    disk = SimulatedDisk()
    await write_journal(disk, Random(1))
    names = disk.list_files()
    disk.flip_bit(names[1], 20_000, 1)
    disk.create_file(f"{77:020d}.new")
    before = {name: disk.content(name) for name in disk.list_files()}
    assert read_sound_prefix(disk).dropped_bytes_max > 0
    assert {name: disk.content(name) for name in disk.list_files()} == before


async def test_nothing_is_left_of_an_empty_directory() -> None:
    prefix = read_sound_prefix(SimulatedDisk())
    assert (prefix.scans, prefix.dropped_bytes_max) == ({}, 0)
