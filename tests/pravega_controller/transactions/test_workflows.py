"""The table of a transaction's states, walked: every happening in every state."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from pravega_controller.controller import Controller
from pravega_controller.metadata.transaction_records import TransactionRecord
from pravega_controller.metadata.transaction_store import TransactionStore
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.rules.transactions import NEXT_STATES, TransactionState, make_id
from pravega_controller.transactions.aborts import Aborts
from pravega_controller.transactions.commit_batches import CommitBatches

OPEN, COMMITTING, COMMITTED = (
    TransactionState.OPEN,
    TransactionState.COMMITTING,
    TransactionState.COMMITTED,
)
ABORTING, ABORTED = TransactionState.ABORTING, TransactionState.ABORTED
LEASE_MS = 20_000


class Recorded:
    """The states that the records of transactions got, one after the other."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.states: dict[bytes, list[TransactionState | None]] = {}
        self.steps: set[tuple[TransactionState | None, TransactionState]] = set()
        self.gate = trio.Event()
        real_write, real_write_line = TransactionStore.write, TransactionStore.write_line
        real_finish, real_merge = Aborts.finish, CommitBatches.merge

        async def write(store: TransactionStore, scope: str, stream: str, changes: Any) -> Any:
            versions = await real_write(store, scope, stream, changes)
            self._record(changes)
            return versions

        async def write_line(store: TransactionStore, *arguments: Any) -> Any:
            versions = await real_write_line(store, *arguments)
            self._record(arguments[-1])
            return versions

        async def finish(aborts: Aborts, *arguments: Any) -> None:
            await self.gate.wait()
            await real_finish(aborts, *arguments)

        async def merge(batches: CommitBatches, *arguments: Any) -> Any:
            await self.gate.wait()
            return await real_merge(batches, *arguments)

        monkeypatch.setattr(TransactionStore, "write", write)
        monkeypatch.setattr(TransactionStore, "write_line", write_line)
        monkeypatch.setattr(Aborts, "finish", finish)
        monkeypatch.setattr(CommitBatches, "merge", merge)

    def _record(self, changes: list[tuple[bytes, TransactionRecord, int]]) -> None:
        for identifier, record, _ in changes:
            states = self.states.setdefault(identifier, [None])
            self.steps.add((states[-1], record.state))
            states.append(record.state)

    def state(self, identifier: bytes) -> TransactionState | None:
        return self.states.get(identifier, [None])[-1]


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    """The recorder of states; commits and aborts wait until its gate is open."""
    return Recorded(monkeypatch)


@pytest.fixture
def autojump_clock() -> trio.testing.MockClock:
    return trio.testing.MockClock(autojump_threshold=0)


Happening = Callable[[Controller, bytes], Awaitable[object]]


async def ping(c: Controller, identifier: bytes) -> None:
    await c.transactions.ping("s", "a", identifier, lease_ms=2 * LEASE_MS)


async def commit(c: Controller, identifier: bytes) -> None:
    await c.transactions.commit("s", "a", identifier, writer_id="w", writer_ms=None)


async def abort(c: Controller, identifier: bytes) -> None:
    await c.transactions.abort("s", "a", identifier)


async def let_the_lease_end(c: Controller, identifier: bytes) -> None:
    await trio.sleep(LEASE_MS / 1000 + 1)


async def seal(c: Controller, identifier: bytes) -> None:
    await c.streams.seal("s", "a")


async def scale(c: Controller, identifier: bytes) -> None:
    """Make its epoch an earlier one: it is rolled, if it commits."""
    await c.streams.update("s", "a", fixed_configuration(3))


async def delete(c: Controller, identifier: bytes) -> None:
    await c.streams.seal("s", "a")
    await c.streams.delete("s", "a")


async def undo_the_begin(c: Controller, identifier: bytes) -> None:
    """Undo it as if it had got no answer."""
    stream = await c.store.streams.read("s", "a")
    owner = c.transaction_workflows.held.registry.of_stream("s", "a", stream.stream_id)
    c.transaction_workflows.failed_begins.start_undoing(owner, stream, identifier)
    await trio.sleep(1)


HAPPENINGS: dict[Happening, dict[TransactionState | None, TransactionState | None]] = {
    ping: {},
    commit: {OPEN: COMMITTED},
    abort: {OPEN: ABORTED},
    let_the_lease_end: {OPEN: ABORTED},
    seal: {OPEN: ABORTED},
    scale: {},
    delete: {OPEN: ABORTED},
    undo_the_begin: {None: ABORTED, OPEN: ABORTED},
}
"""What a transaction becomes by a happening, by its state before; one that is left out goes on as
without it."""
UNDISTURBED = {None: None, OPEN: OPEN, COMMITTING: COMMITTED, ABORTING: ABORTED}
ENDED = {COMMITTED: COMMITTED, ABORTED: ABORTED}


@asynccontextmanager
async def in_state(
    open_on_memory: Any, recorded: Recorded, state: TransactionState | None
) -> AsyncIterator[tuple[Controller, bytes]]:
    async with open_on_memory() as c:
        await c.scopes.create("s")
        await c.streams.create("s", "a", fixed_configuration(2))
        identifier = make_id(0, 99)
        if state is not None:
            begun = await c.transactions.begin("s", "a", lease_ms=LEASE_MS)
            identifier = begun.identifier
        if state in (COMMITTING, COMMITTED):
            await commit(c, identifier)
        if state in (ABORTING, ABORTED):
            await abort(c, identifier)
        if state in (COMMITTED, ABORTED):
            recorded.gate.set()
            await trio.sleep(1)
        assert recorded.state(identifier) is state
        yield c, identifier


@pytest.mark.parametrize("state", [None, *TransactionState])
@pytest.mark.parametrize("happening", HAPPENINGS, ids=lambda each: each.__name__)
async def test_each_happening_in_each_state_takes_steps_of_the_table_alone(
    happening: Happening,
    state: TransactionState | None,
    recorded: Recorded,
    open_on_memory: Any,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with (
        in_state(open_on_memory, recorded, state) as (c, identifier),
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(partial(happening, c, identifier))
        await trio.sleep(0.5)
        recorded.gate.set()
        await trio.sleep(2)
        expected = HAPPENINGS[happening].get(state, (UNDISTURBED | ENDED)[state])
        if happening is let_the_lease_end:
            await trio.sleep(LEASE_MS / 1000 + 1)
        assert recorded.state(identifier) is expected
    for before, after in recorded.steps:
        assert after in NEXT_STATES[before]


@pytest.mark.parametrize("state", [OPEN, COMMITTING, ABORTING])
async def test_the_next_controller_goes_on_in_each_state(
    state: TransactionState,
    recorded: Recorded,
    open_on_memory: Any,
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with in_state(open_on_memory, recorded, state) as (_, identifier):
        pass
    recorded.gate.set()
    async with open_on_memory():
        await trio.sleep(LEASE_MS / 1000 - 2)
        assert recorded.state(identifier) is UNDISTURBED[state]
        await trio.sleep(4)
        ends = {OPEN: ABORTED, COMMITTING: COMMITTED, ABORTING: ABORTED}
        assert recorded.state(identifier) is ends[state]
    for before, after in recorded.steps:
        assert after in NEXT_STATES[before]


async def test_every_step_of_the_table_is_taken_by_something(
    recorded: Recorded, open_on_memory: Any, autojump_clock: trio.testing.MockClock
) -> None:
    """The table has no step that nothing takes."""
    async with in_state(open_on_memory, recorded, None) as (c, blocked):
        await undo_the_begin(c, blocked)
        opened = [
            (await c.transactions.begin("s", "a", lease_ms=LEASE_MS)).identifier for _ in range(3)
        ]
        await ping(c, opened[0])
        await commit(c, opened[1])
        await abort(c, opened[2])
    # The next controller holds what is open or being aborted.
    recorded.gate.set()
    async with open_on_memory():
        await trio.sleep(5)
    taken = recorded.steps
    table = {(before, after) for before, states in NEXT_STATES.items() for after in states}
    assert taken <= table
    # A commit comes between the adoption of a transaction and the record of its new holder.
    assert table - taken <= {(COMMITTING, COMMITTING)}


def test_the_page_about_transactions_has_the_table() -> None:
    page = (Path(__file__).parents[3] / "docs/internals/transactions.md").read_text()
    rows = re.findall(r"^\| (no record|[A-Z]+) \| ([A-Z]+) \|", page, re.MULTILINE)
    states = {state.name: state for state in TransactionState} | {"no record": None}
    table = {(before, after) for before, found in NEXT_STATES.items() for after in found}
    assert {(states[before], states[after]) for before, after in rows} == table
