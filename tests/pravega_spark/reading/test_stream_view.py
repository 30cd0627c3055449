"""Batches with limits, as the driver plans them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pytest

from pravega_spark.options import Options
from pravega_spark.reading.cuts import Cut, SegmentState
from pravega_spark.reading.stream_view import StreamView
from pravega_wire.event_framing import frame_event


class MemoryView(StreamView):
    """A view of segments in memory. It makes no connection."""

    def __init__(self, segments: Mapping[int, bytes], **options: str) -> None:
        super().__init__(Options.parse({"scope": "s", "stream": "t", **options}))
        self._segments = segments

    def _replace_completed(
        self, start: Cut, end: Cut | None
    ) -> tuple[dict[int, int], dict[int, SegmentState]]:
        states = {each: SegmentState(0, len(self._segments[each]), False) for each in start}
        return dict(start), states

    def _read_without_lookahead(
        self, segment: int, start: int, end: int
    ) -> Iterator[tuple[int, bytes]]:
        for offset in range(start, end, 100):
            yield offset, self._segments[segment][offset : min(offset + 100, end)]


@pytest.mark.parametrize("limit", [{"max_rows_per_trigger": "2"}, {"max_bytes_per_trigger": "40"}])
def test_short_segments_do_not_starve(limit: dict[str, str]) -> None:
    event = frame_event(b"an event")
    counts = [200, 200, 5, 5]
    segments = {number: event * count for number, count in enumerate(counts)}
    with MemoryView(segments, **limit) as view:
        cut = dict.fromkeys(segments, 0)
        waits = dict.fromkeys(segments, 0)
        for _ in range(20):
            before, cut = cut, view.advance(cut, None, limited=True)
            sizes = {each: cut[each] - before[each] for each in segments}
            assert 0 < sum(sizes.values()) <= 2 * len(event)
            assert not any(size % len(event) for size in sizes.values())
            for each, size in sizes.items():
                is_read = size or cut[each] == len(segments[each])
                waits[each] = 0 if is_read else waits[each] + 1
            assert max(waits.values()) < len(segments)
    assert all(cut[each] == len(segments[each]) for each in (2, 3))


def test_a_batch_is_as_long_as_its_limit() -> None:
    event = frame_event(b"an event")
    segments = {number: event * (50 + number) for number in range(3)}
    with MemoryView(segments, max_rows_per_trigger="20") as view:
        cut = dict.fromkeys(segments, 0)
        while cut != (after := view.advance(cut, None, limited=True)):
            left = sum(len(segments[each]) - cut[each] for each in segments) // len(event)
            rows = sum(after[each] - cut[each] for each in segments) // len(event)
            assert rows == min(20, left)
            cut = after
    assert cut == {each: len(segments[each]) for each in segments}
