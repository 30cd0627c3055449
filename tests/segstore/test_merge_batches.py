"""Many segments merged by one command, on the real journal."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import trio
import trio.testing

from pravega_wire import commands as wire
from segstore.model.attributes import EVENT_COUNT
from segstore.testing.wire_client import WireClient
from support.local_store import LocalStore, local_store
from support.local_tiers import ObservedLog, until

TARGET = "scope/stream/0.#epoch.0"
SOURCES = tuple(f"{TARGET}#transaction.{number:032x}" for number in range(100))


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[LocalStore]:
    async with local_store(tmp_path, container_count=1) as store:
        yield store


@pytest.fixture
async def client(store: LocalStore) -> WireClient:
    """A client of a store with the target, and sources with a number each as their bytes."""
    client = store.connect()
    for number, name in enumerate((TARGET, *SOURCES)):
        await client.send(wire.CreateSegment(number, name, 0, 0, ""))
        await client.expect(wire.SegmentCreated)
    for number, name in enumerate(SOURCES):
        await client.set_up(number.to_bytes(16), name)
        await client.append(number.to_bytes(16), b"%04d" % number, number=1, count=1)
        await client.expect(wire.DataAppended)
    return client


def log_of(store: LocalStore) -> ObservedLog:
    return store.logs.opened[0][-1]


def merged(count: int = len(SOURCES), *, first: int = 0) -> wire.SegmentsBatchMerged:
    sources = SOURCES[first : first + count]
    return wire.SegmentsBatchMerged(
        9,
        TARGET,
        tuple(
            wire.MergedSource(name, 4 * number) for number, name in enumerate(sources, first + 1)
        ),
    )


async def read_target(client: WireClient) -> bytes:
    data = b""
    while len(data) < 4 * len(SOURCES):
        await client.send(wire.ReadSegment(TARGET, len(data), 1000, "", 1))
        data += (await client.expect(wire.SegmentRead)).data
    return data


async def test_a_batch_takes_one_trip_to_the_log(store: LocalStore, client: WireClient) -> None:
    log = log_of(store)
    before = len(log.entries)
    assert await client.call(wire.MergeSegmentsBatch(9, TARGET, SOURCES, "")) == merged()
    assert len(log.entries) - before <= 2
    assert await read_target(client) == b"".join(b"%04d" % n for n in range(len(SOURCES)))
    await client.send(wire.GetSegmentAttribute(3, TARGET, EVENT_COUNT, ""))
    assert (await client.expect(wire.SegmentAttribute)).value == len(SOURCES)
    # Whoever lost the reply asks again: nothing is merged twice.
    before = len(log.entries)
    again = await client.call(wire.MergeSegmentsBatch(9, TARGET, SOURCES, ""))
    assert isinstance(again, wire.SegmentsBatchMerged)
    assert {each.new_target_write_offset for each in again.sources} == {4 * len(SOURCES)}
    assert len(log.entries) == before
    await client.send(wire.GetStreamSegmentInfo(4, TARGET, ""))
    assert (await client.expect(wire.StreamSegmentInfo)).write_offset == 4 * len(SOURCES)


async def test_a_batch_goes_on_where_an_earlier_one_got_to(
    store: LocalStore, client: WireClient
) -> None:
    half = wire.MergeSegmentsBatch(9, TARGET, SOURCES[:50], "")
    assert await client.call(half) == merged(50)
    whole = await client.call(wire.MergeSegmentsBatch(9, TARGET, SOURCES, ""))
    assert isinstance(whole, wire.SegmentsBatchMerged)
    assert [each.source for each in whole.sources] == list(SOURCES)
    assert {each.new_target_write_offset for each in whole.sources[:50]} == {200}
    assert whole.sources[50:] == merged(50, first=50).sources


async def test_nobody_is_told_of_a_merge_that_is_not_durable(
    store: LocalStore, client: WireClient
) -> None:
    log, other = log_of(store), store.connect()
    log.holding = True
    request = wire.MergeSegmentsBatch(9, TARGET, SOURCES, "")
    await client.send(request)
    await until(lambda: log.held_count)
    # The sources are gone already for who comes next, but they are not durably elsewhere.
    await other.send(request)
    await client.expect_silence()
    await other.expect_silence()
    log.release()
    assert await client.receive() == merged()
    again = await other.expect(wire.SegmentsBatchMerged)
    assert {each.new_target_write_offset for each in again.sources} == {4 * len(SOURCES)}


@pytest.mark.parametrize("at", [0, 50, 99])
async def test_a_source_that_cannot_be_merged_keeps_all_from_being_merged(
    store: LocalStore, client: WireClient, at: int
) -> None:
    """The sources behind it must not be merged before it."""
    await client.send(wire.TruncateSegment(1, SOURCES[at], 2, ""))
    await client.expect(wire.SegmentTruncated)
    reply = await client.call(wire.MergeSegmentsBatch(9, TARGET, SOURCES, ""))
    assert isinstance(reply, wire.SegmentIsTruncated)
    await client.send(wire.GetStreamSegmentInfo(2, TARGET, ""))
    assert (await client.expect(wire.StreamSegmentInfo)).write_offset == 0


async def test_a_batch_into_a_sealed_target_merges_nothing(
    store: LocalStore, client: WireClient
) -> None:
    await client.send(wire.SealSegment(1, TARGET, ""))
    await client.expect(wire.SegmentSealed)
    reply = await client.call(wire.MergeSegmentsBatch(9, TARGET, SOURCES, ""))
    assert reply == wire.SegmentIsSealed(9, TARGET, "", -1)
    await client.send(wire.GetStreamSegmentInfo(2, SOURCES[0], ""))
    assert (await client.expect(wire.StreamSegmentInfo)).write_offset == 4


async def test_too_many_sources_are_refused_before_anything_is_done(
    store: LocalStore, client: WireClient
) -> None:
    names = tuple(f"{TARGET}#transaction.{number:032x}" for number in range(300))
    reply = await client.call(wire.MergeSegmentsBatch(9, TARGET, names, ""))
    assert isinstance(reply, wire.ErrorMessage)
    assert "301 segments, at most 257" in reply.message
    await client.send(wire.MergeSegmentsBatch(9, TARGET, names * 20, ""))
    await client.expect_close()
    with trio.fail_after(60):
        assert await store.connect().call(wire.HELLO) == wire.HELLO
