"""Contents of complete files are noted, and nothing but time depends on the notes."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import TypeVar

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from _fast.crc import crc32c
from _fast.log.journal import EntryIndex
from _fast.log.replay import DIGEST_FORMAT, digest_frame
from segstore.errors import DataLogCorruptError
from segstore.tiers.api import DigestedEntry, LogAddress, LogPart
from segstore.tiers.journal import ContainerLog, Journal, JournalSettings, open_journal
from segstore.tiers.journal.contents import (
    FILES_WITHOUT_NOTES,
    HURRY_FILES,
    HURRY_SECONDS,
    NEWEST_FILES,
    ContentsNoter,
    NotedContents,
    note_name,
)
from segstore.tiers.journal.disk import LocalDisk
from segstore.tiers.journal.files import journal_name
from segstore.tiers.journal.log_reader import KeptDigests, open_named
from segstore.tiers.journal.recovery import recover
from support.simulated.simulated_disk import SimulatedDisk
from support.simulated.simulated_journal import open_simulated_journal

T = TypeVar("T")

KIB = 1024
SETTINGS = JournalSettings(
    file_bytes=512 * KIB, journal_bytes_max=8192 * KIB, batch_bytes_max=384 * KIB
)
BODY_BYTES = 60_000
ENTRIES = 80


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


def frame_of(number: int, *, length: int = BODY_BYTES) -> bytes:
    """Make a data frame with one append, whose digest leaves out the body."""
    head = bytes([1]) + number.to_bytes(8) + (7).to_bytes(8) + (number * length).to_bytes(8)
    record = head + length.to_bytes(4) + (0).to_bytes(2) + bytes([number]) * length
    part = len(record).to_bytes(4) + b"\x03" + record
    header = b"\x02\x00\x00\x01" + len(part).to_bytes(4)
    return header + crc32c(header, crc32c(part)).to_bytes(4) + part


async def append(log: ContainerLog, data: bytes) -> int:
    done = trio.Event()
    address = log.append_nowait([data], lambda error: done.set())
    await done.wait()
    return address.position


@asynccontextmanager
async def opened(disk: SimulatedDisk, notes: SimulatedDisk | None) -> AsyncIterator[Journal]:
    async with open_simulated_journal(disk, SETTINGS, notes=notes) as journal:
        yield journal


async def filled() -> tuple[SimulatedDisk, SimulatedDisk]:
    """Make a journal of several files and notes about all that can have one, after a kill."""
    disk, notes = SimulatedDisk(), SimulatedDisk()
    async with opened(disk, notes) as journal:
        logs = [await journal.open_log(container_id) for container_id in (0, 1)]
        for number in range(ENTRIES):
            await append(logs[number % 2], frame_of(number))
        await trio.sleep(60)
        return disk.after_kill(), notes.after_kill()


def contents_of(notes: SimulatedDisk) -> NotedContents:
    return NotedContents(notes, digest_frame, digest_format=DIGEST_FORMAT)


def generations(disk: SimulatedDisk) -> list[int]:
    return [int(name.partition(".")[0]) for name in disk.list_files()]


def first_note(notes: SimulatedDisk) -> str:
    return notes.list_files()[0]


async def recovered(disk: SimulatedDisk, notes: SimulatedDisk | None) -> list[list[DigestedEntry]]:
    """Return the entries that both containers find."""
    found = []
    async with opened(disk, notes) as journal:
        for container_id in (0, 1):
            log = await journal.open_log(container_id)
            found.append([entry async for batch in log.read_digests() for entry in batch])
    return found


async def test_recoveries_find_the_same_with_notes_and_without(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, notes = await filled()
    assert len(notes.list_files()) >= 2
    with_notes = await recovered(disk.after_kill(), notes)
    assert with_notes == await recovered(disk.after_kill(), None)
    expected = [digest_frame(frame_of(number)) for number in range(ENTRIES)]
    assert [entry.digest for entry in with_notes[0]] == expected[0::2]
    assert [entry.digest for entry in with_notes[1]] == expected[1::2]


async def test_files_with_a_note_are_not_read(autojump_clock: trio.testing.MockClock) -> None:
    disk, notes = await filled()
    noted = generations(notes)
    scans = recover(disk, digest=KeptDigests(digest_frame), contents=contents_of(notes)).scans
    # A scan tells how far it went; of a file that was not read nobody knows.
    assert noted == [generation for generation, scan in scans.items() if not scan.controls]
    assert len(scans) > len(noted)


async def test_the_newest_complete_files_are_not_noted(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, notes = await filled()
    needed = list(recover(disk).scans)
    assert generations(notes) == needed[: -NEWEST_FILES - 1]


async def test_nothing_is_noted_while_files_are_completed_in_a_hurry(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, notes = SimulatedDisk(), SimulatedDisk()
    async with opened(disk, notes) as journal:
        log = await journal.open_log(0)
        number = 0
        while journal.log_bytes() // SETTINGS.file_bytes <= FILES_WITHOUT_NOTES + 4:
            await append(log, frame_of(number))
            await trio.sleep(HURRY_SECONDS / HURRY_FILES / 16)
            number += 1
        assert notes.list_files() == []
        await trio.sleep(2 * HURRY_SECONDS)
        assert notes.list_files() != []


async def test_notes_take_at_most_half_of_the_time(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, _ = await filled()
    complete = list(recover(disk).scans)[:-1]
    notes = SimulatedDisk()
    written_at: dict[int, float] = {}

    async def run_slowly(function: Callable[[], T]) -> T:
        await trio.sleep(1)
        result = function()
        for generation in generations(notes):
            written_at.setdefault(generation, trio.current_time())
        return result

    noter = ContentsNoter(disk, contents_of(notes), lambda: complete, run_slowly)
    async with trio.open_nursery() as nursery:
        scope = await nursery.start(noter.run)
        noter.look()
        await trio.sleep(60)
        scope.cancel()
    times = list(written_at.values())
    assert len(times) > 2
    assert {after - before for before, after in pairwise(times)} == {2}


async def test_few_files_are_not_noted(autojump_clock: trio.testing.MockClock) -> None:
    disk, notes = SimulatedDisk(), SimulatedDisk()
    async with opened(disk, notes) as journal:
        log = await journal.open_log(0)
        number = 0
        while journal.log_bytes() // SETTINGS.file_bytes <= FILES_WITHOUT_NOTES + 1:
            assert notes.list_files() == []
            await append(log, frame_of(number))
            await trio.sleep(60)
            number += 1
        assert notes.list_files() != []


async def test_damage_behind_a_note_is_found_by_whoever_reads_it(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, notes = await filled()
    name = journal_name(generations(notes)[1])
    content = disk.content(name)
    at = content.index(bytes([12]) * 100)  # in the body of an entry
    disk.flip_bit(name, at + 50, 3)
    async with opened(disk.after_kill(), notes) as journal:
        log = await journal.open_log(0)
        found = [entry async for batch in log.read_digests() for entry in batch]
        entry = next(e for e in found if e.digest == digest_frame(frame_of(12)))
        start = len(frame_of(12)) - BODY_BYTES
        [body] = await log.read_parts([LogPart(entry.address.position, start, BODY_BYTES)])
        # The digest has the sum of the body as it was written.
        assert crc32c(body) != crc32c(frame_of(12)[start:])
    with pytest.raises(DataLogCorruptError, match=f"{name}, offset"):
        async with opened(disk.after_kill(), None):
            pass


async def test_a_damaged_entry_that_is_read_alone_is_told(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, _ = await filled()
    async with opened(disk, None) as journal:
        log = await journal.open_log(0)
        found = [entry async for batch in log.read_digests() for entry in batch]
        name = next(n for n in disk.list_files() if bytes([12]) * 100 in disk.content(n))
        disk.flip_bit(name, disk.content(name).index(bytes([12]) * 100) + 50, 3)
        entry = next(e for e in found if e.digest == digest_frame(frame_of(12)))
        with pytest.raises(DataLogCorruptError, match=f"{name}, offset"):
            await log.read_entry(entry.address)


async def test_a_note_does_not_stand_in_for_a_file_that_is_gone_or_cut(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, notes = await filled()
    name = journal_name(generations(notes)[0])
    cut = disk.after_kill()
    cut.cut(name, 300 * KIB)
    with pytest.raises(DataLogCorruptError, match=f"{name}, offset"):
        recover(cut, digest=KeptDigests(digest_frame), contents=contents_of(notes))
    disk.forget(name)
    with pytest.raises(DataLogCorruptError, match=f"{name}, offset 0: the file is missing"):
        recover(disk, digest=KeptDigests(digest_frame), contents=contents_of(notes))


async def test_a_damaged_note_is_not_used(autojump_clock: trio.testing.MockClock) -> None:
    disk, notes = await filled()
    expected = await recovered(disk.after_kill(), None)
    length = len(notes.content(first_note(notes)))
    random = Random(5)
    for place in [0, 8, 12, 16, 20, 30, 40, 44, length - 1, *random.sample(range(length), 30)]:
        damaged = notes.after_kill()
        damaged.flip_bit(first_note(notes), place, random.randrange(8))
        file = open_named(disk, generations(notes)[0])
        assert contents_of(damaged).read(file, KeptDigests(digest_frame)) is None
    for kept in [0, 10, 48, length // 2, length - 1]:
        torn = notes.after_kill()
        torn.cut(first_note(notes), kept)
        assert await recovered(disk.after_kill(), torn) == expected


HEADER = struct.Struct("<8sIIIQQQI")
CONTAINER = struct.Struct("<IQII")


def rewrite(notes: SimulatedDisk, change: Callable[[bytearray], bytes | bytearray | None]) -> None:
    """Change the first note, and make its sum right again."""
    name = first_note(notes)
    body = bytearray(notes.content(name)[:-4])
    data = change(body)
    data = bytes(body if data is None else data)
    notes.remove(name)
    notes.create_file(name).write([data, crc32c(data).to_bytes(4, "little")], 0)


def change_container(**changes: int) -> Callable[[bytearray], None]:
    """Change fields of the first container of a note by so much."""

    def change(body: bytearray) -> None:
        fields = ["container_id", "position", "count", "groups"]
        values = dict(zip(fields, CONTAINER.unpack_from(body, HEADER.size), strict=True))
        for field, difference in changes.items():
            values[field] += difference
        CONTAINER.pack_into(body, HEADER.size, *(values[field] for field in fields))

    return change


def change_count(difference: int) -> Callable[[bytearray], None]:
    def change(body: bytearray) -> None:
        *others, count = HEADER.unpack_from(body)
        HEADER.pack_into(body, 0, *others, count + difference)

    return change


def shift_positions(difference: int) -> Callable[[bytearray], None]:
    """Return a change that shifts all positions of the first container's entries."""

    def change(body: bytearray) -> None:
        change_container(position=difference)(body)
        _, _, count, groups = CONTAINER.unpack_from(body, HEADER.size)
        at = HEADER.size + CONTAINER.size + 4 * count
        for group in range(groups):
            start, length = struct.unpack_from("<QQ", body, at + 16 * group)
            struct.pack_into("<QQ", body, at + 16 * group, start + difference, length)

    return change


def without_containers(body: bytearray) -> bytearray:
    change_count(-2)(body)
    return body[: HEADER.size]


def with_an_empty_container(body: bytearray) -> bytearray:
    change_count(1)(body)
    return body + CONTAINER.pack(7, 1, 0, 0)


def with_a_strange_container(body: bytearray) -> bytearray:
    change_count(1)(body)
    one = CONTAINER.pack(7, 1, 1, 1) + struct.pack("<IQQI", 8, 1, 100, 0xFFFF_FFFF)
    return body + one


@pytest.mark.parametrize(
    "change",
    [
        change_count(1),
        change_count(-1),
        change_count(1 << 30),
        change_container(container_id=1),
        change_container(container_id=77),
        change_container(position=1),
        change_container(position=-1),
        change_container(count=1),
        change_container(count=-1),
        change_container(count=1 << 30),
        change_container(groups=1),
        change_container(groups=-1),
        change_container(groups=1 << 30),
        shift_positions(-1),
        shift_positions(1),
        shift_positions(1000),
        lambda body: body + bytes(5),
        lambda body: body[:-5],
        without_containers,
        with_an_empty_container,
        with_a_strange_container,
    ],
)
async def test_a_note_with_a_right_sum_that_cannot_be_true_is_like_none(
    autojump_clock: trio.testing.MockClock,
    change: Callable[[bytearray], bytes | bytearray | None],
) -> None:
    disk, notes = await filled()
    expected = await recovered(disk.after_kill(), None)
    rewrite(notes, change)
    assert await recovered(disk.after_kill(), notes) == expected


async def test_a_journal_goes_on_after_a_note_that_cannot_be_true(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, notes = await filled()
    rewrite(notes, with_a_strange_container)
    async with opened(disk.after_kill(), notes) as journal:
        logs = [await journal.open_log(container_id) for container_id in (0, 1)]
        held = [log.held_bytes for log in logs]
        for log in logs:
            await log.truncate(LogAddress(await append(log, frame_of(1))))
        for number in range(2 * ENTRIES):
            await append(logs[number % 2], frame_of(number))
            await logs[number % 2].truncate(LogAddress(1 << 40))
        assert all(log.held_bytes < before for log, before in zip(logs, held, strict=True))


async def test_a_note_about_another_file_is_not_used(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, notes = await filled()
    first, second = notes.list_files()[:2]
    notes.rename(first, "aside")
    notes.rename(second, first)
    notes.rename("aside", second)
    for generation in generations(notes)[:2]:
        file = open_named(disk, generation)
        assert contents_of(notes).read(file, KeptDigests(digest_frame)) is None


async def test_a_note_with_digests_of_another_form_is_not_used(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, notes = await filled()
    other = NotedContents(notes, digest_frame, digest_format=DIGEST_FORMAT + 1)
    file = open_named(disk, generations(notes)[0])
    assert other.read(file, KeptDigests(digest_frame)) is None
    assert contents_of(notes).read(file, KeptDigests(digest_frame)) is not None


async def test_digests_of_notes_are_kept_up_to_the_bound(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, notes = await filled()
    file = open_named(disk, generations(notes)[0])
    assert contents_of(notes).read(file, KeptDigests(digest_frame, bytes_max=100)) is None


async def test_notes_go_with_their_files(autojump_clock: trio.testing.MockClock) -> None:
    disk, notes = await filled()
    notes.create_file(note_name(999))
    async with opened(disk, notes) as journal:
        for container_id in (0, 1):
            log = await journal.open_log(container_id)
            await append(log, b"last")
            await log.truncate(LogAddress(ENTRIES // 2 + 1))
        await trio.sleep(60)
        assert notes.list_files() == []
        assert not journal.failed.is_set()


async def test_a_file_that_does_not_pass_gets_no_note(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, notes = await filled()
    generation = generations(notes)[0]
    disk.flip_bit(journal_name(generation), 200 * KIB, 0)
    file = open_named(disk, generation)
    with pytest.raises(DataLogCorruptError, match=f"{file.name}, offset"):
        contents_of(SimulatedDisk()).write_note(file)


async def test_the_journal_goes_on_when_notes_cannot_be_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    disk, notes = SimulatedDisk(), SimulatedDisk(capacity_bytes=10)
    async with opened(disk, notes) as journal:
        log = await journal.open_log(0)
        for number in range(ENTRIES):
            await append(log, frame_of(number))
        await trio.sleep(60)
        await append(log, b"more")
        assert journal.failure is None
    async with opened(disk, notes) as journal:
        log = await journal.open_log(0)
        assert len([entry async for entry in log.read()]) == ENTRIES + 1


async def test_contents_are_noted_beside_a_journal_on_a_real_disk(tmp_path: Path) -> None:
    (tmp_path / "journal").mkdir()
    (tmp_path / "notes").mkdir()
    notes = LocalDisk(tmp_path / "notes", direct=False)
    contents = NotedContents(notes, digest_frame, digest_format=DIGEST_FORMAT)
    for _ in range(2):
        async with open_journal(
            tmp_path / "journal", SETTINGS, digest=digest_frame, contents=contents
        ) as journal:
            log = await journal.open_log(0)
            found = [entry.data async for entry in log.read()]
            if not found:
                for number in range(ENTRIES):
                    await append(log, frame_of(number))
                with trio.fail_after(30):
                    while not notes.list_files():  # noqa: ASYNC110
                        await trio.sleep(0.05)
    assert found == [frame_of(number) for number in range(ENTRIES)]


@settings(deadline=None)
@given(
    first_position=st.integers(1, 2**62),
    places=st.lists(st.integers(0, 2**32 - 1), min_size=1, max_size=300),
    groups=st.lists(st.tuples(st.integers(1, 2**62), st.integers(0, 2**40)), min_size=1),
)
def test_an_index_is_restored_as_it_was(
    first_position: int, places: list[int], groups: list[tuple[int, int]]
) -> None:
    packed = b"".join(place.to_bytes(4, "little") for place in places)
    index = EntryIndex.restored(first_position, packed, groups)
    assert index.places_bytes == packed
    assert index.groups == [list(group) for group in groups]
    assert index.byte_count == sum(group[1] for group in groups)
    assert (index.first_position, len(index)) == (first_position, len(places))
    assert index.end_position == first_position + len(places)
    assert [index.offset_of(first_position + n) for n in range(len(places))] == [
        place * 8 for place in places
    ]
    with pytest.raises(IndexError):
        index.offset_of(index.end_position)


@pytest.mark.parametrize(("places", "groups"), [(b"", [(1, 1)]), (b"123", [(1, 1)]), (b"1234", [])])
def test_what_is_no_index_is_refused(places: bytes, groups: list[tuple[int, int]]) -> None:
    with pytest.raises(ValueError, match="not the places"):
        EntryIndex.restored(1, places, groups)


def test_a_digest_is_what_its_format_says() -> None:
    # Change DIGEST_FORMAT with these bytes: notes on disks have them.
    frame = frame_of(1, length=5000)
    head = frame[17 : 17 + 31]
    item = (5031).to_bytes(4, "little") + (17).to_bytes(4, "little") + (31).to_bytes(4, "little")
    body_sum = crc32c(bytes([1]) * 5000).to_bytes(4, "little")
    assert DIGEST_FORMAT == 1
    assert digest_frame(frame) == item + body_sum + b"\x03\0\0\0" + head
