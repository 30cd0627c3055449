"""The table of a stream's workflows, walked: each is finished, taken over, and refused."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from pathlib import Path
from types import NoneType
from typing import Any

import pytest
import trio
import trio.testing
from msgspec import structs

from pravega_controller.controller import Controller
from pravega_controller.errors import StepRefusedError
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.metadata.records import NEXT_WORKFLOWS, Create, Delete, Scale, Update
from pravega_controller.metadata.streams.known import Stream
from pravega_controller.metadata.streams.writes import StreamWrites
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire import commands as wire

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]
Act = Callable[[Controller], Awaitable[object]]
Steps = set[tuple[type, type]]
HALVES = ((0.0, 0.5), (0.5, 1.0))


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    """The changes of what is pending that were written, by its kinds before and after."""
    taken: Steps = set()
    real_write, real_withdraw = StreamWrites.write_all, StreamWrites.withdraw_epoch

    async def write_all(written: StreamWrites, writes: Any) -> list[Stream]:
        streams = await real_write(written, writes)
        for write in writes:
            taken.add((type(write.stream.record.pending), type(write.record.pending)))
        return streams

    async def withdraw_epoch(written: StreamWrites, stream: Stream) -> Stream:
        without = await real_withdraw(written, stream)
        taken.add((type(stream.record.pending), type(without.record.pending)))
        return without

    monkeypatch.setattr(StreamWrites, "write_all", write_all)
    monkeypatch.setattr(StreamWrites, "withdraw_epoch", withdraw_epoch)
    return taken


async def create(c: Controller) -> None:
    await c.streams.create("s", "new", fixed_configuration(2))


async def scale(c: Controller) -> None:
    await c.streams.scale("s", "a", [0], HALVES, now_ms=0)
    await c.streams.workflows.work.finish("s", "a")


async def update(c: Controller) -> None:
    await c.streams.update("s", "a", fixed_configuration(3))


async def tag(c: Controller) -> None:
    await c.streams.update("s", "a", structs.replace(fixed_configuration(1), tags=("blue",)))


async def roll(c: Controller) -> None:
    """Commit a transaction that was begun before a scale."""
    begun = await c.transactions.begin("s", "a", lease_ms=20_000)
    await scale(c)
    identifier = begun.identifier
    await c.transactions.commit("s", "a", identifier, writer_id="w", writer_ms=None)
    await trio.sleep(1)


async def truncate(c: Controller) -> None:
    await c.streams.truncate("s", "a", {0: 10})


async def seal(c: Controller) -> None:
    await c.streams.seal("s", "a")


async def delete(c: Controller) -> None:
    await c.streams.seal("s", "a")
    await c.streams.delete("s", "a")


ACTS: dict[Act, type] = {
    create: wire.CreateSegment,
    scale: wire.SealSegment,
    update: wire.UpdateSegmentPolicy,
    tag: wire.UpdateSegmentPolicy,
    roll: wire.MergeSegmentsBatch,
    truncate: wire.TruncateSegment,
    seal: wire.SealSegment,
    delete: wire.DeleteSegment,
}
"""Each change of a stream, and a request that it sends before its last step."""


async def make_stream(c: Controller, memory: MemorySegmentStore) -> None:
    await c.scopes.create("s")
    await c.streams.create("s", "a", fixed_configuration(1))
    memory.segments["s/a/0.#epoch.0"].append(bytes(100))


async def settle(memory: MemorySegmentStore) -> None:
    """Wait until no workflow is unfinished."""
    with trio.fail_after(600):
        while memory.tables[INTENTS].entries:  # noqa: ASYNC110 (the store in memory has no events)
            await trio.sleep(1)


async def finish(act: Act, open_it: OpenController, memory: MemorySegmentStore) -> None:
    """Do all of it."""
    async with open_it() as c:
        await make_stream(c, memory)
        await act(c)
        await settle(memory)


async def take_over(act: Act, open_it: OpenController, memory: MemorySegmentStore) -> None:
    """Stop the controller in the midst of it, and let the next one finish."""
    async with open_it() as c:
        await make_stream(c, memory)
        reached = trio.Event()

        def pauses(request: wire.Request) -> bool:
            if isinstance(request, ACTS[act]):
                reached.set()
            return isinstance(request, ACTS[act])

        memory.pause, memory.pauses = trio.Event(), pauses
        async with trio.open_nursery() as nursery:
            nursery.start_soon(act, c)
            await reached.wait()
            nursery.cancel_scope.cancel()
    memory.pause = None
    async with open_it():
        await settle(memory)


async def refuse(act: Act, open_it: OpenController, memory: MemorySegmentStore) -> None:
    """Refuse for good the segments that it makes, or those that it truncates."""
    async with open_it() as c:
        await make_stream(c, memory)
        memory.refuses = lambda segment: (
            ("#epoch.1" in segment or "/new/" in segment or act is truncate)
            and not segment.startswith("_")
        )
        with suppress(StepRefusedError):
            await act(c)
        memory.refuses = lambda segment: False
        await settle(memory)


async def test_the_workflows_that_follow_each_other_are_those_of_the_table(
    steps: Steps,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    nothing = memory_store.contents()
    for way in (finish, take_over, refuse):
        for act in ACTS:
            await way(act, open_on_memory, memory_store)
            memory_store.restore(nothing)
    table = {(before, after) for before, states in NEXT_WORKFLOWS.items() for after in states}
    assert steps <= table
    assert steps == table


def test_the_table_ends() -> None:
    """Whatever is pending leads to a stream without pending work, or to none."""
    for before, states in NEXT_WORKFLOWS.items():
        assert before in states
        assert NoneType in states or before is Delete
    assert NEXT_WORKFLOWS[Create] - {Create} == {NoneType, Delete}
    assert Scale in NEXT_WORKFLOWS[Update]


def test_the_page_about_workflows_has_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs/internals/controller-workflows.md").read_text()
    kinds = {kind.__name__: kind for kind in NEXT_WORKFLOWS} | {"none": NoneType}
    for name, following in re.findall(r"^\| `?(none|[A-Z]\w+)`? \| ([^|]*) \|", page, re.MULTILINE):
        before = kinds.pop(name)
        expected = {each.__name__ for each in NEXT_WORKFLOWS[before] - {NoneType, before}}
        assert set(re.findall(r"`(\w+)`", following)) == expected
        assert ("none" in following) == (before not in (NoneType, Delete))
    assert set(kinds) == {"NoneType"}
