"""The segment store article, container metadata: active and inactive segments."""

from __future__ import annotations

import trio
import trio.testing

from segstore.inactive.eviction import EvictionPolicy
from segstore.model.attributes import AttributeUpdate, AttributeUpdateType
from segstore.testing.crashing_tiers import CrashingTiers, active_names, checkpoint, evict

WRITER = bytes([1]) * 16


async def test_a_segment_is_active_while_it_is_read_or_written(
    tiers: CrashingTiers, autojump_clock: trio.testing.MockClock
) -> None:
    policy = EvictionPolicy(active_count_max=100, idle_seconds_max=60.0)
    async with tiers.open(policy=policy) as container:
        for name in ("read", "written", "idle"):
            await container.create_segment(name)
            await container.append(name, b"x")
        for _ in range(10):
            await trio.sleep(20)
            await container.read("read", offset=0, length_max=1)
            await container.append("written", b"x")
        assert active_names(container) == {"read", "written"}


async def test_a_segment_becomes_inactive_when_it_is_idle_for_a_while(
    tiers: CrashingTiers, autojump_clock: trio.testing.MockClock
) -> None:
    policy = EvictionPolicy(active_count_max=100, idle_seconds_max=60.0)
    async with tiers.open(policy=policy) as container:
        await container.create_segment("s")
        await trio.sleep(50)
        assert active_names(container) == {"s"}
        await trio.sleep(20)
        assert active_names(container) == set()


async def test_a_segment_becomes_inactive_when_many_are_active(
    tiers: CrashingTiers, autojump_clock: trio.testing.MockClock
) -> None:
    policy = EvictionPolicy(active_count_max=10, idle_seconds_max=60.0)
    async with tiers.open(policy=policy) as container:
        for number in range(100):
            await container.create_segment(f"s{number}")
        await trio.sleep(5)
        assert len(active_names(container)) == 10


async def test_its_outstanding_metadata_are_flushed_to_tier_2_before(
    tiers: CrashingTiers, autojump_clock: trio.testing.MockClock
) -> None:
    policy = EvictionPolicy(active_count_max=0, look_seconds=0.1)
    async with tiers.open(policy=policy, drain_seconds=0) as container:
        update = AttributeUpdate(WRITER, AttributeUpdateType.REPLACE, 5)
        await container.create_segment("s")
        await container.append("s", b"x", attribute_updates=[update])
        await trio.sleep(1)
        assert active_names(container) == {"s"}, "tier 2 has not the byte yet, nor the attribute"
        await trio.sleep(35)
        assert active_names(container) == set()
        await checkpoint(container)
        tiers.crash()
    async with tiers.open() as container:
        assert await container.get_attributes("s", [WRITER]) == {WRITER: 5}
        assert (await container.read("s", offset=0, length_max=1)).data == b"x"


async def test_a_reactivated_segment_has_the_same_id(tiers: CrashingTiers) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        segment_id = container.parts.metadata.by_name["s"].segment_id
        for _ in range(3):
            await evict(container)
            await container.append("s", b"x")
            assert container.parts.metadata.by_name["s"].segment_id == segment_id
        await evict(container)
    async with tiers.open() as container:
        await container.activate("s")
        assert container.parts.metadata.by_name["s"].segment_id == segment_id
