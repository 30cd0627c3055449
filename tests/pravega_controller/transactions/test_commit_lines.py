"""The line of a stream's commits, changed by one controller and by two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from random import Random
from typing import Any

import pytest
import structlog.testing
import trio
import trio.testing
from msgspec import structs

from pravega_controller.controller import Controller
from pravega_controller.errors import StoreUnavailableError, VersionConflictError
from pravega_controller.metadata.records import decode, encode
from pravega_controller.metadata.transaction_records import (
    CommitLineRecord,
    TransactionRecord,
)
from pravega_controller.metadata.transaction_store import TransactionStore
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.rules.transactions import TransactionState, make_id
from pravega_controller.store_client.table_client import NOT_EXISTS, Entry, TableClient, with_write
from pravega_controller.testing.memory_segment_store import Fault, MemorySegmentStore
from pravega_controller.transactions import commit_lines, open_transactions
from pravega_controller.transactions.commit_lines import CommitLines, KnownLine
from pravega_wire import commands as wire
from pravega_wire import names

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]
LEASE = 30_000
OPEN, COMMITTING = TransactionState.OPEN, TransactionState.COMMITTING
COMMITTED = TransactionState.COMMITTED


# ---- By itself -----------------------------------------------------------------------------------


class Tables:
    """One table in memory, as ``TableClient`` would show it, and the faults of a write."""

    def __init__(self) -> None:
        self.entries: dict[bytes, tuple[bytes, int]] = {}
        self.version = 0
        self.writes = 0
        self.before: Callable[[], None] = lambda: None
        """Called before each write is looked at: what another controller writes first."""

    def marked(self, changes: list[commit_lines.RecordChange]) -> list[commit_lines.RecordChange]:
        return changes

    async def update(self, table: str, changes: list[commit_lines.RecordChange]) -> list[int]:
        await trio.sleep(0.001)
        before, self.before = self.before, lambda: None
        before()
        self.writes += 1
        for change in changes:
            known = self.entries.get(change.key, (b"", NOT_EXISTS))[1]  # type: ignore[attr-defined]
            if change.version != known:  # type: ignore[attr-defined]
                raise VersionConflictError("another version")
        return [self.put(c.key, c.value) for c in changes]  # type: ignore[attr-defined]

    def put(self, key: bytes, value: bytes) -> int:
        self.version += 1
        self.entries[key] = (value, self.version)
        return self.version

    async def get(self, table: str, key: bytes) -> Entry | None:
        return (await self.get_all(table, [key]))[0]

    async def get_all(self, table: str, keys: list[bytes]) -> list[Entry | None]:
        await trio.sleep(0.001)
        found = [self.entries.get(key) for key in keys]
        return [e and Entry(k, *e) for k, e in zip(keys, found, strict=True)]


class Members:
    """A controller that is told who is dead."""

    def __init__(self, instance_id: str, dead: set[str]) -> None:
        self.instance_id = instance_id
        self._dead = dead
        self.solitude = None

    async def is_dead(self, instance_id: str) -> bool:
        return instance_id in self._dead


class OfStream:
    """A stream from the view of one controller."""

    def __init__(self) -> None:
        self.scope, self.stream, self.stream_id = "s", "a", "1"
        self.line = KnownLine()


class Side:
    """One of two controllers on the same table."""

    def __init__(self, tables: Tables, name: str, dead: set[str]) -> None:
        self.store = TransactionStore(tables, random=Random(1))  # type: ignore[arg-type]
        self.lines = CommitLines(self.store, Members(name, dead))  # type: ignore[arg-type]
        self.of_stream = OfStream()

    async def begin(self, number: int, epoch: int = 0) -> tuple[bytes, int]:
        identifier = make_id(epoch, number)
        record = TransactionRecord(OPEN, 0, LEASE, LEASE)
        (version,) = await self.store.write("s", "a", [(identifier, record, NOT_EXISTS)])
        return identifier, version

    async def commit(self, begun: tuple[bytes, int]) -> int:
        record = TransactionRecord(COMMITTING, 0, LEASE, LEASE)
        return await self.lines.enter(self.of_stream, (begun[0], record, begun[1]))

    async def end(self, *committed: tuple[bytes, int]) -> None:
        record = TransactionRecord(COMMITTED, 0, LEASE, LEASE)
        await self.lines.leave(self.of_stream, [(i, record, version) for i, version in committed])


@pytest.fixture
def dead() -> set[str]:
    return set()


@pytest.fixture
def tables() -> Tables:
    return Tables()


@pytest.fixture
def sides(tables: Tables, dead: set[str]) -> tuple[Side, Side]:
    return Side(tables, "one", dead), Side(tables, "two", dead)


def stored(tables: Tables) -> CommitLineRecord:
    return decode(tables.entries[b"c/s/a/1"][0], CommitLineRecord)


async def test_who_commits_first_leads_until_nothing_waits(
    sides: tuple[Side, Side], tables: Tables, autojump_clock: trio.testing.MockClock
) -> None:
    one, two = sides
    first, second = await one.begin(1), await two.begin(2)
    version = await one.commit(first)
    assert one.lines.leads(one.of_stream)
    other = await two.commit(second)
    assert not two.lines.leads(two.of_stream)
    assert stored(tables).waiting == (first[0].hex(), second[0].hex())
    # The first does not know of the second's commit: it learns of it when it means to stop.
    assert len(one.of_stream.line.commits()) == 1
    await one.end((first[0], version))
    assert one.lines.leads(one.of_stream)
    assert [commit.identifier for commit in one.of_stream.line.commits()] == [second[0]]
    await one.end((second[0], other))
    assert not one.lines.leads(one.of_stream)
    assert stored(tables).leader == ""
    assert stored(tables).waiting == ()


async def test_a_dead_leaders_place_is_taken_by_who_writes_next(
    sides: tuple[Side, Side], tables: Tables, dead: set[str], autojump_clock: trio.testing.MockClock
) -> None:
    one, two = sides
    first, second = await one.begin(1), await one.begin(2)
    await one.commit(first)
    assert not await two.lines.lead(two.of_stream)
    dead.add("one")
    await two.commit(second)
    assert two.lines.leads(two.of_stream)
    assert [c.identifier for c in two.of_stream.line.commits()] == [first[0], second[0]]
    # A living one's is taken by who ends the stream, and learned when the other writes.
    dead.clear()
    assert await one.lines.lead(one.of_stream, takes_over=True)
    assert not await two.lines.begin_epoch(two.of_stream, 7)
    assert stored(tables).epoch == 0
    assert await one.lines.begin_epoch(one.of_stream, 7)
    await one.lines.give_up(one.of_stream)
    assert not one.lines.leads(one.of_stream)
    assert await two.lines.lead(two.of_stream)


async def test_commits_of_a_group_fail_only_for_reasons_of_their_own(
    sides: tuple[Side, Side], tables: Tables, autojump_clock: trio.testing.MockClock
) -> None:
    one, _ = sides
    begun = [await one.begin(number) for number in range(1, 5)]
    results: dict[int, str] = {}

    async def commit(index: int) -> None:
        try:
            await one.commit(begun[index])
        except VersionConflictError:
            results[index] = "changed"
        else:
            results[index] = "in line"

    def interfere() -> None:
        # Another controller commits one of its own, and changes one of these.
        key = f"t/s/a/{begun[2][0].hex()}".encode()
        tables.put(key, encode(TransactionRecord(TransactionState.ABORTING, 0, LEASE, LEASE)))
        waiting = structs.replace(stored(tables), waiting=("ff" * 16,), leader="two")
        tables.put(b"c/s/a/1", encode(waiting))

    await one.commit(begun[0])
    tables.before = interfere
    writes = tables.writes
    async with trio.open_nursery() as nursery:
        for index in (1, 2, 3):
            nursery.start_soon(commit, index)
    assert results == {1: "in line", 2: "changed", 3: "in line"}
    waiting = stored(tables).waiting
    assert waiting[0] == "ff" * 16
    assert set(waiting[1:]) == {begun[1][0].hex(), begun[3][0].hex()}
    assert tables.writes - writes <= 4


async def test_a_full_line_takes_no_more(
    sides: tuple[Side, Side],
    tables: Tables,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(commit_lines, "WAITING_MAX", 2)
    one, _ = sides
    begun = [await one.begin(number) for number in (1, 2, 3)]
    versions = [await one.commit(one_begun) for one_begun in begun[:2]]
    with pytest.raises(StoreUnavailableError, match="wait to be committed"):
        await one.commit(begun[2])
    await one.end((begun[0][0], versions[0]))
    await one.commit(begun[2])


async def test_two_controllers_that_commit_all_the_time_get_on_both(
    sides: tuple[Side, Side], tables: Tables, autojump_clock: trio.testing.MockClock
) -> None:
    """The one that met a conflict has to read first: the other one gives way, or it would always
    win."""
    counts = {"one": 0, "two": 0}
    longest = {"one": 0.0, "two": 0.0}

    async def work(side: Side, name: str, numbers: range) -> None:
        for number in numbers:
            begun = await side.begin(number)
            began = trio.current_time()
            version = await side.commit(begun)
            longest[name] = max(longest[name], trio.current_time() - began)
            await side.end((begun[0], version))
            counts[name] += 1

    with trio.move_on_after(3):
        async with trio.open_nursery() as nursery:
            for index, (name, side) in enumerate(zip(counts, sides, strict=True)):
                for writer in range(8):
                    start = 100_000 * (index + 1) + 10_000 * writer
                    nursery.start_soon(work, side, name, range(start, start + 10_000))
    assert min(counts.values()) > max(counts.values()) / 4
    assert max(longest.values()) < 0.5


def test_the_fullest_line_fits_a_value() -> None:
    waiting = tuple("f" * 32 for _ in range(commit_lines.WAITING_MAX))
    record = CommitLineRecord(waiting, "f" * 16, 2**31 - 1)
    assert len(with_write(encode(record), "f" * 16)) < 1024 * 1024 - 8192


# ---- In controllers ------------------------------------------------------------------------------


async def make_stream(c: Controller, count: int = 2) -> None:
    await c.scopes.create("s")
    await c.streams.create("s", "a", fixed_configuration(count))


async def begin(c: Controller) -> bytes:
    return (await c.transactions.begin("s", "a", lease_ms=LEASE)).identifier


async def commit(c: Controller, identifier: bytes) -> bool:
    return await c.transactions.commit("s", "a", identifier, writer_id="w", writer_ms=None)


async def until(c: Controller, identifier: bytes, state: TransactionState) -> None:
    with trio.fail_after(60):
        while await c.transactions.state("s", "a", identifier) is not state:  # noqa: ASYNC110
            await trio.sleep(0.01)


def merged_into(memory: MemorySegmentStore, number: int) -> list[bytes]:
    """Return the transactions in the segments of a number, in the order of the stream."""
    found: list[tuple[int, list[bytes]]] = []
    for name, segment in memory.segments.items():
        parsed = names.parse_segment_name(name)
        if (
            parsed.stream == "a"
            and parsed.transaction_id is None
            and parsed.segment_number == number
        ):
            ids = [names.parse_segment_name(one).transaction_id or b"" for one in segment.merged]
            found.append((parsed.epoch, ids))
    return [one for _, ids in sorted(found) for one in ids]


@pytest.mark.parametrize("reply_seconds", [0.0, 0.003])
async def test_commits_through_two_controllers_have_one_order_in_all_segments(
    reply_seconds: float,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        memory_store.reply_seconds = reply_seconds
        both, random = (one, two), Random(4)
        answered: list[bytes] = []
        waiting: dict[bytes, list[bytes]] = {}
        """For each commit those that were answered before it was asked for."""

        async def write() -> None:
            for _ in range(12):
                identifier = await begin(random.choice(both))
                waiting[identifier] = list(answered)
                assert await commit(random.choice(both), identifier)
                answered.append(identifier)

        async with trio.open_nursery() as nursery:
            for _ in range(6):
                nursery.start_soon(write)
        for identifier in answered:
            await until(random.choice(both), identifier, COMMITTED)
        order = merged_into(memory_store, 0)
        assert sorted(order) == sorted(answered)
        assert merged_into(memory_store, 1) == order
        places = {identifier: place for place, identifier in enumerate(order)}
        for identifier, before in waiting.items():
            assert all(places[other] < places[identifier] for other in before)


async def test_a_commit_is_carried_out_although_its_leader_dies(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with trio.open_nursery() as nursery, open_on_memory(port=2) as two:
        stop = trio.CancelScope()

        async def live_for_a_while(task_status: trio.TaskStatus[Controller]) -> None:
            with stop:
                async with open_on_memory(port=1) as one:
                    task_status.started(one)
                    await trio.sleep_forever()

        one = await nursery.start(live_for_a_while)
        await make_stream(one)
        first, second, third = [await begin(one) for _ in range(3)]
        # The first controller records a commit, and comes no further than to half of the merges.
        memory_store.pause = trio.Event()
        memory_store.pauses = lambda r: isinstance(r, wire.MergeSegmentsBatch) and "/1." in r.target
        assert await commit(one, first)
        await memory_store.is_paused.wait()
        memory_store.pause = None
        assert await commit(two, second)
        await trio.sleep(1)
        assert await two.transactions.state("s", "a", second) is COMMITTING
        stop.cancel()
        assert await commit(two, third)
        with trio.fail_after(10):
            for identifier in (first, second, third):
                await until(two, identifier, COMMITTED)
        assert merged_into(memory_store, 0) == [first, second, third]
        assert merged_into(memory_store, 1) == [first, second, third]
        nursery.cancel_scope.cancel()


async def test_a_late_merge_of_a_leader_that_was_taken_for_dead_changes_nothing(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        first, second = [await begin(one) for _ in range(2)]
        late = memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: isinstance(request, wire.MergeSegmentsBatch)
        assert await commit(one, first)
        await memory_store.is_paused.wait()
        memory_store.pause = None
        # What the second does when the first has stood still.
        two.members._others[one.members.instance_id].is_dead = True
        assert await commit(two, second)
        await until(two, second, COMMITTED)
        late.set()
        await until(one, first, COMMITTED)
        third = await begin(two)
        assert await commit(one, third)
        await until(one, third, COMMITTED)
        for number in (0, 1):
            assert merged_into(memory_store, number) == [first, second, third]


async def test_who_seals_a_stream_takes_the_line_from_a_living_leader(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        identifier, left = await begin(one), await begin(one)
        async with one.streams.workflows.work.exclusive("s", "a"):
            assert await commit(one, identifier)
            with trio.fail_after(10):
                await two.streams.seal("s", "a")
        assert await one.transactions.state("s", "a", identifier) is COMMITTED
        assert await one.transactions.state("s", "a", left) is TransactionState.ABORTED
        assert merged_into(memory_store, 0) == merged_into(memory_store, 1) == [identifier]


async def test_commits_whose_line_was_lost_are_carried_out_in_the_order_of_their_begins(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory() as c:
        await make_stream(c)
        ids = [await begin(c) for _ in range(3)]
    (table,) = [t for n, t in memory_store.tables.items() if "/transactions-" in n and t.entries]
    for identifier, created_ms in zip(ids, (7, 5, 6), strict=True):
        key = f"t/s/a/{identifier.hex()}".encode()
        value, version = table.entries[key]
        record = decode(value, TransactionRecord)
        left = structs.replace(record, state=COMMITTING, created_ms=created_ms)
        table.entries[key] = (encode(left), version + 1)
    async with open_on_memory() as c:
        for identifier in ids:
            await until(c, identifier, COMMITTED)
        for number in (0, 1):
            assert merged_into(memory_store, number) == [ids[1], ids[2], ids[0]]
        await c.streams.seal("s", "a")
        await c.streams.delete("s", "a")
        assert not [key for key in table.entries if key.startswith((b"c/", b"t/"))]


async def test_a_commit_whose_reply_is_lost_is_carried_out_by_the_same_controller(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """This holds even if nobody asks for the commit again."""
    async with open_on_memory(reply_seconds_max=0.5, retry_seconds_max=0.1) as c:
        await make_stream(c)
        identifier = await begin(c)
        memory_store.fault = Fault(memory_store.changes, is_applied=True, lasts=False)
        with suppress(StoreUnavailableError):
            await commit(c, identifier)
        assert memory_store.fault.reached.is_set()
        await trio.sleep(5)
        assert merged_into(memory_store, 0) == merged_into(memory_store, 1) == [identifier]


async def test_a_commit_whose_reply_is_lost_is_carried_out_although_another_stands_behind_it(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    """The second controller leads the line, and is told first that somebody has changed it."""
    settings = {"reply_seconds_max": 1.0, "heartbeat_seconds": 10.0}
    async with open_on_memory(port=1, **settings) as one, open_on_memory(port=2, **settings) as two:
        await make_stream(one)
        first, second = await begin(one), await begin(one)
        await two.streams.active_segments("s", "a")

        async def commit_first() -> None:
            assert await commit(two, first)

        async with trio.open_nursery() as nursery:
            fault = memory_store.fault = Fault(memory_store.changes, is_applied=True, lasts=False)
            nursery.start_soon(commit_first)
            await fault.reached.wait()
            assert await commit(one, second)
        await until(one, second, COMMITTED)
        for number in (0, 1):
            assert merged_into(memory_store, number) == [first, second]


async def test_a_leader_whose_stream_another_controller_deleted_leaves_no_line(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await make_stream(one)
        identifier = await begin(one)
        late = memory_store.pause = trio.Event()
        memory_store.pauses = lambda request: isinstance(request, wire.MergeSegmentsBatch)
        assert await commit(one, identifier)
        await memory_store.is_paused.wait()
        memory_store.pause = None
        await two.streams.seal("s", "a")
        assert merged_into(memory_store, 0) == merged_into(memory_store, 1) == [identifier]
        await two.streams.delete("s", "a")
        with structlog.testing.capture_logs() as logs:
            late.set()
            await trio.sleep(10)
        assert "workflow cannot be finished" not in [log["event"] for log in logs]
        left = [t.entries for n, t in memory_store.tables.items() if "/transactions-" in n]
        assert not any(left)


async def test_streams_whose_commits_others_carry_out_are_forgotten(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(open_transactions, "IDLE_STREAMS_MAX", 1)
    async with open_on_memory(port=1) as one, open_on_memory(port=2) as two:
        await one.scopes.create("s")
        for number in range(4):
            name = f"a{number}"
            await one.streams.create("s", name, fixed_configuration(1))
            ids = [
                (await c.transactions.begin("s", name, lease_ms=LEASE)).identifier
                for c in (one, two)
            ]
            late = memory_store.pause = trio.Event()
            memory_store.pauses = lambda request: isinstance(request, wire.MergeSegmentsBatch)
            for controller, identifier in zip((one, two), ids, strict=True):
                assert await controller.transactions.commit(
                    "s", name, identifier, writer_id="w", writer_ms=None
                )
            late.set()
            memory_store.pause = None
        await trio.sleep(20)
        for controller in (one, two):
            assert len(controller.transaction_workflows.held.registry.all()) <= 1


async def test_a_commit_is_not_lost_to_a_slow_answer_about_an_earlier_stream_of_the_name(
    open_on_memory: OpenController,
    autojump_clock: trio.testing.MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_held, slow = trio.Event(), trio.Event()
    real = TableClient.get_all

    async def get_all(self: TableClient, table: str, keys: Sequence[bytes], **more: Any) -> Any:
        found = await real(self, table, keys, **more)
        if b"/epoch/" in keys[0] and not is_held.is_set():
            is_held.set()
            await slow.wait()
        return found

    async with open_on_memory() as c:
        await make_stream(c)
    monkeypatch.setattr(TableClient, "get_all", get_all)
    async with open_on_memory() as c, trio.open_nursery() as nursery:
        nursery.start_soon(c.streams.active_segments, "s", "a")
        await is_held.wait()
        await c.streams.seal("s", "a")
        await c.streams.delete("s", "a")
        await c.streams.create("s", "a", fixed_configuration(2))
        identifier = await begin(c)
        slow.set()
        await trio.sleep(1)
        assert await commit(c, identifier)
        await until(c, identifier, COMMITTED)
