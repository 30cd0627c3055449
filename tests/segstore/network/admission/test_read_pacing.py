"""Some replies to reads wait for their clients, each for a bounded time."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from pravega_wire import commands as wire
from segstore.api import ReadResult
from segstore.network.admission.read_pacing import SHORT_BYTES_MAX, HeldReads, must_wait
from segstore.process.config import ConnectionSettings
from segstore.runtime.alarm import SleepingAlarm
from segstore.testing.wire_client import WireClient
from support.models.memory_store import MemoryStore, memory_store

SEGMENT = "scope/stream/0.#epoch.0"
AGE = 0.001
SHORT, LONG = b"x", bytes(SHORT_BYTES_MAX + 1)
settle = trio.testing.wait_all_tasks_blocked

results = st.builds(
    ReadResult,
    offset=st.just(0),
    data=st.sampled_from((b"", SHORT, LONG)),
    at_tail=st.booleans(),
    end_of_segment=st.booleans(),
    is_last=st.booleans(),
)


@given(result=st.none() | results, age=st.floats(0, 2), age_min=st.floats(0, 1))
def test_only_young_requests_wait_and_only_for_what_is_short_and_the_last(
    result: ReadResult | None, age: float, age_min: float
) -> None:
    waits = must_wait(result, age=age, age_min=age_min)
    if waits:
        assert age < age_min
        assert result is None or len(result.data) <= SHORT_BYTES_MAX
        assert result is None or result.is_last or result.end_of_segment
    elif age < age_min:
        assert result is not None
        assert len(result.data) > SHORT_BYTES_MAX or not (result.is_last or result.end_of_segment)


# ---- The line ------------------------------------------------------------------------------------


@given(ages=st.lists(st.floats(0, AGE), max_size=12), cancelled=st.sets(st.integers(0, 11)))
def test_each_is_answered_when_its_request_is_old_enough(
    ages: list[float], cancelled: set[int]
) -> None:
    answered: dict[int, float] = {}

    async def hold_all() -> float:
        reads = HeldReads(AGE)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(reads.run, SleepingAlarm())
            await settle()
            now = trio.current_time()
            for number, age in enumerate(ages):

                def answer(number: int = number) -> None:
                    assert number not in answered
                    answered[number] = trio.current_time()

                held = reads.hold(now - age, answer)
                if number in cancelled:
                    held.cancel()
            await trio.sleep(2 * AGE)
            nursery.cancel_scope.cancel()
        assert not reads.is_running
        return now

    now = trio.run(hold_all, clock=MockClock(autojump_threshold=0))
    assert answered.keys() == set(range(len(ages))) - cancelled
    for number, time in answered.items():
        assert time == pytest.approx(now - ages[number] + AGE)


async def test_nothing_waits_where_nobody_answers_what_is_held() -> None:
    assert not HeldReads(AGE).must_wait(None, trio.current_time())


# ---- Connections ---------------------------------------------------------------------------------


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    """A store where replies are held, as in a process that serves."""
    async with memory_store(ConnectionSettings(reply_age_seconds_min=AGE)) as store:
        store.nursery.start_soon(store.server.admission.held_reads.run, SleepingAlarm())
        await store.container.create_segment(SEGMENT)
        yield store


@pytest.fixture
async def client(store: MemoryStore) -> WireClient:
    return store.connect()


def read(offset: int, length: int = 1_000) -> wire.ReadSegment:
    return wire.ReadSegment(SEGMENT, offset, length, "", 7)


async def seconds_until_reply(client: WireClient) -> tuple[wire.Command, float]:
    began = trio.current_time()
    return await client.receive(), trio.current_time() - began


async def test_bytes_that_are_there_wait_and_take_along_what_comes_meanwhile(
    store: MemoryStore, client: WireClient, autojump_clock: MockClock
) -> None:
    await store.container.append(SEGMENT, b"one")
    await client.send(read(0))
    await settle()
    await store.container.append(SEGMENT, b"two")
    reply, seconds = await seconds_until_reply(client)
    assert isinstance(reply, wire.SegmentRead)
    assert reply.data == b"onetwo"
    assert seconds == pytest.approx(AGE)


async def test_a_reader_that_is_behind_is_not_held(
    store: MemoryStore, client: WireClient, autojump_clock: MockClock
) -> None:
    await store.container.append(SEGMENT, bytes(100))
    for request in (read(0, 99), read(1, 98)):
        await client.send(request)
        reply, seconds = await seconds_until_reply(client)
        assert isinstance(reply, wire.SegmentRead)
        assert (len(reply.data), seconds) == (request.suggested_length, 0)


async def test_a_long_reply_is_not_held(
    store: MemoryStore, client: WireClient, autojump_clock: MockClock
) -> None:
    await store.container.append(SEGMENT, LONG)
    await client.send(read(0, len(LONG)))
    assert (await seconds_until_reply(client))[1] == 0


async def test_a_read_that_has_waited_for_its_bytes_is_answered_when_they_come(
    store: MemoryStore, client: WireClient, autojump_clock: MockClock
) -> None:
    await client.send(read(0))
    await trio.sleep(AGE)
    await store.container.append(SEGMENT, b"late")
    assert (await seconds_until_reply(client))[1] == 0


async def test_a_young_read_that_waits_for_its_bytes_is_held(
    store: MemoryStore, client: WireClient, autojump_clock: MockClock
) -> None:
    await client.send(read(0))
    await trio.sleep(AGE / 4)
    await store.container.append(SEGMENT, b"soon")
    reply, seconds = await seconds_until_reply(client)
    assert isinstance(reply, wire.SegmentRead)
    assert reply.data == b"soon"
    assert seconds == pytest.approx(AGE * 3 / 4)


async def test_what_ends_a_segment_is_held(
    store: MemoryStore, client: WireClient, autojump_clock: MockClock
) -> None:
    await store.container.append(SEGMENT, b"0123456789")
    await store.container.truncate_segment(SEGMENT, offset=4)
    await store.container.seal_segment(SEGMENT)
    truncated = wire.SegmentIsTruncated(7, SEGMENT, 4, "", 2)
    end = wire.SegmentRead(SEGMENT, 10, False, True, b"", 7)
    missing = wire.NoSuchSegment(7, "scope/stream/9.#epoch.0", "", 0)
    requests = (read(2), read(10), wire.ReadSegment(missing.segment, 0, 8, "", 7))
    for request, expected in zip(requests, (truncated, end, missing), strict=True):
        await client.send(request)
        assert await seconds_until_reply(client) == (expected, pytest.approx(AGE))


async def test_a_refusal_is_the_one_of_its_moment(
    store: MemoryStore, client: WireClient, autojump_clock: MockClock
) -> None:
    await store.container.append(SEGMENT, b"01")
    await client.send(read(5))
    await settle()
    await store.container.seal_segment(SEGMENT)
    assert await client.receive() == wire.SegmentIsSealed(7, SEGMENT, "", 5)


async def test_other_requests_overtake_a_reply_that_is_held(
    store: MemoryStore, client: WireClient, autojump_clock: MockClock
) -> None:
    await store.container.append(SEGMENT, b"01")
    await client.send(read(0), wire.KeepAlive())
    assert await client.receive() == wire.KeepAlive()
    assert isinstance(await client.receive(), wire.SegmentRead)


async def test_a_peer_that_has_ended_gets_what_was_held_at_once(
    store: MemoryStore, client: WireClient, autojump_clock: MockClock
) -> None:
    await store.container.append(SEGMENT, b"01")
    await client.send(read(0), read(9))
    stream = client.stream
    assert isinstance(stream, trio.StapledStream)
    await stream.send_eof()
    reply, seconds = await seconds_until_reply(client)
    assert isinstance(reply, wire.SegmentRead)
    assert (reply.data, seconds) == (b"01", 0)
    await client.expect_close()


async def test_draining_answers_what_is_held(
    store: MemoryStore, client: WireClient, autojump_clock: MockClock
) -> None:
    await store.container.append(SEGMENT, b"01")
    await client.send(read(0))
    await settle()
    store.server.drain()
    assert isinstance(await client.receive(), wire.SegmentRead)
    await client.expect_close()


async def test_what_is_held_goes_with_its_connection(
    store: MemoryStore, client: WireClient, autojump_clock: MockClock
) -> None:
    await store.container.append(SEGMENT, b"01")
    await client.send(read(0))
    await settle()
    await client.stream.aclose()
    await trio.sleep(2 * AGE)
    assert store.server.connection_count == 0
    other = store.connect()
    await other.send(read(0))
    assert isinstance(await other.receive(), wire.SegmentRead)


async def test_an_age_of_zero_holds_nothing(autojump_clock: MockClock) -> None:
    async with memory_store(ConnectionSettings(reply_age_seconds_min=0)) as store:
        store.nursery.start_soon(store.server.admission.held_reads.run, SleepingAlarm())
        await store.container.create_segment(SEGMENT)
        await store.container.append(SEGMENT, b"01")
        client = store.connect()
        await client.send(read(0))
        assert (await seconds_until_reply(client))[1] == 0


@pytest.mark.parametrize("seconds", [-0.001, 1.5, math.inf])
def test_an_age_that_would_stop_readers_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="reply_age_seconds_min"):
        ConnectionSettings(reply_age_seconds_min=seconds)
