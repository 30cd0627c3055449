"""Tests of walks over the events of a stream, on a segment store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager
from random import Random
from typing import Any

import pytest

from pravega_controller.console.events import event_walks
from pravega_controller.console.events.event_walks import Walk, find_tail, tail_position, walk
from pravega_controller.controller import Controller
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire.event_framing import frame_events
from pravega_wire.names import segment_id, segment_name

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]


def put(store: MemorySegmentStore, identifier: int, *events: bytes) -> None:
    """Add events to a segment of the stream ``s/t``."""
    segment = store.segments[segment_name("s", "t", identifier)]
    segment.data = bytes(segment.data) + frame_events(events)
    segment.length = len(segment.data)


def events_of(found: Walk) -> list[bytes]:
    return [each.data for each in found.events]


async def walk_all(
    controller: Controller, position: dict[int, int], **how: Any
) -> tuple[list[bytes], int]:
    """Return the events of walks to the end, and the number of walks."""
    events, count = [], 0
    while True:
        found = await walk(controller, "s", "t", position, **{"count_max": 7, **how})
        events += events_of(found)
        count += 1
        position = found.position
        if found.is_at_end:
            return events, count


async def scale(controller: Controller, sealed: list[int], ranges: Any, now: int) -> None:
    await controller.streams.scale("s", "t", sealed, ranges, now_ms=now)
    await controller.streams.workflows.work.finish("s", "t")


async def make(controller: Controller, count: int) -> None:
    await controller.scopes.create("s")
    await controller.streams.create("s", "t", fixed_configuration(count))


async def test_walks_tell_each_event_once(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(event_walks, "PIECE_BYTES", 30)
    random = Random(1)
    async with open_on_memory() as controller:
        await make(controller, 1)
        await scale(controller, [0], [(0.0, 0.5), (0.5, 1.0)], 1)
        batches: Iterator[list[bytes]] = iter(
            [[f"{b}-{n}".encode() * random.randint(0, 4) for n in range(12)] for b in range(4)]
        )
        written: list[bytes] = []

        def write(identifier: int) -> None:
            batch = next(batches)
            put(memory_store, identifier, *batch)
            written.extend(batch)

        halves = [segment_id(1, 1), segment_id(2, 1)]
        for each in halves:
            write(each)
        await scale(controller, halves, [(0.0, 1.0)], 2)
        write(segment_id(3, 2))
        await scale(controller, [segment_id(3, 2)], [(0.0, 0.5), (0.5, 1.0)], 3)
        write(segment_id(5, 3))
        head = await controller.streams.head("s", "t")
        events, count = await walk_all(controller, head)
        assert sorted(events) == sorted(written)
        assert count > 3
        # Merged segments are read before what replaces them.
        assert events[24:36] == written[24:36]
        found = await walk(controller, "s", "t", head, wanted=b"2-11", count_max=50)
        assert events_of(found) == [each for each in written if b"2-11" in each]
        monkeypatch.setattr(event_walks, "BYTES_MAX", 100)
        bounded, count = await walk_all(controller, head, count_max=1000)
        assert (sorted(bounded), count > 3) == (sorted(written), True)


async def test_a_walk_continues_behind_a_truncation(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await make(controller, 1)
        put(memory_store, 0, b"a", b"b", b"c")
        first = await walk(controller, "s", "t", {0: 0}, count_max=1)
        assert (events_of(first), first.position) == ([b"a"], {0: 9})
        await controller.streams.truncate("s", "t", {0: 18})
        rest = await walk(controller, "s", "t", first.position, count_max=9)
        assert (events_of(rest), rest.is_at_end) == ([b"c"], True)


async def test_bytes_that_are_no_events_are_told(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await make(controller, 1)
        put(memory_store, 0, b"a")
        segment = memory_store.segments[segment_name("s", "t", 0)]
        segment.data += b"these are bytes of a byte stream"
        segment.length = len(segment.data)
        found = await walk(controller, "s", "t", {0: 0}, count_max=9)
        assert found.notes == ["Segment 0 has bytes that are no events; they are left out."]
        assert found.is_at_end


async def test_the_newest_events_are_found_in_a_long_segment(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory() as controller:
        await make(controller, 1)
        put(memory_store, 0, *[b"%06d" % number * 20 for number in range(2000)])
        position = await tail_position(controller, "s", "t", [0])
        found = await walk(controller, "s", "t", position, count_max=1000)
        assert events_of(found)[-1] == b"001999" * 20
        assert len(found.events) == event_walks.TAIL_BYTES // 128


def test_the_end_of_a_segment_begins_with_a_whole_event() -> None:
    data = frame_events([b"abc", b"", bytes(40), b"x" * 30])
    for cut in range(len(data)):
        begin = find_tail(data[cut:])
        if begin is None:
            assert cut > len(data) - 38
        else:
            assert frame_events([b"x" * 30]) == data[-38:]
            assert cut + begin <= len(data) - 38
    assert find_tail(b"") is None
    # As many as there can be, with nothing after them that is an event.
    assert find_tail(bytes(200_000) + b"!") is None
