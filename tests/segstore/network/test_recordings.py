"""The recordings that connections of a store make of appends, reads and requests, over the wire."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest
import trio
import trio.testing

from pravega_metrics import store_metrics as metrics
from pravega_metrics.metrics import Distribution, Labels, Metric
from pravega_security.delegation_tokens import TokenVerifier
from pravega_wire import commands as wire
from segstore.testing.wire_client import WireClient
from support.models.memory_store import MemoryStore, memory_store

SEGMENT, MISSING = "s/t/0.#epoch.0", "s/t/1.#epoch.0"
WRITER = bytes(range(16))

Changes = Callable[[Metric], dict[Labels, int]]


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        yield store


@pytest.fixture
def changes() -> Changes:
    """Return how a counter, or the count of a histogram, has changed since the test began."""

    def read(metric: Metric) -> dict[Labels, int]:
        return {
            labels: each.count if isinstance(each, Distribution) else int(each)
            for labels, each in metric.read().readings.items()
        }

    before = {metric: read(metric) for metric in metrics.RECORDED}

    def find(metric: Metric) -> dict[Labels, int]:
        new = {labels: n - before[metric].get(labels, 0) for labels, n in read(metric).items()}
        return {labels: count for labels, count in new.items() if count}

    return find


async def test_durable_appends_are_recorded_with_bytes_and_events(
    store: MemoryStore, changes: Changes
) -> None:
    client = store.connect()
    await client.call(wire.SetupAppend(1, WRITER, SEGMENT, ""))
    for number in range(3):
        await client.append(WRITER, b"12345", number=number)
    while (await client.receive()).event_number < 2:  # type: ignore[union-attr]
        pass
    assert changes(metrics.APPEND_SECONDS) == {(): 3}
    assert changes(metrics.APPEND_BYTES) == {(): len(store.container.segments[SEGMENT].data)}
    assert changes(metrics.APPEND_EVENTS) == {(): 3}


async def test_refused_appends_are_counted_by_their_reason(
    store: MemoryStore, changes: Changes
) -> None:
    client = store.connect()
    await client.call(wire.SetupAppend(1, WRITER, SEGMENT, ""))
    await store.container.seal_segment(SEGMENT)
    await client.append(WRITER, b"12345", number=0)
    assert isinstance(await client.receive(), wire.SegmentIsSealed)
    assert changes(metrics.REFUSALS) == {("SegmentSealedError",): 1}
    assert changes(metrics.APPEND_SECONDS) == {}


async def test_reads_that_wait_are_told_apart(store: MemoryStore, changes: Changes) -> None:
    client = store.connect()
    await store.container.append(SEGMENT, b"events")
    await client.call(wire.ReadSegment(SEGMENT, 0, 100, "", 1))
    assert changes(metrics.READ_SECONDS) == {("no",): 1}
    await client.send(wire.ReadSegment(SEGMENT, 6, 100, "", 2))
    await trio.testing.wait_all_tasks_blocked()
    await store.container.append(SEGMENT, b"more")
    assert isinstance(await client.receive(), wire.SegmentRead)
    assert changes(metrics.READ_SECONDS) == {("no",): 1, ("yes",): 1}
    assert changes(metrics.READ_BYTES) == {(): 10}


async def test_requests_are_told_by_kind_and_result(
    store: MemoryStore, changes: Changes, monkeypatch: pytest.MonkeyPatch
) -> None:
    client: WireClient = store.connect()
    await client.call(wire.GetStreamSegmentInfo(1, SEGMENT, ""))
    await client.call(wire.SealSegment(2, MISSING, ""))
    assert changes(metrics.REQUEST_SECONDS) == {
        ("GetStreamSegmentInfo", "served"): 1,
        ("SealSegment", "refused"): 1,
    }
    assert changes(metrics.REFUSALS) == {("NoSuchSegmentError",): 1}

    async def break_down(name: str) -> int:
        raise ZeroDivisionError

    monkeypatch.setattr(store.container, "seal_segment", break_down)
    await client.send(wire.SealSegment(3, SEGMENT, ""))
    await client.expect_close()
    assert changes(metrics.REQUEST_SECONDS)["SealSegment", "failed"] == 1


class NoKeys:
    """No key signs."""

    current = b"k" * 86
    all_valid = ()

    def look(self) -> None:
        """Notice no key."""


async def test_refused_tokens_are_counted(changes: Changes) -> None:
    async with memory_store(tokens=TokenVerifier(NoKeys(), lambda: 0)) as store:
        reply = await store.connect().call(wire.SealSegment(1, SEGMENT, "a.b.c"))
        assert isinstance(reply, wire.AuthTokenCheckFailed)
        assert changes(metrics.REFUSALS) == {("TokenRefusedError",): 1}
