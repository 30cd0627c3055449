"""Transactions on a segment store in memory: answers, order, leases, ends, and what is left."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress

import pytest
import trio
import trio.testing

from pravega_controller.controller import Controller
from pravega_controller.errors import (
    InvalidRequestError,
    StreamNotFoundError,
)
from pravega_controller.metadata import transaction_outcomes
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.rules import transactions
from pravega_controller.rules.streams import Segment, fixed_configuration
from pravega_controller.rules.transactions import TransactionState, segment_name
from pravega_controller.store_client.segment_client import for_each
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_controller.transactions import leases
from pravega_controller.transactions.open_transactions import Transaction
from pravega_controller.transactions.operations import (
    END_WAIT_SECONDS_MAX,
    BegunTransaction,
    PingAnswer,
)
from pravega_controller.watermarks.watermarks import WRITER_MARKS
from pravega_wire import names

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]
LEASE = 20_000
YEAR_MS = 365 * 86_400_000


async def make_stream(c: Controller, count: int = 2) -> None:
    await c.scopes.create("s")
    await c.streams.create("s", "a", fixed_configuration(count))


async def begin(c: Controller, lease_ms: int = LEASE) -> bytes:
    return (await c.transactions.begin("s", "a", lease_ms=lease_ms)).identifier


async def commit(c: Controller, identifier: bytes) -> bool:
    return await c.transactions.commit("s", "a", identifier, writer_id="w", writer_ms=None)


async def until(
    c: Controller, identifier: bytes, state: TransactionState, *, seconds_max: float = 5
) -> None:
    with trio.fail_after(seconds_max):
        while await c.transactions.state("s", "a", identifier) is not state:  # noqa: ASYNC110
            await trio.sleep(0.01)


def parts(memory: MemorySegmentStore) -> list[str]:
    """Return the transaction segments that exist."""
    return [name for name in memory.segments if names.is_transaction_segment(name)]


def write(memory: MemorySegmentStore, identifier: bytes, number: int, length: int) -> None:
    """Write to a transaction as a client does."""
    memory.segments[segment_name("s", "a", number, identifier)].length += length


def open_records(memory: MemorySegmentStore) -> list[bytes]:
    """Return the keys of all records of transactions outside of the archive."""
    return [
        key
        for table, content in memory.tables.items()
        if "/transactions-" in table
        for key in content.entries
        if key.startswith(b"t/")
    ]


async def test_a_committed_transaction_is_merged_into_every_segment(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        begun: BegunTransaction = await c.transactions.begin("s", "a", lease_ms=LEASE)
        identifier = begun.identifier
        assert [(s.number, s.epoch) for s in begun.segments] == [(0, 0), (1, 0)]
        assert sorted(parts(memory_store)) == sorted(
            segment_name("s", "a", number, identifier) for number in (0, 1)
        )
        write(memory_store, identifier, 0, 5)
        assert await c.transactions.state("s", "a", identifier) is TransactionState.OPEN
        assert await commit(c, identifier)
        await until(c, identifier, TransactionState.COMMITTED)
        assert memory_store.segments["s/a/0.#epoch.0"].length == 5
        assert memory_store.segments["s/a/1.#epoch.0"].length == 0
        assert not parts(memory_store)


async def test_unfinished_transactions_of_a_stream_are_listed(
    open_on_memory: OpenController,
) -> None:
    async with open_on_memory() as controller:
        await make_stream(controller)
        begun = [await begin(controller) for _ in range(3)]
        assert await commit(controller, begun[0])
        await until(controller, begun[0], TransactionState.COMMITTED)
        found = await controller.transactions.unfinished("s", "a", 10)
        assert {identifier for identifier, _ in found} == {*begun[1:]}
        assert {record.state for _, record in found} == {TransactionState.OPEN}
        assert len(await controller.transactions.unfinished("s", "a", 1)) == 1
        with pytest.raises(StreamNotFoundError):
            await controller.transactions.unfinished("s", "none", 1)


async def test_a_question_waits_for_the_end_that_is_being_carried_out(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        committed, aborted = await begin(c), await begin(c)
        for identifier in (committed, aborted):
            write(memory_store, identifier, 0, 5)
        assert await commit(c, committed)
        assert await c.transactions.abort("s", "a", aborted)
        before = trio.current_time()
        # None of them is asked twice.
        assert await c.transactions.state("s", "a", committed) is TransactionState.COMMITTED
        assert await c.transactions.state("s", "a", aborted) is TransactionState.ABORTED
        assert trio.current_time() - before < END_WAIT_SECONDS_MAX


async def test_a_question_does_not_wait_long_for_an_end_that_does_not_come(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        identifier = await begin(c)
        async with c.streams.workflows.work.exclusive("s", "a"):
            assert await commit(c, identifier)
            before = trio.current_time()
            state = await c.transactions.state("s", "a", identifier)
            assert state is TransactionState.COMMITTING
            assert trio.current_time() - before <= 1.5 * END_WAIT_SECONDS_MAX
        assert await c.transactions.state("s", "a", identifier) is TransactionState.COMMITTED


async def test_decisions_stay_and_unknown_transactions_are_refused(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        t = c.transactions
        committed, aborted, unknown = await begin(c), await begin(c), bytes(16)
        for _ in range(2):
            assert await commit(c, committed)
            assert not await t.abort("s", "a", committed)
            assert await t.abort("s", "a", aborted)
            assert not await commit(c, aborted)
            assert not await commit(c, unknown)
            assert not await t.abort("s", "a", unknown)
            assert not await t.commit("s", "no", committed, writer_id="", writer_ms=None)
            await until(c, committed, TransactionState.COMMITTED)
            await until(c, aborted, TransactionState.ABORTED)
            # Then once more from the archive.
            await trio.sleep(6)
            assert not open_records(memory_store)
        assert await t.ping("s", "a", committed, lease_ms=LEASE) is PingAnswer.COMMITTED
        assert await t.ping("s", "a", aborted, lease_ms=LEASE) is PingAnswer.ABORTED
        assert await t.ping("s", "a", unknown, lease_ms=LEASE) is PingAnswer.UNKNOWN
        assert await t.ping("s", "no", unknown, lease_ms=LEASE) is PingAnswer.UNKNOWN
        assert await t.state("s", "a", unknown) is None
        assert await t.state("s", "no", committed) is None
        assert not parts(memory_store)


async def test_commits_are_merged_in_their_order_in_batches(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        begun = [await begin(c) for _ in range(7)]
        order = [begun[i] for i in (3, 0, 6, 1, 5, 2, 4)]
        async with c.streams.workflows.work.exclusive("s", "a"):
            for identifier in order:
                assert await commit(c, identifier)
                assert (
                    await c.transactions.state("s", "a", identifier) is TransactionState.COMMITTING
                )
            await trio.sleep(3)
            before = memory_store.changes
        for identifier in order:
            await until(c, identifier, TransactionState.COMMITTED)
        for number in (0, 1):
            merged = memory_store.segments[f"s/a/{number}.#epoch.0"].merged
            assert merged == [segment_name("s", "a", number, i) for i in order]
        # One merge in each segment, and one write that ends them all.
        assert memory_store.changes - before == 2 + 1


async def test_so_many_requests_make_a_transaction(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c, 3)
        await commit(c, await begin(c))
        await trio.sleep(10)
        before = memory_store.requests
        identifier = await begin(c)
        assert memory_store.requests - before == 2 + 3, "record and look, then the segments"
        before = memory_store.requests
        assert await commit(c, identifier)
        assert memory_store.requests - before == 1, "a record"
        await until(c, identifier, TransactionState.COMMITTED)
        assert memory_store.requests - before == 1 + 3 + 1, "the merges, then a record"
        before = memory_store.requests
        await c.transactions.ping("s", "a", await begin(c), lease_ms=LEASE)
        assert memory_store.requests - before == 2 + 3, "a ping stores nothing"


@pytest.mark.parametrize("lease_ms", [0, -1, 9_999, 600_001, 2**62])
async def test_leases_out_of_bounds_are_refused(
    lease_ms: int,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        with pytest.raises(InvalidRequestError, match="lease"):
            await begin(c, lease_ms)
        assert not parts(memory_store)
        with pytest.raises(StreamNotFoundError):
            await c.transactions.begin("s", "no", lease_ms=LEASE)


async def test_pings_are_answered_in_order(
    open_on_memory: OpenController, autojump_clock: trio.testing.MockClock
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        identifier = await begin(c)

        async def ping(lease_ms: int) -> PingAnswer:
            return await c.transactions.ping("s", "a", identifier, lease_ms=lease_ms)

        assert await ping(600_000) is PingAnswer.OK
        assert await ping(600_001) is PingAnswer.LEASE_TOO_LARGE
        assert await ping(1) is PingAnswer.OK
        with pytest.raises(InvalidRequestError):
            await ping(0)
        # The lease of a millisecond ends early, although the one before it would not have.
        await until(c, identifier, TransactionState.ABORTED, seconds_max=2)
        assert await ping(LEASE) is PingAnswer.ABORTED


async def test_a_renewal_for_no_longer_than_before_writes_nothing(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        identifier = await begin(c, 10_000)
        await trio.sleep(5)
        before = memory_store.changes
        for lease_ms in (10_000, 5_000, 10_000):
            answer = await c.transactions.ping("s", "a", identifier, lease_ms=lease_ms)
            assert answer is PingAnswer.OK
        assert memory_store.changes == before
        await c.transactions.ping("s", "a", identifier, lease_ms=10_001)
        assert memory_store.changes == before + 1


async def test_the_time_of_execution_is_bounded(
    open_on_memory: OpenController,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transactions, "EXECUTION_LEASES_MAX", 10)
    async with open_on_memory() as c:
        await make_stream(c)
        identifier = await begin(c, 10_000)
        answers = []
        for _ in range(21):
            answers.append(await c.transactions.ping("s", "a", identifier, lease_ms=10_000))
            await trio.sleep(5)
        assert answers[:18] == [PingAnswer.OK] * 18
        assert answers[19] is PingAnswer.EXECUTION_TIME_EXCEEDED
        await until(c, identifier, TransactionState.ABORTED, seconds_max=20)


async def test_a_lease_that_ends_aborts_and_one_that_is_renewed_does_not(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        left, renewed = await begin(c), await begin(c)
        for _ in range(20):
            await trio.sleep(2)
            answer = await c.transactions.ping("s", "a", renewed, lease_ms=LEASE)
            assert answer is PingAnswer.OK
        assert await c.transactions.state("s", "a", left) is TransactionState.ABORTED
        assert await c.transactions.state("s", "a", renewed) is TransactionState.OPEN
        assert len(parts(memory_store)) == 2
        await trio.sleep(30)
        assert await c.transactions.state("s", "a", renewed) is TransactionState.ABORTED
        assert not parts(memory_store)
        assert not open_records(memory_store)


async def test_a_restart_gives_every_open_transaction_its_whole_lease(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        short, longer = await begin(c, 10_000), await begin(c, 10_000)
        await trio.sleep(9)
        await c.transactions.ping("s", "a", longer, lease_ms=60_000)
        await c.transactions.ping("s", "a", longer, lease_ms=10_000)
    await trio.sleep(3_600)
    async with open_on_memory() as c:
        await trio.sleep(9.5)
        assert await c.transactions.state("s", "a", short) is TransactionState.OPEN
        await trio.sleep(2)
        assert await c.transactions.state("s", "a", short) is TransactionState.ABORTED
        await trio.sleep(48)
        assert await c.transactions.state("s", "a", longer) is TransactionState.OPEN
        assert await commit(c, longer)
        await until(c, longer, TransactionState.COMMITTED)


async def test_no_number_is_handed_out_twice(
    open_on_memory: OpenController, autojump_clock: trio.testing.MockClock
) -> None:
    seen: set[bytes] = set()
    for _ in range(3):
        async with open_on_memory() as c:
            if not seen:
                await make_stream(c, 1)
            new = [await begin(c) for _ in range(5)]
            assert not seen & set(new)
            seen |= set(new)
            for identifier in new:
                await c.transactions.abort("s", "a", identifier)


async def test_sealing_aborts_what_is_open_and_commits_what_is_decided(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        opened, decided = await begin(c), await begin(c)
        write(memory_store, decided, 1, 7)
        async with trio.open_nursery() as nursery, c.streams.workflows.work.exclusive("s", "a"):
            assert await commit(c, decided)
            nursery.start_soon(c.streams.seal, "s", "a")
            await trio.sleep(1)
        assert await c.transactions.state("s", "a", opened) is TransactionState.ABORTED
        assert await c.transactions.state("s", "a", decided) is TransactionState.COMMITTED
        assert memory_store.segments["s/a/1.#epoch.0"].length == 7
        assert not parts(memory_store)
        assert not await commit(c, opened)
        with pytest.raises(InvalidRequestError, match="sealed"):
            await begin(c)
        assert len(await c.transactions.completed("s", "a")) == 2
        await trio.sleep(6)
        assert len(await c.transactions.completed("s", "a")) == 2
        await c.streams.delete("s", "a")
        left = [
            key
            for table, content in memory_store.tables.items()
            if "/transactions-" in table or "/outcomes-" in table
            for key in content.entries
        ]
        assert not left
        assert await c.transactions.state("s", "a", decided) is None
        await c.streams.create("s", "a", fixed_configuration(1))
        assert await c.transactions.completed("s", "a") == []


async def test_a_stream_that_is_being_sealed_waits_for_what_is_being_begun(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        await begin(c)
        memory_store.pause = trio.Event()

        async def try_to_begin() -> None:
            # It comes before the seal, which aborts it, or is refused.
            with suppress(InvalidRequestError):
                await begin(c)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(try_to_begin)
            await memory_store.is_paused.wait()
            nursery.start_soon(c.streams.seal, "s", "a")
            await trio.sleep(1)
            memory_store.pause.set()
            memory_store.pause = None
        await trio.sleep(1)
        assert not parts(memory_store)
        await trio.sleep(6)
        assert not open_records(memory_store)


async def test_completed_transactions_are_listed_by_stream_and_kept_for_a_day(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    now: dict[str, int] = {"ms": 10**12}
    async with open_on_memory(heartbeat_seconds=600.0, now_ms=lambda: now["ms"]) as c:
        await make_stream(c, 1)
        await c.streams.create("s", "b", fixed_configuration(1))
        other = (await c.transactions.begin("s", "b", lease_ms=LEASE)).identifier
        await c.transactions.abort("s", "b", other)
        wanted: list[tuple[str, bool]] = []
        for index in range(620):
            identifier = await begin(c)
            is_committed = index % 3 > 0
            if is_committed:
                await commit(c, identifier)
            else:
                await c.transactions.abort("s", "a", identifier)
            await until(c, identifier, TransactionState(("aborted", "committed")[is_committed]))
            wanted.append((identifier.hex(), is_committed))
            now["ms"] += 1
            if index == 100:
                await trio.sleep(6)
        found = [(o.identifier, o.is_committed) for o in await c.transactions.completed("s", "a")]
        assert found == wanted[-500:]
        listed = await c.transactions.completed("s", "b")
        assert [o.identifier for o in listed] == [other.hex()]
    async with open_on_memory(now_ms=lambda: now["ms"]) as c:
        await trio.sleep(6)
        found = [(o.identifier, o.is_committed) for o in await c.transactions.completed("s", "a")]
        assert found == wanted[-500:]
        now["ms"] += 24 * 3_600_000 - 700
        await commit(c, await begin(c))
        await trio.sleep(6)
        first = bytes.fromhex(wanted[0][0])
        assert await c.transactions.state("s", "a", first) is not None
        now["ms"] += 700
        await commit(c, await begin(c))
        await trio.sleep(6)
        assert await c.transactions.state("s", "a", first) is None
        # What shares a chunk with newer ones stays with them.
        left = [o.identifier for o in await c.transactions.completed("s", "a")]
        assert left[:-2] == [identifier for identifier, _ in wanted[-len(left) + 2 :]]
        assert 2 <= len(left) <= 402


@pytest.mark.parametrize("ahead_ms", [YEAR_MS, -YEAR_MS])
async def test_outcomes_of_a_clock_that_jumped_are_kept_for_a_day_and_go(
    ahead_ms: int,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_outcomes, "CHUNK_OUTCOMES_MAX", 1)
    now: dict[str, int] = {"ms": 2 * YEAR_MS}

    async def end_one(c: Controller, *, hours: float = 0) -> bytes:
        now["ms"] += int(hours * 3_600_000)
        identifier = await begin(c)
        await commit(c, identifier)
        await until(c, identifier, TransactionState.COMMITTED)
        await trio.sleep(6)
        return identifier

    async with open_on_memory(now_ms=lambda: now["ms"]) as c:
        await make_stream(c, 1)
        early = await end_one(c)
        now["ms"] += ahead_ms
    # A controller has no memory of the jumps in which it began.
    async with open_on_memory(now_ms=lambda: now["ms"]) as c:
        amid = await end_one(c)
        now["ms"] -= ahead_ms
        assert await c.transactions.state("s", "a", early) is TransactionState.COMMITTED
    async with open_on_memory(now_ms=lambda: now["ms"]) as c:
        late = await end_one(c)
        await end_one(c, hours=22.9)
        assert await c.transactions.state("s", "a", late) is TransactionState.COMMITTED
        assert await c.transactions.state("s", "a", amid) is TransactionState.COMMITTED
        await end_one(c, hours=1.2)
        for identifier in (early, amid, late):
            assert await c.transactions.state("s", "a", identifier) is None


async def test_an_outcome_is_kept_for_a_day_although_it_ended_by_a_clock_that_was_behind(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(transaction_outcomes, "CHUNK_OUTCOMES_MAX", 1)
    now: dict[str, int] = {"ms": 2 * YEAR_MS}
    async with open_on_memory(now_ms=lambda: now["ms"]) as c:
        await make_stream(c, 1)
        ended = await begin(c)
        await commit(c, ended)
        await until(c, ended, TransactionState.COMMITTED)
    # It was not archived yet when its controller was killed.
    now["ms"] += YEAR_MS
    async with open_on_memory(now_ms=lambda: now["ms"]) as c:
        for _ in range(3):
            await trio.sleep(6)
            other = await begin(c)
            await commit(c, other)
            await until(c, other, TransactionState.COMMITTED)
        await trio.sleep(6)
        assert await c.transactions.state("s", "a", ended) is TransactionState.COMMITTED


@pytest.mark.parametrize("ahead_ms", [YEAR_MS, -YEAR_MS])
async def test_the_time_of_execution_is_bounded_whatever_clock_it_was_begun_by(
    ahead_ms: int,
    open_on_memory: OpenController,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two controllers are pinged in turn: each ping takes the transaction over."""
    monkeypatch.setattr(transactions, "EXECUTION_LEASES_MAX", 10)

    def wall(ahead_ms: int) -> Callable[[], int]:
        return lambda: 2 * YEAR_MS + ahead_ms + int(1000 * trio.current_time())

    async with (
        open_on_memory(port=1, now_ms=wall(0)) as one,
        open_on_memory(port=2, now_ms=wall(0)) as two,
    ):
        async with open_on_memory(port=3, now_ms=wall(ahead_ms)) as third:
            await make_stream(third, 1)
            identifier = await begin(third, 10_000)
            began = trio.current_time()
        answer = PingAnswer.OK
        for number in range(60):
            asked = trio.current_time()
            controller = (one, two)[number % 2]
            answer = await controller.transactions.ping("s", "a", identifier, lease_ms=10_000)
            if answer is not PingAnswer.OK:
                break
            await trio.sleep(2)
            state = await controller.transactions.state("s", "a", identifier)
            assert state is TransactionState.OPEN, "a lease ends early"
        assert answer is PingAnswer.EXECUTION_TIME_EXCEEDED
        assert asked - began <= 105
        await until(one, identifier, TransactionState.ABORTED, seconds_max=30)


async def test_any_controller_answers_for_any_transaction(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as one:
        await make_stream(one)
        ids = [await begin(one) for _ in range(6)]
        async with open_on_memory(port=2) as two:
            # Whoever is asked to renew a lease watches it: the other one lets it go.
            for round_ in range(20):
                await trio.sleep(3)
                asked = (one, two)[round_ % 2] if round_ < 10 else two
                for identifier in ids:
                    answer = await asked.transactions.ping("s", "a", identifier, lease_ms=LEASE)
                    assert answer is PingAnswer.OK
                    for c in (one, two):
                        state = await c.transactions.state("s", "a", identifier)
                        assert state is TransactionState.OPEN
            assert await commit(one, ids[0])
            assert await commit(two, ids[1])
            assert await one.transactions.abort("s", "a", ids[2])
            assert await two.transactions.abort("s", "a", ids[3])
            for c in (one, two):
                for identifier in ids[:2]:
                    await until(c, identifier, TransactionState.COMMITTED)
                    assert await commit(c, identifier)
                    assert not await c.transactions.abort("s", "a", identifier)
                for identifier in ids[2:4]:
                    await until(c, identifier, TransactionState.ABORTED)
                    assert not await commit(c, identifier)
                assert len(await c.transactions.completed("s", "a")) == 4
            # Sealing by one ends those of the other.
            assert await commit(one, ids[4])
            await two.streams.seal("s", "a")
            assert await two.transactions.state("s", "a", ids[4]) is TransactionState.COMMITTED
            assert await one.transactions.state("s", "a", ids[5]) is TransactionState.ABORTED
            assert not await commit(one, ids[5])
            assert not parts(memory_store)
            await trio.sleep(30)
            assert not open_records(memory_store)


async def test_a_living_controller_takes_over_what_a_dead_one_held(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as two:
        await make_stream(two)
        async with open_on_memory(port=2) as one:
            left, renewed, decided = [await begin(one) for _ in range(3)]
            async with one.streams.workflows.work.exclusive("s", "a"):
                assert await commit(one, decided)
                # Killed here, as far as the store can tell.
                memory_store.pause = trio.Event()
                await trio.sleep(0.1)
        memory_store.pause.set()
        memory_store.pause = None
        await until(two, decided, TransactionState.COMMITTED, seconds_max=10)
        assert await two.transactions.ping("s", "a", renewed, lease_ms=LEASE) is PingAnswer.OK
        await trio.sleep(12)
        assert await two.transactions.state("s", "a", left) is TransactionState.OPEN
        assert await two.transactions.ping("s", "a", renewed, lease_ms=LEASE) is PingAnswer.OK
        await until(two, left, TransactionState.ABORTED, seconds_max=15)
        assert await two.transactions.state("s", "a", renewed) is TransactionState.OPEN
        assert await commit(two, renewed)
        await until(two, renewed, TransactionState.COMMITTED)
        assert not parts(memory_store)


async def test_a_controller_that_was_taken_for_dead_ends_nothing_any_more(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as old:
        await make_stream(old)
        ids = [await begin(old) for _ in range(2)]
        # At the same place: the new one knows that the old one is dead, which it is not.
        async with open_on_memory(port=1) as new:
            await trio.sleep(1)
            for _ in range(10):
                await trio.sleep(5)
                for identifier in ids:
                    answer = await new.transactions.ping("s", "a", identifier, lease_ms=LEASE)
                    assert answer is PingAnswer.OK
            assert await commit(new, ids[0])
            assert not await old.transactions.abort("s", "a", ids[0])
            await until(new, ids[0], TransactionState.COMMITTED)
            await until(old, ids[0], TransactionState.COMMITTED)


async def scale(c: Controller, sealed: list[int], ranges: list[tuple[float, float]]) -> None:
    await c.streams.scale("s", "a", sealed, ranges, now_ms=5)
    await c.streams.workflows.work.finish("s", "a")


def ids(segments: Iterable[Segment]) -> list[tuple[int, int]]:
    return [(segment.number, segment.epoch) for segment in segments]


async def test_transactions_of_an_earlier_epoch_are_taken_in_by_two_epochs(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        first, second, third = [await begin(c) for _ in range(3)]
        for number in (0, 1):
            write(memory_store, first, number, 1)
            write(memory_store, third, number, 10)
        await scale(c, [0], [(0.0, 0.25), (0.25, 0.5)])
        later = await begin(c)
        assert await commit(c, later)
        await until(c, later, TransactionState.COMMITTED)
        async with c.streams.workflows.work.exclusive("s", "a"):
            assert await commit(c, third)
            assert await commit(c, first)
            assert await c.transactions.abort("s", "a", second)
        await until(c, first, TransactionState.COMMITTED)
        assert await c.transactions.state("s", "a", third) is TransactionState.COMMITTED
        assert not parts(memory_store)
        # Both went into segments of an epoch that repeats the first one, in order, and sealed.
        for number in (0, 1):
            taken = memory_store.segments[f"s/a/{number}.#epoch.2"]
            assert taken.merged == [segment_name("s", "a", number, i) for i in (third, first)]
            assert (taken.length, taken.is_sealed) == (11, True)
        # The stream goes on with what it had before, under new ids.
        active = await c.streams.active_segments("s", "a")
        assert ids(active) == [(2, 3), (3, 3), (1, 3)]
        assert not any(memory_store.segments[f"s/a/{s.number}.#epoch.3"].is_sealed for s in active)
        for old, new in (((2, 1), [(0, 2)]), ((1, 0), [(1, 2)]), ((0, 2), [(2, 3), (3, 3)])):
            number, epoch = old
            successors = await c.streams.successors("s", "a", epoch << 32 | number)
            assert ids(s.segment for s in successors) == new
            assert memory_store.segments[f"s/a/{number}.#epoch.{epoch}"].is_sealed
        # Transactions begun now belong with those begun before: they are merged where they stand.
        now = await c.transactions.begin("s", "a", lease_ms=LEASE)
        assert ids(now.segments) == [(2, 1), (3, 1), (1, 1)]
        assert await commit(c, now.identifier)
        await until(c, now.identifier, TransactionState.COMMITTED)
        assert await c.streams.active_segments("s", "a") == active
        assert memory_store.segments["s/a/2.#epoch.3"].merged


async def test_segments_of_an_epoch_have_the_ids_that_transactions_are_named_by(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        await scale(c, [0], [(0.0, 0.25), (0.25, 0.5)])
        identifier = await begin(c)
    async with open_on_memory() as c:
        epoch = names.transaction_epoch(identifier)
        segments = await c.streams.epoch_segments("s", "a", epoch)
        assert sorted(parts(memory_store)) == sorted(
            names.transaction_segment_name(
                names.segment_name("s", "a", segment.segment_id), identifier
            )
            for segment in segments
        )
        assert await commit(c, identifier)
        await until(c, identifier, TransactionState.COMMITTED)
        assert memory_store.segments["s/a/1.#epoch.0"].merged


async def test_a_stream_with_transactions_of_an_earlier_epoch_is_sealed_and_deleted(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        identifier = await begin(c)
        write(memory_store, identifier, 0, 3)
        await scale(c, [0], [(0.0, 0.25), (0.25, 0.5)])
        async with trio.open_nursery() as nursery, c.streams.workflows.work.exclusive("s", "a"):
            assert await commit(c, identifier)
            nursery.start_soon(c.streams.seal, "s", "a")
            # The seal is behind this one in the line, and the commit behind the seal or before it.
        assert await c.transactions.state("s", "a", identifier) is TransactionState.COMMITTED
        assert memory_store.segments["s/a/0.#epoch.2"].length == 3
        own = {n: s for n, s in memory_store.segments.items() if n.startswith("s/a/")}
        assert all(segment.is_sealed for segment in own.values())
        await trio.sleep(5)
        assert not memory_store.tables[INTENTS].entries
        await c.streams.delete("s", "a")
        assert not [name for name in memory_store.segments if name.startswith("s/")]


async def test_a_scale_has_not_happened_because_of_a_duplicate_epoch(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        identifier = await begin(c)
        await scale(c, [0], [(0.0, 0.25), (0.25, 0.5)])
        assert await c.streams.has_left_epoch("s", "a", 0)
        assert await commit(c, identifier)
        await until(c, identifier, TransactionState.COMMITTED)
        assert not await c.streams.has_left_epoch("s", "a", 1)
        assert not await c.streams.has_left_epoch("s", "a", 3)
        await scale(c, [3 << 32 | 1], [(0.5, 0.75), (0.75, 1.0)])
        assert await c.streams.has_left_epoch("s", "a", 1)
        assert await c.streams.has_left_epoch("s", "a", 3)


async def test_only_the_transaction_that_is_in_memory_expires(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        identifier = await begin(c)
        workflows = c.transaction_workflows
        owner = workflows.held.registry.of("s", "a")
        held = owner.transactions[identifier]
        twin = Transaction(
            owner,
            identifier,
            held.record,
            held.version,
            lease_end=0,
            execution_end=0,
            certain_in=None,
        )
        await workflows.expired_leases._abort_expired(twin)
        assert await c.transactions.state("s", "a", identifier) is TransactionState.OPEN
        # Taking over from others finds nothing of one's own to take.
        await workflows.adoption.adopt_all()
        assert owner.transactions == {identifier: held}


async def test_a_damaged_mark_of_a_writer_holds_back_no_commit_and_no_seal(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        await c.watermarks.record_mark("s", "a", "w", 5, {0: 0, 1: 0})
        marks = memory_store.tables[WRITER_MARKS].entries
        marks[b"s/a/w"] = (b"{garbage", marks[b"s/a/w"][1])
        first, second = await begin(c), await begin(c)
        assert await c.transactions.commit("s", "a", first, writer_id="w", writer_ms=7)
        await until(c, first, TransactionState.COMMITTED)
        assert await c.transactions.commit("s", "a", second, writer_id="w", writer_ms=8)
        with trio.fail_after(60):
            await c.streams.seal("s", "a")
        assert await c.transactions.state("s", "a", second) is TransactionState.COMMITTED


async def test_a_damaged_stream_leaves_the_leases_of_other_streams_alone(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A transaction is recorded with its segments, and aborted without its stream's record."""
    async with open_on_memory() as c:
        await make_stream(c)
        await c.streams.create("s", "b", fixed_configuration(1))
        for _ in range(3):
            await c.transactions.begin("s", "b", lease_ms=LEASE)
        begun = [await begin(c) for _ in range(4)]
        stream = await c.store.streams.read("s", "b")
        entries, key = memory_store.tables[stream.table].entries, stream.key("state")
        entries[key] = (b"{garbage", entries[key][1] + 1)
        await trio.sleep(2 * LEASE / 1000)
        for identifier in begun:
            assert await c.transactions.state("s", "a", identifier) is TransactionState.ABORTED
        assert not parts(memory_store)


async def test_an_abort_that_cannot_be_recorded_at_the_end_of_a_lease_is_recorded_later(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        damaged, other = await begin(c), await begin(c)
        ((entries, key),) = [
            (table.entries, key)
            for table in memory_store.tables.values()
            for key in table.entries
            if key.endswith(b"/" + damaged.hex().encode())
        ]
        value, version = entries[key]
        entries[key] = (b"{garbage", version + 1)
        await trio.sleep(2 * LEASE / 1000)
        assert await c.transactions.state("s", "a", other) is TransactionState.ABORTED
        assert await c.transactions.state("s", "a", damaged) is TransactionState.OPEN
        entries[key] = (value, version)
        await until(c, damaged, TransactionState.ABORTED, seconds_max=10)
        assert not parts(memory_store)


async def test_leases_of_transactions_that_were_committed_take_no_room(
    open_on_memory: OpenController,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leases, "LEFT_OVER_MAX", 20)
    async with open_on_memory() as c:
        await make_stream(c)
        open_one = await begin(c)

        async def begin_and_commit(_: int) -> None:
            assert await commit(c, await begin(c))

        await for_each(range(100), begin_and_commit)
        await trio.sleep(1)
        workflows = c.transaction_workflows
        assert workflows.held.registry.of("s", "a").transactions.keys() == {open_one}
        assert len(workflows.held.timer._ends) <= 21
