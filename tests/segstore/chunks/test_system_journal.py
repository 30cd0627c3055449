"""The system journal: what it survives, and what it takes for damage."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from segstore.chunks import chunked
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.records import AddChunk, Change, Chunk, MoveChunks, Truncate, encode_frame
from segstore.errors import (
    FencedOutError,
    InvalidChunkOffsetError,
    LogBehindError,
    StorageDamagedError,
    StorageError,
)
from segstore.ownership.token import OwnerToken
from segstore.tiers.api import ChunkInfo, ChunkStorage
from segstore.tiers.memory import MemoryChunkStorage
from support.faults.faulty_chunks import Fault, FaultyChunkStorage

PREFIX = "_system/chunks-0$"


def owner(chunks: ChunkStorage, epoch: int, **settings: Any) -> ChunkedSegmentStorage:
    return ChunkedSegmentStorage(chunks, epoch=lambda: epoch, **settings)


async def system_chunks(chunks: MemoryChunkStorage, kind: str) -> list[str]:
    return [chunk.name for chunk in await chunks.list_chunks(f"{PREFIX}{kind}")]


async def write_some(storage: ChunkedSegmentStorage, count: int) -> None:
    for number in range(count):
        await storage.write(f"s{number}", offset=0, data=[b"data"], rollover_bytes=0)


async def test_a_torn_end_of_the_journal_is_what_was_not_acknowledged() -> None:
    chunks = MemoryChunkStorage()
    await write_some(owner(chunks, 1), 3)
    [name] = await system_chunks(chunks, "journal")
    del chunks.contents[name][-1:]
    storage = owner(chunks, 2)
    assert [await storage.stored_length(f"s{number}") for number in range(3)] == [4, 4, 0]


async def test_damage_before_the_end_is_told() -> None:
    chunks = MemoryChunkStorage()
    await write_some(owner(chunks, 1), 3)
    [name] = await system_chunks(chunks, "journal")
    chunks.contents[name][20] ^= 1
    with pytest.raises(StorageError, match="journal-0000000001-0000000002 is damaged"):
        await owner(chunks, 2).stored_length("s0")


async def test_a_missing_journal_is_told() -> None:
    chunks = MemoryChunkStorage()
    faults: list[Fault] = []
    storage = owner(
        FaultyChunkStorage(chunks, next_fault=lambda _: faults.pop() if faults else Fault.NONE), 1
    )
    await write_some(storage, 3)
    faults.append(Fault.REPLY_LOST)
    with pytest.raises(StorageError):
        await storage.delete("s0")
    await storage.delete("s1")
    first, second = await system_chunks(chunks, "journal")
    assert await owner(await copied(chunks), 2).segment_names() == ["s2"]
    without_first, without_second = await copied(chunks), await copied(chunks)
    await without_first.delete(first)
    with pytest.raises(StorageError, match="are missing"):
        await owner(without_first, 2).segment_names()
    await without_second.delete(second)
    assert await owner(without_second, 2).segment_names() == ["s1", "s2"]


async def copied(chunks: MemoryChunkStorage) -> MemoryChunkStorage:
    copy = MemoryChunkStorage()
    copy.contents = {name: bytearray(data) for name, data in chunks.contents.items()}
    return copy


@pytest.mark.parametrize("fault", [Fault.REFUSED, Fault.REPLY_LOST, Fault.PARTIAL])
async def test_a_change_that_failed_happens_before_the_next(fault: Fault) -> None:
    chunks = MemoryChunkStorage()
    faults: list[Fault] = []
    faulty = FaultyChunkStorage(chunks, next_fault=lambda _: faults.pop() if faults else Fault.NONE)
    storage = owner(faulty, 1)
    await write_some(storage, 2)
    faults += [fault, fault]
    for _ in range(2):
        with pytest.raises(StorageError):
            await storage.delete("s0")
    assert await storage.stored_length("s0") == 4, "it is not known to be durable"
    await storage.delete("s1")
    for each in (storage, owner(chunks, 2)):
        assert await each.segment_names() == []


async def test_a_snapshot_that_was_not_finished_does_not_count() -> None:
    chunks = MemoryChunkStorage()
    faulty = FaultyChunkStorage(chunks)
    storage = owner(faulty, 1, snapshot_bytes_min=1)
    await storage.stored_length("nothing")
    rng = random.Random(1)
    faulty.next_fault = lambda call: (
        Fault.PARTIAL if call == "write" and rng.random() < 0.3 else Fault.NONE
    )
    for number in range(40):
        while True:
            try:
                await storage.write(f"s{number}", offset=0, data=[b"data"], rollover_bytes=0)
                break
            except StorageError:
                pass
    snapshots = await system_chunks(chunks, "snapshot")
    assert len(snapshots) > 3
    expected = [f"s{number}" for number in range(40)]
    assert sorted(await owner(await copied(chunks), 2).segment_names()) == sorted(expected)
    del chunks.contents[snapshots[-1]][10:]
    assert sorted(await owner(chunks, 2).segment_names()) == sorted(expected)


@pytest.mark.parametrize(
    "changes",
    [
        (Truncate("missing", 1, 1),),
        (AddChunk("s0", 7, 1, "s0$7"),),
        (MoveChunks("s0", 4, "missing", 1),),
        (MoveChunks("s0", 4, "s1", 4), AddChunk("s1", 4, 1, "s1$4")),
    ],
)
async def test_a_change_that_does_not_fit_never_reaches_the_journal(
    changes: tuple[Change, ...],
) -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1)
    await write_some(storage, 2)
    # A chunk that failed has an end that the metadata know.
    storage._replace_last("s0", *_closed(await storage.chunks_of("s0")))
    with pytest.raises(InvalidChunkOffsetError):
        async with storage.journal.changing():
            await storage.journal.commit(*changes)
    await write_some(storage, 2)
    for each in (storage, owner(chunks, 2)):
        assert [await each.stored_length(f"s{number}") for number in range(2)] == [4, 4]


def _closed(chunks: tuple[Chunk, ...]) -> tuple[Chunk, Chunk]:
    return chunks[-1], replace(chunks[-1], is_open=False)


async def test_a_damaged_snapshot_is_not_taken_for_a_new_container() -> None:
    chunks = MemoryChunkStorage()
    await write_some(owner(chunks, 1), 3)
    second = owner(chunks, 2)
    assert await second.stored_length("s0") == 4
    await second.collect()
    [name] = await system_chunks(chunks, "snapshot")
    assert await system_chunks(chunks, "journal") == []
    for position in (0, 5, 20, 45, len(chunks.contents[name]) - 1):
        chunks.contents[name][position] ^= 1
        with pytest.raises(StorageError, match="snapshot-0000000002-0000000001 is damaged"):
            await owner(chunks, 3).stored_length("s0")
        chunks.contents[name][position] ^= 1
    assert await owner(chunks, 4).stored_length("s0") == 4


async def test_a_journal_without_its_snapshot_is_damage() -> None:
    chunks = MemoryChunkStorage()
    await write_some(owner(chunks, 1), 3)
    await write_some(owner(chunks, 2), 3)
    storage = owner(chunks, 3)
    await storage.write("more", offset=0, data=[b"data"], rollover_bytes=0)
    chunks.contents[(await system_chunks(chunks, "snapshot-0000000003"))[0]][8] ^= 1
    with pytest.raises(StorageError, match="follows no whole snapshot"):
        await owner(chunks, 4).segment_names()


async def test_what_recovery_reads_is_bounded() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1, snapshot_bytes_min=1000)
    for number in range(300):
        await storage.write(f"s{number}", offset=0, data=[b"data"], rollover_bytes=0)
        await storage.delete(f"s{number}")
        if number % 10 == 0:
            await storage.collect()
    await storage.collect()
    system = await chunks.list_chunks(PREFIX)
    assert len(system) <= 4
    assert sum(chunk.length for chunk in system) < 5000
    assert len(await chunks.list_chunks("")) == len(system)


async def grown_in_two_lives(chunks: MemoryChunkStorage) -> None:
    """Write a chunk of 8 bytes, of which the log knows that the first 4 are stored."""
    storage = owner(chunks, 1, boot_id="a")
    await storage.write("s", offset=0, data=[b"data"], rollover_bytes=0)
    await storage.recovered()
    await storage.write("s", offset=4, data=[bytes(4)], rollover_bytes=0)


async def test_a_chunk_counts_as_it_is_while_the_machine_runs() -> None:
    chunks = MemoryChunkStorage()
    await grown_in_two_lives(chunks)
    assert await owner(chunks, 2, boot_id="a").stored_length("s", certain=4) == 8
    # This one did not end its recovery, and the one before it did.
    assert await owner(chunks, 3, boot_id="a").stored_length("s", certain=4) == 8


async def test_after_another_start_of_the_machine_a_chunk_counts_as_far_as_is_certain() -> None:
    chunks = MemoryChunkStorage()
    await grown_in_two_lives(chunks)
    assert await owner(chunks, 2, boot_id="b").stored_length("s", certain=4) == 4
    # Its process was killed before the end of its recovery.
    storage = owner(chunks, 3, boot_id="b")
    assert await storage.stored_length("s", certain=3) == 3
    await storage.recovered()
    storage = owner(chunks, 4, boot_id="b")
    assert await storage.stored_length("s", certain=2) == 3
    await storage.write("s", offset=3, data=[b"aagain"], rollover_bytes=0)
    assert bytes(await storage.read("s", offset=0, length=9)) == b"dat"
    assert bytes(await storage.read("s", offset=3, length=9)) == b"aagain"
    assert await owner(chunks, 5, boot_id="c").stored_length("s", certain=3) == 3


async def test_an_owner_that_ended_while_it_claimed_leaves_no_doubt() -> None:
    chunks = MemoryChunkStorage()
    await grown_in_two_lives(chunks)
    faults = [Fault.PARTIAL]
    faulty = FaultyChunkStorage(chunks, next_fault=lambda _: faults.pop() if faults else Fault.NONE)
    with pytest.raises(StorageError, match="half of a write was stored"):
        await owner(faulty, 2, boot_id="many").stored_length("s", certain=4)
    assert await owner(chunks, 3, boot_id="a").stored_length("s", certain=4) == 8
    with pytest.raises(LogBehindError, match="has 8 bytes of s, and the log only 4"):
        await owner(chunks, 4, boot_id="a").recovered(needed={"s": 4}, ends={"s": 4})


async def test_an_owner_that_ended_before_its_claim_ends_no_doubt() -> None:
    """A claim without bytes was taken for one of an owner that needs no notes."""
    chunks = MemoryChunkStorage()
    await grown_in_two_lives(chunks)
    await owner(chunks, 2, boot_id="b").stored_length("s", certain=4)
    *_, name = await system_chunks(chunks, "claim")
    del chunks.contents[name][:]
    assert await owner(chunks, 3, boot_id="b").stored_length("s", certain=4) == 4


async def test_an_owner_that_ended_while_it_noted_its_recovery_leaves_no_doubt() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1, boot_id="a")
    await storage.write("s", offset=0, data=[b"data"], rollover_bytes=0)
    await storage.recovered()
    await storage.write("s", offset=4, data=[bytes(4)], rollover_bytes=0)
    [name] = await system_chunks(chunks, "claim")
    del chunks.contents[name][len("a\nrecov") :]
    assert await owner(chunks, 2, boot_id="a").stored_length("s", certain=4) == 8


async def test_what_nobody_knows_to_be_uncertain_counts_after_every_start() -> None:
    chunks = MemoryChunkStorage()
    await grown_in_two_lives(chunks)
    assert await owner(chunks, 2, boot_id="b").stored_length("s") == 8


async def test_a_length_in_metadata_is_certain() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1, boot_id="a")
    await write_some(storage, 2)
    await storage.concat("s0", offset=4, source="s1", length=4, rollover_bytes=0)
    await storage.delete("s1", merged_into="s0")
    await storage.write("s0", offset=8, data=[bytes(4)], rollover_bytes=0)
    assert await owner(chunks, 2, boot_id="b").stored_length("s0", certain=2) == 8


async def test_a_recovery_that_asked_for_nothing_opens_nothing() -> None:
    chunks = MemoryChunkStorage()
    await grown_in_two_lives(chunks)
    storage = owner(chunks, 2, boot_id="b")
    await storage.recovered()
    assert len(await system_chunks(chunks, "claim")) == 1
    assert await storage.stored_length("s") == 8
    assert await owner(chunks, 3, boot_id="b").stored_length("s", certain=0) == 8


async def recovered_without_a_note(chunks: MemoryChunkStorage) -> ChunkedSegmentStorage:
    """Return an owner whose recovery could not be noted, since the machine was started again."""
    await grown_in_two_lives(chunks)
    faulty = FaultyChunkStorage(chunks)
    storage = owner(faulty, 2, boot_id="b")
    assert await storage.stored_length("s", certain=4) == 4
    faulty.next_fault = lambda _: Fault.REFUSED
    await storage.recovered()
    faulty.next_fault = lambda _: Fault.NONE
    return storage


async def test_a_recovery_that_cannot_be_noted_is_in_doubt_again() -> None:
    chunks = MemoryChunkStorage()
    await recovered_without_a_note(chunks)
    assert await owner(chunks, 3, boot_id="b").stored_length("s", certain=4) == 4


async def test_what_was_written_since_the_machine_was_started_is_never_in_doubt() -> None:
    """Seed 250304: an older journal was let in, because what tier 2 had more did not count."""
    chunks = MemoryChunkStorage()
    storage = await recovered_without_a_note(chunks)
    await storage.write("t", offset=0, data=[bytes(6)], rollover_bytes=0)
    later = owner(chunks, 3, boot_id="b")
    assert await later.stored_length("s", certain=4) == 4
    assert await later.stored_length("t", certain=0) == 6
    with pytest.raises(LogBehindError, match="has 6 bytes of t, and the log only 5"):
        await owner(chunks, 4, boot_id="b").recovered(needed={"s": 4}, ends={"s": 8, "t": 5})
    # After the next start of the machine it is.
    assert await owner(chunks, 5, boot_id="c").stored_length("t", certain=0) == 0


async def test_an_owner_that_recovers_late_leaves_no_later_one_without_doubt() -> None:
    chunks = MemoryChunkStorage()
    await grown_in_two_lives(chunks)
    late = owner(chunks, 2, boot_id="b")
    assert await late.stored_length("s", certain=4) == 4
    # The next one reads the metadata without what the late one found out, and is killed.
    assert await owner(chunks, 3, boot_id="b").stored_length("s", certain=4) == 4
    await late.recovered()
    assert await owner(chunks, 4, boot_id="b").stored_length("s", certain=4) == 4


async def test_of_changes_written_together_a_power_cut_may_lose_the_first() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1, boot_id="a")
    await storage.recovered()
    await write_some(storage, 1)
    [name] = await system_chunks(chunks, "journal")
    before = len(chunks.contents[name])
    added = [AddChunk(f"s{number}", 0, 1, f"s{number}$0") for number in range(1, 4)]
    async with storage.journal.changing():
        await storage.journal.commit(*added)
    chunks.contents[name][before + 16 : before + 40] = bytes(24)
    with pytest.raises(StorageError, match="is damaged"):
        await owner(await copied(chunks), 2, boot_id="a").segment_names()
    assert await owner(chunks, 2, boot_id="b").segment_names() == ["s0"]


@pytest.mark.parametrize("place", [0, 5, -1])
async def test_a_damaged_last_frame_after_a_gentle_end_is_damage(place: int) -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1, boot_id="a")
    await storage.recovered(last_operation=7)
    await write_some(storage, 2)
    [name] = await system_chunks(chunks, "journal")
    whole = len(chunks.contents[name])
    await write_some(storage, 3)
    await storage.close(last_operation=7)
    content = chunks.contents[name]
    frame = len(encode_frame(3, AddChunk("s2", 0, 1, "s2$00000000000000000000.E1.3"), journal=name))
    assert len(content) == whole + frame
    content[whole + place if place >= 0 else -1] ^= 1
    for boot in "ab":
        with pytest.raises(StorageDamagedError, match=rf"{re.escape(name)} is damaged at offset"):
            await owner(chunks, 2 if boot == "a" else 3, boot_id=boot).stored_length("s0")
    content[whole + place if place >= 0 else -1] ^= 1
    assert await owner(chunks, 4, boot_id="a").stored_length("s2") == 4


class ListsEarly(MemoryChunkStorage):
    """Storage that lists a chunk with the lengths that it had earlier, one after the other, then
    as it is.

    So does a directory whose files are looked at one by one while somebody writes.
    """

    def __init__(self, chunks: MemoryChunkStorage, name: str, lengths: list[int]) -> None:
        super().__init__()
        self.contents = chunks.contents
        self._late = name
        self._lengths = lengths

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        listed = await super().list_chunks(prefix)
        if not self._lengths or self._late not in [each.name for each in listed]:
            return listed
        length = self._lengths.pop(0)
        return [
            replace(each, length=length) if each.name == self._late else each for each in listed
        ]


async def test_what_an_owner_adds_at_its_end_while_the_next_one_looks_is_no_damage() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1, boot_id="a")
    await storage.recovered(last_operation=7)
    lengths = []
    for count in range(1, 5):
        await write_some(storage, count)
        [name] = await system_chunks(chunks, "journal")
        lengths.append(len(chunks.contents[name]))
    await storage.close(last_operation=7)
    late = ListsEarly(chunks, name, lengths[:2])
    assert await owner(late, 2, boot_id="a").stored_length("s3") == 4


async def test_an_owner_that_does_not_come_to_its_end_lets_the_next_one_try_again() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1, boot_id="a")
    await storage.recovered(last_operation=7)
    await write_some(storage, 5)
    [name] = await system_chunks(chunks, "journal")
    await storage.close(last_operation=7)
    whole = len(chunks.contents[name])
    late = ListsEarly(chunks, name, [whole - 3, whole - 2, whole - 1])
    with pytest.raises(StorageError, match="an earlier owner still writes") as found:
        await owner(late, 2, boot_id="a").stored_length("s3")
    assert not isinstance(found.value, StorageDamagedError), "that would be for ever"
    assert await owner(chunks, 3, boot_id="a").stored_length("s3") == 4


async def test_an_owner_that_was_killed_may_leave_a_part_of_a_frame() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1, boot_id="a")
    await write_some(storage, 2)
    [name] = await system_chunks(chunks, "journal")
    del chunks.contents[name][-3:]
    assert await owner(chunks, 2, boot_id="a").stored_length("s0") == 4


async def test_a_log_that_lacks_what_the_last_owner_knew_of_is_refused() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1, boot_id="a")
    await storage.recovered(last_operation=10)
    await write_some(storage, 1)
    await storage.close(last_operation=12)
    await storage.close(last_operation=13)  # a second end says nothing
    late = owner(chunks, 2, boot_id="a")
    assert await late.stored_length("s0") == 4
    with pytest.raises(LogBehindError, match=r"ends with operation 11, .* ended with 12"):
        await late.recovered(last_operation=11)
    storage = owner(chunks, 3, boot_id="a")
    assert await storage.stored_length("s0") == 4
    await storage.recovered(last_operation=12)


async def test_the_last_copy_of_the_metadata_is_kept_through_later_owners() -> None:
    chunks = MemoryChunkStorage()
    first = owner(chunks, 1)
    await first.keep_container(b"one", 1)
    await first.keep_container(b"two", 2)
    await first.collect()
    assert len(await system_chunks(chunks, "container")) == 1
    second = owner(chunks, 2)
    await write_some(second, 1)
    await second.collect()
    state = await owner(chunks, 0).inspect()
    assert (state.container, state.epoch) == (b"two", 2)
    await second.keep_container(b"three", 3)
    await second.collect()
    [name] = await system_chunks(chunks, "container")
    assert (await owner(chunks, 0).inspect()).container == b"three"
    chunks.contents[name][-6] ^= 1
    assert (await owner(chunks, 0).inspect()).container is None


async def test_looking_changes_nothing() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1, boot_id="a")
    await write_some(storage, 2)
    before = {name: bytes(data) for name, data in chunks.contents.items()}
    state = await owner(chunks, 0, boot_id="a").inspect()
    assert state.metadata.segment_names() == ["s0", "s1"]
    assert {name: bytes(data) for name, data in chunks.contents.items()} == before


@pytest.mark.parametrize("is_settled", [True, False])
async def test_a_tier_2_that_lacks_what_the_log_let_go_is_refused(is_settled: bool) -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1)
    await write_some(storage, 2)
    if is_settled:
        await storage.settle()
    for epoch, needed in ((2, {"s0": 5}), (3, {"s1": 4, "s2": 1})):
        with pytest.raises(StorageDamagedError, match="tier 2 is an older copy"):
            await owner(chunks, epoch).recovered(needed=needed)
    await owner(chunks, 4).recovered(needed={"s0": 4, "s1": 3})


@pytest.mark.parametrize("is_settled", [True, False])
async def test_a_log_that_lacks_what_tier_2_has_is_refused(is_settled: bool) -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, 1)
    await write_some(storage, 2)
    if is_settled:
        await storage.settle()
    with pytest.raises(LogBehindError, match="has 4 bytes of s1, and the log only 3"):
        await owner(chunks, 2).recovered(needed={"s1": 3}, ends={"s0": 4, "s1": 3})
    await owner(chunks, 3).recovered(needed={"s1": 3}, ends={"s0": 4, "s1": 5})


def refusing_in_turn(calls: list[str]) -> Callable[[str], Fault]:
    """Return a ``next_fault`` that refuses these calls, once each and in this order."""
    return lambda call: Fault.REFUSED if calls[:1] == [call] and calls.pop(0) else Fault.NONE


@pytest.mark.parametrize("has_dropped", [True, False])
async def test_a_recovery_that_tier_2_does_not_answer_fails_and_finds_out_when_repeated(
    *, has_dropped: bool
) -> None:
    """The container served at first, and an older journal was compared later."""
    memory = MemoryChunkStorage()
    await write_some(owner(memory, 1), 2)
    needed = {"s1": 3} if has_dropped else {}
    refused = ["list_chunks"]
    storage = owner(FaultyChunkStorage(memory, next_fault=refusing_in_turn(refused)), 2)
    with pytest.raises(StorageError, match="list_chunks was refused"):
        await storage.recovered(needed=needed, ends={"s1": 3})
    for _ in range(2):
        with pytest.raises(LogBehindError, match="has 4 bytes of s1, and the log only 3"):
            await storage.recovered(needed=needed, ends={"s1": 3})


async def test_an_empty_tier_2_is_refused_where_the_log_relies_on_one() -> None:
    with pytest.raises(StorageDamagedError, match="has s0 up to 0, and had it up to 4"):
        await owner(MemoryChunkStorage(), 2).recovered(needed={"s0": 4})


async def test_a_recovery_that_was_in_touch_with_tier_2_ends_when_both_are_compared() -> None:
    memory = MemoryChunkStorage()
    await write_some(owner(memory, 1), 2)
    refused = ["lengths"]
    storage = owner(FaultyChunkStorage(memory, next_fault=refusing_in_turn(refused)), 2)
    assert await storage.segment_names() == ["s0", "s1"]
    with pytest.raises(StorageError, match="lengths was refused"):
        await storage.recovered(needed={"s1": 3}, ends={"s1": 3})
    with pytest.raises(LogBehindError, match="has 4 bytes of s1, and the log only 3"):
        await owner(memory, 3).recovered(needed={"s1": 3}, ends={"s1": 3})


async def test_a_look_at_many_segments_lets_others_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(chunked, "CHUNKS_PER_TURN", 4)
    memory, count = MemoryChunkStorage(), 50
    await write_some(owner(memory, 1), count)
    storage = owner(memory, 2)
    await storage.segment_names()
    turns, is_done = 0, False

    async def count_turns() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        await storage._refuse_older({f"s{number}": 4 for number in range(count)})
        is_done = True
    assert turns > 10


async def test_an_owner_that_is_fenced_while_it_claims_its_epoch_is_fenced_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    chunks, token = MemoryChunkStorage(), OwnerToken()
    token.assign()
    token.open(1, None)
    write = chunks.write

    async def fence_at_the_snapshot(name: str, **arguments: Any) -> None:
        if "snapshot" in name:
            token.fence()
        await write(name, **arguments)

    monkeypatch.setattr(chunks, "write", fence_at_the_snapshot)
    with pytest.raises(FencedOutError, match="later epoch"):
        await owner(chunks, 1, token=token).stored_length("s")
