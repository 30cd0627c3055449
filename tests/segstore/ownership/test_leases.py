"""Leases on chunks, and the deletions that wait for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import MockClock

from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.garbage import GARBAGE_DELAY_SECONDS
from segstore.chunks.scan_plan import ScanPlan
from segstore.errors import InvalidRequestError, StorageError
from segstore.ownership import leases as leases_module
from segstore.ownership.leases import LEASE_SECONDS_MAX, ChunkLeases
from segstore.tiers.api import StoredRange
from segstore.tiers.memory import MemoryChunkStorage
from segstore.tiers.vendor import ReadableTier, TierAddress

LEASE, OTHER = bytes(16), bytes(15) + b"\1"
SEGMENT = "scope/stream/0.S-1"


async def locate(name: str) -> list[StoredRange]:
    await trio.lowlevel.checkpoint()
    return [StoredRange(0, 2**40, f"path of {name}")]


READABLE = ReadableTier(TierAddress("file:///somewhere", "0" * 32), locate)


def owner(
    chunks: MemoryChunkStorage, epoch: int = 1, readable: ReadableTier | None = READABLE
) -> ChunkedSegmentStorage:
    return ChunkedSegmentStorage(chunks, epoch=lambda: epoch, readable=readable)


@asynccontextmanager
async def running(storage: ChunkedSegmentStorage) -> AsyncIterator[None]:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.run)
        yield
        nursery.cancel_scope.cancel()


async def names(chunks: MemoryChunkStorage) -> list[str]:
    listed = await chunks.list_chunks("")
    return [each.name for each in listed if not each.name.startswith("_system/")]


async def plan(
    storage: ChunkedSegmentStorage, start: int, end: int, *, lease: bytes = LEASE
) -> ScanPlan:
    found = await storage.plan_scan(
        SEGMENT, start=start, end=end, lease_id=lease, lease_seconds=LEASE_SECONDS_MAX
    )
    assert found is not None
    return found


async def write(storage: ChunkedSegmentStorage, length: int) -> None:
    await storage.write(SEGMENT, offset=0, data=[bytes(length)], rollover_bytes=10)


async def test_a_plan_has_the_chunks_of_its_range_and_where_they_are() -> None:
    storage = owner(MemoryChunkStorage())
    await write(storage, 35)
    found = await plan(storage, 12, 31)
    assert [(each.chunk.start, each.chunk.length) for each in found.chunks] == [
        (10, 10),
        (20, 10),
        (30, 5),
    ]
    assert (found.planned_end, found.stored_end) == (31, 31)
    for each in found.chunks:
        assert each.ranges == (StoredRange(0, 2**40, f"path of {each.chunk.name}"),)
    behind = await plan(storage, 40, 50)
    assert not behind.chunks
    assert behind.planned_end == 40


async def test_a_long_plan_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("segstore.chunks.scan_plan.PLANNED_CHUNKS_MAX", 3)
    storage = owner(MemoryChunkStorage())
    await write(storage, 75)
    position, starts = 0, []
    while position < 75:
        found = await plan(storage, position, 75)
        assert found.stored_end == 75
        starts += [each.chunk.start for each in found.chunks]
        position = found.planned_end
    assert starts == list(range(0, 75, 10))


async def test_storage_that_others_cannot_read_has_no_plans() -> None:
    storage = owner(MemoryChunkStorage(), readable=None)
    await write(storage, 10)
    found = await storage.plan_scan(
        SEGMENT, start=0, end=10, lease_id=LEASE, lease_seconds=LEASE_SECONDS_MAX
    )
    assert found is None


async def test_deletion_of_chunks_waits_for_leases(autojump_clock: MockClock) -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    await write(storage, 30)
    async with running(storage):
        held = [each.chunk.name for each in (await plan(storage, 0, 20)).chunks]
        await storage.delete(SEGMENT)
        await trio.sleep(LEASE_SECONDS_MAX / 2)
        assert await names(chunks) == held
        assert await storage.hold_chunks(
            None, lease_id=LEASE, names=held, lease_seconds=LEASE_SECONDS_MAX
        )
        await trio.sleep(LEASE_SECONDS_MAX - 1)
        assert await names(chunks) == held
        assert await storage.hold_chunks(
            None, lease_id=OTHER, names=held[:1], lease_seconds=LEASE_SECONDS_MAX
        )
        await storage.hold_chunks(None, lease_id=LEASE, names=[], lease_seconds=0)
        await trio.sleep(2 * GARBAGE_DELAY_SECONDS)
        assert await names(chunks) == held[:1]
        await trio.sleep(LEASE_SECONDS_MAX)
        assert await names(chunks) == []
        assert not await storage.hold_chunks(
            None, lease_id=OTHER, names=held[:1], lease_seconds=LEASE_SECONDS_MAX
        )


async def test_chunks_of_a_truncated_segment_are_held_too(autojump_clock: MockClock) -> None:
    chunks = MemoryChunkStorage()
    storage = owner(chunks)
    await write(storage, 30)
    async with running(storage):
        await plan(storage, 5, 8)
        await storage.truncate(SEGMENT, offset=25)
        await trio.sleep(3 * GARBAGE_DELAY_SECONDS)
        left = await names(chunks)
        assert len(left) == 2, "the one that is held, and the one with bytes behind 25"


async def test_a_lease_lasts_through_a_crash_of_its_owner(autojump_clock: MockClock) -> None:
    chunks = MemoryChunkStorage()
    first = owner(chunks)
    await write(first, 30)
    held = [each.chunk.name for each in (await plan(first, 0, 30)).chunks]
    await first.delete(SEGMENT)
    second = owner(chunks, epoch=2)  # which knows of no lease
    async with running(second):
        await trio.sleep(LEASE_SECONDS_MAX - 1)
        assert await names(chunks) == held
        assert await second.hold_chunks(
            None, lease_id=LEASE, names=held[1:], lease_seconds=LEASE_SECONDS_MAX
        )
        await trio.sleep(2 * GARBAGE_DELAY_SECONDS)
        assert await names(chunks) == held[1:]
    third = owner(chunks, epoch=3)
    async with running(third):
        await trio.sleep(LEASE_SECONDS_MAX)
        assert await names(chunks) == held[1:], "the second gave a lease"


async def test_after_an_owner_that_gave_no_lease_nothing_waits(autojump_clock: MockClock) -> None:
    chunks = MemoryChunkStorage()
    first = owner(chunks)
    await write(first, 30)
    await first.delete(SEGMENT)
    async with running(owner(chunks, epoch=2)):
        await trio.sleep(3 * GARBAGE_DELAY_SECONDS)
        assert await names(chunks) == []


async def test_chunks_that_are_unknown_or_being_deleted_are_not_held() -> None:
    storage = owner(MemoryChunkStorage())
    await write(storage, 10)
    assert not await storage.hold_chunks(
        SEGMENT, lease_id=LEASE, names=["another"], lease_seconds=1
    )
    table = ChunkLeases()
    with table.deleting(["a", "b"]) as free:
        assert free == ["a", "b"]
        assert not table.may_hold(["a"], known=["a"])
    assert table.may_hold(["a"], known=["a"])


async def test_leases_have_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leases_module, "HELD_NAMES_MAX", 3)
    table = ChunkLeases()
    table.hold(LEASE, ["a", "b"], 10)
    table.hold(LEASE, ["a", "c"], 10)
    with pytest.raises(InvalidRequestError, match="readers hold 3 chunks"):
        table.hold(OTHER, ["d"], 10)
    table.end(LEASE)
    table.hold(OTHER, ["d"], 10)


async def test_a_plan_whose_chunks_cannot_be_found_fails_as_tier_two_does() -> None:
    async def fail(name: str) -> list[StoredRange]:
        await trio.lowlevel.checkpoint()
        raise StorageError(f"{name} cannot be looked up")

    readable = ReadableTier(READABLE.address, fail)
    storage = owner(MemoryChunkStorage(), readable=readable)
    await write(storage, 35)
    with pytest.raises(StorageError, match="cannot be looked up"):
        await plan(storage, 0, 35)
