"""The reserve of space for metadata is spent piece by piece, and made whole before other writes."""

from __future__ import annotations

import pytest

from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.reserve import PIECES, Reserve
from segstore.errors import StorageFullError
from segstore.tiers.memory import MemoryChunkStorage

PREFIX = "_system/chunks-0$"


async def lengths(chunks: MemoryChunkStorage) -> list[int]:
    return [each.length for each in await chunks.list_chunks(f"{PREFIX}reserve-")]


async def test_a_reserve_is_spent_by_pieces_and_made_whole_again() -> None:
    chunks = MemoryChunkStorage()
    reserve = Reserve(chunks, PREFIX, 4000)
    assert not reserve.is_whole
    await reserve.restore()
    assert reserve.is_whole
    assert await lengths(chunks) == [1000] * PIECES
    for left in range(PIECES - 1, -1, -1):
        assert await reserve.spend()
        assert await lengths(chunks) == [1000] * left
    assert not await reserve.spend()
    chunks.capacity_bytes = 3999
    with pytest.raises(StorageFullError):
        await reserve.restore()
    assert not reserve.is_whole
    chunks.capacity_bytes = 4000
    await reserve.restore()
    assert reserve.is_whole


async def test_a_reserve_has_room_for_the_next_snapshot() -> None:
    chunks = MemoryChunkStorage()
    reserve = Reserve(chunks, PREFIX, 4000)
    await reserve.restore()
    reserve.record_snapshot(10_000)
    assert not reserve.is_whole
    await reserve.restore()
    assert await lengths(chunks) == [5000] * PIECES


async def test_a_container_without_a_reserve_makes_none() -> None:
    chunks = MemoryChunkStorage()
    reserve = Reserve(chunks, PREFIX, 0)
    reserve.record_snapshot(10_000)
    assert reserve.is_whole
    assert not await reserve.spend()


async def test_the_next_owner_finds_the_reserve_and_opens_with_it() -> None:
    chunks = MemoryChunkStorage()
    for epoch in (1, 2, 3):
        storage = ChunkedSegmentStorage(chunks, epoch=lambda epoch=epoch: epoch, reserve_bytes=4000)
        assert await storage.stored_length("segment") == 3 * (epoch - 1)
        chunks.capacity_bytes = None
        await storage.write("segment", offset=3 * (epoch - 1), data=[b"abc"], rollover_bytes=0)
        assert await lengths(chunks) == [1000] * PIECES
        chunks.capacity_bytes = chunks.used_bytes
        with pytest.raises(StorageFullError):
            await storage.write("other", offset=0, data=[bytes(5000)], rollover_bytes=0)


async def test_bytes_of_segments_do_not_take_the_space_of_a_reserve() -> None:
    chunks = MemoryChunkStorage()
    storage = ChunkedSegmentStorage(chunks, epoch=lambda: 1, reserve_bytes=4000)
    await storage.write("segment", offset=0, data=[b"abc"], rollover_bytes=0)
    chunks.capacity_bytes = chunks.used_bytes
    await storage.truncate("segment", offset=10)
    assert await lengths(chunks) == [1000] * (PIECES - 1)
    assert chunks.capacity_bytes - chunks.used_bytes > 500, "the bytes below would fit"
    with pytest.raises(StorageFullError):
        await storage.write("segment", offset=10, data=[b"defg"], rollover_bytes=0)
    assert await storage.stored_length("segment") == 10
    chunks.capacity_bytes = None
    await storage.write("segment", offset=10, data=[b"defg"], rollover_bytes=0)
    assert await lengths(chunks) == [1000] * PIECES
    assert await storage.stored_length("segment") == 14


async def test_a_segment_that_is_truncated_behind_its_end_goes_on_there() -> None:
    chunks = MemoryChunkStorage()
    storage = ChunkedSegmentStorage(chunks, epoch=lambda: 1)
    await storage.write("segment", offset=0, data=[b"abc"], rollover_bytes=0)
    await storage.truncate("segment", offset=10)
    assert await storage.stored_length("segment") == 10
    assert await storage.chunks_of("segment") == ()
    await storage.write("segment", offset=10, data=[b"def"], rollover_bytes=0)
    later = ChunkedSegmentStorage(chunks, epoch=lambda: 2)
    assert await later.stored_length("segment") == 13
    assert bytes(await later.read("segment", offset=10, length=3)) == b"def"
