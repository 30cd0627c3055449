"""Intents that several tasks of a controller write, remove and take over at the same time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import pytest
import trio
import trio.testing
from msgspec import structs

from pravega_controller.controller import Controller
from pravega_controller.errors import StoreUnavailableError
from pravega_controller.metadata import intents as intents_module
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.metadata.records import IntentRecord, decode, encode
from pravega_controller.testing.memory_segment_store import MemorySegmentStore, segment_of
from pravega_wire import commands as wire

OpenController: TypeAlias = Callable[..., AbstractAsyncContextManager[Controller]]

INTENT = IntentRecord("stream", "s", "a")
DEAD = "dead"


async def is_dead(instance_id: str) -> bool:
    return instance_id == DEAD


def stored(memory: MemorySegmentStore) -> list[IntentRecord]:
    found = [decode(value, IntentRecord) for value, _ in memory.tables[INTENTS].entries.values()]
    # Beside that of the start.
    return [intent for intent in found if intent.scope == INTENT.scope]


def key_of_dead(intent: IntentRecord) -> bytes:
    return f"{DEAD}/{intent.kind}/{intent.scope}/{intent.name}".encode()


async def check_that_it_stays(controller: Controller, memory: MemorySegmentStore) -> None:
    """Check that the intent is there until it is removed."""
    await trio.sleep(10)
    assert stored(memory) == [INTENT]
    controller.store.intents.remove(INTENT)
    await trio.sleep(10)
    assert stored(memory) == []


async def test_one_that_was_idle_here_stays_when_it_is_taken_over(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as controller:
        intents = controller.store.intents
        await intents.put(INTENT)
        intents.remove(INTENT)
        await controller.store.tables.put(INTENTS, key_of_dead(INTENT), encode(INTENT))
        assert await intents.take_over(is_dead) == [INTENT]
        await check_that_it_stays(controller, memory_store)


async def test_those_of_a_controller_that_lives_stay_with_it(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        intents = controller.store.intents
        key = f"alive/{INTENT.kind}/{INTENT.scope}/{INTENT.name}".encode()
        await controller.store.tables.put(INTENTS, key, encode(INTENT))
        assert await intents.take_over(is_dead) == []
        assert key in memory_store.tables[INTENTS].entries
        assert stored(memory_store) == [INTENT]


async def test_one_s_own_are_not_taken_over(open_on_memory: OpenController) -> None:
    async def all_are_dead(instance_id: str) -> bool:
        return True

    async with open_on_memory() as controller:
        intents = controller.store.intents
        await intents.put(INTENT)
        assert await intents.take_over(all_are_dead) == []


async def test_one_that_is_put_while_it_is_written_again_stays(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as controller, trio.open_nursery() as nursery:
        intents = controller.store.intents
        await intents.put(INTENT)
        intents.remove(INTENT)
        is_first = iter([True])
        memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: (
            isinstance(request, wire.UpdateTableEntries)
            and request.segment == INTENTS
            and request.table_entries[0].key.key.endswith(b"/s/a")
            and next(is_first, False)
        )
        nursery.start_soon(intents.write_again)
        await memory_store.is_paused.wait()
        await intents.put(INTENT)
        memory_store.pause.set()
        memory_store.pause = None
        await check_that_it_stays(controller, memory_store)


async def test_one_that_is_put_while_it_is_removed_in_vain_stays(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The removal finds another version than this controller knows, and has to try again."""
    async with open_on_memory() as controller, trio.open_nursery() as nursery:
        intents = controller.store.intents
        await intents.put(INTENT)
        (key,) = [key for key in memory_store.tables[INTENTS].entries if key.endswith(b"/s/a")]
        await controller.store.tables.put(INTENTS, key, encode(INTENT))
        memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: (
            isinstance(request, wire.RemoveTableKeys) and request.segment == INTENTS
        )
        intents.remove(INTENT)
        await memory_store.is_paused.wait()
        nursery.start_soon(intents.put, INTENT)
        await trio.sleep(0.1)
        memory_store.pause.set()
        memory_store.pause = None
        await check_that_it_stays(controller, memory_store)


async def test_one_whose_second_write_fails_is_still_removed(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(retry_seconds_max=1.0, reply_seconds_max=0.5) as controller:
        intents = controller.store.intents
        await intents.put(INTENT)
        memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: (
            isinstance(request, wire.UpdateTableEntries) and request.segment == INTENTS
        )
        with pytest.raises(StoreUnavailableError):
            await intents.put(structs.replace(INTENT, stream_ids=("1",)))
        memory_store.pause.set()
        memory_store.pause = None
        intents.remove(INTENT)
        await trio.sleep(10)
        assert stored(memory_store) == []


@pytest.mark.parametrize("kind", [wire.UpdateTableEntries, wire.RemoveTableKeys])
async def test_one_whose_write_or_removal_fails_does_not_stay(
    kind: type[wire.Request],
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(retry_seconds_max=1.0, reply_seconds_max=0.5) as controller:
        intents = controller.store.intents
        memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: (
            isinstance(request, kind) and segment_of(request) == INTENTS
        )
        if kind is wire.UpdateTableEntries:
            with pytest.raises(StoreUnavailableError):
                await intents.put(INTENT)
        else:
            await intents.put(INTENT)
            intents.remove(INTENT)
            await trio.sleep(5)
            assert stored(memory_store) == [INTENT]
        if kind is wire.RemoveTableKeys:
            # The removals that were sent are lost with their connections.
            memory_store.pauses = lambda request: False
        else:
            memory_store.pause.set()
        memory_store.pause = None
        await trio.sleep(10)
        assert stored(memory_store) == []


async def test_those_that_are_taken_over_fit_the_requests_that_write_them(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(intents_module, "TAKEN_BYTES_MAX", 5_000)
    wanted = [
        IntentRecord("stream-segments", "s", f"a/{number}/0", segment_ids=tuple(range(500)))
        for number in range(7)
    ]
    sizes: list[int] = []

    def measure(request: wire.Request) -> bool:
        if isinstance(request, wire.UpdateTableEntries) and request.segment == INTENTS:
            sizes.append(sum(len(entry.value) for entry in request.table_entries))
        return False

    async with open_on_memory() as controller:
        tables = controller.store.tables
        for intent in wanted:
            await tables.put(INTENTS, key_of_dead(intent), encode(intent))
        memory_store.pause, memory_store.pauses = trio.Event(), measure
        taken = await controller.store.intents.take_over(is_dead)
        assert sorted(intent.name for intent in taken) == [intent.name for intent in wanted]
        assert len(sizes) == 4
        assert max(sizes) <= 5_000
        assert len(stored(memory_store)) == len(wanted)


async def test_one_that_covers_other_segments_covers_those_of_before_too(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    first = IntentRecord("table-segments", "s", "t/0", segment_ids=(0, 1, 2))
    async with open_on_memory() as controller:
        await controller.store.intents.put(first)
        await controller.store.intents.put(structs.replace(first, segment_ids=(0,)))
        assert stored(memory_store) == [first]
        assert await controller.store.intents.find(first) == first
