"""Watching segments of whole containers, and what becomes due."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import trio

from pravega_wire import commands as wire
from pravega_wire.scale_events import ScaleDirection
from segstore.load.monitor import DueEvent, LoadMonitor
from segstore.process.config import AutoScaleSettings
from segstore.testing.wire_client import WireClient
from support.local_store import LocalStore, local_store
from support.models.memory_store import MemoryStore, memory_store

SETTINGS = AutoScaleSettings(
    sample_seconds=1.0,
    window_seconds=(2.0, 5.0, 10.0, 20.0),
    cooldown_seconds=10.0,
    mute_seconds=10.0,
    expiry_seconds=20.0,
)
EVENTS, FIXED = 2, 0
NOW_MS = 5_000
WRITER = bytes(range(16))


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with memory_store(container_count=2) as store:
        yield store


class Watched:
    """A monitor whose time the test makes, and a writer."""

    def __init__(self, store: MemoryStore | LocalStore, *, container_count: int = 2) -> None:
        self.now_ms = NOW_MS
        self.monitor = LoadMonitor(store.registry, SETTINGS, now_ms=lambda: self.now_ms)
        self.client: WireClient = store.connect()
        self._number = 0
        self._container_count = container_count
        self._now = trio.current_time()

    async def create(self, name: str, *, target: int = 10, kind: int = EVENTS) -> None:
        request = wire.CreateSegment(1, name, target, kind, "")
        await self.client.send(wire.HELLO, request)
        reply = await self.client.receive()
        while isinstance(reply, wire.Hello):
            reply = await self.client.receive()
        assert isinstance(reply, wire.SegmentCreated), reply

    async def ask(self, request: wire.Command, kind: type[wire.Command]) -> None:
        await self.client.send(request)
        await self.client.expect(kind)

    async def write(self, name: str, count: int) -> None:
        self._number += count
        await self.ask(wire.SetupAppend(1, WRITER, name, ""), wire.AppendSetup)
        block = wire.AppendBlock(WRITER, b"x" * count)
        end = wire.AppendBlockEnd(WRITER, count, b"", count, self._number, 2)
        await self.client.send(block, end)
        await self.client.expect(wire.DataAppended)

    def look(self, count: int = 1) -> None:
        for _ in range(count):
            self._now += 1
            for number in range(self._container_count):
                self.monitor.sample_container(number, self._now, 1.0)

    async def due(self) -> list[DueEvent]:
        with trio.fail_after(60):
            return await self.monitor.wait_due()

    def is_due(self) -> bool:
        return any(self.monitor._due.values())


NAME = "scope/stream/3.#epoch.7"


async def test_a_busy_segment_becomes_due_with_the_official_event(store: MemoryStore) -> None:
    watched = Watched(store)
    await watched.create(NAME)
    await watched.create("scope/fixed/0.#epoch.0", kind=FIXED)
    watched.look()
    for _ in range(11):
        await watched.write(NAME, 35)
        watched.look()
    [due] = await watched.due()
    assert due.event.segment_id == 7 << 32 | 3
    assert (due.event.scope, due.event.stream) == ("scope", "stream")
    assert due.event.direction is ScaleDirection.UP
    assert due.event.splits == 3
    assert due.event.time_ms == NOW_MS
    assert watched.monitor.known_count == 1


async def test_what_was_told_is_due_no_more(store: MemoryStore) -> None:
    watched = Watched(store)
    await watched.create(NAME)
    watched.look()
    for _ in range(11):
        await watched.write(NAME, 50)
        watched.look()
    watched.monitor.record_delivery(await watched.due())
    assert not watched.is_due()
    await watched.write(NAME, 50)
    watched.look()
    assert not watched.is_due()


async def test_a_quiet_segment_is_told_silent_once(store: MemoryStore) -> None:
    watched = Watched(store)
    await watched.create(NAME)
    watched.look(21)
    [due] = await watched.due()
    assert due.event.direction is ScaleDirection.DOWN
    assert due.event.silent
    watched.monitor.record_delivery([due])
    watched.now_ms += 21_000
    watched.look(100)
    assert not watched.is_due()
    assert watched.monitor.known_count == 0, "it is measured again when it is used"


@pytest.mark.parametrize(
    ("request_", "reply"),
    [
        (wire.SealSegment(9, NAME, ""), wire.SegmentSealed),
        (wire.UpdateSegmentPolicy(9, NAME, 0, FIXED, ""), wire.SegmentPolicyUpdated),
    ],
    ids=["sealed", "fixed"],
)
async def test_segments_without_a_policy_any_more_are_forgotten(
    store: MemoryStore, request_: wire.Command, reply: type[wire.Command]
) -> None:
    watched = Watched(store)
    await watched.create(NAME)
    watched.look(21)
    assert watched.is_due()
    await watched.ask(request_, reply)
    watched.look()
    assert not watched.is_due()
    assert watched.monitor.known_count == 0


async def test_a_deleted_segment_is_told_silent_and_forgotten(store: MemoryStore) -> None:
    watched = Watched(store)
    await watched.create(NAME)
    watched.look()
    await watched.ask(wire.DeleteSegment(9, NAME, ""), wire.SegmentDeleted)
    watched.look(21)
    [due] = await watched.due()
    watched.monitor.record_delivery([due])
    watched.look()
    assert watched.monitor.known_count == 0


async def test_a_new_segment_of_the_same_name_begins_anew(store: MemoryStore) -> None:
    watched = Watched(store)
    await watched.create(NAME)
    watched.look(19)
    await watched.ask(wire.DeleteSegment(9, NAME, ""), wire.SegmentDeleted)
    await watched.create(NAME)
    watched.look(19)
    assert not watched.is_due()
    assert watched.monitor.known_count == 1


async def test_an_offline_container_keeps_what_is_known(store: MemoryStore) -> None:
    watched = Watched(store)
    await watched.create(NAME)
    watched.look(5)
    await store.wait_online(NAME)
    for number in store.containers:
        store.registry.hosted(number).mark_unavailable()
    watched.look(5)
    assert watched.monitor.known_count == 1
    assert not watched.is_due()


async def test_a_silent_segment_that_stays_in_memory_is_split_as_soon_as_it_is_busy_again(
    tmp_path: object,
) -> None:
    async with local_store(tmp_path, container_count=1) as store:  # type: ignore[arg-type]
        watched = Watched(store, container_count=1)
        await watched.create(NAME)
        watched.look(21)
        watched.monitor.record_delivery(await watched.due())
        watched.now_ms += 21_000
        watched.look(20)
        assert not watched.is_due()
        assert watched.monitor.known_count == 1
        await watched.write(NAME, 500)
        watched.look()
        [due] = await watched.due()
        assert due.event.direction is ScaleDirection.UP


async def test_real_containers_count_what_is_written_and_merged(tmp_path: object) -> None:
    """The counts are those that the containers keep anyway, also of a merged transaction."""
    async with local_store(tmp_path, container_count=1) as store:  # type: ignore[arg-type]
        watched = Watched(store)
        await watched.create(NAME)
        source = NAME + "#transaction." + "0" * 31 + "1"
        await watched.create(source, kind=FIXED, target=0)
        await watched.write(NAME, 7)
        await watched.write(source, 5)
        await watched.ask(wire.SealSegment(9, source, ""), wire.SegmentSealed)
        await watched.ask(wire.MergeSegments(9, NAME, source, ""), wire.SegmentsMerged)
        container = store.registry.hosted(0).container
        [sample] = container.load_samples(lambda name: None)
        assert (sample.name, sample.event_count, sample.length) == (NAME, 12, 12)
        assert (sample.scale_type, sample.target_rate, sample.sealed) == (EVENTS, 10, False)
        samples = {NAME: sample}
        assert list(container.load_samples(samples.get)) == [], "nothing has changed"
        for change in (
            {"segment_id": -1},
            {"scale_type": FIXED},
            {"target_rate": 11},
            {"event_count": 11},
            {"length": 11},
            {"sealed": True},
        ):
            samples = {NAME: sample._replace(**change)}  # type: ignore[arg-type]
            assert list(container.load_samples(samples.get)) == [sample], change
