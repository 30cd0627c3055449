"""Requests of a killed controller come after others have finished its work and clients undid it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import pytest
import trio
import trio.testing
from msgspec import structs

from pravega_controller.background.late_segments import (
    AGAIN_SECONDS_MIN,
    DELETIONS_AT_A_TIME_MAX,
    LATE_SECONDS,
    LateSegments,
)
from pravega_controller.controller import Controller
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.metadata.records import IntentRecord, encode
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.store_client.table_client import NOT_EXISTS
from pravega_controller.tables.key_value_tables import (
    CreateTable,
    KeyValueTableConfiguration,
    KeyValueTableRecord,
)
from pravega_controller.testing.memory_segment_store import MemorySegmentStore, MemoryTable
from pravega_wire import commands as wire
from support.rare_parameters import mark_rare

OpenController: TypeAlias = Callable[..., AbstractAsyncContextManager[Controller]]
Act: TypeAlias = Callable[[Controller], Awaitable[object]]

CONFIGURATION = KeyValueTableConfiguration(2, 8)


async def create_stream(c: Controller) -> None:
    await c.streams.create("s", "a", fixed_configuration(1))


async def delete_stream(c: Controller) -> None:
    await c.streams.seal("s", "a")
    await c.streams.delete("s", "a")


async def make_anew(c: Controller) -> None:
    await delete_stream(c)
    await create_stream(c)


async def split(c: Controller) -> None:
    await c.streams.scale("s", "a", [0], [(0.0, 0.5), (0.5, 1.0)], now_ms=5)
    await c.streams.workflows.work.finish("s", "a")


async def drop_halves(c: Controller) -> None:
    """Merge the two segments of a scale, and truncate the stream behind them."""
    halves = [one.segment_id for one in await c.streams.active_segments("s", "a")]
    assert len(halves) == 2
    await c.streams.scale("s", "a", halves, [(0.0, 1.0)], now_ms=6)
    await c.streams.workflows.work.finish("s", "a")
    (last,) = await c.streams.active_segments("s", "a")
    await c.streams.truncate("s", "a", {last.segment_id: 0})


async def create_table(c: Controller) -> None:
    await c.tables.create("s", "t", CONFIGURATION)


async def delete_table(c: Controller) -> None:
    await c.tables.delete("s", "t")


async def make_table_anew(c: Controller) -> None:
    await c.tables.delete("s", "t")
    await c.tables.create("s", "t", CONFIGURATION)


async def do_nothing(c: Controller) -> None:
    """Let everything be as it is."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a controller does when it is killed, and what clients of the other do then."""

    begin: Act
    ask: Act
    """A question that waits for what was begun."""
    late: str
    """The segment whose creation comes late."""
    undo: Act
    left: list[str]
    """The segments that must be there in the end."""
    has_stream: bool = False
    """Whether the stream is there before."""


def ask_for_stream(c: Controller) -> Awaitable[object]:
    return c.streams.workflows.work.finish("s", "a")


def ask_for_table(c: Controller) -> Awaitable[object]:
    return c.tables.get("s", "t")


FIRST, LATER = "s/a/0.#epoch.0", "s/a/1.#epoch.0"
HALVES = ["s/a/1.#epoch.1", "s/a/2.#epoch.1"]
MERGED = "s/a/3.#epoch.2"
MARK, LATER_MARK = "s/_MARKa/0.#epoch.0", "s/_MARKa/1.#epoch.0"
TABLES = [f"s/t_kvtable/{number}.#epoch.0" for number in range(4)]

STREAM = partial(Case, begin=create_stream, ask=ask_for_stream, late=FIRST)
SCALE = partial(Case, begin=split, ask=ask_for_stream, late=HALVES[0], has_stream=True)
TABLE = partial(Case, begin=create_table, ask=ask_for_table, late=TABLES[1])
CASES = {
    "created": STREAM(undo=do_nothing, left=[MARK, FIRST]),
    "created, deleted": STREAM(undo=delete_stream, left=[]),
    "mark created, deleted": STREAM(late=MARK, undo=delete_stream, left=[]),
    "created, made anew": STREAM(undo=make_anew, left=[LATER_MARK, LATER]),
    "scaled": SCALE(undo=do_nothing, left=[MARK, FIRST, *HALVES]),
    "scaled, truncated": SCALE(undo=drop_halves, left=[MARK, MERGED]),
    "scaled, deleted": SCALE(undo=delete_stream, left=[]),
    "table created": TABLE(undo=do_nothing, left=TABLES[:2]),
    "table created, made anew": TABLE(undo=make_table_anew, left=TABLES[2:]),
    "table created, deleted": TABLE(undo=delete_table, left=[]),
}


@pytest.mark.parametrize("killed", mark_rare(["both", "the one that began"], 1))
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_a_segment_that_a_killed_controller_creates_late_is_deleted_unless_it_is_needed(
    case: Case,
    killed: str,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    lives = [trio.CancelScope() for _ in range(3)]
    call = trio.CancelScope()
    held: list[wire.Request] = []

    def pauses(request: wire.Request) -> bool:
        is_creation = isinstance(request, wire.CreateSegment | wire.CreateTableSegment)
        if is_creation and request.segment == case.late and not held:
            held.append(request)
            return True
        return False

    async def live_for_a_while(number: int, *, task_status: trio.TaskStatus[Controller]) -> None:
        with lives[number]:
            async with open_on_memory(port=number, reply_seconds_max=60.0) as controller:
                task_status.started(controller)
                await trio.sleep_forever()

    async def begin_in_vain(controller: Controller) -> None:
        with call:
            await case.begin(controller)

    def segments() -> list[str]:
        found = [*memory_store.segments, *memory_store.tables]
        return sorted(
            name for name in found if name.startswith(("s/a/", "s/t_kvtable/", "s/_MARKa/"))
        )

    async with trio.open_nursery() as nursery:
        one = await nursery.start(live_for_a_while, 0)
        two = await nursery.start(live_for_a_while, 1)
        await one.scopes.create("s")
        if case.has_stream:
            await create_stream(one)
        await trio.sleep(5)
        memory_store.pause, memory_store.pauses = trio.Event(), pauses
        nursery.start_soon(begin_in_vain, one)
        await memory_store.is_paused.wait()
        call.cancel()
        lives[0].cancel()
        # The other finds it dead, and finishes what it has begun.
        await trio.sleep(15)
        await case.ask(two)
        await case.undo(two)
        if killed == "both":
            lives[1].cancel()
        before = segments()
        memory_store.pause.set()
        await trio.sleep(1)
        assert case.late in segments(), "it came late"
        assert (case.late in before) == (case.late in case.left)
        if killed == "both":
            await nursery.start(live_for_a_while, 2)
        await trio.sleep(3 * LATE_SECONDS)
        assert segments() == case.left
        assert not memory_store.tables[INTENTS].entries
        nursery.cancel_scope.cancel()


INTENT = IntentRecord("stream-segments", "s", "a/0/0", segment_ids=(0,))


async def test_a_promise_that_is_repeated_is_kept_after_the_whole_time_again(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Another controller had the work between the two, and died, too."""
    kept: list[float] = []
    failures = iter([True, True])

    async def delete(intent: IntentRecord) -> None:
        kept.append(round(trio.current_time() - began))
        if next(failures, False):
            raise RuntimeError("not yet")

    async with open_on_memory() as controller, trio.open_nursery() as nursery:
        late = LateSegments(controller.store)
        late.register("stream-segments", delete)
        nursery.start_soon(late.run)
        began = trio.current_time()
        await late.promise(INTENT)
        await trio.sleep(40)
        await late.promise(INTENT)
        # A sweep for unfinished intents calls this; it must not change the time.
        await late.finish("stream-segments", "s", "a/0/0")
        await trio.sleep(200)
        due = 40 + LATE_SECONDS
        assert kept == [due, due + AGAIN_SECONDS_MIN, due + 3 * AGAIN_SECONDS_MIN]
        assert not memory_store.tables[INTENTS].entries
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("fails", [False, True])
async def test_a_promise_that_is_repeated_while_it_is_being_kept_is_kept_again(
    fails: bool,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    began_at: list[float] = []

    async def delete(intent: IntentRecord) -> None:
        began_at.append(round(trio.current_time() - began))
        await trio.sleep(30)
        if fails and len(began_at) == 1:
            raise RuntimeError("not yet")

    async with open_on_memory() as controller, trio.open_nursery() as nursery:
        late = LateSegments(controller.store)
        late.register("stream-segments", delete)
        nursery.start_soon(late.run)
        began = trio.current_time()
        await late.promise(INTENT)
        await trio.sleep(LATE_SECONDS + 20)
        await late.promise(INTENT)
        await trio.sleep(50)
        assert memory_store.tables[INTENTS].entries
        await trio.sleep(100)
        assert began_at == [LATE_SECONDS, 2 * LATE_SECONDS + 20]
        assert not memory_store.tables[INTENTS].entries
        nursery.cancel_scope.cancel()


async def test_a_promise_that_is_repeated_while_it_waits_for_others_is_kept_later(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A container that is away holds all the others up."""
    kept: list[float] = []

    async def delete(intent: IntentRecord) -> None:
        if intent == INTENT:
            kept.append(round(trio.current_time() - began))
        else:
            await trio.sleep(30)

    async with open_on_memory() as controller, trio.open_nursery() as nursery:
        late = LateSegments(controller.store)
        late.register("stream-segments", delete)
        nursery.start_soon(late.run)
        began = trio.current_time()
        for number in range(DELETIONS_AT_A_TIME_MAX):
            await late.promise(structs.replace(INTENT, name=f"b/{number}/0"))
        await trio.sleep(1)
        await late.promise(INTENT)
        await trio.sleep(LATE_SECONDS + 19)
        await late.promise(INTENT)
        await trio.sleep(100)
        assert kept == [2 * LATE_SECONDS + 20]
        assert not memory_store.tables[INTENTS].entries
        nursery.cancel_scope.cancel()


async def test_a_promise_that_is_taken_over_is_kept_after_the_whole_time_again(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """This controller has made the same promise before; the other knew of more segments."""
    kept: list[tuple[float, IntentRecord]] = []

    async def delete(intent: IntentRecord) -> None:
        kept.append((round(trio.current_time() - began), intent))

    async def is_dead(instance_id: str) -> bool:
        return instance_id == "dead"

    async with open_on_memory() as controller, trio.open_nursery() as nursery:
        late = LateSegments(controller.store)
        late.register("stream-segments", delete)
        nursery.start_soon(late.run)
        began = trio.current_time()
        await late.promise(INTENT)
        await trio.sleep(50)
        others = structs.replace(INTENT, segment_ids=(0, 1))
        key = f"dead/{INTENT.kind}/{INTENT.scope}/{INTENT.name}".encode()
        await controller.store.tables.put(INTENTS, key, encode(others))
        await controller.store.intents.take_over(is_dead)
        for _ in range(2):
            await late.finish(INTENT.kind, INTENT.scope, INTENT.name)
            await trio.sleep(1)
        await trio.sleep(200)
        assert kept == [(50 + LATE_SECONDS, others)]
        assert not memory_store.tables[INTENTS].entries
        nursery.cancel_scope.cancel()


async def make_unfinished_table(c: Controller, *, first_number: int) -> None:
    """Record a table as a controller does that is killed then."""
    record = KeyValueTableRecord(CONFIGURATION, 5, first_number, CreateTable(), "made by another")
    scope = await c.store.scopes.find_active("s")
    await c.store.scopes.put_object(scope, "t", "t", encode(record), version=NOT_EXISTS)


async def test_segments_of_a_table_whose_numbers_are_used_are_looked_for_under_both(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Two controllers may give it the same other numbers, and one of them be killed."""
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await create_table(controller)
        await delete_table(controller)
        await make_unfinished_table(controller, first_number=0)
        assert (await controller.tables.get("s", "t")).record.first_number == 2
        found = [key.rpartition(b"/s/")[2] for key in memory_store.tables[INTENTS].entries]
        assert {b"t/0", b"t/2"} <= set(found)
        await delete_table(controller)
        for name in TABLES:
            memory_store.tables[name] = MemoryTable()
        await trio.sleep(2 * LATE_SECONDS)
        assert not [name for name in memory_store.tables if name in TABLES]
        assert not memory_store.tables[INTENTS].entries


async def test_segments_are_deleted_although_an_unfinished_table_has_their_numbers_by_mistake(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its controller read the numbers before a deletion reserved them."""
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await create_table(controller)
        await delete_table(controller)
        await make_unfinished_table(controller, first_number=0)
        memory_store.tables[TABLES[0]] = MemoryTable()
        intent = IntentRecord("table-segments", "s", "t/0", segment_ids=(0, 1))
        await controller.late_segments.promise(intent)
        await trio.sleep(LATE_SECONDS + 5)
        assert TABLES[0] not in memory_store.tables
