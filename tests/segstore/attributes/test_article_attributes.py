"""The mechanisms of the article on segment attributes, one by one."""

from __future__ import annotations

import math
from typing import Any

import pytest
import trio
import trio.testing

from segstore.errors import BadAttributeUpdateError, SegmentStoreError
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_ROOT_POINTER,
    EVENT_COUNT,
    NULL_ATTRIBUTE_VALUE,
    SCALE_POLICY_RATE,
    AttributeUpdate,
    AttributeUpdateType,
)
from segstore.writer.flush_policy import DEFAULT_FLUSH_POLICY as POLICY
from segstore.writer.flush_policy import FlushPolicy

W1, W2 = b"\x01" * 16, b"\x02" * 16
VERB = AttributeUpdateType


def event(writer: bytes, last: int, number: int, count: int = 1) -> tuple[AttributeUpdate, ...]:
    """Return the updates of the article's example: compare the writer's number, and count the
    events."""
    return (
        AttributeUpdate(writer, VERB.REPLACE_IF_EQUALS, number, last),
        AttributeUpdate(EVENT_COUNT, VERB.ACCUMULATE, count),
    )


async def values(container: Any, name: str, *ids: bytes) -> list[int | None]:
    found = await container.get_attributes(name, ids)
    return [found.get(each) for each in ids]


@pytest.mark.parametrize("where", ["in memory", "in the index"])
async def test_figure_1_conditional_appends_of_two_writers_to_two_segments(
    tiers: Any, where: str
) -> None:
    async with tiers.open() as container:
        for name in "AB":
            await container.create_segment(name)
            for writer in (W1, W2):
                await container.append(
                    name, b"-", attribute_updates=event(writer, NULL_ATTRIBUTE_VALUE, 0)
                )
        if where == "in the index":
            await container.flush()
            for name in "AB":
                tiers.forget_clean(name)
        await container.append("A", b"e1", attribute_updates=event(W1, 0, 1))
        await container.append("B", b"e2", attribute_updates=event(W1, 0, 2))
        await container.append("A", b"e1", attribute_updates=event(W2, 0, 1))
        await container.append("A", b"e3", attribute_updates=event(W1, 1, 3))
        # The acknowledgement was lost: the writer sends the event again, and is told so.
        with pytest.raises(BadAttributeUpdateError):
            await container.append("A", b"e3", attribute_updates=event(W1, 1, 3))
        assert await values(container, "A", W1, W2, EVENT_COUNT) == [3, 1, 5]
        assert await values(container, "B", W1, W2, EVENT_COUNT) == [2, 0, 3]
        assert (await container.read("A", offset=0, length_max=99)).data == b"--e1e1e3"


@pytest.mark.parametrize("where", ["in memory", "in the index"])
@pytest.mark.parametrize(
    ("verb", "present", "value", "expected", "outcome"),
    [
        (VERB.REPLACE, 5, 3, 0, 3),
        (VERB.REPLACE, None, 3, 0, 3),
        (VERB.REPLACE_IF_GREATER, 5, 6, 0, 6),
        (VERB.REPLACE_IF_GREATER, 5, 5, 0, None),
        (VERB.REPLACE_IF_EQUALS, 5, 9, 5, 9),
        (VERB.REPLACE_IF_EQUALS, 5, 9, 4, None),
        (VERB.REPLACE_IF_EQUALS, None, 9, NULL_ATTRIBUTE_VALUE, 9),
        (VERB.REPLACE_IF_EQUALS, 5, 9, NULL_ATTRIBUTE_VALUE, None),
        (VERB.ACCUMULATE, 5, -2, 0, 3),
        (VERB.ACCUMULATE, None, 2, 0, 2),
        (VERB.NONE, 5, 2, 0, None),
        (VERB.NONE, None, 2, 0, 2),
    ],
)
async def test_the_verbs(
    tiers: Any, where: str, verb: VERB, present: int | None, value: int, expected: int, outcome: Any
) -> None:
    async with tiers.open() as container:
        await container.create_segment("s", attributes={W2: 1})
        if present is not None:
            await container.update_attributes("s", [AttributeUpdate(W1, VERB.REPLACE, present)])
        if where == "in the index":
            await container.flush()
            tiers.forget_clean("s")
            assert W1 not in tiers.memory("s").values
        update = AttributeUpdate(W1, verb, value, expected)
        if outcome is None:
            with pytest.raises(BadAttributeUpdateError) as failure:
                await container.update_attributes("s", [update])
            assert failure.value.attribute_id == W1
            assert not failure.value.previous_value_missing
            outcome = present
        else:
            await container.update_attributes("s", [update])
        assert await values(container, "s", W1, W2) == [outcome, 1]
        await container.flush()
        tiers.forget_clean("s")
        assert await values(container, "s", W1, W2) == [outcome, 1]


async def test_core_attributes_are_pinned_and_extended_ones_evicted(tiers: Any) -> None:
    async with tiers.open(segment_count_max=10) as container:
        await container.create_segment("s", attributes={SCALE_POLICY_RATE: 7})
        for number in range(50):
            update = AttributeUpdate(bytes([number]) * 16, VERB.REPLACE, number)
            await container.append(
                "s", b"", attribute_updates=(update, *event(W1, number - 1, number)[1:])
            )
        memory = tiers.memory("s")
        assert len(memory.values) == 50 + 2, "nothing dirty is evicted"
        await container.flush()
        assert len(memory.cached) == 10
        assert len(memory.values) - len(memory.core) == 10
        assert {EVENT_COUNT, SCALE_POLICY_RATE, ATTRIBUTE_SEGMENT_ROOT_POINTER} <= memory.core
        for number in range(50):
            assert await values(container, "s", bytes([number]) * 16) == [number]
        assert len(memory.values) - len(memory.core) == 10
        assert await values(container, "s", EVENT_COUNT, SCALE_POLICY_RATE) == [50, 7]


async def test_the_least_recently_used_attribute_is_evicted_first(tiers: Any) -> None:
    async with tiers.open(segment_count_max=3) as container:
        ids = [bytes([number]) * 16 for number in range(1, 5)]
        await container.create_segment("s", attributes=dict.fromkeys(ids[:3], 1))
        await container.flush()
        await container.get_attributes("s", [ids[0]])
        await container.update_attributes("s", [AttributeUpdate(ids[3], VERB.REPLACE, 4)])
        await container.flush()
        assert [each in tiers.memory("s").values for each in ids] == [True, False, True, True]


async def test_prefetch_steps_1_1_to_1_3(tiers: Any) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        await container.create_segment("s", attributes={W1: 1, W2: 2})
        await container.flush()
        # 1.1: what is in memory is not asked for in the index.
        tiers.calls.clear()
        await container.update_attributes("s", [AttributeUpdate(W1, VERB.ACCUMULATE, 1)])
        assert tiers.calls == []
        # 1.2: what is not is read before the operation is processed, and
        tiers.forget_clean("s")
        await container.update_attributes("s", [AttributeUpdate(W2, VERB.ACCUMULATE, 1)])
        assert tiers.calls == ["read"]
        # kept: also that something is not there.
        other = b"\x03" * 16
        absent = AttributeUpdate(other, VERB.REPLACE_IF_EQUALS, 1, 5)
        for calls in (["read"], []):
            tiers.calls.clear()
            with pytest.raises(BadAttributeUpdateError):
                await container.update_attributes("s", [absent])
            assert tiers.calls == calls
        assert await values(container, "s", W1, W2, other) == [2, 3, None]


async def test_prefetch_does_not_overwrite_what_was_changed_meanwhile(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        await container.create_segment("s", attributes={W1: 1, W2: 2})
        await container.flush()
        tiers.forget_clean("s")
        tiers.read_seconds = 3.0
        found: list[Any] = []

        async def ask() -> None:
            found.extend(await values(container, "s", W1, W2))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(ask)
            await trio.sleep(1)
            # 1.3: a blind update needs nothing from the index, so it is done before the answer.
            await container.update_attributes("s", [AttributeUpdate(W1, VERB.REPLACE, 9)])
            assert not found
        assert found == [9, 2]
        assert await values(container, "s", W1) == [9]


async def test_an_operation_that_waits_for_prefetch_holds_up_its_segment_only(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        for name in "st":
            await container.create_segment(name, attributes={W1: 1, W2: 2})
        await container.flush()
        tiers.forget_clean("s")
        tiers.read_seconds = 1.0
        answers: list[tuple[str, int | None]] = []

        def append(name: str, label: str, *updates: AttributeUpdate) -> None:
            def complete(error: SegmentStoreError | None, length: int) -> None:
                answers.append((label, None if error else length))

            container.append_nowait(name, b"x", attribute_updates=updates, on_complete=complete)

        append("s", "waits", AttributeUpdate(W1, VERB.REPLACE_IF_EQUALS, 5, 1))
        append("s", "behind it")
        append("s", "too", AttributeUpdate(W1, VERB.REPLACE_IF_EQUALS, 6, 5))
        append("s", "refused", AttributeUpdate(W2, VERB.REPLACE_IF_EQUALS, 6, 5))
        append("t", "another", AttributeUpdate(W1, VERB.REPLACE_IF_EQUALS, 5, 1))
        await trio.sleep(0.5)
        assert answers == [("another", 1)]
        await container.wait_in_flight("s")
        assert answers[1:] == [("waits", 1), ("behind it", 2), ("too", 3), ("refused", None)]
        assert trio.current_time() < 10 + 5, "what several operations need is read together"


async def test_seals_and_deletions_wait_behind_what_waits(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        await container.create_segment("s", attributes={W1: 1})
        await container.create_segment("source")
        await container.append("source", b"merged")
        await container.flush()
        tiers.forget_clean("s")
        tiers.read_seconds = 1.0
        answers: dict[str, object] = {}

        async def do(label: str, call: Any) -> None:
            answers[label] = await call

        async with trio.open_nursery() as nursery:
            for label, call in (
                ("append", container.append("s", b"x", attribute_updates=event(W1, 1, 2))),
                ("merge", container.merge_segment("s", "source")),
                ("create", container.create_segment("source")),
                ("barrier", container.wait_in_flight("s")),
                ("seal", container.seal_segment("s")),
                ("delete", container.delete_segment("s")),
            ):
                nursery.start_soon(do, label, call)
                await trio.testing.wait_all_tasks_blocked()
            assert answers == {}
        assert (answers["append"], answers["merge"], answers["seal"]) == (1, 7, 7)
        assert container.segment_info("source").length == 0


async def test_aggregation_keeps_only_the_latest_value(tiers: Any) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        for number in range(1000):
            await container.append(
                "s", b"", attribute_updates=[AttributeUpdate(W1, VERB.REPLACE, number)]
            )
        await container.flush()
        # The claim, the first snapshot, the chunk's name, and the index.
        assert tiers.calls.count("write") == 4
        assert await tiers.index_bytes("s") < 300
        tiers.forget_clean("s")
        assert await values(container, "s", W1) == [999]


async def test_attributes_are_flushed_when_200_have_changed_or_after_a_while(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with tiers.open() as container:
        await container.create_segment("s")
        for number in range(199):
            update = AttributeUpdate(number.to_bytes(16, "big"), VERB.REPLACE, 1)
            await container.update_attributes("s", [update])
        await trio.sleep(3)
        assert await tiers.index_bytes("s") == 0
        await container.update_attributes("s", [AttributeUpdate(W1, VERB.REPLACE, 1)])
        await trio.sleep(2)  # an idle writer looks once a second
        first = await tiers.index_bytes("s")
        assert first > 200 * 24
        await container.update_attributes("s", [AttributeUpdate(W2, VERB.REPLACE, 1)])
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
            await container.update_attributes(name, [AttributeUpdate(W1, VERB.REPLACE, 1)])
        await trio.sleep(POLICY.flush_seconds + 2)
        assert [await tiers.index_bytes(name) for name in names[:200]] == [0] * 200
        await container.create_segment(names[200])
        await container.update_attributes(names[200], [AttributeUpdate(W1, VERB.REPLACE, 1)])
        await trio.sleep(2)
        # As soon as there are few again the others have time, too.
        stored = sum([bool(await tiers.index_bytes(name)) for name in names])
        assert stored == policy.attribute_indexes_max
        await trio.sleep(POLICY.attribute_flush_seconds_few)
        assert not any(tiers.memory(name).dirty for name in names)


async def test_hot_attributes_cost_no_read_of_tier_2(tiers: Any) -> None:
    async with tiers.open(segment_count_max=4) as container:
        await container.create_segment("s")
        last = NULL_ATTRIBUTE_VALUE
        for number in range(300):
            await container.append("s", b"x", attribute_updates=event(W1, last, number))
            last = number
            if number % 50 == 0:
                await container.flush()
        assert "read" not in tiers.calls
        assert math.isclose(container.segment_info("s").length, 300)
