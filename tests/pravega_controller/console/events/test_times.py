"""Tests of the position of a stream at a time."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

import pytest

from pravega_controller.console.events import times
from pravega_controller.console.events.times import Marks, find_time, parse_time, read_marks
from pravega_controller.controller import Controller
from pravega_controller.errors import InvalidRequestError
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_wire.event_framing import frame_events
from pravega_wire.names import mark_stream, segment_name
from pravega_wire.watermarks import SegmentWithRange, Watermark, encode_watermark

OpenController = Callable[..., AbstractAsyncContextManager[Controller]]
WHOLE = SegmentWithRange(0, 0.0, 1.0)


def test_a_time_is_read_with_and_without_a_zone() -> None:
    assert parse_time("1970-01-01T00:01") == 60_000
    assert parse_time(" 1970-01-01T01:00:01+01:00 ") == 1000
    for wrong in ("", "now", "1e9", "2026-13-01T00:00"):
        with pytest.raises(InvalidRequestError):
            parse_time(wrong)


async def test_the_last_mark_before_a_time_decides(
    open_on_memory: OpenController, memory_store: MemorySegmentStore
) -> None:
    async with open_on_memory(now_ms=lambda: 5000) as controller:
        await controller.scopes.create("s")
        await controller.streams.create("s", "t", fixed_configuration(1))
        found = await find_time(controller, "s", "t", 6000)
        assert (found.position, "epoch 0" in found.note) == ({0: 0}, True)
        early = await find_time(controller, "s", "t", 4000)
        assert (early.position, "younger" in early.note) == ({0: 0}, True)
        await controller.streams.create("s", mark_stream("t"), fixed_configuration(1))
        marks = [Watermark(each - 5, each, {WHOLE: each}) for each in range(7000, 27000, 1000)]
        segment = memory_store.segments[segment_name("s", mark_stream("t"), 0)]
        segment.data = frame_events([encode_watermark(each) for each in marks])
        segment.length = len(segment.data)
        at = {
            time: (await find_time(controller, "s", "t", time)).position[0]
            for time in (6999, 7000, 9999, 10**12)
        }
        assert at == {6999: 0, 7000: 7000, 9999: 9000, 10**12: 26000}


async def test_only_marks_behind_those_that_are_known_are_read(
    open_on_memory: OpenController,
    memory_store: MemorySegmentStore,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with open_on_memory() as controller:
        await controller.scopes.create("s")
        for stream in ("t", mark_stream("t")):
            await controller.streams.create("s", stream, fixed_configuration(1))
        segment = memory_store.segments[segment_name("s", mark_stream("t"), 0)]
        asked, read = [], controller.segments.read_segment

        async def note_and_read(name: str, *, offset: int, length: int) -> bytes:
            asked.append((offset, length))
            return await read(name, offset=offset, length=length)

        def write(*times: int) -> None:
            marks = [Watermark(each, each, {WHOLE: each}) for each in times]
            segment.data += frame_events([encode_watermark(each) for each in marks])
            segment.length = len(segment.data)

        monkeypatch.setattr(controller.segments, "read_segment", note_and_read)
        write(1, 2)
        first = await read_marks(controller, "s", "t")
        assert [each.lower for each in first.marks] == [1, 2]
        assert await read_marks(controller, "s", "t", first) is first
        write(3)
        second = await read_marks(controller, "s", "t", first)
        assert [each.lower for each in second.marks] == [1, 2, 3]
        assert asked == [(0, first.end), (first.end, second.end - first.end)]
        monkeypatch.setattr(times, "MARKS_MAX", 2)
        write(4)
        third = await read_marks(controller, "s", "t", second)
        assert [each.lower for each in third.marks] == [3, 4]
        assert await read_marks(controller, "s", "none", third) == Marks()
