"""Segments in chunks: what is where, and what later owners find."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import trio

from segstore.chunks.chunked import ROLLOVER_BYTES_MAX, ChunkedSegmentStorage
from segstore.errors import (
    ChunkNotFoundError,
    FencedOutError,
    InvalidChunkOffsetError,
    StorageAbsentError,
    StorageError,
)
from segstore.tiers.api import Buffer, ChunkStorage
from segstore.tiers.memory import MemoryChunkStorage
from support.faults.faulty_chunks import Fault, FaultyChunkStorage
from support.faults.hidden_chunks import HidingChunkStorage


def owner(
    chunks: ChunkStorage, epoch: int = 1, *, move_bytes_min: int = 8
) -> ChunkedSegmentStorage:
    return ChunkedSegmentStorage(
        chunks, epoch=lambda: epoch, move_bytes_min=move_bytes_min, garbage_delay_seconds=60.0
    )


async def read_all(storage: ChunkedSegmentStorage, segment: str, start: int, end: int) -> bytes:
    data = b""
    while start + len(data) < end:
        piece = await storage.read(
            segment, offset=start + len(data), length=end - start - len(data)
        )
        assert piece
        data += piece
    return data


async def chunk_lengths(chunks: MemoryChunkStorage, segment: str) -> dict[str, int]:
    listed = await chunks.list_chunks(f"{segment}$")
    return {
        f"{int(start)}.{maker}": chunk.length
        for chunk in listed
        for start, _, maker in [chunk.name.rpartition("$")[2].partition(".")]
    }


async def users_chunks(chunks: MemoryChunkStorage) -> list[str]:
    names = [chunk.name for chunk in await chunks.list_chunks("")]
    return [name for name in names if not name.startswith("_system/")]


async def test_writes_roll_over_into_chunks() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    assert await storage.stored_length("s") == 0
    await storage.write("s", offset=0, data=[b"0123456789", b"ab"], rollover_bytes=5)
    await storage.write("s", offset=12, data=[b"cdef"], rollover_bytes=5)
    assert await chunk_lengths(chunks, "s") == {
        "0.E1.1": 5,
        "5.E1.2": 5,
        "10.E1.3": 5,
        "15.E1.4": 1,
    }
    assert await storage.stored_length("s") == 16
    assert await read_all(storage, "s", 0, 16) == b"0123456789abcdef"
    assert await storage.read("s", offset=3, length=100) == b"34"


async def test_each_chunk_of_a_long_write_is_told_when_it_is_stored() -> None:
    chunks = FaultyChunkStorage(MemoryChunkStorage())
    storage = owner(chunks)
    told: list[int] = []

    async def write() -> None:
        await storage.write(
            "s", offset=0, data=[b"0123456789"], rollover_bytes=4, on_stored=told.append
        )

    chunks.next_fault = lambda _: Fault.REFUSED if len(told) == 2 else Fault.NONE
    with pytest.raises(StorageError):
        await write()
    assert told == [4, 8]
    assert await storage.stored_length("s") == 8
    chunks.next_fault = lambda _: Fault.NONE
    await write()
    assert told == [4, 8, 8, 10]


async def test_the_default_rollover_is_the_cap() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    piece = bytes(8 * 1024 * 1024)
    await storage.write("s", offset=0, data=[piece] * 17, rollover_bytes=2**40)
    lengths = await chunk_lengths(chunks, "s")
    assert list(lengths.values()) == [ROLLOVER_BYTES_MAX, len(piece)]


async def test_a_first_write_may_start_anywhere() -> None:
    storage = owner(MemoryChunkStorage())
    await storage.write("s", offset=1000, data=[b"data"], rollover_bytes=100)
    assert await storage.stored_length("s") == 1004
    assert await storage.read("s", offset=1000, length=4) == b"data"
    with pytest.raises(InvalidChunkOffsetError):
        await storage.read("s", offset=999, length=1)


async def test_a_write_beyond_the_end_is_refused() -> None:
    storage = owner(MemoryChunkStorage())
    await storage.write("s", offset=0, data=[b"data"], rollover_bytes=100)
    with pytest.raises(InvalidChunkOffsetError):
        await storage.write("s", offset=5, data=[b"x"], rollover_bytes=100)


async def test_a_repeated_write_changes_nothing() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    for _ in range(3):
        await storage.write("s", offset=0, data=[b"0123456789ab"], rollover_bytes=5)
        await storage.write("s", offset=3, data=[b"3456789abc"], rollover_bytes=5)
    assert list((await chunk_lengths(chunks, "s")).values()) == [5, 5, 3]
    assert await read_all(storage, "s", 0, 13) == b"0123456789abc"


async def test_an_append_costs_one_write() -> None:
    chunks = FaultyChunkStorage(MemoryChunkStorage())
    storage = owner(chunks)
    await storage.write("s", offset=0, data=[b"first"], rollover_bytes=0)
    before = chunks.call_count
    for number in range(10):
        await storage.write("s", offset=5 + number, data=[b"x"], rollover_bytes=0)
        assert await storage.stored_length("s") == 6 + number
    assert chunks.call_count == before + 10


async def test_truncation_frees_whole_chunks_and_keeps_the_length() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    await storage.write("s", offset=0, data=[bytes(range(20))], rollover_bytes=6)
    await storage.truncate("s", offset=13)
    assert len(await chunk_lengths(chunks, "s")) == 4, "readers may still be at it"
    await storage.collect()
    assert await chunk_lengths(chunks, "s") == {"12.E1.3": 6, "18.E1.4": 2}
    await storage.truncate("s", offset=20)
    await storage.collect()
    assert await chunk_lengths(chunks, "s") == {}
    storage = owner(chunks, 2)
    assert await storage.stored_length("s") == 20
    await storage.write("s", offset=20, data=[b"more"], rollover_bytes=6)
    assert await storage.read("s", offset=20, length=10) == b"more"
    await storage.write("s", offset=10, data=[b"truncated!more"], rollover_bytes=6)
    assert await chunk_lengths(chunks, "s") == {"20.E2.1": 4}
    await storage.truncate("missing", offset=10)


async def test_segments_whose_names_begin_alike_do_not_mix() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    names = ["s", "s$attributes.index", "s$1", "s$00000000000000000000", "s1", "s$" + "9" * 21]
    for name in names:
        await storage.write(name, offset=0, data=[name.encode()], rollover_bytes=3)
    fresh = owner(chunks, 2)
    for name in names:
        assert await read_all(fresh, name, 0, len(name)) == name.encode()
    await fresh.delete("s")
    await fresh.collect()
    for name in names[1:]:
        assert await fresh.stored_length(name) == len(name)


async def test_a_chunk_that_lost_bytes_is_damage() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    await storage.write("s", offset=0, data=[bytes(20)], rollover_bytes=0)
    assert await owner(chunks, 2).stored_length("s") == 20
    third = owner(chunks, 3)
    [name] = await users_chunks(chunks)
    await third.write("s", offset=20, data=[bytes(5)], rollover_bytes=0)
    await chunks.delete(name)
    with pytest.raises(StorageError):
        await third.read("s", offset=0, length=1)
    assert await third.read("s", offset=20, length=5) == bytes(5)


async def test_a_merge_of_long_chunks_moves_them_without_reading() -> None:
    memory = MemoryChunkStorage()
    calls: list[str] = []
    chunks = FaultyChunkStorage(memory, next_delay=lambda call: calls.append(call) or 0.0)
    storage = owner(chunks)
    await storage.write("target", offset=0, data=[b"head"], rollover_bytes=50)
    await storage.write("source", offset=0, data=[b"0123456789" * 3], rollover_bytes=10)
    source_chunks = await chunk_lengths(memory, "source")
    calls.clear()
    await storage.concat("target", offset=4, source="source", length=30, rollover_bytes=50)
    assert calls == ["write"]
    assert await storage.read("source", offset=5, length=9) == b"56789", "as long as it is there"
    await storage.delete("source")
    await storage.write("target", offset=34, data=[b"tail"], rollover_bytes=50)
    for each in (storage, owner(memory, 2)):
        assert await each.stored_length("source") == 0
        await each.collect()
        assert await chunk_lengths(memory, "source") == source_chunks
        assert await read_all(each, "target", 0, 38) == b"head" + b"0123456789" * 3 + b"tail"
    await each.truncate("target", offset=14)
    await each.collect()
    assert len(await chunk_lengths(memory, "source")) == 2
    await each.delete("target")
    await each.collect()
    assert await users_chunks(memory) == []


async def test_a_merge_of_short_chunks_copies_them() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    await storage.write("target", offset=0, data=[b"head"], rollover_bytes=50)
    await storage.write("source", offset=0, data=[b"0123456789"], rollover_bytes=3)
    await storage.concat("target", offset=4, source="source", length=10, rollover_bytes=50)
    await storage.delete("source")
    await storage.collect()
    assert await chunk_lengths(chunks, "target") == {"0.E1.1": 14}
    assert await users_chunks(chunks) == [f"target${0:020}.E1.1"]


@pytest.mark.parametrize("rollover_bytes", [3, 100])
async def test_a_concat_can_be_repeated_after_its_source_is_gone(rollover_bytes: int) -> None:
    storage = owner(MemoryChunkStorage())
    await storage.write("target", offset=0, data=[b"head"], rollover_bytes=5)
    await storage.write("source", offset=0, data=[b"0123456789"], rollover_bytes=rollover_bytes)
    for _ in range(2):
        await storage.concat("target", offset=4, source="source", length=10, rollover_bytes=5)
    await storage.delete("source")
    await storage.concat("target", offset=4, source="source", length=10, rollover_bytes=5)
    assert await read_all(storage, "target", 0, 14) == b"head0123456789"
    with pytest.raises(ChunkNotFoundError):
        await storage.concat("target", offset=14, source="source", length=10, rollover_bytes=5)
    await storage.concat("target", offset=14, source="nothing", length=0, rollover_bytes=5)


async def test_bytes_that_a_late_write_brings_back_count_for_nobody() -> None:
    chunks = MemoryChunkStorage()
    first = owner(chunks)
    await first.write("s", offset=0, data=[b"01234"], rollover_bytes=100)
    [name] = await users_chunks(chunks)
    second = owner(chunks, 2)
    await second.write("s", offset=5, data=[b"56789"], rollover_bytes=100)
    await chunks.write(name, offset=5, data=[b"LATE!"])
    assert await read_all(second, "s", 0, 10) == b"0123456789"
    await second.truncate("s", offset=10)
    await second.collect()
    await chunks.write(name, offset=0, data=[b"01234"])
    for storage, end in ((second, 10), (owner(chunks, 3), 13)):
        assert await storage.stored_length("s") == end
        await storage.write("s", offset=10, data=[b"abc"], rollover_bytes=100)
        assert await storage.read("s", offset=10, length=3) == b"abc"
        with pytest.raises(InvalidChunkOffsetError):
            await storage.read("s", offset=0, length=1)


async def test_an_owner_that_was_replaced_deletes_nothing() -> None:
    chunks = MemoryChunkStorage()
    first = owner(chunks)
    await first.write("s", offset=0, data=[b"0123456789"], rollover_bytes=5)
    second = owner(chunks, 2)
    assert await second.stored_length("s") == 10
    await first.truncate("s", offset=5)  # it does not know yet
    with pytest.raises(FencedOutError):
        await first.collect()
    with pytest.raises(FencedOutError):
        await first.delete("s")
    assert await read_all(second, "s", 0, 10) == b"0123456789"


async def test_what_an_owner_makes_after_it_was_replaced_is_collected() -> None:
    chunks = MemoryChunkStorage()
    first = owner(chunks)
    await first.write("s", offset=0, data=[b"01234"], rollover_bytes=5)
    second = owner(chunks, 2)
    assert await second.stored_length("s") == 5
    await first.write("s", offset=5, data=[b"56789"], rollover_bytes=5)
    assert len(await users_chunks(chunks)) == 2
    await second.collect()
    assert len(await users_chunks(chunks)) == 1
    assert await read_all(second, "s", 0, 5) == b"01234"


async def test_an_epoch_is_used_once() -> None:
    chunks = MemoryChunkStorage()
    await owner(chunks, 7).delete("s")
    with pytest.raises(StorageError, match="was used before"):
        await owner(chunks, 7).delete("s")
    with pytest.raises(FencedOutError):
        await owner(chunks, 6).stored_length("s")
    assert await owner(chunks, 8).stored_length("s") == 0


@pytest.mark.parametrize("shown", ["nothing", "an earlier state"])
async def test_an_opening_that_sees_a_part_of_tier_2_leaves_nothing_and_is_repeated(
    shown: str,
) -> None:
    """Earlier it wrote a snapshot without chunks, which later owners took for the truth."""
    chunks = HidingChunkStorage()
    first = owner(chunks)
    await first.write("s", offset=0, data=[b"01234"], rollover_bytes=5)
    earlier = await chunks.names()
    second = owner(chunks, 2)
    await second.write("s", offset=5, data=[b"56789"], rollover_bytes=5)
    chunks.listed = frozenset() if shown == "nothing" else earlier
    third = owner(chunks, 3)
    for _ in range(2):
        with pytest.raises(StorageAbsentError, match=r"does not list .*claim-0000000003"):
            await third.recovered(needed={"s": 10})
    assert not any("snapshot-0000000003" in name for name in await chunks.names())
    chunks.listed = None
    assert await read_all(third, "s", 0, 10) == b"0123456789"
    assert await read_all(owner(chunks, 4), "s", 0, 10) == b"0123456789"


async def test_an_owner_that_does_not_see_its_own_claim_deletes_nothing() -> None:
    chunks = HidingChunkStorage()
    first = owner(chunks)
    await first.write("s", offset=0, data=[b"0123456789"], rollover_bytes=5)
    listed = await chunks.names()
    second = owner(chunks, 2)
    assert await second.stored_length("s") == 10
    await first.truncate("s", offset=5)  # it does not know yet
    chunks.listed = listed - {"_system/chunks-0$claim-0000000001-0000000000"}
    with pytest.raises(StorageAbsentError):
        await first.collect()
    chunks.listed = None
    assert await read_all(second, "s", 0, 10) == b"0123456789"


async def test_a_write_that_failed_is_not_appended_to() -> None:
    memory = MemoryChunkStorage()
    faults = [Fault.PARTIAL]
    chunks = FaultyChunkStorage(memory)
    storage = owner(chunks)
    await storage.write("s", offset=0, data=[b"01234"], rollover_bytes=100)
    chunks.next_fault = lambda _: faults.pop() if faults else Fault.NONE
    with pytest.raises(StorageError):
        await storage.write("s", offset=5, data=[b"WRONG..."], rollover_bytes=100)
    assert await storage.stored_length("s") == 5
    await storage.write("s", offset=5, data=[b"56789"], rollover_bytes=100)
    assert await chunk_lengths(memory, "s") == {"0.E1.1": 9, "5.E1.2": 5}
    for each in (storage, owner(memory, 2)):
        assert await read_all(each, "s", 0, 10) == b"0123456789"


class SlowChunks(MemoryChunkStorage):
    """Chunk storage in which writes of users' chunks wait for ``gate``, once there is one."""

    gate: trio.Event | None = None

    def __init__(self) -> None:
        super().__init__()
        self.entered = trio.Event()

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        if self.gate is not None and not name.startswith("_system/"):
            self.entered.set()
            await self.gate.wait()
        await super().write(name, offset=offset, data=data, meanwhile=meanwhile)


async def test_a_write_to_a_chunk_that_is_closed_meanwhile_is_not_acknowledged() -> None:
    chunks = SlowChunks()
    storage = owner(chunks)
    await storage.write("s", offset=0, data=[bytes(100)], rollover_bytes=0)
    chunks.gate = trio.Event()
    refused = False

    async def write() -> None:
        nonlocal refused
        try:
            await storage.write("s", offset=100, data=[b"y" * 50], rollover_bytes=0)
        except StorageError:
            refused = True

    async with trio.open_nursery() as nursery:
        nursery.start_soon(write)
        await chunks.entered.wait()
        await storage.settle()
        chunks.gate.set()
    assert refused
    assert await storage.stored_length("s") == 100
    await storage.write("s", offset=100, data=[b"y" * 50], rollover_bytes=0)
    later = owner(chunks, 2)
    assert await read_all(later, "s", 100, 150) == b"y" * 50


async def test_garbage_goes_after_the_delay(autojump_clock: trio.testing.MockClock) -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    await storage.write("s", offset=0, data=[b"0123456789"], rollover_bytes=5)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.run)
        await trio.sleep(1000)
        await storage.delete("s")
        await trio.sleep(59)
        assert len(await users_chunks(chunks)) == 2
        await trio.sleep(2)
        assert await users_chunks(chunks) == []
        nursery.cancel_scope.cancel()


async def test_garbage_does_not_wait_for_that_of_the_next_delay(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    for name in "abcdef":
        await storage.write(name, offset=0, data=[b"0123456789"], rollover_bytes=0)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.run)
        await trio.sleep(1000)
        began = trio.current_time()
        for name in "abcdef":
            await storage.delete(name)
            await trio.sleep(7)
        gone = []
        while left := len(await users_chunks(chunks)):
            gone += [trio.current_time() - began] * (6 - left - len(gone))
            await trio.sleep(1)
        gone += [trio.current_time() - began] * (6 - len(gone))
        # Each has its delay, and waits for the next round, of which there are few.
        assert all(60 <= seconds - 7 * number <= 82 for number, seconds in enumerate(gone)), gone
        nursery.cancel_scope.cancel()


async def test_garbage_that_a_crash_left_is_collected_by_the_next_owner() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    await storage.write("s", offset=0, data=[b"0123456789"], rollover_bytes=5)
    await storage.delete("s")
    await owner(chunks, 2).collect()
    assert await users_chunks(chunks) == []


async def test_a_segment_whose_chunks_were_moved_can_only_be_deleted() -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks, move_bytes_min=1)
    await storage.write("t", offset=0, data=[b"0123"], rollover_bytes=0)
    await storage.write("s", offset=0, data=[b"4567"], rollover_bytes=0)
    await storage.concat("t", offset=4, source="s", length=4, rollover_bytes=0)
    with pytest.raises(InvalidChunkOffsetError, match="only be deleted"):
        await storage.write("s", offset=4, data=[b"89"], rollover_bytes=0)
    await storage.write("s", offset=0, data=[b"4567"], rollover_bytes=0)
    with pytest.raises(InvalidChunkOffsetError, match="only be deleted"):
        await storage.truncate("s", offset=4)
    # What a recovery repeats of the time before the merge changes nothing.
    await storage.truncate("s", offset=0)
    await storage.concat("t", offset=4, source="s", length=4, rollover_bytes=0)
    with pytest.raises(InvalidChunkOffsetError, match="only be deleted"):
        await storage.concat("u", offset=0, source="s", length=4, rollover_bytes=0)
    with pytest.raises(InvalidChunkOffsetError, match="only be deleted"):
        await storage.concat("s", offset=4, source="t", length=8, rollover_bytes=0)
    await storage.delete("s")
    await storage.collect()
    assert await read_all(owner(chunks, 2), "t", 0, 8) == b"01234567"
