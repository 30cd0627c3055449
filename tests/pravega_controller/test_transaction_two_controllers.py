"""Transactions of one stream through two controllers: neither is told what the other does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest
import trio
import trio.testing

from pravega_controller.background.late_segments import LATE_SECONDS
from pravega_controller.background.members import MEMBERS
from pravega_controller.controller import Controller
from pravega_controller.errors import InvalidRequestError, VersionConflictError
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.metadata.records import decode
from pravega_controller.metadata.transaction_records import TransactionRecord
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.rules.transactions import TransactionState, segment_name
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_controller.transactions.operations import PingAnswer
from pravega_wire import commands as wire
from pravega_wire import names
from support.rare_parameters import mark_rare

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]
LEASE = 20_000


async def make_stream(c: Controller) -> None:
    await c.scopes.create("s")
    await c.streams.create("s", "a", fixed_configuration(1))


async def begin(c: Controller) -> bytes:
    return (await c.transactions.begin("s", "a", lease_ms=LEASE)).identifier


async def commit(c: Controller, identifier: bytes) -> bool:
    return await c.transactions.commit("s", "a", identifier, writer_id="w", writer_ms=None)


async def make_anew(c: Controller) -> None:
    """Delete the stream and create it again: with the same name, and other segments."""
    await c.streams.seal("s", "a")
    await c.streams.delete("s", "a")
    await c.streams.create("s", "a", fixed_configuration(1))


def stored(memory: MemorySegmentStore, kind: str) -> list[bytes]:
    """Return the keys in the tables of transactions or of outcomes."""
    return [
        key for name, table in memory.tables.items() if f"/{kind}-" in name for key in table.entries
    ]


async def test_a_stream_sealed_here_and_made_anew_elsewhere_takes_transactions(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        old = await begin(one)
        await one.streams.seal("s", "a")
        await two.streams.delete("s", "a")
        await two.streams.create("s", "a", fixed_configuration(1))
        for _ in range(2):
            begun = await one.transactions.begin("s", "a", lease_ms=LEASE)
            assert begun.segments == tuple(await two.streams.active_segments("s", "a"))
            # Once the first controller has looked after what it had of the old stream.
            await trio.sleep(10)
        assert await one.transactions.completed("s", "a") == []
        assert not [
            key for key in stored(memory_store, "transactions") if old.hex().encode() in key
        ]


async def test_a_transaction_begun_on_a_stream_that_is_gone_is_begun_again(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        await begin(one)
        await make_anew(two)
        # The first controller has the old stream in memory.
        begun = await one.transactions.begin("s", "a", lease_ms=LEASE)
        (active,) = await two.streams.active_segments("s", "a")
        assert begun.segments == (active,)
        part = segment_name("s", "a", active.number, begun.identifier)
        memory_store.segments[part].length += 100
        assert await commit(one, begun.identifier)
        await trio.sleep(10)
        found = await one.transactions.state("s", "a", begun.identifier)
        assert found is TransactionState.COMMITTED
        assert memory_store.segments["s/a/1.#epoch.0"].length == 100
        assert not [name for name in memory_store.segments if names.is_transaction_segment(name)]
        assert not [key for key in stored(memory_store, "transactions") if key.startswith(b"t/")]
        assert len(await two.transactions.completed("s", "a")) == 1
        await two.streams.seal("s", "a")


async def test_outcomes_of_a_deleted_stream_are_not_archived(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        assert await commit(one, await begin(one))
        await trio.sleep(1)
        await make_anew(two)
        assert await one.transactions.completed("s", "a") == []
        await two.streams.seal("s", "a")
        await two.streams.delete("s", "a")
        await trio.sleep(10)
        assert not stored(memory_store, "outcomes")
        assert not stored(memory_store, "transactions")
        await two.streams.create("s", "a", fixed_configuration(1))
        assert await one.transactions.completed("s", "a") == []
        assert await two.transactions.completed("s", "a") == []


@pytest.mark.parametrize("kind", [b"a/", b"c/"], ids=["first", "outcomes"])
async def test_outcomes_of_a_stream_that_is_deleted_at_that_moment_do_not_stay(
    kind: bytes,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """They are on their way to the archive, and come when the other has emptied it."""

    def pauses(request: wire.Request) -> bool:
        if not isinstance(request, wire.UpdateTableEntries) or "outcomes-" not in request.segment:
            return False
        return any(entry.key.key.startswith(kind) for entry in request.table_entries)

    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        assert await commit(one, await begin(one))
        memory_store.pause, memory_store.pauses = trio.Event(), pauses
        with trio.fail_after(30):
            await memory_store.is_paused.wait()
        await two.streams.seal("s", "a")
        await two.streams.delete("s", "a")
        memory_store.pauses = lambda request: False
        memory_store.pause.set()
        await trio.sleep(30)
        assert not stored(memory_store, "outcomes")
        assert not stored(memory_store, "transactions")


async def test_a_controller_that_was_taken_for_dead_renews_nothing_that_another_holds(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        taken, left = await begin(one), await begin(one)
        await trio.sleep(10)
        # What the second does when the first has stood still: but it is slow about it.
        members = memory_store.tables[MEMBERS].entries
        instance_id = one.members.instance_id
        two.members._others[instance_id].is_dead = True
        key = instance_id.encode()
        removed = members.pop(key)
        async with two.transaction_workflows.held.locks.hold(left):
            await two.transaction_workflows.adoption.adopt_all()
            with trio.fail_after(10):
                while members.get(key, removed) is removed:  # noqa: ASYNC110
                    await trio.sleep(0.01)
            await trio.sleep(1)
            with pytest.raises(VersionConflictError, match="another controller holds"):
                await one.transactions.ping("s", "a", taken, lease_ms=LEASE)
            assert await one.transactions.ping("s", "a", left, lease_ms=LEASE) is PingAnswer.OK
        await trio.sleep(1)
        for identifier in (taken, left):
            with pytest.raises(VersionConflictError, match="another controller holds"):
                await one.transactions.ping("s", "a", identifier, lease_ms=LEASE)
            answer = await two.transactions.ping("s", "a", identifier, lease_ms=LEASE)
            assert answer is PingAnswer.OK
        assert await commit(two, taken)
        await trio.sleep(1)
        assert await one.transactions.state("s", "a", taken) is TransactionState.COMMITTED


@pytest.mark.parametrize("late", ["segments", "look"])
async def test_a_begin_that_is_slower_than_the_seal_of_its_stream_leaves_no_segment_behind(
    late: str,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    paused: list[wire.Request] = []

    def is_late(request: wire.Request) -> bool:
        """Return whether a request of the begin is delayed: creations, or the last look at the
        stream."""
        is_creation = isinstance(request, wire.CreateSegment)
        is_look = isinstance(request, wire.ReadTable) and "/histories-" in request.segment
        if not (is_creation or (is_look and late == "look" and not any(map(_is_look, paused)))):
            return False
        paused.append(request)
        return True

    def _is_look(request: wire.Request) -> bool:
        return isinstance(request, wire.ReadTable)

    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        await one.streams.active_segments("s", "a")
        memory_store.pauses = is_late
        memory_store.pause = trio.Event()
        answers: list[object] = []

        async def begin_late() -> None:
            try:
                answers.append(await begin(one))
            except InvalidRequestError as error:
                answers.append(error)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(begin_late)
            await memory_store.is_paused.wait()
            await two.streams.seal("s", "a")
            memory_store.pause.set()
            memory_store.pause = None
        await trio.sleep(30)
        assert isinstance(answers[0], InvalidRequestError)
        assert paused
        assert not [name for name in memory_store.segments if names.is_transaction_segment(name)]


@pytest.mark.parametrize("killed", mark_rare(["both", "the one that began"], 1))
@pytest.mark.parametrize("stream", ["sealed and deleted", "sealed before", "made anew before"])
@pytest.mark.parametrize("ahead_ms", [0, 365 * 86_400_000], ids=["same clocks", "a year ahead"])
async def test_a_segment_that_a_killed_controller_asked_for_late_is_deleted(
    ahead_ms: int,
    stream: str,
    killed: str,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The other controller ends the stream before or while the transaction is begun on it."""
    memory_store.pauses = lambda request: (
        isinstance(request, wire.CreateSegment) and names.is_transaction_segment(request.segment)
    )
    lives = [trio.CancelScope() for _ in range(3)]
    call = trio.CancelScope()

    async def live_for_a_while(port: int, *, task_status: trio.TaskStatus[Controller]) -> None:
        wall_ms = 1_000_000 + ahead_ms * (port > 0)
        with lives[port]:
            async with open_on_memory(
                port=port,
                reply_seconds_max=60.0,
                now_ms=lambda: wall_ms + int(1000 * trio.current_time()),
            ) as controller:
                task_status.started(controller)
                await trio.sleep_forever()

    async def begin_in_vain(controller: Controller) -> None:
        with call:
            await begin(controller)

    def transaction_segments() -> list[str]:
        return [name for name in memory_store.segments if names.is_transaction_segment(name)]

    async with trio.open_nursery() as nursery:
        one = await nursery.start(live_for_a_while, 0)
        two = await nursery.start(live_for_a_while, 1)
        await make_stream(one)
        # From here on the first controller has the stream in memory as it is now.
        assert await commit(one, await begin(one))
        await trio.sleep(1)
        if stream == "sealed before":
            await two.streams.seal("s", "a")
        elif stream == "made anew before":
            await make_anew(two)
        memory_store.pause = trio.Event()
        nursery.start_soon(begin_in_vain, one)
        await memory_store.is_paused.wait()
        # It is killed before it learns that the stream has ended.
        call.cancel()
        lives[0].cancel()
        if stream == "sealed and deleted":
            await two.streams.seal("s", "a")
        if stream != "made anew before":
            await two.streams.delete("s", "a")
        if killed == "both":
            lives[1].cancel()
        await trio.sleep(1)
        memory_store.pause.set()
        memory_store.pause = None
        await trio.sleep(1)
        assert transaction_segments()
        if killed == "both":
            await nursery.start(live_for_a_while, 2)
        await trio.sleep(2 * LATE_SECONDS)
        assert not transaction_segments()
        assert not memory_store.tables[INTENTS].entries
        assert not [key for key in stored(memory_store, "transactions") if key.startswith(b"t/")]
        nursery.cancel_scope.cancel()


async def test_a_delete_that_goes_on_late_leaves_the_transactions_of_the_next_stream_alone(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A controller stood still while another deleted the stream, and created it anew."""
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        gone = await one.store.streams.read("s", "a")
        await make_anew(two)
        assert await commit(two, await begin(two))
        await trio.sleep(10)
        begun, other = await begin(two), await begin(two)
        parts = [name for name in memory_store.segments if names.is_transaction_segment(name)]
        assert len(parts) == 2
        await one.transaction_workflows.stream_ends.forget_all(gone)
        assert await two.transactions.state("s", "a", begun) is TransactionState.OPEN
        assert all(part in memory_store.segments for part in parts)
        assert await commit(one, begun)
        assert await two.transactions.abort("s", "a", other)
        await trio.sleep(10)
        assert await one.transactions.state("s", "a", begun) is TransactionState.COMMITTED
        assert len(await two.transactions.completed("s", "a")) == 3


async def test_a_lease_that_a_dead_controller_renewed_is_not_shortened_by_who_watched_it_before(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The transaction's old lease ends when the other is known to be dead, and not taken over."""
    patient = {"reply_seconds_max": 100.0}
    async with trio.open_nursery() as nursery, open_on_memory(port=1, **patient) as one:
        life = trio.CancelScope()

        async def live_for_a_while(task_status: trio.TaskStatus[Controller]) -> None:
            with life:
                async with open_on_memory(port=2, **patient) as two:
                    task_status.started(two)
                    await trio.sleep_forever()

        two = await nursery.start(live_for_a_while)
        await make_stream(one)
        identifier = await begin(one)
        began = trio.current_time()
        await trio.sleep(12)
        assert await two.transactions.ping("s", "a", identifier, lease_ms=LEASE) is PingAnswer.OK
        renewed = trio.current_time()
        life.cancel()
        memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: isinstance(request, wire.RemoveTableKeys)
        with trio.fail_at(began + LEASE / 1000 - 0.2):
            await memory_store.is_paused.wait()
        await trio.sleep_until(renewed + LEASE / 1000 - 1)
        assert await one.transactions.state("s", "a", identifier) is TransactionState.OPEN
        memory_store.pause.set()
        assert await one.transactions.ping("s", "a", identifier, lease_ms=LEASE) is PingAnswer.OK


async def test_a_commit_whose_answer_was_lost_while_the_line_changed_is_archived(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The controller that recorded the commit reads it, and must know it for its own work."""
    is_lost = trio.Event()
    answer = memory_store._answer

    def lose_first_answer(request: wire.Request) -> wire.Reply | None:
        reply = answer(request)
        if is_lost.is_set() or not isinstance(request, wire.UpdateTableEntries):
            return reply
        records = [
            decode(entry.value, TransactionRecord)
            for entry in request.table_entries
            if "/transactions-" in request.segment and entry.key.key.startswith(b"t/")
        ]
        if not any(record.state is TransactionState.COMMITTED for record in records):
            return reply
        is_lost.set()
        return None

    monkeypatch.setattr(memory_store, "_answer", lose_first_answer)
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        await trio.sleep(10)
        first, second = await begin(one), await begin(one)
        assert await commit(one, first)
        await is_lost.wait()
        assert await commit(two, second)
        await trio.sleep(30)
        for controller in (one, two):
            for transaction in (first, second):
                found = await controller.transactions.state("s", "a", transaction)
                assert found is TransactionState.COMMITTED
        assert not [key for key in stored(memory_store, "transactions") if key.startswith(b"t/")]
        assert len(await two.transactions.completed("s", "a")) == 2


async def test_an_abort_that_meets_a_commit_of_a_transaction_that_another_holds(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Both find the record of the other controller; one decides, and the other one is told."""
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        await trio.sleep(5)
        for _ in range(10):
            identifier = await begin(one)
            memory_store.reply_seconds = 0.01
            answers: dict[str, bool] = {}

            async def end(name: str, identifier: bytes, answers: dict[str, bool]) -> None:
                if name == "commit":
                    answers[name] = await commit(two, identifier)
                else:
                    answers[name] = await two.transactions.abort("s", "a", identifier)

            async with trio.open_nursery() as nursery:
                for name in ("commit", "abort"):
                    nursery.start_soon(end, name, identifier, answers)
            assert sorted(answers.values()) == [False, True]
