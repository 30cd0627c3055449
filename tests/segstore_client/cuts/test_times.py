"""Positions by time: how moments are written, and which watermark belongs to one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.watermarks import SegmentWithRange, Watermark
from segstore_client.cuts.times import find_end, find_start, parse_time
from segstore_client.errors import UsageError

STEPS = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=12)


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("0", 0),
        ("-5", -5),
        ("1700000000000", 1_700_000_000_000),
        ("1970-01-01", 0),
        ("1970-01-01T00:00:01.5Z", 1_500),
        ("1970-01-01T01:00:00+01:00", 0),
        ("1970-01-01 00:01", 60_000),
    ],
)
def test_moments_are_milliseconds_or_iso(text: str, milliseconds: int) -> None:
    assert parse_time("start_time", text) == milliseconds


def test_other_texts_are_no_moments() -> None:
    with pytest.raises(UsageError, match="start_time is a time such as"):
        parse_time("start_time", "yesterday")


@given(STEPS, st.integers(-5, 150))
def test_a_range_of_time_covers_every_watermark_within_it(
    steps: list[tuple[int, int]], time_ms: int
) -> None:
    marks = []
    lower = 0
    for number, (step, width) in enumerate(steps):
        lower += step
        cut = {SegmentWithRange(0, 0.0, 1.0): number}
        marks.append(Watermark(lower, lower + width, cut))
    start, end = find_start(marks, time_ms), find_end(marks, time_ms)
    for number, mark in enumerate(marks):
        if mark.upper > time_ms:
            assert start is None or start[0] < number or marks[start[0]].upper <= time_ms
        if mark.lower < time_ms:
            assert end is None or end[0] > number
    # The nearest one is taken, so that not more is read than must be.
    if start is not None:
        assert all(mark.upper > time_ms for mark in marks[start[0] + 1 :])
    if end is not None:
        assert marks[end[0]].lower >= time_ms
