"""Kill the controller at every change a transaction makes, and see that the next one finishes.

Each scenario is run once for every change, stopping there: once with the change carried out and its
reply lost, once without. The next controller, at the same place or at another, then gets the same
request again, as a client whose call failed sends it. In the end every transaction must be whole or
gone, in every segment, and nothing may be left of any: no segment, no record outside of the
archive, no intent.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field

import pytest
import trio
import trio.testing

from pravega_controller.background import late_segments
from pravega_controller.controller import Controller
from pravega_controller.errors import StreamNotFoundError
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.rules.transactions import TransactionState, segment_name
from pravega_controller.testing.memory_segment_store import Fault, MemorySegmentStore
from pravega_wire import names

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]
LEASE = 10_000
COMMITTED, ABORTED = TransactionState.COMMITTED, TransactionState.ABORTED


@dataclass
class Run:
    """The common state of a scenario's steps: the transactions they began, in order."""

    memory: MemorySegmentStore
    begun: list[bytes] = field(default_factory=list)


Step = Callable[[Controller, Run], Awaitable[None]]


@dataclass(frozen=True)
class Scenario:
    """A request, what comes before it, and what must be true once it is finished."""

    prepare: Step
    request: Step
    check: Step


async def begin(c: Controller, run: Run) -> bytes:
    """Begin a transaction and write its own number of bytes to each of its segments."""
    identifier = (await c.transactions.begin("s", "a", lease_ms=LEASE)).identifier
    run.begun.append(identifier)
    for number in (0, 1):
        part = run.memory.segments[segment_name("s", "a", number, identifier)]
        part.length = 10 ** len(run.begun)
    return identifier


async def commit(c: Controller, identifier: bytes) -> None:
    assert await c.transactions.commit("s", "a", identifier, writer_id="w", writer_ms=7)


async def until(c: Controller, identifier: bytes, state: TransactionState) -> None:
    with trio.fail_after(100):
        while await c.transactions.state("s", "a", identifier) is not state:  # noqa: ASYNC110
            await trio.sleep(0.1)


async def stream(c: Controller, run: Run) -> None:
    await c.scopes.create("s")
    await c.streams.create("s", "a", fixed_configuration(2))


async def begun(c: Controller, run: Run) -> None:
    await stream(c, run)
    for _ in range(3):
        await begin(c, run)


async def scaled(c: Controller, run: Run) -> None:
    await begun(c, run)
    await c.streams.scale("s", "a", [0], [(0.0, 0.25), (0.25, 0.5)], now_ms=5)
    await c.streams.workflows.work.finish("s", "a")


async def ended(c: Controller, run: Run) -> None:
    await begun(c, run)
    await commit_two(c, run)
    await abort(c, run)
    await c.streams.seal("s", "a")
    await trio.sleep(6)


async def begin_one(c: Controller, run: Run) -> None:
    await begin(c, run)


async def commit_two(c: Controller, run: Run) -> None:
    for index in (1, 0):
        await commit(c, run.begun[index])
    for index in (1, 0):
        await until(c, run.begun[index], COMMITTED)


async def abort(c: Controller, run: Run) -> None:
    assert await c.transactions.abort("s", "a", run.begun[2])
    await until(c, run.begun[2], ABORTED)


async def expire(c: Controller, run: Run) -> None:
    for identifier in run.begun:
        await until(c, identifier, ABORTED)


async def seal(c: Controller, run: Run) -> None:
    for index in (1, 0):
        await commit(c, run.begun[index])
    await c.streams.seal("s", "a")


async def archive(c: Controller, run: Run) -> None:
    await commit_two(c, run)
    await abort(c, run)
    await trio.sleep(6)


async def delete(c: Controller, run: Run) -> None:
    # The successor may have deleted it by itself.
    with suppress(StreamNotFoundError):
        await c.streams.delete("s", "a")


async def check_begun(c: Controller, run: Run) -> None:
    assert await c.transactions.state("s", "a", run.begun[-1]) is TransactionState.OPEN
    await commit(c, run.begun[-1])
    await until(c, run.begun[-1], COMMITTED)


def lengths(run: Run) -> dict[str, int]:
    """Return how many bytes each number's segments have, in all epochs together."""
    found = {"0": 0, "1": 0}
    for name, segment in run.memory.segments.items():
        number = name.removeprefix("s/a/").split(".")[0]
        if name.startswith("s/a/") and not names.is_transaction_segment(name):
            found[number] = found.get(number, 0) + segment.length
    return found


async def check_committed(c: Controller, run: Run) -> None:
    first, second, _ = run.begun
    assert await c.transactions.state("s", "a", first) is COMMITTED
    assert await c.transactions.state("s", "a", second) is COMMITTED
    for number in ("0", "1"):
        assert lengths(run)[number] == 110, "each is there once, whole"
    merged = [
        names.parse_segment_name(source).transaction_id
        for name, segment in run.memory.segments.items()
        if name.startswith("s/a/0.")
        for source in segment.merged
    ]
    assert len(merged) == 2


async def check_sealed(c: Controller, run: Run) -> None:
    await check_committed(c, run)
    assert await c.transactions.state("s", "a", run.begun[2]) is ABORTED
    assert await c.streams.active_segments("s", "a") == ()
    own = {n: s for n, s in run.memory.segments.items() if n.startswith("s/a/")}
    assert all(segment.is_sealed for segment in own.values())


async def check_rolled(c: Controller, run: Run) -> None:
    await check_committed(c, run)
    # The outcome is known a little before the stream has gone on.
    await c.streams.workflows.work.finish("s", "a")
    active = await c.streams.active_segments("s", "a")
    # Two batches roll twice: each time the stream goes on two epochs later as it was before.
    last = active[0].epoch
    assert last in (3, 5)
    assert [(s.number, s.epoch) for s in active] == [(2, last), (3, last), (1, last)]
    for name, segment in run.memory.segments.items():
        parsed = names.parse_segment_name(name)
        if parsed.stream == "a" and parsed.transaction_id is None:
            assert segment.is_sealed == (parsed.epoch < last), name


async def check_aborted(c: Controller, run: Run) -> None:
    assert await c.transactions.state("s", "a", run.begun[2]) is ABORTED
    assert lengths(run) == {"0": 0, "1": 0}


async def check_archived(c: Controller, run: Run) -> None:
    await check_committed(c, run)
    await trio.sleep(6)
    listed = await c.transactions.completed("s", "a")
    assert {(o.identifier, o.is_committed) for o in listed} == {
        (identifier.hex(), index < 2) for index, identifier in enumerate(run.begun)
    }
    assert len(listed) == 3


async def check_deleted(c: Controller, run: Run) -> None:
    assert not [name for name in run.memory.segments if name.startswith("s/a/")]
    for table, content in run.memory.tables.items():
        if "/transactions-" in table or "/outcomes-" in table:
            assert not content.entries


SCENARIOS = {
    "begin": Scenario(stream, begin_one, check_begun),
    "commit": Scenario(begun, commit_two, check_committed),
    "abort": Scenario(begun, abort, check_aborted),
    "time-out": Scenario(begun, expire, check_aborted),
    "roll": Scenario(scaled, commit_two, check_rolled),
    "seal": Scenario(begun, seal, check_sealed),
    "seal with a roll": Scenario(scaled, seal, check_sealed),
    "archive": Scenario(begun, archive, check_archived),
    "delete": Scenario(ended, delete, check_deleted),
}


@pytest.fixture(autouse=True)
def short_wait_for_late_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """No request comes late here: each matters to some step, and is lost or carried out."""
    monkeypatch.setattr(late_segments, "LATE_SECONDS", 5.0)


def list_leftovers(memory: MemorySegmentStore) -> list[object]:
    """Return what is there of transactions, apart from the archive."""
    found: list[object] = [name for name in memory.segments if names.is_transaction_segment(name)]
    found += memory.tables[INTENTS].entries
    for table, content in memory.tables.items():
        if "/transactions-" in table:
            found += [key for key in content.entries if key.startswith(b"t/")]
    return found


async def check_nothing_left(memory: MemorySegmentStore) -> None:
    """Check that after the end of all leases only the archive remembers any transaction."""
    with trio.move_on_after(40):
        while list_leftovers(memory):  # noqa: ASYNC110 - nothing tells when the last one goes
            await trio.sleep(1)
    assert list_leftovers(memory) == []


def share_scenarios(*rare: str) -> list[object]:
    """Return parameters: all scenarios, with the rare ones marked ``proof``."""
    return [
        pytest.param(name, marks=pytest.mark.proof) if name in rare else name for name in SCENARIOS
    ]


@pytest.mark.parametrize(
    ("is_applied", "port"),
    [
        pytest.param(False, 9090, marks=pytest.mark.proof),
        pytest.param(True, 9090, marks=pytest.mark.proof),
        (True, 9091),
    ],
    ids=["not applied", "applied", "applied, another"],
)
# "seal with a roll" makes all the changes of "seal", and more.
@pytest.mark.parametrize("name", share_scenarios("seal"))
async def test_a_controller_killed_anywhere_is_finished_by_the_next_or_another(
    name: str,
    is_applied: bool,
    port: int,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    scenario = SCENARIOS[name]
    run = Run(memory_store)
    async with open_on_memory() as controller:
        await scenario.prepare(controller, run)
    prepared, known = memory_store.contents(), list(run.begun)
    step = 0
    while True:
        memory_store.restore(prepared)
        run.begun = list(known)
        async with open_on_memory() as controller:
            fault = Fault(memory_store.changes + step, is_applied)
            memory_store.fault = fault
            killed = await run_until(fault, controller, scenario, run)
        if not killed:
            break
        memory_store.fault = None
        async with open_on_memory(port=port) as successor:
            # One at another place first waits to see whether the first still lives.
            await trio.sleep(0 if port == 9090 else 8)
            await scenario.request(successor, run)
            await scenario.check(successor, run)
            await check_nothing_left(memory_store)
        assert len(set(memory_store.created)) == len(memory_store.created), "a name was used twice"
        step += 1
    assert step >= 3


async def test_a_decision_that_was_recorded_is_carried_out_without_being_asked_again(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    run = Run(memory_store)
    async with open_on_memory() as controller:
        await begun(controller, run)
    prepared = memory_store.contents()
    for decide, state in ((commit_two, COMMITTED), (abort, ABORTED)):
        memory_store.restore(prepared)
        async with open_on_memory() as controller:
            fault = Fault(memory_store.changes, is_applied=True)
            memory_store.fault = fault
            scenario = Scenario(begun, decide, check_committed)
            assert await run_until(fault, controller, scenario, run)
        memory_store.fault = None
        index = 1 if state is COMMITTED else 2
        async with open_on_memory() as successor:
            await until(successor, run.begun[index], state)


# A controller that is killed behind a change loses its reply, too: these three are tried so above.
@pytest.mark.parametrize("name", share_scenarios("roll", "seal", "time-out"))
async def test_a_lost_reply_is_made_good_by_the_same_controller(
    name: str,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    scenario = SCENARIOS[name]
    run = Run(memory_store)
    async with open_on_memory() as controller:
        await scenario.prepare(controller, run)
    prepared, known = memory_store.contents(), list(run.begun)
    step = 0
    while True:
        memory_store.restore(prepared)
        run.begun = list(known)
        async with open_on_memory() as controller:
            fault = Fault(memory_store.changes + step, is_applied=True, lasts=False)
            memory_store.fault = fault
            await scenario.request(controller, run)
            await scenario.check(controller, run)
            await check_nothing_left(memory_store)
        if not fault.reached.is_set():
            break
        step += 1
    assert step >= 3


async def run_until(fault: Fault, controller: Controller, scenario: Scenario, run: Run) -> bool:
    """Run a request until it ends or the fault is reached; returns whether that was so."""
    async with trio.open_nursery() as nursery:

        async def request() -> None:
            await scenario.request(controller, run)
            nursery.cancel_scope.cancel()

        nursery.start_soon(request)
        await fault.reached.wait()
        nursery.cancel_scope.cancel()
    return fault.reached.is_set()
