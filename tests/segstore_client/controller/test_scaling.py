"""Plans of scalings cover the keys that they replace."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.sessions.routes import SegmentRange
from segstore_client.controller.scaling import plan_merge, plan_replacement, plan_split
from segstore_client.errors import ConflictError, NotFoundError, UsageError

THIRDS = [
    SegmentRange(0, 0.0, 1 / 3),
    SegmentRange(1, 1 / 3, 2 / 3),
    SegmentRange(2, 2 / 3, 1.0),
]


@given(st.integers(1, 5000))
def test_a_replacement_covers_every_key_once(count: int) -> None:
    plan = plan_replacement(THIRDS, count)
    assert plan.sealed == (0, 1, 2)
    assert len(plan.ranges) == count
    assert plan.ranges[0][0] == 0.0
    assert plan.ranges[-1][1] == 1.0
    assert all(low < high for low, high in plan.ranges)
    assert all(left[1] == right[0] for left, right in itertools.pairwise(plan.ranges))


@given(st.sampled_from(THIRDS), st.integers(2, 100))
def test_a_split_keeps_the_outer_bounds_to_the_bit(item: SegmentRange, count: int) -> None:
    plan = plan_split(THIRDS, item.segment_id, count)
    assert plan.sealed == (item.segment_id,)
    assert (plan.ranges[0][0], plan.ranges[-1][1]) == (item.low, item.high)
    assert all(left[1] == right[0] for left, right in itertools.pairwise(plan.ranges))


def test_neighbours_are_merged_in_any_order() -> None:
    assert plan_merge(THIRDS, [1, 0]) == plan_merge(THIRDS, [0, 1])
    assert plan_merge(THIRDS, [2, 1, 0]).ranges == ((0.0, 1.0),)


def test_what_cannot_be_merged_is_refused() -> None:
    with pytest.raises(UsageError, match="neighbours"):
        plan_merge(THIRDS, [0, 2])
    with pytest.raises(UsageError, match="at least two"):
        plan_merge(THIRDS, [1])
    with pytest.raises(UsageError, match="at least two different"):
        plan_merge(THIRDS, [1, 1])
    with pytest.raises(NotFoundError, match="segment 7"):
        plan_merge(THIRDS, [0, 7])


def test_a_sealed_stream_has_nothing_to_replace() -> None:
    with pytest.raises(ConflictError):
        plan_replacement([], 2)
