"""A controller stands still amid the removal of outcomes; those of the stream made anew stay.

Another controller takes it for dead and deletes the stream, and a client makes it anew and commits
transactions. Then the first controller goes on. It is stopped at each of its requests in turn.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import pytest
import trio
import trio.testing

from pravega_controller.controller import Controller
from pravega_controller.errors import VersionConflictError
from pravega_controller.metadata import transaction_outcomes
from pravega_controller.metadata.transaction_outcomes import KEPT_MS_MIN
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.rules.transactions import TransactionState
from pravega_controller.testing.memory_segment_store import Fault, MemorySegmentStore
from pravega_controller.transactions import archiving

from .test_stale_deletions import OpenController, StandStill, end_stream, tolerate

pytestmark = pytest.mark.proof

PATIENT = {"reply_seconds_max": 200.0}
ARCHIVE_SECONDS = 10
"""Time, in seconds, after which an outcome is in the archive."""


@pytest.fixture(params=[1, 400], ids=["several chunks", "one chunk"])
def outcomes_in_chunk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Maximum number of outcomes in a chunk."""
    count: int = request.param
    for module in (transaction_outcomes, archiving):
        monkeypatch.setattr(module, "CHUNK_OUTCOMES_MAX", count)
    return count


async def commit_two(c: Controller) -> list[bytes]:
    """Commit two transactions, and wait until their outcomes are in the archive."""
    identifiers = []
    for _ in range(2):
        begun = await c.transactions.begin("s", "a", lease_ms=20_000)
        identifiers.append(begun.identifier)
        assert await c.transactions.commit(
            "s", "a", begun.identifier, writer_id="w", writer_ms=None
        )
        await trio.sleep(ARCHIVE_SECONDS)
    return identifiers


async def make_stream(c: Controller) -> list[bytes]:
    await c.streams.create("s", "a", fixed_configuration(1))
    return await commit_two(c)


async def make_anew(c: Controller) -> list[bytes]:
    await end_stream(c)
    return await make_stream(c)


async def seal_and_make_anew(c: Controller) -> list[bytes]:
    await c.streams.seal("s", "a")
    return await make_anew(c)


async def check(c: Controller, identifiers: list[bytes]) -> None:
    for identifier in identifiers:
        found = await c.transactions.state("s", "a", identifier)
        assert found is TransactionState.COMMITTED
    completed = await c.transactions.completed("s", "a")
    assert [outcome.identifier for outcome in completed] == [one.hex() for one in identifiers]


def keys_of(memory: MemorySegmentStore) -> list[bytes]:
    """Return the keys in the tables of outcomes."""
    return [
        key
        for name, table in memory.tables.items()
        if "/outcomes-" in name
        for key in table.entries
    ]


async def stand_still(
    act: Callable[[], Awaitable[object]],
    meanwhile: Callable[[], Awaitable[None]],
    still: StandStill,
    memory: MemorySegmentStore,
) -> bool:
    """Carry out ``act``; hold its request until ``meanwhile`` is done. Return whether it had it."""
    is_done = trio.Event()

    async def act_slowly() -> None:
        await act()
        is_done.set()

    async with trio.open_nursery() as nursery:
        held = memory.pause
        assert held is not None
        nursery.start_soon(act_slowly)
        with trio.move_on_after(1):
            await still.is_taken.wait()
        if is_held := still.is_taken.is_set():
            # What the controller says of itself waits apart from the request.
            memory.pause = trio.Event()
            await meanwhile()
        else:
            assert is_done.is_set()
        still.end()
        held.set()
        with trio.fail_after(60):
            await is_done.wait()
    return is_held


@dataclass(frozen=True, kw_only=True)
class Case:
    """What a controller has seen of the stream, and of the other controller in the end."""

    has_archived: bool = True
    """True if it archived the outcomes itself, and remembers the archive."""
    is_left_alone: bool = False
    """True if the other one has ended when it goes on, and it knows that it is alone."""


CASES = {
    "two controllers": Case(),
    "the other one archived": Case(has_archived=False),
    "one is left": Case(is_left_alone=True),
}


async def delete_amid(
    case: Case, number: int, open_on_memory: OpenController, memory: MemorySegmentStore
) -> bool:
    """Return whether a deletion had the request of a number; check the outcomes if it had."""
    async with open_on_memory(port=1, **PATIENT) as slow, trio.open_nursery() as nursery:
        life = trio.CancelScope()

        async def live_for_a_while(*, task_status: trio.TaskStatus[Controller]) -> None:
            with life:
                async with open_on_memory(port=2, **PATIENT) as controller:
                    task_status.started(controller)
                    await trio.sleep_forever()

        other: Controller = await nursery.start(live_for_a_while)
        await slow.scopes.create("s")
        await make_stream(slow if case.has_archived else other)
        await slow.streams.seal("s", "a")
        await trio.sleep(5)
        still = StandStill(memory, slow.members.instance_id, number)
        identifiers: list[bytes] = []

        async def meanwhile() -> None:
            with trio.fail_after(100):
                identifiers.extend(await make_anew(other))
            if case.is_left_alone:
                life.cancel()
                assert memory.pause is not None
                memory.pause.set()
                with trio.fail_after(60):
                    while slow.members.solitude is None:  # noqa: ASYNC110
                        await trio.sleep(1)

        async def delete() -> None:
            await tolerate(slow.streams.delete("s", "a"))

        if not await stand_still(delete, meanwhile, still, memory):
            life.cancel()
            return False
        for seconds in (0, ARCHIVE_SECONDS):
            await trio.sleep(seconds)
            for controller in (slow,) if case.is_left_alone else (slow, other):
                await check(controller, identifiers)
        life.cancel()
    return True


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.usefixtures("outcomes_in_chunk")
async def test_outcomes_of_a_stream_that_is_made_after_a_deletion_stay(
    case: Case,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    # The first requests find what is to be deleted.
    number = first = 4
    while await delete_amid(case, number, open_on_memory, memory_store):
        memory_store.reset()
        number += 1
    assert number > first + 10


@pytest.mark.usefixtures("outcomes_in_chunk")
async def test_old_outcomes_that_are_dropped_late_take_none_of_the_next_stream_with_them(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    number = 0
    is_held = True
    while is_held:
        memory_store.reset()
        async with open_on_memory(port=1, **PATIENT) as slow, open_on_memory(port=2) as other:
            await slow.scopes.create("s")
            await make_stream(slow)
            archive = slow.transaction_workflows.archiving._archive
            # The controllers' clocks of milliseconds hardly move.
            later = slow.transaction_workflows.held.now_ms() + KEPT_MS_MIN
            still = StandStill(memory_store, slow.members.instance_id, number)
            identifiers: list[bytes] = []

            async def drop_old(drop: Callable[[], Awaitable[None]]) -> None:
                with suppress(VersionConflictError):
                    await drop()

            async def meanwhile(other: Controller, identifiers: list[bytes]) -> None:
                identifiers.extend(await seal_and_make_anew(other))

            is_held = await stand_still(
                partial(drop_old, partial(archive.drop_old, "s", "a", now_ms=later)),
                partial(meanwhile, other, identifiers),
                still,
                memory_store,
            )
            for controller in (slow, other):
                await check(controller, identifiers)
        number += 1
    assert number >= 3
    assert not keys_of(memory_store)[1:], "no more than the record of the archive"


@pytest.mark.parametrize("is_applied", [False, True], ids=["not applied", "applied"])
@pytest.mark.usefixtures("outcomes_in_chunk")
async def test_a_removal_of_outcomes_that_is_killed_anywhere_leaves_nothing_in_the_end(
    is_applied: bool,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        await make_stream(controller)
        await controller.streams.seal("s", "a")
    prepared = memory_store.contents()
    for is_old in (False, True):
        step, is_killed = 0, True
        while is_killed:
            memory_store.restore(prepared)
            async with open_on_memory() as controller, trio.open_nursery() as nursery:
                fault = Fault(memory_store.changes + step, is_applied)
                memory_store.fault = fault
                now_ms = controller.transaction_workflows.held.now_ms()
                archive = controller.transaction_workflows.archiving._archive
                if is_old:
                    later = now_ms + KEPT_MS_MIN
                    nursery.start_soon(partial(archive.drop_old, "s", "a", now_ms=later))
                else:
                    nursery.start_soon(end_stream, controller)
                await trio.sleep(1)
                is_killed = fault.reached.is_set()
                nursery.cancel_scope.cancel()
            memory_store.fault = None
            async with open_on_memory() as successor:
                await end_stream(successor)
            assert not keys_of(memory_store)
            step += 1
        assert step >= 2
