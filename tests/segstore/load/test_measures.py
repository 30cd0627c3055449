"""The readings that a store tells, and the counters of streams against a model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest
import trio
import trio.testing
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pravega_metrics import store_metrics
from pravega_metrics.metrics import OTHER, Family, Labels, Metric, Reading
from pravega_metrics.readings import decode_readings
from pravega_wire import commands as wire
from segstore.load import measures
from segstore.load.measures import STREAMS_MAX, StoreMeasures, Stream, StreamGrowth
from segstore.model.attributes import EVENT_COUNT, AttributeUpdate, AttributeUpdateType
from support.models.memory_store import MemoryStore, memory_store

SEGMENT = "s/t/0.#epoch.0"
TRANSACTION = f"{SEGMENT}#transaction.{'0' * 32}"
TRANSIENT = f"{SEGMENT}#transient.{'0' * 32}.{'0' * 32}"
REST = (OTHER, OTHER)


def look(
    growth: StreamGrowth, *segments: tuple[str, int, int, int], next_id: int = 1
) -> dict[Stream, tuple[int, int]]:
    """Return what is told after a look at one container."""
    growth.begin()
    growth.add(segments, growth.enter(0, next_id))
    growth.end()
    return {stream: (length, events) for stream, length, events in growth.told()}


def test_a_segment_counts_from_the_first_look() -> None:
    growth = StreamGrowth()
    assert look(growth, (SEGMENT, 1, 100, 10), next_id=2)["s", "t"] == (0, 0)
    assert look(growth, (SEGMENT, 1, 130, 12), next_id=2)["s", "t"] == (30, 2)
    # One that was made since then counts whole, one that was inactive does not.
    new, old = ("s/t/1.#epoch.1", 3, 7, 1), ("s/t/2.#epoch.0", 1, 1000, 50)
    assert look(growth, (SEGMENT, 1, 130, 12), new, old, next_id=4)["s", "t"] == (37, 3)


def test_a_segment_that_is_made_again_counts_whole() -> None:
    growth = StreamGrowth()
    look(growth, (SEGMENT, 1, 100, 10), next_id=2)
    assert look(growth, (SEGMENT, 2, 40, 4), next_id=3)["s", "t"] == (40, 4)


def test_bytes_of_a_transaction_count_when_they_are_merged() -> None:
    growth = StreamGrowth()
    look(growth, (SEGMENT, 1, 0, 0), next_id=2)
    for name in (TRANSACTION, TRANSIENT):
        assert look(growth, (SEGMENT, 1, 0, 0), (name, 2, 50, 5), next_id=3)["s", "t"] == (0, 0)
    assert look(growth, (SEGMENT, 1, 50, 5), next_id=3)["s", "t"] == (50, 5)


@pytest.mark.parametrize("name", ["_system/containers/metadata_0", "s/k_kvtable/0.#epoch.0", "x"])
def test_what_is_no_stream_is_not_told(name: str) -> None:
    growth = StreamGrowth()
    look(growth)
    assert look(growth, (name, 2, 50, 0), next_id=3) == {REST: (0, 0)}


def test_only_the_busiest_streams_are_told_by_name() -> None:
    growth, count = StreamGrowth(), STREAMS_MAX + 20
    lengths = [0] * count

    def look_at_all() -> dict[Stream, tuple[int, int]]:
        return look(growth, *((f"s/{i}/0.#epoch.0", i, n, n) for i, n in enumerate(lengths)))

    look_at_all()
    total, before = 0, look_at_all()
    for busy in (range(STREAMS_MAX), range(20, count), range(STREAMS_MAX)):
        for i in busy:
            lengths[i] += 10 + i
        lengths[-1] += 1
        lengths[0] += 1
        told = look_at_all()
        assert len(told) == STREAMS_MAX + 1
        for stream, (length, _) in before.items():
            assert told.get(stream, (length, 0))[0] >= length
        assert {*told} >= {("s", str(i)) for i in busy if i not in (0, count - 1, 20, STREAMS_MAX)}
        before = {**before, **told}
        total = sum(lengths)
        assert sum(length for length, _ in before.values()) == total


class Growth(RuleBasedStateMachine):
    """Streams whose segments come, grow, are deleted and leave memory, against their sums."""

    def __init__(self) -> None:
        super().__init__()
        self.growth = StreamGrowth()
        self.segments: dict[str, list[int]] = {}  # id, length, events
        self.inactive: dict[str, list[int]] = {}
        self.next_id = 1
        self.appended: Counter[Stream] = Counter()
        self.counted: Counter[Stream] = Counter()
        self.told: dict[Stream, tuple[int, int]] = {}
        self.look()

    @rule(stream=st.sampled_from("abc"), number=st.integers(0, 2))
    def create(self, stream: str, number: int) -> None:
        name = f"s/{stream}/{number}.#epoch.0"
        if name not in self.segments and name not in self.inactive:
            self.segments[name] = [self.next_id, 0, 0]
            self.next_id += 1

    @rule(data=st.data(), length=st.integers(0, 1000), events=st.integers(0, 9))
    def append(self, data: st.DataObject, length: int, events: int) -> None:
        if self.segments:
            name = data.draw(st.sampled_from(sorted(self.segments)))
            self.segments[name][1] += length
            self.segments[name][2] += events
            self.appended["s", name[2]] += length

    @rule(data=st.data())
    def evict(self, data: st.DataObject) -> None:
        self.look()
        if self.segments:
            name = data.draw(st.sampled_from(sorted(self.segments)))
            self.inactive[name] = self.segments.pop(name)
        self.look()

    @rule(data=st.data())
    def activate(self, data: st.DataObject) -> None:
        if self.inactive:
            name = data.draw(st.sampled_from(sorted(self.inactive)))
            self.segments[name] = self.inactive.pop(name)
            self.look()

    @rule(data=st.data())
    def delete(self, data: st.DataObject) -> None:
        self.look()
        if self.segments:
            del self.segments[data.draw(st.sampled_from(sorted(self.segments)))]

    @rule()
    def break_a_look_off(self) -> None:
        self.growth.begin()
        first_new_id = self.growth.enter(0, self.next_id)
        some = list(self.segments.items())[: len(self.segments) // 2]
        self.growth.add([(name, *state) for name, state in some], first_new_id)

    @rule()
    def look(self) -> None:
        lengths = [(name, *state) for name, state in self.segments.items()]
        told = look(self.growth, *lengths, next_id=self.next_id)
        del told[REST]
        assert {*told} == {("s", name[2]) for name in self.segments}
        for stream, (length, _) in told.items():
            before = self.told.get(stream, (0, 0))[0]
            assert length - before == self.appended[stream] - self.counted[stream]
        # A stream without a segment in memory begins again.
        self.told = told
        self.counted = Counter(self.appended)

    @invariant()
    def each_counter_is_a_number(self) -> None:
        assert all(length >= 0 and events >= 0 for length, events in self.told.values())


Growth.TestCase.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
TestTheCountersOfStreams = Growth.TestCase


# ---- A store -------------------------------------------------------------------------------------


def readings_of(families: list[Family], metric: Metric) -> dict[Labels, Reading]:
    [found] = [family.readings for family in families if family.metric is metric]
    return found


async def append(store: MemoryStore, data: bytes, events: int = 1) -> None:
    count = AttributeUpdate(EVENT_COUNT, AttributeUpdateType.ACCUMULATE, events)
    await store.container.append(SEGMENT, data, attribute_updates=[count])


async def test_a_store_tells_of_its_containers_and_streams() -> None:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        measured = StoreMeasures(store.registry, list)
        await measured.read()
        await append(store, b"events", 2)
        families = await measured.read()
        assert readings_of(families, store_metrics.STREAM_BYTES)["s", "t"] == 6
        assert readings_of(families, store_metrics.STREAM_EVENTS)["s", "t"] == 2
        assert readings_of(families, store_metrics.ACTIVE_SEGMENTS) == {("0",): 1}
        assert readings_of(families, store_metrics.UNFLUSHED_BYTES) == {("0",): 6}
        states = readings_of(families, store_metrics.CONTAINER_STATES)
        assert [state for (_, state), value in states.items() if value] == ["online"]


async def test_a_container_that_recovers_is_told_as_such() -> None:
    async with memory_store() as store:
        store.recovering[0] = trio.Event()
        store.fail()
        await trio.testing.wait_all_tasks_blocked(0.05)
        families = await StoreMeasures(store.registry, list).read()
        states = readings_of(families, store_metrics.CONTAINER_STATES)
        assert states["0", "online"] == 0
        assert sum(map(int, states.values())) == 1
        assert readings_of(families, store_metrics.CONTAINER_FAILURES) == {("0",): 1}
        assert store_metrics.ACTIVE_SEGMENTS not in [family.metric for family in families]


async def test_the_answer_on_the_wire_is_what_the_store_measures() -> None:
    async with memory_store() as store:
        client = store.connect()
        reply = await client.call(wire.AskMetrics(5, ""))
        assert isinstance(reply, wire.MetricsTold)
        assert reply.request_id == 5
        families = decode_readings(reply.readings)
        assert readings_of(families, store_metrics.CONNECTIONS) == {(): 1}


class Steps:
    """Segments that count how often other tasks ran between them."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.runs: set[int] = set()
        self.ticks = 0

    def lengths(self) -> Iterator[tuple[str, int, int, int]]:
        for number in range(self.count):
            self.runs.add(self.ticks)
            yield f"s/{number % 7}/{number}.#epoch.0", number, number + self.ticks, 0


async def test_other_tasks_run_during_a_look(
    monkeypatch: pytest.MonkeyPatch, nursery: trio.Nursery
) -> None:
    monkeypatch.setattr(measures, "SEGMENTS_PER_TURN", 10)
    steps = Steps(100)

    async def tick() -> None:
        while True:
            steps.ticks += 1
            await trio.lowlevel.checkpoint()

    async with memory_store() as store:
        monkeypatch.setattr(store.container, "lengths", steps.lengths)
        nursery.start_soon(tick)
        await StoreMeasures(store.registry, list).read()
        # The loop may run two tasks that are ready in either order.
        assert len(steps.runs) >= 5
    nursery.cancel_scope.cancel()


async def test_a_cancelled_look_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "SEGMENTS_PER_TURN", 1)
    async with memory_store() as store:
        other = "s/t/1.#epoch.0"
        for name in (SEGMENT, other):
            await store.container.create_segment(name)
        measured = StoreMeasures(store.registry, list)
        await measured.read()
        await append(store, b"events")
        lengths = store.container.lengths
        with trio.CancelScope() as scope, monkeypatch.context() as patch:

            def cancel_after_the_first() -> Iterator[tuple[str, int, int, int]]:
                for each in lengths():
                    yield each
                    scope.cancel()

            patch.setattr(store.container, "lengths", cancel_after_the_first)
            await measured.read()
        assert scope.cancelled_caught
        await append(store, b"more")
        families = await measured.read()
        assert readings_of(families, store_metrics.STREAM_BYTES)["s", "t"] == 10
