"""Two controllers that make and delete the same things: nobody is told of their conflicts."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import trio

from pravega_controller.controller import Controller
from pravega_controller.errors import (
    AlreadyExistsError,
    GenerationMismatchError,
    KeyValueTableNotFoundError,
    ReaderGroupNotFoundError,
    ScopeNotFoundError,
    TableNotEmptyError,
)
from pravega_controller.key_value_tables import KeyValueTableConfiguration
from pravega_controller.records import NamedCut, ReaderGroupConfiguration
from pravega_controller.streams import fixed_configuration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire.commands import CreateTableSegment, Request

GROUP_ID = "11111111-2222-3333-4444-555555555555"
CUTS = (NamedCut("s", "a", {}),)
GROUP = ReaderGroupConfiguration(3000, 30000, 3, 1, CUTS, CUTS)


async def test_tables(open_on_memory: Any, memory_store: MemorySegmentStore) -> None:
    configuration = KeyValueTableConfiguration(1, 8)
    made: list[bool] = []
    gone: list[bool] = []

    async def create(controller: Controller) -> None:
        made.append(await controller.tables.create("s", "t", configuration))

    async def delete(controller: Controller) -> None:
        try:
            await controller.tables.delete("s", "t")
        except KeyValueTableNotFoundError:
            return
        gone.append(True)

    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        await first.scopes.create("s")
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for controller in (first, second):
                    nursery.start_soon(create, controller)
                    nursery.start_soon(delete, controller)
                    nursery.start_soon(create, controller)
        await delete(first)
        assert sum(made) >= 10
        assert len(gone) >= sum(made), "a table that was made was deleted, by one or by both"
        assert (await second.tables.list("s", "")).names == []
    assert not [name for name in memory_store.tables if name.startswith("s/")]
    segments = [name for name in memory_store.created if name.startswith("s/")]
    assert len(segments) == len(set(segments)), "a name was used twice"


async def test_a_slow_controller_leaves_no_segment_of_a_table_that_was_deleted(
    open_on_memory: Any, memory_store: MemorySegmentStore
) -> None:
    slow = "s/t_kvtable/1.#epoch.0"
    is_first = iter([True])
    answers: list[bool] = []

    def pauses(request: Request) -> bool:
        is_creation = isinstance(request, CreateTableSegment) and request.segment == slow
        return is_creation and next(is_first, False)

    async with open_on_memory() as first, open_on_memory() as second:
        await first.scopes.create("s")
        memory_store.pause = trio.Event()
        memory_store.pauses = pauses
        async with trio.open_nursery() as nursery:

            async def create() -> None:
                configuration = KeyValueTableConfiguration(2, 8)
                answers.append(await first.tables.create("s", "t", configuration))

            nursery.start_soon(create)
            await memory_store.is_paused.wait()
            await second.tables.delete("s", "t")
            memory_store.pause.set()
        assert answers == [True]
        # The caller was promised a table: it is another one, and nothing is left of the first.
        assert len((await second.tables.get("s", "t")).segments) == 2
    left = sorted(name for name in memory_store.tables if name.startswith("s/"))
    assert left == ["s/t_kvtable/2.#epoch.0", "s/t_kvtable/3.#epoch.0"]


async def test_scopes(open_on_memory: Any, memory_store: MemorySegmentStore) -> None:
    refusals = (AlreadyExistsError, ScopeNotFoundError, TableNotEmptyError)

    async def tolerate(act: Any, *arguments: Any) -> None:
        with suppress(*refusals):
            await act(*arguments)

    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for controller in (first, second):
                    scopes = controller.scopes
                    nursery.start_soon(tolerate, scopes.create, "s")
                    nursery.start_soon(tolerate, scopes.delete, "s")
                    nursery.start_soon(tolerate, scopes.delete_with_contents, "s")
                    nursery.start_soon(tolerate, scopes.create, "s")
        await tolerate(second.scopes.create, "s")
        assert await first.scopes.exists("s")
        assert await first.tables.create("s", "t", KeyValueTableConfiguration(1, 8))
        await second.scopes.delete_with_contents("s")
        assert not await first.scopes.exists("s")


async def test_reader_groups(open_on_memory: Any, memory_store: MemorySegmentStore) -> None:
    refusals = (ReaderGroupNotFoundError, GenerationMismatchError)
    updates: list[int] = []

    async def tolerate(act: Any, *arguments: Any) -> None:
        with suppress(*refusals):
            await act(*arguments)

    async def update(controller: Controller, generation: int) -> None:
        with suppress(*refusals):
            updates.append(await controller.groups.update("s", "g", GROUP_ID, generation, GROUP))

    async with open_on_memory(port=1) as first, open_on_memory(port=2) as second:
        await first.scopes.create("s")
        await first.streams.create("s", "a", fixed_configuration(1))
        for _ in range(10):
            async with trio.open_nursery() as nursery:
                for controller in (first, second):
                    groups = controller.groups
                    nursery.start_soon(tolerate, groups.create, "s", "g", GROUP_ID, GROUP)
                    nursery.start_soon(update, controller, 0)
                    nursery.start_soon(tolerate, groups.delete, "s", "g", GROUP_ID)
                    nursery.start_soon(tolerate, groups.create, "s", "g", GROUP_ID, GROUP)
        assert set(updates) <= {1}
        await tolerate(first.groups.delete, "s", "g", GROUP_ID)
        assert await second.groups.subscribers("s", "a") == []
        assert not [name for name in memory_store.segments if "_RGg" in name]
        made = await second.groups.create("s", "g", GROUP_ID, GROUP)
        assert made.record.generation == 0
        assert await first.groups.subscribers("s", "a") == ["s/g"]
