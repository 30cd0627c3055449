"""Operations that need tier 2 wait for their own reads alone, and keep their order."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from segstore.container import Container
from segstore.errors import BadAttributeUpdateError, SegmentStoreError, SegmentTruncatedError
from segstore.model.attributes import AttributeUpdate, AttributeUpdateType

W1 = b"\x01" * 16
W2 = b"\x02" * 16
IF_EQUALS = AttributeUpdateType.REPLACE_IF_EQUALS


class Answers:
    """The answers to appends, in the order in which they came."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self.lengths: list[tuple[str, int | None]] = []

    def append(self, name: str, label: str, *updates: AttributeUpdate) -> None:
        """Append a byte; a refused one has no length."""

        def complete(error: SegmentStoreError | None, length: int) -> None:
            self.lengths.append((label, None if error else length))

        self.container.append_nowait(name, b"x", attribute_updates=updates, on_complete=complete)


async def forget_all(tiers: Any, *names: str) -> None:
    await tiers.container.flush()
    for name in names:
        tiers.forget_clean(name)


async def values(container: Any, name: str, *ids: bytes) -> list[int | None]:
    found = await container.get_attributes(name, ids)
    return [found.get(each) for each in ids]


async def test_what_is_in_memory_is_not_read_and_what_was_read_is_kept(tiers: Any) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        await container.create_segment("s", attributes={W1: 1, W2: 2})
        await container.flush()
        # What is in memory is not asked for in the index.
        tiers.calls.clear()
        await container.update_attributes(
            "s", [AttributeUpdate(W1, AttributeUpdateType.ACCUMULATE, 1)]
        )
        assert tiers.calls == []
        # What is not is read before the operation is processed, and
        tiers.forget_clean("s")
        await container.update_attributes(
            "s", [AttributeUpdate(W2, AttributeUpdateType.ACCUMULATE, 1)]
        )
        assert tiers.calls == ["read"]
        # kept: also that something is not there.
        other = b"\x03" * 16
        absent = AttributeUpdate(other, AttributeUpdateType.REPLACE_IF_EQUALS, 1, 5)
        for calls in (["read"], []):
            tiers.calls.clear()
            with pytest.raises(BadAttributeUpdateError):
                await container.update_attributes("s", [absent])
            assert tiers.calls == calls
        assert await values(container, "s", W1, W2, other) == [2, 3, None]


async def test_what_is_read_does_not_overwrite_what_was_changed_meanwhile(
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
            # A blind update needs nothing from the index, so it is done before the answer.
            await container.update_attributes(
                "s", [AttributeUpdate(W1, AttributeUpdateType.REPLACE, 9)]
            )
            assert not found
        assert found == [9, 2]
        assert await values(container, "s", W1) == [9]


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
                (
                    "append",
                    container.append(
                        "s", b"x", attribute_updates=[AttributeUpdate(W1, IF_EQUALS, 2, 1)]
                    ),
                ),
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


async def test_one_slow_read_of_tier_2_does_not_hold_up_what_waits_for_others(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        for name in "st":
            await container.create_segment(name, attributes={W1: 1})
        await forget_all(tiers, *"st")
        answers = Answers(container)
        begun = trio.current_time()
        tiers.read_seconds = 100.0
        answers.append("s", "slow", AttributeUpdate(W1, IF_EQUALS, 2, 1))
        await trio.sleep(1)
        tiers.read_seconds = 1.0
        answers.append("s", "behind it", AttributeUpdate(W1, IF_EQUALS, 3, 2))
        answers.append("t", "other", AttributeUpdate(W1, IF_EQUALS, 2, 1))
        await container.wait_in_flight("t")
        assert answers.lengths == [("other", 1)]
        assert trio.current_time() - begun < 50
        await container.wait_in_flight("s")
        assert answers.lengths[1:] == [("slow", 1), ("behind it", 2)]


async def test_a_merge_waits_for_both_segments_and_what_comes_later_for_the_merge(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        for name in ("target", "source"):
            await container.create_segment(name, attributes={W1: 1})
        await forget_all(tiers, "target", "source")
        answers = Answers(container)
        tiers.read_seconds = 100.0
        answers.append("source", "source", AttributeUpdate(W1, IF_EQUALS, 2, 1))
        await trio.sleep(1)
        tiers.read_seconds = 1.0
        answers.append("target", "target", AttributeUpdate(W1, IF_EQUALS, 2, 1))
        merged: list[int] = []

        async def merge() -> None:
            merged.append(await container.merge_segment("target", "source"))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(merge)
            await trio.testing.wait_all_tasks_blocked()
            answers.append("target", "later")
            answers.append("source", "too late")
            await trio.sleep(50)
            assert answers.lengths == []
        await container.wait_in_flight("target")
        assert merged == [2]
        assert sorted(answers.lengths) == [
            ("later", 3), ("source", 1), ("target", 1), ("too late", None),
        ]  # fmt: skip


async def test_what_was_loaded_for_lines_that_a_refused_merge_joined_may_go_again(
    tiers: Any,
) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        for name in ("target", "source"):
            await container.create_segment(name, attributes={W1: 1})
        await container.append("source", b"x")
        await container.truncate_segment("source", offset=1)
        answers = Answers(container)
        for _ in range(20):  # which line is the first to load is chance
            await forget_all(tiers, "target", "source")
            for name in ("target", "source"):
                answers.append(name, "refused", AttributeUpdate(W1, IF_EQUALS, 2, 99))
            with pytest.raises(SegmentTruncatedError):
                await container.merge_segment("target", "source")
            for name in ("target", "source"):
                memory = container.parts.metadata.by_name[name].attribute_memory
                assert memory.values[W1] == 1
                assert W1 in memory.cached, name
        assert answers.lengths == [("refused", None)] * 40


async def test_what_a_cancelled_look_at_attributes_has_loaded_may_go_again(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        await container.create_segment("s", attributes={W1: 1, W2: 2})
        await forget_all(tiers, "s")
        await container.get_attributes("s", [W1])
        memory = tiers.memory("s")
        tiers.read_seconds = 1.0
        async with trio.open_nursery() as nursery:
            nursery.start_soon(container.get_attributes, "s", [W1, W2])
            await trio.sleep(0.5)
            tiers.forget_clean("s")
            while W2 not in memory.values:  # noqa: ASYNC110
                await trio.sleep(0.1)
            assert W1 not in memory.values
            nursery.cancel_scope.cancel()
        assert W2 in memory.cached


async def test_a_failed_read_refuses_what_needs_it_and_nothing_else(tiers: Any) -> None:
    async with tiers.open(page_bytes_max=0) as container:
        for name in "st":
            await container.create_segment(name, attributes={W1: 1})
        await forget_all(tiers, "s")
        answers = Answers(container)
        tiers.refuse_reads()
        answers.append("s", "refused", AttributeUpdate(W1, IF_EQUALS, 2, 1))
        answers.append("s", "needs nothing")
        answers.append("t", "other", AttributeUpdate(W1, IF_EQUALS, 2, 1))
        await container.wait_in_flight("s")
        tiers.refuse_nothing()
        assert sorted(answers.lengths, key=str) == [
            ("needs nothing", 1), ("other", 1), ("refused", None),
        ]  # fmt: skip


async def test_whoever_waits_is_answered_when_the_container_stops(
    tiers: Any, autojump_clock: trio.testing.MockClock
) -> None:
    async with tiers.open(page_bytes_max=0, drain_seconds=0.0) as container:
        for name in "st":
            await container.create_segment(name, attributes={W1: 1})
        await forget_all(tiers, *"st")
        answers = Answers(container)
        tiers.read_seconds = 1000.0
        for number in range(3):
            for name in "st":
                label = f"{name}{number}"
                answers.append(name, label, AttributeUpdate(W1, IF_EQUALS, 2, 1))
        await trio.sleep(1)
        assert container.parts.prefetcher.held_count == 6
    assert answers.lengths == [(f"{name}{number}", None) for number in range(3) for name in "st"]


@pytest.mark.parametrize("seed", range(20))
async def test_operations_keep_their_order_whatever_they_wait_for(
    tiers: Any, autojump_clock: trio.testing.MockClock, seed: int
) -> None:
    """Each append to a segment is refused unless the one before it has been done."""
    random, names = Random(seed), "abcd"
    async with tiers.open(page_bytes_max=0) as container, trio.open_nursery() as nursery:
        for name in names:
            await container.create_segment(name, attributes={W1: 0})
        for number in range(12):
            await container.create_segment(f"source{number}", attributes={W1: 0})
        appended = dict.fromkeys(names, 0)
        answers = Answers(container)
        merged = 0
        await forget_all(tiers, *names)
        for step in range(60):
            tiers.read_seconds = random.choice((0.0, 0.1, 5.0))
            if random.random() < 0.2:
                await trio.sleep(random.choice((0.01, 0.05, 3.0)))
            if random.random() < 0.1:
                await forget_all(tiers, *names)
            name = random.choice(names)
            if random.random() < 0.2 and merged < 12:
                source = f"source{merged}"
                merged += 1
                answers.append(source, source, AttributeUpdate(W1, IF_EQUALS, 1, 0))
                nursery.start_soon(container.merge_segment, name, source)
                await trio.testing.wait_all_tasks_blocked()
            else:
                before = appended[name]
                appended[name] += 1
                update = AttributeUpdate(W1, IF_EQUALS, before + 1, before)
                answers.append(name, f"{name}{step}", update)
        for name in names:
            await container.wait_in_flight(name)
        assert len(answers.lengths) == sum(appended.values()) + merged
        assert all(length is not None for _, length in answers.lengths)
        for name in names:
            steps = [int(label[1:]) for label, _ in answers.lengths if label[0] == name]
            assert steps == sorted(steps)
        total = sum(container.segment_info(name).length for name in names)
        assert total == len(answers.lengths)


async def test_a_refusal_is_answered_before_a_later_append_that_needs_no_room(
    tiers: Any, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer counts on the order.

    Its append comes back behind one that waits for room, which the system's next append on the same
    segment does not.
    """
    is_full = False
    async with tiers.open(page_bytes_max=0) as container:
        manager = container.parts.cache_manager
        has_room = manager.has_room

        def may_be_full(length: int, *, system: bool = False) -> bool:
            return (system or not is_full) and has_room(length, system=system)

        monkeypatch.setattr(manager, "has_room", may_be_full)
        answers = Answers(container)
        for number in range(20):  # which of the two lines comes back first is chance
            user, system = f"s{number}", f"_system/{number}"
            for name in (user, system):
                await container.create_segment(name, attributes={W1: 1})
            await forget_all(tiers, user, system)
            answers.lengths.clear()
            tiers.refuse_reads()
            tiers.read_seconds = 1.0
            answers.append(user, "refused", AttributeUpdate(W1, IF_EQUALS, 2, 1))
            answers.append(user, "needs room")
            answers.append(system, "system refused", AttributeUpdate(W1, IF_EQUALS, 2, 1))
            await trio.sleep(0.5)
            is_full = True
            await trio.sleep(1)
            answers.append(system, "system")
            await trio.sleep(1)
            tiers.refuse_nothing()
            is_full = False
            await container.wait_in_flight(user)
            await container.wait_in_flight(system)
            of_system = [each for each in answers.lengths if each[0].startswith("system")]
            assert of_system == [("system refused", None), ("system", 1)]
