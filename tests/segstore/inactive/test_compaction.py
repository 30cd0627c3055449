"""Records that do not count any more make room, and no others."""

from __future__ import annotations

from random import Random

import pytest
import trio

from segstore.container import Container
from segstore.errors import StorageError
from segstore.inactive.compaction import RecordCompaction
from segstore.model.attributes import RECORDS_LIVE_BYTES
from support.faults.crashing_tiers import CrashingTiers, active_names, checkpoint, evict


def name_of(number: int) -> str:
    return f"scope/stream{number}/0.#epoch.0"


def compaction_of(container: Container, bytes_min: int = 0) -> RecordCompaction:
    compaction = container.parts.eviction.compaction  # type: ignore[union-attr]
    assert isinstance(compaction, RecordCompaction)
    compaction._bytes_min = bytes_min
    return compaction


async def leave_often(container: Container, *, count: int, times: int) -> None:
    """Make this many segments leave.

    All but the first ten come back and leave again, repeatedly.
    """
    for number in range(count):
        await container.create_segment(name_of(number))
    for _ in range(times):
        await evict(container)
        for number in range(10, count):
            await container.append(name_of(number), b"x")
    await evict(container)


async def compact(container: Container) -> None:
    compaction = compaction_of(container)
    with trio.fail_after(30):
        while compaction.is_due:
            assert await compaction.step()


async def test_the_head_of_the_records_goes_and_nobody_sees_it(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        await leave_often(container, count=50, times=4)
        records = container.parts.metadata.records
        assert records is not None
        assert compaction_of(container).is_due
        before = records.length
        await compact(container)
        assert records.start_offset > before // 3
        live = records.attributes[RECORDS_LIVE_BYTES]
        assert live <= records.length - records.start_offset <= 2 * live
        assert active_names(container) == set()
        for number in range(50):
            await container.activate(name_of(number))
            assert container.segment_info(name_of(number)).length == (4 if number >= 10 else 0)


async def test_all_records_that_count_are_written_anew_when_the_end_is_reached(
    tiers: CrashingTiers,
) -> None:
    async with tiers.open() as container:
        await leave_often(container, count=30, times=1)
        records = container.parts.metadata.records
        assert records is not None
        live = records.attributes[RECORDS_LIVE_BYTES]
        compaction = compaction_of(container)
        assert await compaction.step()
        assert records.length - records.start_offset == live
        assert records.attributes[RECORDS_LIVE_BYTES] == live
        assert active_names(container) == set()


async def test_a_segment_that_is_used_meanwhile_stays_active(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        await leave_often(container, count=20, times=1)
        compaction = compaction_of(container)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.activate, name_of(3))
            nursery.start_soon(container.append, name_of(4), b"x")
            assert await compaction.step()
            nursery.start_soon(container.append, name_of(5), b"x")
        assert {name_of(3), name_of(4), name_of(5)} <= active_names(container)
        assert len(active_names(container)) == 3
        await evict(container)
        assert await container.append(name_of(4), b"x") == 2


async def test_records_are_compacted_where_segments_were_deleted(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        await leave_often(container, count=40, times=0)
        for number in range(40):
            await container.delete_segment(name_of(number))
        records = container.parts.metadata.records
        assert records is not None
        assert records.attributes[RECORDS_LIVE_BYTES] == 0
        await compact(container)
        assert records.start_offset == records.length
        await container.create_segment("s")
        await evict(container)
        assert await container.append("s", b"x") == 1


@pytest.mark.parametrize("seed", range(12))
async def test_a_crash_in_a_compaction_loses_and_brings_back_nothing(seed: int) -> None:
    choose = Random(seed)
    tiers = CrashingTiers()
    lengths: dict[str, int] = {}
    async with tiers.open() as container:
        await leave_often(container, count=40, times=2)
        for number in range(40):
            if choose.random() < 0.3:
                await container.delete_segment(name_of(number))
            else:
                lengths[name_of(number)] = 2 if number >= 10 else 0
        await evict(container)
    for _ in range(3):
        async with tiers.open(drain_seconds=0, page_bytes_max=0) as container:
            compaction = compaction_of(container)
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(compaction.step)
                    for _ in range(choose.randrange(200)):
                        await trio.lowlevel.checkpoint()
                    if choose.random() < 0.5:
                        await checkpoint(container)
                    nursery.cancel_scope.cancel()
            tiers.crash()
    async with tiers.open() as container:
        for number in range(40):
            name = name_of(number)
            await container.activate(name)
            if name in lengths:
                assert container.segment_info(name).length == lengths[name]
            else:
                assert name not in active_names(container)
        await evict(container)
        await compact(container)


async def test_a_tier_2_that_cannot_be_read_keeps_the_records(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        await leave_often(container, count=40, times=2)
    async with tiers.open() as container:
        records = container.parts.metadata.records
        assert records is not None
        tiers.refuse_reads()
        with pytest.raises(StorageError):
            await compaction_of(container).step()
        assert records.start_offset == 0
        tiers.refuse_nothing()
        await compact(container)
        assert records.start_offset > 0
