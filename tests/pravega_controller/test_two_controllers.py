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

    async with open_on_memory() as first, open_on_memory() as second:
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


async def test_scopes(open_on_memory: Any, memory_store: MemorySegmentStore) -> None:
    refusals = (AlreadyExistsError, ScopeNotFoundError, TableNotEmptyError)

    async def tolerate(act: Any, *arguments: Any) -> None:
        with suppress(*refusals):
            await act(*arguments)

    async with open_on_memory() as first, open_on_memory() as second:
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

    async with open_on_memory() as first, open_on_memory() as second:
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
