"""Questions and steps that meet epochs, streams and names that go at the same moment."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import pytest
import trio
import trio.testing

from pravega_controller.background.members import MEMBERS
from pravega_controller.errors import (
    ControllerError,
    EpochDroppedError,
    InvalidStreamCutError,
    NotFoundError,
    StreamNotFoundError,
)
from pravega_controller.metadata.records import GONE, NamedCut, ReaderGroupConfiguration
from pravega_controller.metadata.streams import epochs as epoch_records
from pravega_controller.metadata.streams.history import StreamHistory
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import commands as wire
from pravega_wire.commands import ReadTable, RemoveTableKeys, Request

from .test_old_epochs import (
    DAY_MS,
    GROUP_ID,
    LEASE_MS,
    Scene,
    open_scene,
    segment_of,
    write_epochs,
)


@pytest.fixture
async def scene(
    open_on_memory: Any,
    memory_store: MemorySegmentStore,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Scene]:
    monkeypatch.setattr(epoch_records, "SNAPSHOT_EPOCHS", 2)
    async with open_scene(open_on_memory, memory_store) as scene:
        yield scene


async def test_a_slow_creator_deletes_no_segment_of_the_stream_that_came_in_place_of_its_own(
    open_on_memory: Any,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its stream was discarded, for want of a name, so that its numbers were not reserved."""
    memory = memory_store
    name_late, create_late, beat_late = trio.Event(), trio.Event(), trio.Event()
    name_held, create_held = trio.Event(), trio.Event()

    async with (
        open_on_memory(port=1, reply_seconds_max=200.0) as slow,
        open_on_memory(port=2) as other,
    ):
        await slow.scopes.create("s")
        await trio.sleep(5)
        slow_id = slow.members.instance_id.encode()

        def pauses(request: Request) -> bool:
            if isinstance(request, wire.UpdateTableEntries):
                keys = [entry.key.key for entry in request.table_entries]
                if request.segment == MEMBERS and keys == [slow_id]:
                    memory.pause = beat_late
                    return not beat_late.is_set()
                if "objects-" in request.segment and b"s/a" in keys and not name_held.is_set():
                    name_held.set()
                    memory.pause = name_late
                    return True
            if isinstance(request, wire.CreateSegment) and not create_held.is_set():
                create_held.set()
                memory.pause = create_late
                return True
            return False

        memory.pause, memory.pauses = trio.Event(), pauses
        answers: list[object] = []

        async def create_slowly() -> None:
            try:
                answers.append(await slow.streams.create("s", "a", fixed_configuration(1)))
            except ControllerError as error:
                answers.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(create_slowly)
            await name_held.wait()
            # It counts as dead: what it had written is discarded, since no name leads to it.
            await trio.sleep(20)
            name_late.set()
            await create_held.wait()
            assert await other.streams.create("s", "a", fixed_configuration(1))
            assert "s/a/0.#epoch.0" in memory.segments
            memory.segments["s/a/0.#epoch.0"].append(b"what a writer wrote")
            create_late.set()
            beat_late.set()
            with trio.fail_after(60):
                while not answers:  # noqa: ASYNC110
                    await trio.sleep(0.1)
        active = await other.streams.active_segments("s", "a")
        assert [each.segment_id for each in active] == [0]
        assert "s/a/0.#epoch.0" in memory.segments, "the segment of a stream that lives is gone"
        assert memory.segments["s/a/0.#epoch.0"].length > 0


async def test_epochs_that_expire_in_the_future_by_a_clock_that_was_wrong_go(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.scale(9)
    scene.wall.ms += 3650 * DAY_MS
    await scene.truncate()
    await scene.round()
    scene.wall.ms -= 3650 * DAY_MS
    for _ in range(6):
        await scene.round(days=10)
        await scene.scale(3)
        await scene.truncate()
    assert await scene.first() > 0


@pytest.mark.parametrize("ahead_days", [-3650, -1])
async def test_epochs_expire_no_earlier_because_a_clock_was_set_back_for_a_round(
    ahead_days: int, scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.scale(9)
    await scene.truncate()
    await scene.round()
    scene.wall.ms += ahead_days * DAY_MS
    await scene.round()
    scene.wall.ms -= ahead_days * DAY_MS
    await scene.round(days=6.9)
    assert await scene.first() == 0
    await scene.round(days=0.2)
    assert await scene.first() == 8


async def test_a_stream_that_is_being_deleted_does_not_end_earlier(
    open_on_memory: Any, memory_store: MemorySegmentStore, autojump_clock: trio.testing.MockClock
) -> None:
    """Its epochs go a few at a time, in reach of questions."""
    async with open_scene(open_on_memory, memory_store) as scene:
        await write_epochs(scene, 300)
        await scene.controller.streams.seal("s", "a")

        def is_of_second_chunk(request: Request) -> bool:
            return isinstance(request, RemoveTableKeys) and any(
                key.key.endswith(b"/epoch/70") for key in request.keys
            )

        scene.memory.pauses = is_of_second_chunk
        scene.memory.pause = trio.Event()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.controller.streams.delete, "s", "a")
            with trio.fail_after(20):
                await scene.memory.is_paused.wait()
            with pytest.raises(NotFoundError):
                await scene.other.streams.successors("s", "a", segment_of(5))
            scene.memory.pause.set()


async def test_a_question_about_a_stream_whose_name_was_freed_is_told_not_found(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    """``GONE`` is stored in place of its state, which is no damage."""
    await scene.scale(2)
    stream = await scene.other.store.streams.read("s", "a")
    history = StreamHistory(scene.other.store.tables, stream.table, stream.stream_id, stream="s/a")
    history.update(stream.record)
    await scene.controller.streams.seal("s", "a")
    await scene.controller.streams.delete("s", "a")
    await scene.other.store.tables.put(stream.table, stream.key("state"), GONE)
    with pytest.raises(StreamNotFoundError):
        await history.successors(segment_of(0))


async def test_the_segments_up_to_a_cut_are_told_while_epochs_are_dropped(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    """Without a beginning there is nothing in the question that could have been dropped."""
    await scene.scale(9)
    head = await scene.truncate()
    await scene.round()
    stream = await scene.other.store.streams.read("s", "a")
    # As a controller that has not read the first epochs.
    history = StreamHistory(scene.other.store.tables, stream.table, stream.stream_id, stream="s/a")
    scene.other.store.streams._known["s", "a"] = dataclasses.replace(stream, history=history)
    history.update(stream.record)

    is_first = iter([True])

    def is_about_epoch(request: Request) -> bool:
        # The round reads this epoch, too, when it removes it.
        return (
            isinstance(request, ReadTable)
            and any(key.key.endswith(b"/epoch/0") for key in request.keys)
            and next(is_first, False)
        )

    scene.memory.pauses = is_about_epoch
    scene.memory.pause = trio.Event()
    answers: list[object] = []

    async def ask() -> None:
        try:
            answers.append(await scene.other.streams.segments_between("s", "a", {}, head))
        except EpochDroppedError as error:
            answers.append(error)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ask)
        with trio.fail_after(20):
            await scene.memory.is_paused.wait()
        await scene.round(days=8)
        assert await scene.first() == 8
        scene.memory.pause.set()
    assert isinstance(answers[0], list), answers


async def test_a_transaction_begins_on_a_stream_whose_epochs_go_at_once(
    open_on_memory: Any,
    memory_store: MemorySegmentStore,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """``history_seconds_min`` may be 0.

    The active epoch has a snapshot, so its record was not read with the stream.
    """
    monkeypatch.setattr(epoch_records, "SNAPSHOT_EPOCHS", 2)
    async with open_scene(open_on_memory, memory_store, history_seconds_min=0.0) as scene:
        await scene.scale(2)
        slow = scene.other
        slow.store.streams._known.clear()
        assert len(await slow.streams.active_segments("s", "a")) == 1
        await scene.scale(9)
        await scene.truncate()
        await scene.round()
        await scene.round()
        assert (await scene.controller.store.streams.read("s", "a")).record.first_epoch > 2
        begun = await slow.transactions.begin("s", "a", lease_ms=LEASE_MS)
        assert begun.segments


async def test_a_subscribers_cut_does_not_go_back_where_the_last_is_on_record_in_part(
    open_on_memory: Any,
    memory_store: MemorySegmentStore,
    monkeypatch: pytest.MonkeyPatch,
    autojump_clock: trio.testing.MockClock,
) -> None:
    monkeypatch.setattr(epoch_records, "SNAPSHOT_EPOCHS", 2)
    async with open_scene(open_on_memory, memory_store) as scene:
        streams, groups = scene.controller.streams, scene.controller.groups
        await streams.create("s", "b", fixed_configuration(2))
        named = (NamedCut("s", "b", {}),)
        configuration = ReaderGroupConfiguration(1, 1, 1, 2, named, named)
        await groups.create("s", "g", GROUP_ID, configuration)

        async def release(cut: dict[int, int]) -> None:
            await groups.release(
                "s", "b", subscriber="s/g", group_id=GROUP_ID, generation=0, cut=cut
            )

        scene.memory.segments["s/b/1.#epoch.0"].append(b"x" * 200)
        await release({0: 0, 1: 100})
        for _ in range(9):
            low = min(await streams.active_segments("s", "b"), key=lambda each: each.low)
            await streams.scale("s", "b", [low.segment_id], [(0.0, 0.5)], now_ms=scene.wall())
            await streams.workflows.work.finish("s", "b")
        low = min(await streams.active_segments("s", "b"), key=lambda each: each.low)
        await streams.truncate("s", "b", {low.segment_id: 0, 1: 10})
        await scene.round()
        await scene.round(days=8)
        assert (await scene.other.store.streams.read("s", "b")).record.first_epoch > 0
        with pytest.raises(InvalidStreamCutError):
            await release({low.segment_id: 0, 1: 50})


async def test_a_stream_is_made_anew_while_the_epochs_of_the_last_go(
    scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    await scene.scale(9)
    await scene.truncate()
    await scene.round()
    original = StreamHistory.remove_old

    async def remove_later(history: Any, *, epochs_max: int) -> int:
        await scene.other.streams.seal("s", "a")
        await scene.other.streams.delete("s", "a")
        assert await scene.other.streams.create("s", "a", fixed_configuration(2))
        return await original(history, epochs_max=epochs_max)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StreamHistory, "remove_old", remove_later)
        await scene.round(days=8)
    await trio.sleep(60)
    await scene.round()
    for side in (scene.controller, scene.other):
        active = await side.streams.active_segments("s", "a")
        assert [each.epoch for each in active] == [0, 0]
        assert len(await side.streams.head("s", "a")) == 2
        assert len(await side.streams.epoch_segments("s", "a", 0)) == 2
        assert (await side.store.streams.read("s", "a")).record.first_epoch == 0
    assert scene.count("epoch") == 2
    assert scene.notes() == set()
