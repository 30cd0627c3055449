"""Splits and merges by policy, beside obvious models."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.rules.scaling import choose_to_merge, count_splits, split_range
from pravega_controller.rules.streams import (
    ScaleType,
    ScalingPolicy,
    Segment,
    merge_adjacent,
)

keys = st.floats(0, 1)


@pytest.mark.parametrize(
    ("asked", "factor", "count"), [(0, 0, 2), (2, 2, 2), (7, 4, 4), (3, 4, 3), (100, 1, 2)]
)
def test_splits_stay_within_the_policy(asked: int, factor: int, count: int) -> None:
    policy = ScalingPolicy(ScaleType.EVENTS_PER_SECOND, 1, target_rate=10, scale_factor=factor)
    assert count_splits(policy, asked) == count


def test_a_range_is_split_evenly() -> None:
    assert split_range(0.5, 1.0, 2) == [(0.5, 0.75), (0.75, 1.0)]
    assert split_range(0.0, 1.0, 4) == [(0.0, 0.25), (0.25, 0.5), (0.5, 0.75), (0.75, 1.0)]


@given(keys, keys, st.integers(2, 50))
def test_split_ranges_cover_what_they_replace(a: float, b: float, count: int) -> None:
    low, high = min(a, b), max(a, b)
    if low == high:
        return
    ranges = split_range(low, high, count)
    assert merge_adjacent(ranges) == [(low, high)]
    assert all(start < end for start, end in ranges)
    assert len(ranges) <= count
    if high - low > 1e-6:
        assert len(ranges) == count


def test_a_range_between_neighbouring_doubles_stays_one() -> None:
    low = 0.7
    assert split_range(low, math.nextafter(low, 1), 3) == [(low, math.nextafter(low, 1))]


def slow_choice(active: list[Segment], wanted: int, idle: set[int], count_min: int) -> list[int]:
    """Judge every run of two or three neighbours with the wanted one in it by itself."""
    candidates = []
    ids = [segment.segment_id for segment in active]
    for size in (3, 2):
        for start in range(len(ids) - size + 1):
            run = ids[start : start + size]
            in_reach = all(abs(ids.index(each) - ids.index(wanted)) <= 1 for each in run)
            if wanted in run and in_reach and set(run) - {wanted} <= idle:
                candidates.append(run)
    fitting = [run for run in candidates if len(ids) - len(run) + 1 >= count_min]
    return fitting[0] if fitting else []


@given(st.integers(1, 7), st.data())
def test_idle_neighbours_merge_down_to_the_minimum(count: int, data: st.DataObject) -> None:
    ends = [index / count for index in range(count)] + [1.0]
    active = [
        Segment(number, low, high) for number, (low, high) in enumerate(itertools.pairwise(ends))
    ]
    wanted = data.draw(st.integers(0, count - 1))
    idle = data.draw(st.sets(st.integers(0, count - 1)))
    count_min = data.draw(st.integers(1, 8))
    chosen = choose_to_merge(active, wanted, idle, count_min)
    assert [each.segment_id for each in chosen] == slow_choice(active, wanted, idle, count_min)


def test_a_segment_that_is_gone_merges_with_nothing() -> None:
    assert choose_to_merge([Segment(1, 0, 0.5), Segment(2, 0.5, 1)], 7, {1, 2}, 1) == ()
