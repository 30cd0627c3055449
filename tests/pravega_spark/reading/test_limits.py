"""Batches with limits are divided so that no segment starves, and none runs ahead of the others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.reading.limits import Turns


class Query:
    """A query with limits, over segments with events of given lengths."""

    def __init__(self, segments: Sequence[Sequence[int]], **limits: int) -> None:
        self.segments = [list(each) for each in segments]
        self.taken = [0] * len(segments)
        """Number of events that were read of each segment."""
        self._limits = {"byte_limit": 0, "row_limit": 0, **limits}
        self._turns = Turns()

    def take(
        self, segment: int, *, bytes_max: int, rows_max: int, at_least_one: bool
    ) -> tuple[int, int]:
        size, rows = 0, 0
        for length in self.segments[segment][self.taken[segment] :][:rows_max]:
            if size + length > bytes_max and not (at_least_one and not rows):
                break
            size, rows = size + length, rows + 1
        self.taken[segment] += rows
        return size, rows

    def unread(self) -> dict[int, int]:
        rests = [each[self.taken[number] :] for number, each in enumerate(self.segments)]
        return {number: sum(rest) for number, rest in enumerate(rests) if rest}

    def batch(self) -> list[int]:
        """Read a batch and return the number of events of each segment."""
        before = list(self.taken)
        self._turns.divide(self.unread(), take=self.take, **self._limits)
        rows = [after - count for after, count in zip(self.taken, before, strict=True)]
        sizes = [
            sum(self.segments[number][before[number] : self.taken[number]])
            for number in range(len(rows))
        ]
        assert sum(rows) >= 1
        if limit := self._limits["row_limit"]:
            assert sum(rows) <= limit
        if limit := self._limits["byte_limit"]:
            assert sum(sizes) <= limit or sum(rows) == 1
        return rows


def test_short_segments_are_read_beside_long_ones() -> None:
    query = Query([[20] * 200, [20] * 200, [20] * 5, [20] * 5], row_limit=2)
    for _ in range(10):
        query.batch()
    assert query.taken == [5, 5, 5, 5]


def test_shares_are_proportional_to_what_is_unread() -> None:
    query = Query([[10] * 400, [10] * 100, [10] * 300], row_limit=80)
    assert query.batch() == [40, 10, 30]
    query = Query([[10] * 400, [10] * 100, [10] * 300], byte_limit=800)
    assert query.batch() == [40, 10, 30]


def test_what_a_segment_does_not_need_goes_to_the_others() -> None:
    query = Query([[1000] * 2, [1] * 500], row_limit=100)
    assert query.batch() == [2, 98]


EVENTS = st.lists(st.integers(1, 50), max_size=30)


@given(st.lists(EVENTS, min_size=1, max_size=8).filter(any), st.integers(1, 12))
def test_no_segment_waits_for_a_second_turn(segments: list[list[int]], limit: int) -> None:
    query = Query(segments, row_limit=limit)
    waits = [0] * len(segments)
    longest = math.ceil(len(query.unread()) / limit)
    while unread := query.unread():
        rows = query.batch()
        for segment in unread:
            waits[segment] = 0 if rows[segment] else waits[segment] + 1
        assert max(waits) < longest


@given(st.lists(EVENTS, min_size=1, max_size=8).filter(any), st.integers(1, 200))
def test_with_a_limit_of_bytes_each_segment_gets_its_turn(
    segments: list[list[int]], limit: int
) -> None:
    query = Query(segments, byte_limit=limit)
    waits = [0] * len(segments)
    while unread := query.unread():
        rows = query.batch()
        for segment in unread:
            waits[segment] = 0 if rows[segment] else waits[segment] + 1
        # Those that waited longest come first, so each batch serves one of them at least.
        assert max(waits) < len(segments)


@pytest.mark.parametrize("kind", ["row_limit", "byte_limit"])
@given(data=st.data(), counts=st.lists(st.integers(1, 60), min_size=2, max_size=6))
def test_segments_with_one_history_advance_side_by_side(
    kind: str, data: st.DataObject, counts: list[int]
) -> None:
    """Event ``n`` of ``count`` has the time ``n / count``; shares have at least one event."""
    total = sum(counts)
    limit = data.draw(st.integers(math.ceil(total / min(counts)), total + 1))
    query = Query([[1] * count for count in counts], **{kind: limit})
    newest, share = 0.0, 0.0
    while query.unread():
        before = list(query.taken)
        rows = query.batch()
        share = max(share, *(row / count for row, count in zip(rows, counts, strict=True)))
        for first, row, count in zip(before, rows, counts, strict=True):
            if row:
                assert first / count >= newest - share - 1e-9
        newest = max(
            newest,
            *(
                (first + row - 1) / count
                for first, row, count in zip(before, rows, counts, strict=True)
            ),
        )
