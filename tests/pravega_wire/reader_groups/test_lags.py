"""Lags of reader groups, from states and bounds."""

from __future__ import annotations

from pravega_wire.names import segment_id, segment_name
from pravega_wire.reader_groups.lags import INT64_MAX, SegmentLag, find_lag_ms, streams_of
from pravega_wire.reader_groups.states import GroupState
from pravega_wire.watermarks import SegmentWithRange, Watermark


def name(segment: int, stream: str = "t") -> str:
    return segment_name("s", stream, segment)


def test_a_lag_is_from_the_told_position_to_the_end() -> None:
    state = GroupState(
        assigned={"one": {name(0): 100, name(1): 0}},
        unassigned={name(2): 50, name(0, "a"): 7},
        last_read={name(0): 400, name(1): 30, name(2): 50, name(9, "gone"): 1},
        ends={name(1): 60, name(2): INT64_MAX},
    )
    first, second = streams_of(state)
    assert (first.stream, first.resumes_at, first.end_cut) == ("a", {0: 7}, {})
    assert second.end_cut == {1: 60, 2: -1}
    segments = second.segments([2, 3])
    assert segments == [0, 1, 2, 3]
    mark = Watermark(5000, 5000, {SegmentWithRange(0, 0.0, 1.0): 500})
    marks = [Watermark(1000, 1000, {SegmentWithRange(0, 0.0, 1.0): 400}), mark]
    bounds = {0: (0, 1000), 1: (40, 1000), 3: (10, 25)}
    assert second.lags(segments, bounds, marks) == [
        SegmentLag("s/t", 0, "one", 400, 100, 1000, 600, 4000),
        # What was truncated is not to be read any more, and what is behind the group's end neither.
        SegmentLag("s/t", 1, "one", 30, 0, 60, 20, 4000),
        # A truncation has deleted it.
        SegmentLag("s/t", 2, None, 50, 50, 50, 0, 0),
        # It follows one that is not read yet.
        SegmentLag("s/t", 3, None, 0, 0, 25, 15, 4000),
    ]


def test_a_segment_that_was_read_to_its_end_has_no_lag() -> None:
    [stream] = streams_of(GroupState(unassigned={name(0): -1}, last_read={name(0): -1}))
    [lag] = stream.lags([0], {0: (0, 80)}, [])
    assert (lag.position, lag.unread, lag.lag_ms) == (80, 0, 0)
    [open_] = streams_of(GroupState(unassigned={name(0): 0}, last_read={name(0): 0}))
    assert [each.lag_ms for each in open_.lags([0], {0: (0, 80)}, [])] == [None]


def test_a_lag_before_the_first_watermark_is_at_least_the_span_of_all() -> None:
    marks = [Watermark(n, n + 1, {SegmentWithRange(0, 0.0, 1.0): 10 * n}) for n in (1, 2, 5)]
    assert find_lag_ms([], 0, 5) is None
    assert [find_lag_ms(marks, 0, position) for position in (5, 10, 20, 49, 50)] == [4, 4, 3, 3, 0]
    # A segment that began after a watermark has no events of its time.
    later = Watermark(9, 9, {SegmentWithRange(segment_id(1, 1), 0.0, 1.0): 5})
    assert find_lag_ms([*marks, later], segment_id(1, 1), 0) == 4


def test_the_end_of_a_sealed_segment_lags_behind_later_watermarks() -> None:
    first = Watermark(1, 1, {SegmentWithRange(0, 0.0, 1.0): 10})
    later = [
        Watermark(time, time, {SegmentWithRange(segment_id(1, 1), 0.0, 1.0): time})
        for time in (5, 9)
    ]
    assert find_lag_ms([first, *later], 0, 15) == 8
