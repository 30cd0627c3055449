"""While tier 2 is away each bound holds, and what relieves goes on; then all goes on again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import NoSuchSegmentError, SegmentSealedError, SegmentStoreError
from segstore.model.attributes import AttributeUpdate, AttributeUpdateType
from segstore.model.metadata import ContainerMetadata
from segstore.model.operations import MapOperation
from segstore.process.config import (
    ATTRIBUTE_CHECKPOINT_BYTES,
    GIB,
    MIB,
    SEGMENT_CHECKPOINT_BYTES,
    ConnectionSettings,
    SegmentStoreConfig,
    ThrottleSettings,
)
from segstore.throttling.throttle import ThrottlePolicy
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from segstore.writer.flush_policy import FlushPolicy
from support.chunk_owners import next_owner
from support.faults.faulty_chunks import Fault, FaultyChunkStorage

SYSTEM = "_system/_tables/t"
settle = trio.testing.wait_all_tasks_blocked


class Tier2:
    """A tier 2 that takes nothing while it is ``away``; otherwise each call takes some time."""

    def __init__(self) -> None:
        self.away = True
        self.call_seconds = 0.0
        self.chunks = FaultyChunkStorage(
            MemoryChunkStorage(),
            next_fault=lambda call: Fault.REFUSED if self.away else Fault.NONE,
            next_delay=lambda call: self.call_seconds,
        )


@asynccontextmanager
async def opened(
    tier_2: Tier2, policy: ThrottlePolicy, *, cache_bytes: int = 64 * MIB
) -> AsyncIterator[Container]:
    async with open_container(
        0,
        MemoryDataLogFactory(),
        next_owner(tier_2.chunks),
        CacheManager(StreamingCache(cache_bytes)),
        drain_seconds=0.1,
        flush_policy=FlushPolicy(held_bytes_max=MIB),
        throttling=policy,
    ) as container:
        for name in ("a", "b", "c", SYSTEM):
            await container.create_segment(name)
        yield container


class Done:
    """A counter of the completions of calls that were made without waiting."""

    def __init__(self) -> None:
        self.answers: list[SegmentStoreError | None] = []

    @property
    def count(self) -> int:
        return len(self.answers)

    def __call__(self, error: SegmentStoreError | None, number: int) -> None:
        self.answers.append(error)


def value_of(container: Container, name: str) -> int:
    [gauge] = [each for each in container.throttle_snapshot().gauges if each.name == name]
    return gauge.value


async def stopped(done: Done) -> int:
    """Wait, on a clock that jumps, until nothing is answered any more; how much was."""
    count = -1
    while count != done.count:
        count = done.count
        await trio.sleep(3)
    return count


async def test_clients_that_invent_attributes_stop_at_the_bound_and_go_on(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tier_2 = Tier2()
    bound = 600
    async with opened(tier_2, ThrottlePolicy(attributes_dirty_max=bound)) as container:
        done = Done()

        async def invent() -> None:
            for number in range(3 * bound):
                attribute_id = (number + 1).to_bytes(16, "big")
                update = AttributeUpdate(attribute_id, AttributeUpdateType.REPLACE, number)
                await container.update_attributes("a", [update])
                done(None, 0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(invent)
            assert bound * 3 // 4 < await stopped(done) <= bound + 16
            assert value_of(container, "dirty attributes") <= bound + 16
            tier_2.away = False
        assert done.count == 3 * bound
        assert value_of(container, "dirty attributes") < bound
        last = (3 * bound).to_bytes(16, "big")
        assert await container.get_attributes("a", [last]) == {last: 3 * bound - 1}


async def test_tiny_appends_that_alternate_stop_at_the_bound_of_operations(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tier_2 = Tier2()
    tier_2.away = False
    tier_2.call_seconds = 10
    bound = 400
    async with opened(tier_2, ThrottlePolicy(operations_max=bound)) as container:
        await container.append("c", bytes(5 * MIB))
        await trio.sleep(1)  # tier 2 is busy with this
        most = 0
        for number in range(3 * bound):
            await container.append("ab"[number % 2], b"x")
            most = max(most, value_of(container, "operations"))
        assert bound * 3 // 4 < most <= bound + 16
        assert container.segment_info("a").length == 3 * bound // 2
        tier_2.call_seconds = 0


async def test_the_log_stops_writers_before_tier_1_is_full(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tier_2 = Tier2()
    bound = 8 * MIB
    async with opened(tier_2, ThrottlePolicy(log_bytes_max=bound)) as container:
        done = Done()

        async def write() -> None:
            for _ in range(200):
                await container.append("a", bytes(100_000))
                done(None, 0)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            assert bound * 3 // 4 < 100_000 * await stopped(done) < bound + 17 * 100_000
            assert value_of(container, "log bytes") < bound + 17 * 100_000
            tier_2.away = False
        assert container.segment_info("a").length == 200 * 100_000


@pytest.mark.parametrize(
    ("policy", "cache_bytes"),
    [(ThrottlePolicy(), 20 * MIB), (ThrottlePolicy(log_bytes_max=60 * MIB), 128 * MIB)],
    ids=["cache", "log"],
)
async def test_what_relieves_and_the_system_go_before_what_is_held_back(
    autojump_clock: trio.testing.MockClock, policy: ThrottlePolicy, cache_bytes: int
) -> None:
    tier_2 = Tier2()
    async with opened(tier_2, policy, cache_bytes=cache_bytes) as container:
        done = Done()
        for _ in range(30):
            await container.append("b", bytes(100_000))
        for _ in range(800):
            container.append_nowait("a", bytes(100_000), on_complete=done)
        count = await stopped(done)
        assert 0 < count < 800
        # Nothing here waits for tier 2: it is away.
        with trio.fail_after(1):
            assert await container.append(SYSTEM, b"the cluster goes on") == 19
            await container.truncate_segment("b", offset=1_000_000)
            assert await container.seal_segment("c") == 0
            await container.wait_in_flight("c")
            assert await container.seal_segment("b") == 3_000_000
        assert done.count == count
        assert container.segment_info("b").start_offset == 1_000_000
        with trio.fail_after(1):
            await container.delete_segment("b")
        with pytest.raises(NoSuchSegmentError):
            container.segment_info("b")
        if cache_bytes < 64 * MIB:
            assert await stopped(done) > count, "what was deleted has made room"
        tier_2.away = False
        await container.wait_in_flight("a")
        assert done.answers == [None] * 800


async def test_a_seal_does_not_wait_behind_appends_that_have_no_room(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tier_2 = Tier2()
    async with opened(tier_2, ThrottlePolicy(), cache_bytes=8 * MIB) as container:
        done, late = Done(), Done()
        for _ in range(100):
            container.append_nowait("a", bytes(100_000), on_complete=done)
        count = await stopped(done)
        assert 0 < count < 100
        with trio.fail_after(1):
            length = await container.seal_segment("a")
        container.append_nowait("a", b"too late", on_complete=late)
        assert length == count * 100_000
        tier_2.away = False
        await stopped(late)
        refused = [type(error) for error in done.answers[count:] + late.answers]
        assert refused == [SegmentSealedError] * (100 - count + 1)


async def test_a_merge_waits_behind_appends_to_its_source_that_have_no_room(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tier_2, source = Tier2(), "_system/source"
    async with opened(tier_2, ThrottlePolicy(), cache_bytes=8 * MIB) as container:
        await container.create_segment(source)
        filled, appended, lengths = Done(), Done(), list[int]()
        for _ in range(100):
            container.append_nowait(SYSTEM, bytes(100_000), on_complete=filled)
        assert 0 < await stopped(filled) < 100
        container.append_nowait(source, bytes(1_000_000), on_complete=appended)

        async def merge() -> None:
            lengths.append(await container.merge_segment("_system/target", source))

        await container.create_segment("_system/target")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(merge)
            await stopped(appended)
            assert lengths == []
            tier_2.away = False
        assert appended.answers == [None]
        assert lengths == [1_000_000]


async def test_system_segments_stop_too_before_the_memory_is_full(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tier_2 = Tier2()
    async with opened(tier_2, ThrottlePolicy(), cache_bytes=8 * MIB) as container:
        users, system = Done(), Done()
        for _ in range(100):
            container.append_nowait("a", bytes(100_000), on_complete=users)
            container.append_nowait(SYSTEM, bytes(10_000), on_complete=system)
        await stopped(users)
        for _ in range(1000):
            container.append_nowait(SYSTEM, bytes(10_000), on_complete=system)
        assert 100 <= await stopped(system) < 1100
        assert value_of(container, "cache bytes") <= 0.95 * 8 * MIB
        tier_2.away = False
        await container.wait_in_flight(SYSTEM)
        await container.wait_in_flight("a")
        assert users.answers == [None] * 100
        assert system.answers == [None] * 1100


async def test_the_batching_delay_gathers_what_comes_meanwhile(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tier_2 = Tier2()
    tier_2.away = False
    policy = ThrottlePolicy(batching_seconds_max=0.05)
    async with opened(tier_2, policy) as container:
        throttle = container.parts.throttle
        throttle.record_write(length=0, seconds=1)
        assert throttle.batching_seconds() > 0
        began = trio.current_time()
        await container.append("a", b"x")
        assert 0 < trio.current_time() - began <= 0.05


@pytest.mark.parametrize(
    "changes",
    [
        {"journal_bytes_max": 7 * 64 * MIB},
        {"journal_file_bytes": 2 * GIB},
        {"journal_file_bytes": 64 * MIB + 1},
        {"journal_file_bytes": MIB},
        {"journal_interval_seconds_min": -0.001},
        {"journal_interval_seconds_min": 0.2},
        {"container_count": 2000},
        {"container_count": 70, "journal_bytes_max": GIB},
        {
            "journal_bytes_max": GIB,
            "throttling": ThrottleSettings(attributes_dirty_max=8 * MIB),
        },
        {"cache_bytes_max": MIB},
        {"throttling": ThrottleSettings(operations_max=0)},
        {"throttling": ThrottleSettings(attributes_dirty_max=0)},
        {"throttling": ThrottleSettings(delay_seconds_max=-1)},
        {"throttling": ThrottleSettings(batching_seconds_max=-1)},
    ],
)
def test_a_configuration_that_could_stand_still_is_refused(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=r"ha(s|ve) to be|is a multiple of"):
        SegmentStoreConfig(data_dir=tmp_path, **changes)


def test_what_a_checkpoint_may_have_is_counted(tmp_path: Path) -> None:
    metadata = ContainerMetadata(0)
    create = MapOperation("scope/" + "n" * 290, {})
    create.segment_id = 2**62
    metadata.apply(create, 2**62)
    one = len(metadata.snapshot(1))
    metadata.segments[2**62].attribute_memory.start_with(
        {number.to_bytes(16, "big"): 2**62 for number in range(1000)}, 2**62
    )
    config = SegmentStoreConfig(data_dir=tmp_path)
    assert one <= SEGMENT_CHECKPOINT_BYTES
    assert len(metadata.snapshot(1)) <= 2 * one + 1000 * ATTRIBUTE_CHECKPOINT_BYTES
    assert config.checkpoint_bytes_max < 8 * MIB


def test_a_container_flushes_before_writers_are_slowed_down(tmp_path: Path) -> None:
    for files in (8, 9, 16, 128):
        config = SegmentStoreConfig(
            data_dir=tmp_path,
            journal_file_bytes=64 * MIB,
            journal_bytes_max=files * 64 * MIB,
        )
        assert config.held_bytes_max >= 2 * 64 * MIB
        assert config.held_bytes_max + 64 * MIB < 0.75 * config.log_bytes_max
        assert config.log_bytes_max < config.journal_bytes_max


async def test_a_container_that_would_flush_too_late_is_not_opened() -> None:
    with pytest.raises(ValueError, match="too late"):
        async with opened(Tier2(), ThrottlePolicy(log_bytes_max=MIB)):
            pytest.fail("it was opened")


def test_what_connections_hold_is_bounded_by_the_cache(tmp_path: Path) -> None:
    small = SegmentStoreConfig(data_dir=tmp_path, cache_bytes_max=64 * MIB)
    bounded = small.bounded_connections(100)
    assert bounded.connections_max == 100
    assert bounded.outstanding_bytes_total_max == 4 * MIB
    assert bounded.outstanding_bytes_max == 2 * MIB
    assert bounded.outstanding_bytes_free == MIB // 4
    large = SegmentStoreConfig(data_dir=tmp_path, cache_bytes_max=64 * GIB)
    assert large.bounded_connections(1_000_000) == ConnectionSettings()
