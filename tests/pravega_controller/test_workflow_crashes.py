"""Kill the controller at every single change it makes, and see that its successor finishes.

Each scenario is first run whole, to count the changes that its request makes. Then it is run once
for every change, stopping there: once with the change carried out and its reply lost, once without.
Another controller works on what is left; it must bring every begun workflow to its end. At the
place of the killed one it begins at once; elsewhere it first has to find out that the other is
dead. What must hold at any moment is checked as the segment store sees it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import pytest
import trio
import trio.testing

from pravega_controller.controller import Controller
from pravega_controller.errors import EpochDroppedError, NotFoundError, StepRefusedError
from pravega_controller.metadata.intents import INTENTS
from pravega_controller.metadata.records import (
    GONE,
    NamedCut,
    NameRecord,
    ReaderGroupConfiguration,
    ReaderGroupRecord,
    ScopeRecord,
    StreamRecord,
    decode,
)
from pravega_controller.metadata.scope_records import OPEN_PHASES, SCOPES
from pravega_controller.metadata.streams import epochs as epoch_records
from pravega_controller.rules.streams import (
    ScaleType,
    ScalingPolicy,
    StreamConfiguration,
    fixed_configuration,
)
from pravega_controller.streams import old_epochs
from pravega_controller.streams.old_epochs import OLD_EPOCHS
from pravega_controller.tables.key_value_tables import (
    KeyValueTableConfiguration,
    KeyValueTableRecord,
)
from pravega_controller.testing.memory_segment_store import Fault, MemorySegmentStore
from pravega_wire import names

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]

GROUP_ID = "11111111-2222-3333-4444-555555555555"
SUBSCRIBED = ReaderGroupConfiguration(
    3000, 30000, 3, 1, (NamedCut("s", "a", {}),), (NamedCut("s", "a", {}),)
)
SUBSCRIBED_TO_OTHER = ReaderGroupConfiguration(
    3000, 30000, 3, 1, (NamedCut("s", "b", {}),), (NamedCut("s", "b", {}),)
)
UNSUBSCRIBED = ReaderGroupConfiguration(
    9, 30000, 3, 0, (NamedCut("s", "a", {}),), (NamedCut("s", "a", {}),)
)


@dataclass(frozen=True)
class Scenario:
    """A request, what comes before it, and what must be true once it is finished."""

    prepare: Callable[[Controller], Awaitable[None]]
    request: Callable[[Controller], Awaitable[object]]
    check: Callable[[Controller, MemorySegmentStore], Awaitable[None]]
    unpromised: int = 1
    """So many changes come before the one that is a promise: after it the work must be finished."""
    refused: str = ""
    """A pattern of names of segments that the segment store refuses for good, once the request
    begins; that is repeated after the crash."""


async def nothing(c: Controller) -> None:
    pass


async def scope(c: Controller) -> None:
    await c.scopes.create("s")


async def stream(c: Controller) -> None:
    await scope(c)
    await c.streams.create("s", "a", fixed_configuration(2))


async def other_stream(c: Controller) -> None:
    await scope(c)
    await c.streams.create("s", "b", fixed_configuration(1))


async def sealed(c: Controller) -> None:
    await scaled(c)
    await c.streams.seal("s", "a")


async def scaled(c: Controller) -> None:
    await stream(c)
    await scale(c)


async def left_epochs(c: Controller) -> None:
    """Make a stream that has left five epochs with snapshots behind."""
    await stream(c)
    for epoch in range(5):
        (first, *_) = await c.streams.active_segments("s", "a")
        await c.streams.scale("s", "a", [first.segment_id], [first.key_range], now_ms=epoch)
        await c.streams.workflows.work.finish("s", "a")
    await c.streams.truncate("s", "a", {(5 << 32) + 6: 0, 1: 0})


async def drop_epochs(c: Controller, rounds: int = 8) -> None:
    """Let the epochs expire, and drop them one by one."""
    c.old_epochs.expiring_ms = 0
    c.old_epochs.owns = lambda key: True
    for _ in range(rounds):
        await c.old_epochs.run_round()


async def left_and_sealed(c: Controller) -> None:
    """Make a sealed stream of which some epochs are dropped, but not removed."""
    await left_epochs(c)
    await drop_epochs(c, rounds=3)
    record = (await c.store.streams.read("s", "a")).record
    assert (record.first_epoch, record.removed_before) == (4, 2)
    await c.streams.seal("s", "a")


async def check_epochs_dropped(c: Controller, memory: MemorySegmentStore) -> None:
    assert len(history_keys(memory, "epoch")) == 2
    assert len(history_keys(memory, "snapshot")) == 1
    assert len(history_keys(memory, "sealed")) == 2
    with pytest.raises(EpochDroppedError):
        await c.streams.successors("s", "a", 0)
    assert await c.streams.head("s", "a") == {(5 << 32) + 6: 0, 1: 0}
    assert not memory.tables[OLD_EPOCHS].entries


async def check_deleted_with_left_epochs(c: Controller, memory: MemorySegmentStore) -> None:
    assert not await c.streams.exists("s", "a")
    assert live(memory, "s/") == {}
    check_nothing_is_left(memory)
    await drop_epochs(c)
    assert not memory.tables[OLD_EPOCHS].entries


def history_keys(memory: MemorySegmentStore, kind: str) -> list[bytes]:
    """Return the keys of this kind of the streams that have left epochs behind."""
    return [
        key
        for name, table in memory.tables.items()
        if "histories" in name
        for key in table.entries
        if key.split(b"/")[1] == kind.encode()
        and any(b"/snapshot/" in each and each.startswith(key[:16]) for each in table.entries)
    ]


async def group(c: Controller) -> None:
    await stream(c)
    await c.groups.create("s", "g", GROUP_ID, SUBSCRIBED)


async def table(c: Controller) -> None:
    await scope(c)
    await c.tables.create("s", "a", KeyValueTableConfiguration(2, 8, 4, 77))


async def full_scope(c: Controller) -> None:
    await group(c)
    await c.tables.create("s", "a", KeyValueTableConfiguration(2, 8))
    await c.streams.create("s", "b", fixed_configuration(1))


async def scale(c: Controller) -> None:
    await c.streams.scale("s", "a", [0], [(0.0, 0.2), (0.2, 0.5)], now_ms=5)
    # The service finishes in the background what it answered with "started".
    await c.streams.workflows.work.finish("s", "a")


def live(memory: MemorySegmentStore, prefix: str) -> dict[str, bool]:
    """Return the segments of a stream that exist, and whether they are sealed."""
    return {
        name.removeprefix(prefix): segment.is_sealed
        for name, segment in memory.segments.items()
        if name.startswith(prefix)
    }


async def check_scope_created(c: Controller, memory: MemorySegmentStore) -> None:
    assert await c.scopes.exists("s")
    assert await c.streams.create("s", "a", fixed_configuration(1))


async def check_created(c: Controller, memory: MemorySegmentStore) -> None:
    segments = await c.streams.active_segments("s", "a")
    assert [s.key_range for s in segments] == [(0.0, 0.5), (0.5, 1.0)]
    assert live(memory, "s/a/") == {"0.#epoch.0": False, "1.#epoch.0": False}
    assert live(memory, "s/_MARKa/") == {"0.#epoch.0": False}
    assert await c.streams.exists("s", "_MARKa")


async def check_scaled(c: Controller, memory: MemorySegmentStore) -> None:
    segments = await c.streams.active_segments("s", "a")
    assert [(s.number, s.epoch) for s in segments] == [(2, 1), (3, 1), (1, 0)]
    assert live(memory, "s/a/") == {
        "0.#epoch.0": True,
        "1.#epoch.0": False,
        "2.#epoch.1": False,
        "3.#epoch.1": False,
    }
    successors = await c.streams.successors("s", "a", 0)
    assert [s.segment.number for s in successors] == [2, 3]


async def refused(request: Awaitable[object]) -> None:
    """Make a request that must fail for good."""
    with pytest.raises(StepRefusedError):
        await request


async def check_not_scaled(c: Controller, memory: MemorySegmentStore) -> None:
    segments = await c.streams.active_segments("s", "a")
    assert [(s.number, s.epoch) for s in segments] == [(0, 0), (1, 0)]
    assert live(memory, "s/a/") == {"0.#epoch.0": False, "1.#epoch.0": False}
    assert await c.streams.successors("s", "a", 0) == ()
    with pytest.raises(NotFoundError):
        await c.streams.epoch_segments("s", "a", 1)
    # The stream goes on, and its next segments have names that none had before.
    memory.refuses = lambda segment: False
    await scale(c)
    made = [s.number for s in await c.streams.active_segments("s", "a")]
    assert min(made[:2]) >= 4
    assert made[2:] == [1]
    assert [s.segment.number for s in await c.streams.successors("s", "a", 0)] == made[:2]
    await c.streams.seal("s", "a")
    await c.streams.delete("s", "a")
    check_nothing_is_left(memory)


async def check_nothing_was_made(c: Controller, memory: MemorySegmentStore) -> None:
    assert memory.segments.keys() <= {"s/b/0.#epoch.0", "s/_MARKb/0.#epoch.0"}
    assert all(name.startswith("_system/") for name in memory.tables)
    for listed in (c.store.names.list_page("s", ""), c.tables.list("s", "")):
        assert not set((await listed).names) - {"b", "_MARKb"}
    with pytest.raises(NotFoundError):
        await c.groups.get("s", "a")
    # All names are free, for what the segment store takes.
    memory.refuses = lambda segment: False
    assert await c.streams.create("s", "a", fixed_configuration(1))
    assert await c.tables.create("s", "a", KeyValueTableConfiguration(2, 8))
    await c.groups.create("s", "a", GROUP_ID, UNSUBSCRIBED)


async def truncate(c: Controller) -> None:
    await c.streams.truncate("s", "a", {(1 << 32) + 2: 0, (1 << 32) + 3: 0, 1: 0})


async def check_truncated(c: Controller, memory: MemorySegmentStore) -> None:
    assert await c.streams.head("s", "a") == {(1 << 32) + 2: 0, (1 << 32) + 3: 0, 1: 0}
    assert "0.#epoch.0" not in live(memory, "s/a/")
    assert len(live(memory, "s/a/")) == 3


async def update(c: Controller) -> None:
    policy = ScalingPolicy(ScaleType.EVENTS_PER_SECOND, 4, target_rate=7, scale_factor=2)
    await c.streams.update("s", "a", StreamConfiguration(policy, tags=("t",)))


async def check_updated(c: Controller, memory: MemorySegmentStore) -> None:
    assert (await c.streams.configuration("s", "a")).tags == ("t",)
    assert (await c.streams.list_with_tag("s", "t", "")).names == ["a"]
    segments = await c.streams.active_segments("s", "a")
    assert [s.key_range for s in segments] == [(0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1)]
    for segment in segments:
        created = memory.segments[names.segment_name("s", "a", segment.segment_id)]
        assert (created.scale_type, created.target_rate) == (2, 7)
        assert not created.is_sealed
    assert sorted(live(memory, "s/a/").values()) == [False] * 4 + [True] * 2


async def check_sealed(c: Controller, memory: MemorySegmentStore) -> None:
    assert await c.streams.active_segments("s", "a") == ()
    assert all(live(memory, "s/a/").values())
    assert await c.streams.head("s", "a") == {0: 0, 1: 0}


async def check_deleted(c: Controller, memory: MemorySegmentStore) -> None:
    assert not await c.streams.exists("s", "a")
    assert not await c.streams.exists("s", "_MARKa")
    assert live(memory, "s/") == {}
    assert await c.streams.create("s", "a", fixed_configuration(1))
    (segment,) = await c.streams.active_segments("s", "a")
    assert segment.segment_id == 4, "numbers go on after those of the deleted stream"


async def check_group(c: Controller, memory: MemorySegmentStore) -> None:
    group = await c.groups.get("s", "g")
    assert (group.record.group_id, group.record.generation) == (GROUP_ID, 0)
    assert group.record.configuration == SUBSCRIBED
    assert await c.groups.subscribers("s", "a") == ["s/g"]
    assert live(memory, "s/_RGg/") == {"0.#epoch.0": False}
    assert memory.segments["s/_RGg/0.#epoch.0"].rollover_bytes == 4 * 1024 * 1024


async def check_group_updated(c: Controller, memory: MemorySegmentStore) -> None:
    group = await c.groups.get("s", "g")
    assert group.record.generation == 1
    assert group.record.configuration == UNSUBSCRIBED
    assert await c.groups.subscribers("s", "a") == []


async def check_group_deleted(c: Controller, memory: MemorySegmentStore) -> None:
    assert (await c.store.scopes.list_objects("s", "g", "")).names == []
    assert await c.groups.subscribers("s", "a") == []
    assert live(memory, "s/_RGg/") == live(memory, "s/_MARK_RGg/") == {}


def table_segments(memory: MemorySegmentStore) -> list[str]:
    prefix = "s/a_kvtable/"
    return [name.removeprefix(prefix) for name in memory.tables if name.startswith(prefix)]


async def check_table(c: Controller, memory: MemorySegmentStore) -> None:
    found = await c.tables.get("s", "a")
    assert found.record.configuration == KeyValueTableConfiguration(2, 8, 4, 77)
    assert [s.key_range for s in found.segments] == [(0.0, 0.5), (0.5, 1.0)]
    assert sorted(table_segments(memory)) == ["0.#epoch.0", "1.#epoch.0"]
    segment = memory.tables["s/a_kvtable/0.#epoch.0"]
    assert (segment.key_length, segment.rollover_bytes) == (12, 77)
    assert not await c.tables.create("s", "a", KeyValueTableConfiguration(1, 1))


async def check_table_deleted(c: Controller, memory: MemorySegmentStore) -> None:
    assert (await c.tables.list("s", "")).names == []
    assert table_segments(memory) == []
    assert await c.tables.create("s", "a", KeyValueTableConfiguration(1, 4))
    assert table_segments(memory) == ["2.#epoch.0"], "numbers go on after the deleted table's"


async def check_scope_gone(c: Controller, memory: MemorySegmentStore) -> None:
    assert not await c.scopes.exists("s")
    assert live(memory, "s/") == {}
    assert [t for t in memory.tables if t.startswith("s/")] == []
    system = await c.store.scopes.find_active("_system")
    of_scopes = {t for t in memory.tables if any(k in t for k in ("objects", "histories", "tags"))}
    assert of_scopes <= {system.objects, system.histories, system.tag_index}


SCENARIOS = {
    "create scope": Scenario(nothing, scope, check_scope_created),
    "create stream": Scenario(
        scope,
        lambda c: c.streams.create("s", "a", fixed_configuration(2)),
        check_created,
        unpromised=2,
    ),
    "scale": Scenario(stream, scale, check_scaled),
    "truncate": Scenario(scaled, truncate, check_truncated),
    "drop epochs": Scenario(left_epochs, drop_epochs, check_epochs_dropped, unpromised=100),
    "delete with epochs dropped": Scenario(
        left_and_sealed, lambda c: c.streams.delete("s", "a"), check_deleted_with_left_epochs
    ),
    "update and rescale": Scenario(stream, update, check_updated),
    "seal": Scenario(stream, lambda c: c.streams.seal("s", "a"), check_sealed),
    "delete": Scenario(sealed, lambda c: c.streams.delete("s", "a"), check_deleted),
    "create group": Scenario(
        stream, lambda c: c.groups.create("s", "g", GROUP_ID, SUBSCRIBED), check_group
    ),
    "update group": Scenario(
        group, lambda c: c.groups.update("s", "g", GROUP_ID, 0, UNSUBSCRIBED), check_group_updated
    ),
    "delete group": Scenario(
        group, lambda c: c.groups.delete("s", "g", GROUP_ID), check_group_deleted
    ),
    "delete scope": Scenario(scope, lambda c: c.scopes.delete("s"), check_scope_gone, unpromised=2),
    "delete scope and contents": Scenario(
        full_scope, lambda c: c.scopes.delete_with_contents("s"), check_scope_gone
    ),
    "create table": Scenario(
        scope,
        lambda c: c.tables.create("s", "a", KeyValueTableConfiguration(2, 8, 4, 77)),
        check_table,
    ),
    "stream that is refused": Scenario(
        scope,
        lambda c: refused(c.streams.create("s", "a", fixed_configuration(2))),
        check_nothing_was_made,
        refused=r"s/a/\d*[13579]\.",
    ),
    "mark stream that is refused": Scenario(
        scope,
        lambda c: refused(c.streams.create("s", "a", fixed_configuration(2))),
        check_nothing_was_made,
        refused="s/_MARKa/",
    ),
    "group that is refused": Scenario(
        other_stream,
        lambda c: refused(c.groups.create("s", "a", GROUP_ID, SUBSCRIBED_TO_OTHER)),
        check_nothing_was_made,
        refused="s/_RGa/",
    ),
    "table that is refused": Scenario(
        scope,
        lambda c: refused(c.tables.create("s", "a", KeyValueTableConfiguration(2, 8))),
        check_nothing_was_made,
        refused=r"s/a_kvtable/\d*[13579]\.",
    ),
    "scale that is refused": Scenario(
        stream, scale, check_not_scaled, refused=r"s/a/(3|[0-9]*[579])\."
    ),
    "delete table": Scenario(table, lambda c: c.tables.delete("s", "a"), check_table_deleted),
}


KINDS: dict[str, tuple[Any, str]] = {
    "g": (ReaderGroupRecord, "group"),
    "t": (KeyValueTableRecord, "key-value-table"),
}


async def finished(memory: MemorySegmentStore) -> None:
    """Wait until no workflow is unfinished any more."""
    with trio.fail_after(600):
        while memory.tables[INTENTS].entries:  # noqa: ASYNC110 (the store in memory has no events)
            await trio.sleep(1)


async def taken_over(memory: MemorySegmentStore, successor: Controller) -> None:
    """Wait until all intents are the successor's."""
    own = successor.members.instance_id.encode() + b"/"
    with trio.fail_after(10):
        while not all(key.startswith(own) for key in memory.tables[INTENTS].entries):  # noqa: ASYNC110
            await trio.sleep(0.5)


def check_promises(memory: MemorySegmentStore) -> None:
    """Check that each pending change has an intent: without one nobody would look at it again."""
    intents = {key.split(b"/", 1)[1] for key in memory.tables[INTENTS].entries}
    for key, (value, _) in memory.tables[SCOPES].entries.items():
        record = decode(value, ScopeRecord)
        is_decided = f"_system/_tables/controller/objects-{record.scope_id}" not in memory.tables
        if record.phase not in OPEN_PHASES or is_decided:
            assert b"scope/" + key + b"/" in intents
    for table, key, value in objects_of(memory):
        kind, name = key.decode().split("/")
        if kind == "s":
            state = state_of(memory, table, value)
            if state is None or state.pending is not None:
                # A stream and its mark stream come and go together.
                parent = name.removeprefix("_MARK")
                assert intents & {f"stream/s/{n}".encode() for n in (name, parent)}
            continue
        record_type, intent_kind = KINDS[kind]
        if decode(value, record_type).pending is not None:
            assert f"{intent_kind}/s/{name}".encode() in intents


def objects_of(memory: MemorySegmentStore) -> list[tuple[str, bytes, bytes]]:
    """Return the table, key and value of every stream's and every group's name."""
    return [
        (table, key, value)
        for table, content in memory.tables.items()
        if "objects" in table
        for key, (value, _) in content.entries.items()
    ]


def state_of(memory: MemorySegmentStore, objects: str, name: bytes) -> StreamRecord | None:
    """Return the state of the stream that a name's record leads to."""
    key = f"{decode(name, NameRecord).stream_id}/state".encode()
    found = memory.tables[objects.replace("objects", "histories")].entries.get(key)
    return None if found is None else decode(found[0], StreamRecord)


def check_nothing_is_left(memory: MemorySegmentStore) -> None:
    """Check that every record of a stream, except tombstones, belongs to a stream that has a
    name."""
    ids = {decode(v, NameRecord).stream_id for _, k, v in objects_of(memory) if k[:2] == b"s/"}
    for table, content in memory.tables.items():
        if "histories" in table:
            kept = {key for key, (value, _) in content.entries.items() if value != GONE}
            assert {key.decode().split("/")[0] for key in kept} <= ids


def check_seals(memory: MemorySegmentStore) -> None:
    """Check from now on that no segment is sealed before its successors are on record and exist."""

    def check(segment: str) -> None:
        name = names.parse_segment_name(segment)
        for table, key, value in objects_of(memory):
            state = state_of(memory, table, value) if key == f"s/{name.stream}".encode() else None
            if state is not None and type(state.pending).__name__ in ("Scale", "Update"):
                assert state.epoch_count > state.epoch + 1, f"{segment} is sealed too early"
                created = [one for one in memory.segments if f"#epoch.{state.epoch + 1}" in one]
                assert created, f"{segment} is sealed before its successors exist"

    memory.on_seal = check


def refuse(memory: MemorySegmentStore, scenario: Scenario) -> None:
    """Let the segment store refuse from now on what a scenario says."""
    if scenario.refused:
        pattern = re.compile(scenario.refused)
        memory.refuses = lambda segment: pattern.match(segment) is not None


@pytest.fixture(autouse=True)
def epochs_with_snapshots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other epoch has a snapshot, so that few epochs can be dropped, one at a time."""
    monkeypatch.setattr(epoch_records, "SNAPSHOT_EPOCHS", 2)
    monkeypatch.setattr(old_epochs, "EPOCHS_REMOVED_MAX", 1)


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_request_does_what_it_says(
    name: str,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    scenario = SCENARIOS[name]
    check_seals(memory_store)
    async with open_on_memory() as controller:
        await scenario.prepare(controller)
        refuse(memory_store, scenario)
        await scenario.request(controller)
        await scenario.check(controller, memory_store)
        await finished(memory_store)
        check_nothing_is_left(memory_store)
    assert len(set(memory_store.created)) == len(memory_store.created)


@pytest.mark.parametrize(
    "port", [pytest.param(9090, marks=pytest.mark.proof), 9091], ids=["next", "another"]
)
@pytest.mark.parametrize(
    "is_applied",
    [pytest.param(False, marks=pytest.mark.proof), True],
    ids=["not applied", "applied"],
)
@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_controller_killed_anywhere_is_finished_by_the_next_or_another(
    name: str,
    is_applied: bool,
    port: int,
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    autojump_clock: trio.testing.MockClock,
) -> None:
    scenario = SCENARIOS[name]
    async with open_on_memory() as controller:
        await scenario.prepare(controller)
        await finished(memory_store)
    prepared = memory_store.contents()
    step = 0
    while True:
        memory_store.restore(prepared)
        refuse(memory_store, scenario)
        check_seals(memory_store)
        async with open_on_memory() as controller:
            fault = Fault(memory_store.changes + step, is_applied)
            memory_store.fault = fault
            killed = await run_until(fault, controller, scenario)
        if not killed:
            break
        memory_store.fault = None
        check_promises(memory_store)
        async with open_on_memory(port=port) as successor:
            await taken_over(memory_store, successor)
            await finished(memory_store)
            check_nothing_is_left(memory_store)
            if step + is_applied <= scenario.unpromised or scenario.refused:
                await scenario.request(successor)
            await scenario.check(successor, memory_store)
        assert len(set(memory_store.created)) == len(memory_store.created), "a name was used twice"
        step += 1
    assert step >= 3


async def run_until(fault: Fault, controller: Controller, scenario: Scenario) -> bool:
    """Run a request until it ends or the fault is reached; returns whether that was so."""
    async with trio.open_nursery() as nursery:

        async def request() -> None:
            await scenario.request(controller)
            nursery.cancel_scope.cancel()

        nursery.start_soon(request)
        await fault.reached.wait()
        nursery.cancel_scope.cancel()
    return fault.reached.is_set()
