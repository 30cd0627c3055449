"""Tables of a scope that are created after another controller has deleted the scope are deleted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from typing import TypeAlias

import pytest
import trio
import trio.testing
from msgspec import structs

from pravega_controller.background.late_segments import LATE_SECONDS
from pravega_controller.controller import Controller
from pravega_controller.errors import AlreadyExistsError, NotFoundError
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import commands as wire
from support.rare_parameters import mark_rare

OpenController: TypeAlias = Callable[..., AbstractAsyncContextManager[Controller]]

TAGGED = structs.replace(fixed_configuration(1), tags=("tag",))
PREFIX = "_system/_tables/controller/"
KINDS = ("objects", "histories", "tags")


class Late:
    """Holds back the first request to create a scope's table of a kind."""

    def __init__(self, memory: MemorySegmentStore, kind: str) -> None:
        self._start = f"{PREFIX}{kind}-"
        self.table = ""
        memory.pause, memory.pauses = trio.Event(), self._pauses

    def _pauses(self, request: wire.Request) -> bool:
        if self.table or not isinstance(request, wire.CreateTableSegment):
            return False
        if not request.segment.startswith(self._start):
            return False
        self.table = request.segment
        return True


async def make(c: Controller) -> None:
    with suppress(AlreadyExistsError):
        await c.scopes.create("s")
    await c.streams.create("s", "a", TAGGED)


@pytest.mark.parametrize("killed", mark_rare(["both", "the one that began"], 1))
@pytest.mark.parametrize("is_anew", [False, True], ids=["deleted", "made anew"])
@pytest.mark.parametrize("kind", KINDS)
async def test_a_table_that_a_killed_controller_creates_late_is_deleted(
    kind: str,
    is_anew: bool,
    killed: str,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    lives = [trio.CancelScope() for _ in range(3)]
    call = trio.CancelScope()

    async def live(number: int, *, task_status: trio.TaskStatus[Controller]) -> None:
        with lives[number]:
            async with open_on_memory(port=number, reply_seconds_max=60.0) as controller:
                task_status.started(controller)
                await trio.sleep_forever()

    async def make_in_vain(controller: Controller) -> None:
        with call:
            await make(controller)

    async with trio.open_nursery() as nursery:
        one = await nursery.start(live, 0)
        two = await nursery.start(live, 1)
        await trio.sleep(5)
        before = set(memory_store.tables)
        late = Late(memory_store, kind)
        nursery.start_soon(make_in_vain, one)
        await memory_store.is_paused.wait()
        call.cancel()
        lives[0].cancel()
        await trio.sleep(15)
        await make(two)
        await two.scopes.delete_with_contents("s")
        if is_anew:
            await make(two)
        if killed == "both":
            lives[1].cancel()
        assert late.table not in memory_store.tables
        assert memory_store.pause is not None
        memory_store.pause.set()
        await trio.sleep(1)
        assert late.table in memory_store.tables, "it came late"
        if killed == "both":
            two = await nursery.start(live, 2)
        await trio.sleep(3 * LATE_SECONDS)
        assert late.table not in memory_store.tables
        made = {name for name in memory_store.tables if name.startswith(PREFIX)} - before
        scope = await two.store.scopes.find("s")
        of_scope = set() if scope is None else {scope.objects, scope.histories, scope.tag_index}
        assert {name for name in made if name.removeprefix(PREFIX).startswith(KINDS)} == of_scope
        if is_anew:
            assert (await two.streams.list_with_tag("s", "tag", "")).names == ["a"]
        assert not memory_store.tables[INTENTS].entries
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_slow_controller_deletes_the_table_that_it_created_late(
    kind: str,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    patient = {"reply_seconds_max": 100.0}
    async with open_on_memory(port=1, **patient) as slow, open_on_memory(port=2) as other:
        late = Late(memory_store, kind)

        async def use() -> None:
            if kind == "tags":
                await other.scopes.create("s")
                with suppress(NotFoundError):
                    await slow.streams.list_with_tag("s", "tag", "")
            else:
                await slow.scopes.create("s")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(use)
            await memory_store.is_paused.wait()
            if kind != "tags":
                await other.scopes.finish("s")
            await other.scopes.delete("s")
            assert late.table not in memory_store.tables
            assert memory_store.pause is not None
            memory_store.pause.set()
        assert memory_store.created.count(late.table) == (1 if kind == "tags" else 2)
        assert late.table not in memory_store.tables
