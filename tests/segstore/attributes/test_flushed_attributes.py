"""Changed attributes go to their indexes in time, and may leave memory after that."""

from __future__ import annotations

from typing import Any

import trio
import trio.testing

from segstore.model.attributes import AttributeUpdate, AttributeUpdateType
from segstore.writer.flush_policy import DEFAULT_FLUSH_POLICY as POLICY
from segstore.writer.flush_policy import FlushPolicy

W1, W2 = b"\x01" * 16, b"\x02" * 16


async def test_only_the_latest_value_is_written(tiers: Any) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        for number in range(1000):
            await container.append(
                "s",
                b"",
                attribute_updates=[AttributeUpdate(W1, AttributeUpdateType.REPLACE, number)],
            )
        await container.flush()
        # The claim, the first snapshot, the chunk's name, and the index.
        assert tiers.calls.count("write") == 4
        assert await tiers.index_bytes("s") < 300
        tiers.forget_clean("s")
        assert await container.get_attributes("s", [W1]) == {W1: 999}


async def test_attributes_are_flushed_when_200_have_changed_or_after_a_while(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        for number in range(199):
            update = AttributeUpdate(number.to_bytes(16, "big"), AttributeUpdateType.REPLACE, 1)
            await container.update_attributes("s", [update])
        await trio.sleep(3)
        assert await tiers.index_bytes("s") == 0
        await container.update_attributes(
            "s", [AttributeUpdate(W1, AttributeUpdateType.REPLACE, 1)]
        )
        await trio.sleep(2)  # an idle writer looks once a second
        first = await tiers.index_bytes("s")
        assert first > 200 * 24
        await container.update_attributes(
            "s", [AttributeUpdate(W2, AttributeUpdateType.REPLACE, 1)]
        )
        await trio.sleep(POLICY.attribute_flush_seconds_few - 2)
        assert await tiers.index_bytes("s") == first
        await trio.sleep(4)
        assert await tiers.index_bytes("s") > first
        assert not tiers.memory("s").dirty


async def test_many_changed_attributes_are_flushed_sooner_a_part_of_the_segments_at_a_time(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    policy = FlushPolicy(few_dirty_attributes=200)
    names = [f"s{number}" for number in range(201)]
    async with tiers.open(flush_policy=policy) as container:
        for name in names[:200]:
            await container.create_segment(name)
            await container.update_attributes(
                name, [AttributeUpdate(W1, AttributeUpdateType.REPLACE, 1)]
            )
        await trio.sleep(POLICY.flush_seconds + 2)
        assert [await tiers.index_bytes(name) for name in names[:200]] == [0] * 200
        await container.create_segment(names[200])
        await container.update_attributes(
            names[200], [AttributeUpdate(W1, AttributeUpdateType.REPLACE, 1)]
        )
        await trio.sleep(2)
        # As soon as there are few again the others have time, too.
        stored = sum([bool(await tiers.index_bytes(name)) for name in names])
        assert stored == policy.attribute_indexes_max
        await trio.sleep(POLICY.attribute_flush_seconds_few)
        assert not any(tiers.memory(name).dirty for name in names)


async def test_the_least_recently_used_attribute_is_evicted_first(tiers: Any) -> None:
    async with tiers.open(segment_count_max=3) as container:
        ids = [bytes([number]) * 16 for number in range(1, 5)]
        await container.create_segment("s", attributes=dict.fromkeys(ids[:3], 1))
        await container.flush()
        await container.get_attributes("s", [ids[0]])
        await container.update_attributes(
            "s", [AttributeUpdate(ids[3], AttributeUpdateType.REPLACE, 4)]
        )
        await container.flush()
        assert [each in tiers.memory("s").values for each in ids] == [True, False, True, True]
