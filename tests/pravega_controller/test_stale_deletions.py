"""A controller stands still amid a deletion; what clients make after it under the same names stays.

Another controller takes it for dead and ends the deletion, and a client makes everything anew. Then
the first controller goes on. It is stopped at each of its requests in turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import pytest
import trio
import trio.testing
from msgspec import structs

from pravega_controller.background.late_segments import LATE_SECONDS
from pravega_controller.background.members import MEMBERS
from pravega_controller.controller import Controller
from pravega_controller.errors import AlreadyExistsError, NotFoundError, VersionConflictError
from pravega_controller.metadata.conflicts import until_unchanged
from pravega_controller.metadata.group_records import ReaderGroup
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.metadata.records import (
    ConfigurationRecord,
    Create,
    CreateGroup,
    Delete,
    NamedCut,
    ReaderGroupConfiguration,
    ReaderGroupRecord,
    Update,
)
from pravega_controller.metadata.streams.writes import NewStream, StreamWrite
from pravega_controller.rules.history import first_epoch
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.store_client.table_client import NOT_EXISTS
from pravega_controller.tables.key_value_tables import KeyValueTableConfiguration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import commands as wire

pytestmark = pytest.mark.proof

OpenController: TypeAlias = Callable[..., AbstractAsyncContextManager[Controller]]
Act: TypeAlias = Callable[[Controller], Awaitable[object]]

TAGGED = structs.replace(fixed_configuration(1), tags=("tag",))
CUTS = (NamedCut("s", "a", {}),)
GROUP = ReaderGroupConfiguration(3000, 30000, 3, 1, CUTS, CUTS)
GROUP_ID = "11111111-2222-3333-4444-555555555555"
OTHER_ID = "22222222-2222-3333-4444-555555555555"
TABLE = KeyValueTableConfiguration(1, 8)


class StandStill:
    """Holds back the request of a number, and from then on what one controller says of itself."""

    def __init__(self, memory: MemorySegmentStore, instance_id: str, number: int = 0) -> None:
        self._key = instance_id.encode()
        self._left = number
        self._memory = memory
        self.is_taken = trio.Event()
        self.request: wire.Request | None = None
        memory.pause = trio.Event()
        memory.pauses = self._pauses

    def _pauses(self, request: wire.Request) -> bool:
        if isinstance(request, wire.Hello):
            return False
        if getattr(request, "segment", "") == MEMBERS:
            is_beat = isinstance(request, wire.UpdateTableEntries)
            return self.is_taken.is_set() and is_beat and self._is_own(request)
        if self.is_taken.is_set():
            return False
        self._left -= 1
        if self._left >= 0:
            return False
        self.request = request
        self.is_taken.set()
        return True

    def _is_own(self, request: wire.Request) -> bool:
        assert isinstance(request, wire.UpdateTableEntries)
        return request.table_entries[0].key.key == self._key

    def end(self) -> None:
        assert self._memory.pause is not None
        self._memory.pause.set()
        self._memory.pause = None


async def tolerate(act: Awaitable[object]) -> None:
    with suppress(NotFoundError):
        await act


async def tolerate_existing(act: Awaitable[object]) -> None:
    with suppress(AlreadyExistsError):
        await act


async def fill_scope(c: Controller) -> None:
    await c.scopes.create("s")
    await c.streams.create("s", "a", TAGGED)
    await c.groups.create("s", "g", GROUP_ID, GROUP)
    await c.tables.create("s", "t", TABLE)


async def end_clearing(c: Controller) -> None:
    await tolerate(c.scopes.delete_with_contents("s"))
    await c.scopes.finish("s")


async def make_scope(c: Controller) -> None:
    await c.scopes.create("s")


async def end_scope(c: Controller) -> None:
    await tolerate(c.scopes.delete("s"))
    await c.scopes.finish("s")


async def seal_stream(c: Controller) -> None:
    await c.scopes.create("s")
    await make_sealed_stream(c)


async def make_sealed_stream(c: Controller) -> None:
    await c.streams.create("s", "a", TAGGED)
    await c.streams.seal("s", "a")


async def end_stream(c: Controller) -> None:
    await tolerate(c.streams.delete("s", "a"))
    await c.streams.workflows.work.finish("s", "a")


async def make_stream(c: Controller) -> None:
    await c.scopes.create("s")
    await c.streams.create("s", "a", TAGGED)


async def end_open_stream(c: Controller) -> None:
    await tolerate(c.streams.seal("s", "a"))
    await end_stream(c)


async def make_table(c: Controller) -> None:
    await tolerate_existing(c.scopes.create("s"))
    await c.tables.create("s", "t", TABLE)


async def end_table(c: Controller) -> None:
    await tolerate(c.tables.delete("s", "t"))
    await c.tables.finish("s", "t")


async def begin_deletion(c: Controller) -> None:
    """Record the deletion of a stream that has no owner."""
    await seal_stream(c)
    stream = await c.store.streams.read("s", "a")
    await c.store.writes.write(stream, structs.replace(stream.record, pending=Delete(), owner=""))


async def begin_update(c: Controller) -> None:
    """Record an update that removes the tag and has no owner."""
    await c.scopes.create("s")
    await c.streams.create("s", "a", TAGGED)
    stream = await c.store.streams.read("s", "a")
    record = structs.replace(stream.record, pending=Update(), owner="")
    both = ConfigurationRecord(0, stream.configuration, fixed_configuration(1))
    await c.store.writes.write(stream, record, configuration=both)


async def finish_stream(c: Controller) -> None:
    await until_unchanged(partial(c.streams.workflows.work.finish, "s", "a"))


async def make_subscribed_group(c: Controller) -> None:
    await c.scopes.create("s")
    await c.streams.create("s", "a", fixed_configuration(1))
    await make_group(c, GROUP_ID)


async def make_group(c: Controller, group_id: str) -> None:
    await c.groups.create("s", "g", group_id, GROUP)


async def begin_group(c: Controller) -> None:
    """Record the creation of a group, without carrying it out."""
    await c.scopes.create("s")
    await c.streams.create("s", "a", fixed_configuration(1))
    record = ReaderGroupRecord(GROUP_ID, 0, GROUP, pending=CreateGroup())
    await c.store.groups.write(
        ReaderGroup(await c.store.scopes.find_active("s"), "g", NOT_EXISTS, record), record
    )


async def finish_group(c: Controller) -> None:
    await until_unchanged(partial(c.groups.finish, "s", "g"))


async def make_idle_group(c: Controller) -> None:
    """Make a group that subscribes to nothing."""
    await c.groups.create("s", "g", OTHER_ID, structs.replace(GROUP, retention_type=0))


async def end_group(c: Controller) -> None:
    await tolerate(c.groups.delete("s", "g", GROUP_ID))
    await c.groups.finish("s", "g")


async def check_nothing(c: Controller) -> None:
    """Check no more than that the scope is there."""


async def check_stream(c: Controller) -> None:
    assert (await c.store.streams.read("s", "_MARKa")).record.pending is None
    assert (await c.streams.list_with_tag("s", "tag", "")).names == ["a"]


async def check_sealed_stream(c: Controller) -> None:
    assert (await c.store.streams.read("s", "a")).record.is_sealed
    await check_stream(c)


async def check_open_stream(c: Controller) -> None:
    assert not (await c.store.streams.read("s", "a")).record.is_sealed
    await check_stream(c)


async def check_table(c: Controller) -> None:
    assert (await c.tables.get("s", "t")).record.pending is None


async def check_group(c: Controller) -> None:
    assert (await c.groups.get("s", "g")).record.pending is None
    assert not (await c.store.streams.read("s", "_RGg")).record.is_sealed
    assert (await c.store.streams.read("s", "_MARK_RGg")).record.pending is None
    assert await c.groups.subscribers("s", "a") == ["s/g"]
    stream = await c.store.streams.read("s", "a")
    assert await c.store.subscribers.find(stream, "s/g") is not None


async def check_idle_group(c: Controller) -> None:
    assert (await c.groups.get("s", "g")).record.pending is None
    assert await c.groups.subscribers("s", "a") == []
    stream = await c.store.streams.read("s", "a")
    assert await c.store.subscribers.find(stream, "s/g") is None


async def check_contents(c: Controller) -> None:
    assert not (await c.store.streams.read("s", "a")).record.is_sealed
    await check_stream(c)
    await check_group(c)
    assert (await c.tables.get("s", "t")).record.pending is None


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a controller deletes, how another one ends that, and what is made after it."""

    prepare: Act
    delete: Act
    first: int
    """The first request that comes after the slow controller has seen what it is to delete."""
    end: Act
    make_anew: Act
    check: Act
    step: int = 1
    """It is stopped at each request of so many."""
    objects: list[str]
    """The streams and tables of which segments must be there in the end."""


CASES = {
    "scope": Case(
        prepare=make_scope,
        delete=lambda c: c.scopes.delete("s"),
        first=2,
        end=end_scope,
        make_anew=make_scope,
        check=check_nothing,
        objects=[],
    ),
    "scope with contents": Case(
        prepare=fill_scope,
        delete=lambda c: c.scopes.delete_with_contents("s"),
        first=3,
        step=4,
        end=end_clearing,
        make_anew=fill_scope,
        check=check_contents,
        objects=["_MARK_RGg", "_MARKa", "_RGg", "a", "t_kvtable"],
    ),
    "stream": Case(
        prepare=seal_stream,
        delete=lambda c: c.streams.delete("s", "a"),
        first=4,
        end=end_stream,
        make_anew=make_sealed_stream,
        check=check_sealed_stream,
        objects=["_MARKa", "a"],
    ),
    "stream whose deletion another began": Case(
        prepare=begin_deletion,
        delete=finish_stream,
        first=0,
        end=finish_stream,
        make_anew=make_sealed_stream,
        check=check_sealed_stream,
        objects=["_MARKa", "a"],
    ),
    "stream that is sealed": Case(
        prepare=make_stream,
        delete=lambda c: c.streams.seal("s", "a"),
        first=2,
        end=end_open_stream,
        make_anew=lambda c: c.streams.create("s", "a", TAGGED),
        check=check_open_stream,
        objects=["_MARKa", "a"],
    ),
    "key-value table": Case(
        prepare=make_table,
        delete=lambda c: c.tables.delete("s", "t"),
        first=1,
        end=end_table,
        make_anew=make_table,
        check=check_table,
        objects=["t_kvtable"],
    ),
    "tag": Case(
        prepare=begin_update,
        delete=finish_stream,
        first=0,
        end=finish_stream,
        make_anew=lambda c: c.streams.update("s", "a", TAGGED),
        check=check_stream,
        objects=["_MARKa", "a"],
    ),
    "reader group": Case(
        prepare=make_subscribed_group,
        delete=lambda c: c.groups.delete("s", "g", GROUP_ID),
        first=1,
        end=end_group,
        make_anew=partial(make_group, group_id=OTHER_ID),
        check=check_group,
        objects=["_MARK_RGg", "_MARKa", "_RGg", "a"],
    ),
    "reader group that is made": Case(
        prepare=begin_group,
        delete=finish_group,
        first=0,
        end=end_group,
        make_anew=make_idle_group,
        check=check_idle_group,
        objects=["_MARK_RGg", "_MARKa", "_RGg", "a"],
    ),
}


async def delete_amid(
    case: Case, number: int, open_on_memory: OpenController, memory: MemorySegmentStore
) -> bool:
    """Return whether a deletion had ended before the request of a number, or check what it does."""
    patient = {"reply_seconds_max": 100.0}
    is_done = trio.Event()
    async with open_on_memory(port=1, **patient) as slow, open_on_memory(port=2) as other:
        await case.prepare(slow)
        await trio.sleep(5)
        still = StandStill(memory, slow.members.instance_id, number)

        async def delete() -> None:
            await tolerate(case.delete(slow))
            is_done.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(delete)
            with trio.move_on_after(1):
                await still.is_taken.wait()
            if not still.is_taken.is_set():
                assert is_done.is_set()
                still.end()
                return True
            with trio.fail_after(60):
                await case.end(other)
                await case.make_anew(other)
            still.end()
            with trio.fail_after(60):
                await is_done.wait()
        is_watched_for_long = number % 10 == 0
        for seconds in (0, 3 * LATE_SECONDS if is_watched_for_long else 1):
            await trio.sleep(seconds)
            for controller in (slow, other):
                assert await controller.scopes.exists("s")
                await case.check(controller)
            found = {name.split("/")[1] for name in segments(memory)}
            assert sorted(found) == case.objects, still.request
        assert len(segments(memory)) == len(case.objects), still.request
        ids = {scope_id for scope_id in map(scope_of, memory.tables) if scope_id}
        assert len(ids) == 2, "tables of the scope and of the system's"
        assert not is_watched_for_long or not memory.tables[INTENTS].entries, still.request
    return False


async def stop_at_each_request(
    case: Case, open_on_memory: OpenController, memory: MemorySegmentStore
) -> None:
    """Check a case with the slow controller stopped at one request after the other."""
    number = case.first
    while not await delete_amid(case, number, open_on_memory, memory):
        memory.reset()
        number += case.step
    assert number > case.first


def segments(memory: MemorySegmentStore) -> list[str]:
    return [name for name in (*memory.segments, *memory.tables) if name.startswith("s/")]


def scope_of(table: str) -> str:
    """Return the id of the scope whose table this is, or nothing."""
    kind, _, scope_id = table.removeprefix("_system/_tables/controller/").partition("-")
    return scope_id if kind in ("objects", "histories", "tags") else ""


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_what_is_made_after_a_deletion_stays(
    case: Case,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    await stop_at_each_request(case, open_on_memory, memory_store)


async def test_a_table_stays_that_is_made_after_a_deletion_at_the_same_time_by_a_clock_set_back(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    open_at_one_time = partial(open_on_memory, now_ms=lambda: 1_000_000)
    await stop_at_each_request(CASES["key-value table"], open_at_one_time, memory_store)


@pytest.mark.parametrize("number", range(4))
async def test_records_stay_of_a_stream_whose_creator_lives(
    number: int,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """One that took it for dead goes on to discard them after they were made."""
    patient = {"reply_seconds_max": 100.0}
    async with open_on_memory(port=1, **patient) as slow, open_on_memory(port=2) as creator:
        await creator.scopes.create("s")
        assert await slow.store.scopes.find("s") is not None
        stream_ids = ["1" * 16, "2" * 16]
        creator.store.new_id = iter(stream_ids).__next__  # type: ignore[method-assign]
        await trio.sleep(5)
        still = StandStill(memory_store, slow.members.instance_id, number)
        async with trio.open_nursery() as nursery:
            discard = slow.store.names.discard_unnamed
            nursery.start_soon(discard, "s", ["a", "_MARKa"], stream_ids)
            with trio.move_on_after(1):
                await still.is_taken.wait()
            memory_store.pauses = lambda request: False
            assert await creator.streams.create("s", "a", TAGGED)
            still.end()
        await check_stream(creator)
        assert (await creator.store.streams.read("s", "a")).stream_id == stream_ids[0]


async def begin_creation(c: Controller) -> None:
    """Record the creation of a stream and its mark stream, which has no owner."""
    await c.scopes.create("s")
    await c.streams.create("s", "a", TAGGED)
    found = [await c.store.streams.read("s", name) for name in ("a", "_MARKa")]
    record = partial(structs.replace, pending=Create(), owner="")
    streams = [replace(one, record=record(one.record)) for one in found]
    await c.store.writes.write_all([StreamWrite(one, one.record) for one in streams])


async def begin_creation_without_mark(c: Controller) -> None:
    """Record the creation of a stream without an owner, and no mark stream."""
    await c.scopes.create("s")
    scope = await c.store.scopes.find_active("s")
    first = first_epoch([(0.0, 1.0)], first_number=0, created_ms=0)
    new = NewStream("a", c.store.new_id(), NOT_EXISTS, TAGGED, first, "")
    await c.store.writes.insert(scope, [new])


async def end_creation(c: Controller) -> None:
    await finish_stream(c)
    await c.streams.seal("s", "a")
    await c.streams.delete("s", "a")


async def check_no_group(c: Controller) -> None:
    listing = await c.store.names.list_page("s", "")
    assert sorted(listing.names) == ["_MARKa", "a"]


async def check_empty(c: Controller) -> None:
    scope = await c.store.scopes.find_active("s")
    for kind in ("s", "g", "t"):
        assert (await c.store.scopes.list_objects_of(scope, kind, "")).names == []


CREATIONS = {
    "reader group": Case(
        prepare=begin_group,
        delete=finish_group,
        first=0,
        end=end_group,
        make_anew=check_nothing,
        check=check_no_group,
        objects=["_MARKa", "a"],
    ),
    "stream": Case(
        prepare=begin_creation,
        delete=finish_stream,
        first=0,
        end=end_creation,
        make_anew=check_nothing,
        check=check_empty,
        objects=[],
    ),
    "stream without its mark stream": Case(
        prepare=begin_creation_without_mark,
        delete=finish_stream,
        first=0,
        end=end_creation,
        make_anew=check_nothing,
        check=check_empty,
        objects=[],
    ),
}
"""Creations that a slow controller goes on with after what they make was made and deleted."""


@pytest.mark.parametrize("case", CREATIONS.values(), ids=CREATIONS)
async def test_a_creation_that_others_ended_leaves_nothing(
    case: Case,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    await stop_at_each_request(case, open_on_memory, memory_store)


async def test_a_mark_stream_of_a_changed_stream_leaves_no_name(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as c:
        await begin_creation_without_mark(c)
        stream = await c.store.streams.read("s", "a")
        await c.store.writes.write(stream, stream.record)
        first = first_epoch([(0.0, 1.0)], first_number=0, created_ms=0)
        mark = NewStream("_MARKa", c.store.new_id(), NOT_EXISTS, TAGGED, first, "")
        with pytest.raises(VersionConflictError):
            await c.store.writes.insert_mark(stream, [mark])
        assert (await c.store.names.list_page("s", "")).names == ["a"]
