"""The store: what is cached, what conflicts, and what happens to requests at the same time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio
import trio.testing
from msgspec import structs

from pravega_controller.controller import Controller
from pravega_controller.errors import (
    CorruptMetadataError,
    ScopeNotFoundError,
    StoreUnavailableError,
    StreamNotFoundError,
    VersionConflictError,
)
from pravega_controller.metadata.records import NamedCut, ReaderGroupConfiguration, Seal
from pravega_controller.metadata.streams import known
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.store_client.table_client import VALUE_BYTES_MAX
from pravega_controller.testing.memory_segment_store import Fault, MemorySegmentStore

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]


async def test_a_known_stream_is_answered_for_by_one_small_read(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "a", fixed_configuration(2))
        asked = memory_store.requests
        for _ in range(3):
            assert len(await controller.streams.active_segments("s", "a")) == 2
        assert memory_store.requests == asked + 3


async def test_a_second_controller_cannot_overwrite_the_first(
    open_on_memory: OpenController,
) -> None:
    async with open_on_memory(port=1) as first:
        await first.scopes.create("s")
        await first.streams.create("s", "a", fixed_configuration(1))
        stale = await first.store.streams.read("s", "a")
        async with open_on_memory(port=2) as second:
            await second.streams.seal("s", "a")
            with pytest.raises(VersionConflictError):
                await first.store.writes.write(stale, structs.replace(stale.record, pending=Seal()))
            assert (await first.store.streams.read("s", "a")).record.is_sealed, "it reads again"


async def test_no_answer_is_older_than_its_question(open_on_memory: OpenController) -> None:
    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        await first.scopes.create("s")
        await first.streams.create("s", "a", fixed_configuration(1))
        assert await second.streams.successors("s", "a", 0) == ()
        started = await first.streams.scale("s", "a", [0], [(0.0, 0.5), (0.5, 1.0)], now_ms=5)
        found = await second.streams.successors("s", "a", 0)
        assert [one.segment for one in found] == list(started.created)
        await first.streams.workflows.work.finish("s", "a")
        await second.streams.seal("s", "a")
        assert await first.streams.active_segments("s", "a") == ()
        await second.streams.delete("s", "a")
        with pytest.raises(StreamNotFoundError):
            await first.streams.active_segments("s", "a")
        await second.scopes.delete("s")
        with pytest.raises(ScopeNotFoundError):
            await first.streams.create("s", "a", fixed_configuration(1))
        await second.scopes.create("s")
        await second.streams.create("s", "a", fixed_configuration(3))
        assert len(await first.streams.active_segments("s", "a")) == 3


async def test_a_write_of_unknown_outcome_is_not_remembered(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(retry_seconds_max=10.0) as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "a", fixed_configuration(1))
        # The intent is on record since the stream was made; the workflow's record is change 0: its
        # reply is lost with everything after it.
        memory_store.fault = Fault(memory_store.changes, is_applied=True)
        with pytest.raises(StoreUnavailableError):
            await controller.streams.seal("s", "a")
        memory_store.fault = None
        assert isinstance((await controller.store.streams.read("s", "a")).record.pending, Seal)
        await trio.sleep(120)
        assert (await controller.store.streams.read("s", "a")).record.is_sealed, "finished later"


async def test_the_least_used_streams_are_forgotten(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(known, "CACHED_STREAMS_MAX", 4)
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        for number in range(6):
            await controller.streams.create("s", f"a{number}", fixed_configuration(1))
        assert len(controller.store.streams._known) == 4
        for number in range(6):
            assert await controller.streams.active_segments("s", f"a{number}")


async def test_a_missing_epoch_is_damage_not_a_shorter_history(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "a", fixed_configuration(1))
        await controller.streams.create("s", "b", fixed_configuration(1))
        stream = await controller.store.streams.read("s", "a")
    del memory_store.tables[stream.table].entries[stream.key("epoch", "0")]
    async with open_on_memory() as controller:
        with pytest.raises(CorruptMetadataError, match="epoch 0 of s/a is missing"):
            await controller.streams.active_segments("s", "a")
        assert await controller.streams.active_segments("s", "b"), (
            "damage stops its own stream only"
        )


async def test_many_who_create_one_stream_make_it_once(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    made: list[bool] = []

    async with open_on_memory() as controller:
        await controller.scopes.create("s")

        async def create() -> None:
            made.append(await controller.streams.create("s", "a", fixed_configuration(2)))

        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(create)
    assert sorted(made) == [False] * 9 + [True]
    assert sorted(memory_store.segments) == [
        "s/_MARKa/0.#epoch.0",
        "s/a/0.#epoch.0",
        "s/a/1.#epoch.0",
    ]


async def test_changes_of_one_stream_take_turns(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "a", fixed_configuration(1))
        async with trio.open_nursery() as nursery:
            for count in (2, 5, 3, 4):
                nursery.start_soon(controller.streams.update, "s", "a", fixed_configuration(count))
        count = (await controller.streams.configuration("s", "a")).scaling.segment_count_min
        stream = await controller.store.streams.read("s", "a")
        assert len(stream.active) == count
        assert stream.record.epoch == stream.last_epoch == 4
    unsealed = {name for name, s in memory_store.segments.items() if not s.is_sealed}
    assert unsealed == {stream.segment_name(s.segment_id) for s in stream.active} | {
        "s/_MARKa/0.#epoch.0"
    }


async def test_a_stream_being_made_in_a_scope_that_goes_is_not_lost(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        outcomes: list[str] = []

        async def create(name: str) -> None:
            try:
                await controller.streams.create("s", name, fixed_configuration(1))
            except ScopeNotFoundError:
                outcomes.append("no scope")
            else:
                outcomes.append("made")

        async with trio.open_nursery() as nursery:
            for number in range(8):
                nursery.start_soon(create, f"a{number}")
            nursery.start_soon(controller.scopes.delete_with_contents, "s")
        assert len(outcomes) == 8
        assert not await controller.scopes.exists("s")
        await controller.scopes.create("s")
        with pytest.raises(StreamNotFoundError):
            await controller.store.streams.read("s", "a0")
    assert [name for name in memory_store.segments if name.startswith("s/")] == []


async def test_sizes_of_sealed_segments_outlive_the_segments(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        streams = controller.streams
        await controller.scopes.create("s")
        await streams.create("s", "a", fixed_configuration(1))
        memory_store.segments["s/a/0.#epoch.0"].length = 700
        await streams.update("s", "a", fixed_configuration(2))
        later = [segment.segment_id for segment in await streams.active_segments("s", "a")]
        for segment_id, length in zip(later, (30, 4), strict=True):
            name = f"s/a/{segment_id & 0xFFFFFFFF}.#epoch.1"
            memory_store.segments[name].length = length
        await streams.truncate("s", "a", dict.fromkeys(later, 1))
        assert "s/a/0.#epoch.0" not in memory_store.segments
        history = (await controller.store.streams.read("s", "a")).history
        assert await history.lengths_of([0, *later]) == {0: 700}
        await streams.seal("s", "a")
    async with open_on_memory() as controller:
        history = (await controller.store.streams.read("s", "a")).history
        assert await history.lengths_of([0, *later]) == {0: 700, later[0]: 30, later[1]: 4}


@pytest.mark.proof
async def test_nine_groups_release_a_stream_of_5000_segments(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    """Together their cuts take more than a table value may have; so does what is deleted."""
    group_id = "11111111-2222-3333-4444-555555555555"
    subscribed = ReaderGroupConfiguration(3000, 30000, 3, 1, (NamedCut("s", "a", {}),), ())
    async with open_on_memory() as controller:
        streams, groups = controller.streams, controller.groups
        await controller.scopes.create("s")
        await streams.create("s", "a", fixed_configuration(5000))
        cut = {s.segment_id: 0 for s in await streams.active_segments("s", "a")}
        await streams.update("s", "a", fixed_configuration(4999))
        later = {s.segment_id: 0 for s in await streams.active_segments("s", "a")}
        for number in range(9):
            await groups.create("s", f"g{number}", group_id, subscribed)
            for released in (cut, later):
                await groups.release(
                    "s",
                    "a",
                    subscriber=f"s/g{number}",
                    group_id=group_id,
                    generation=0,
                    cut=released,
                )
        assert len(await groups.subscribers("s", "a")) == 9
        await streams.truncate("s", "a", later)
        assert sum(name.startswith("s/a/") for name in memory_store.segments) == 4999
        largest = max(
            len(value) for t in memory_store.tables.values() for value, _ in t.entries.values()
        )
        assert largest < VALUE_BYTES_MAX
