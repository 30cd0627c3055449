"""Tests of what is computed from looks at a reader group."""

from __future__ import annotations

import pytest

from pravega_controller.console.group_numbers import (
    SORTS,
    GroupSeen,
    LagSum,
    lag_rows,
    sort_rows,
    sum_rows,
    summarize,
)
from pravega_controller.console.looks import Look
from pravega_wire.reader_groups.lags import SegmentLag


def lag(
    segment: int, unread: int, lag_ms: int | None = None, reader: str | None = None, of: str = "s/t"
) -> SegmentLag:
    return SegmentLag(of, segment, reader, 0, 0, unread, unread, lag_ms)


def look(time: float, *lags: SegmentLag) -> Look[GroupSeen]:
    found = {(each.stream, each.segment_id): each for each in lags}
    return Look(time, GroupSeen(["one"], found, is_begun=True, is_updating=False))


def test_a_lag_has_a_trend_and_streams_are_chosen() -> None:
    looks = [look(1, lag(0, 100), lag(1, 50)), look(3, lag(0, 40), lag(1, 90), lag(2, 7))]
    rows = lag_rows(looks, ["s/t"])
    assert [(row.segment, row.trend) for row in rows] == [
        ("0.#epoch.0", -30.0),
        ("1.#epoch.0", 20.0),
        ("2.#epoch.0", None),
    ]
    assert sum_rows(rows) == LagSum(137, None, -10.0, 3, 3)
    assert lag_rows(looks, ["s/other"]) == []
    assert sum_rows([]) == LagSum(0, 0.0, None, 0, 0)


def test_a_time_of_several_segments_is_the_longest_that_is_known() -> None:
    read = lag_rows([look(1, lag(0, 0, 0))], ["s/t"])
    assert sum_rows(read) == LagSum(0, 0.0, None, 0, 1)
    some = lag_rows([look(1, lag(0, 5, 3000), lag(1, 9, None), lag(2, 1, 7000))], ["s/t"])
    assert sum_rows(some).seconds == 7.0
    assert summarize([look(1, lag(0, 5, 3000), lag(1, 9, None))]) == (14.0, 3.0)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("unread", [1, 2, 0]),
        ("time", [2, 0, 1]),
        ("trend", [2, 0, 1]),
        ("segment", [0, 1, 2]),
        ("reader", [2, 1, 0]),
    ],
)
def test_lags_are_sorted(order: str, expected: list[int]) -> None:
    earlier = look(0, lag(0, 10), lag(1, 90), lag(2, 10))
    later = look(1, lag(0, 10, 1000), lag(1, 80, None, "two"), lag(2, 20, 4000, "one"))
    rows = sort_rows(lag_rows([earlier, later], ["s/t"]), order)
    assert [row.lag.segment_id for row in rows] == expected
    assert order in SORTS
