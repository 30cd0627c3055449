"""Shares of readers: by the same rule, until none has two segments more than another."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.reader_groups.changes import SegmentAcquired, SegmentReleased
from pravega_wire.reader_groups.shares import (
    count_acquirable,
    estimate_distance,
    find_loads,
    has_too_many,
    rank_reader,
)
from pravega_wire.reader_groups.states import DISTANCE_MS_MIN, DISTANCE_UNKNOWN, GroupState


def make_state(owned: dict[str, int], unassigned: int = 0) -> GroupState:
    """Return a state in which readers have so many segments."""
    state = GroupState(b"configuration")
    state.assigned = {
        reader: {f"{reader}/{number}": 0 for number in range(count)}
        for reader, count in owned.items()
    }
    state.unassigned = {f"free/{number}": 0 for number in range(unassigned)}
    state.distances = dict.fromkeys(owned, DISTANCE_MS_MIN)
    return state


@given(st.lists(st.integers(0, 12), min_size=1, max_size=6), st.integers(0, 20), st.integers(0, 99))
def test_shares_become_equal(owned: list[int], unassigned: int, seed: int) -> None:
    random = Random(seed)
    state = make_state({f"r{n}": count for n, count in enumerate(owned)}, unassigned)
    total = sum(owned) + unassigned
    for _ in range(40 * (total + 1)):
        reader = random.choice(sorted(state.assigned))
        if has_too_many(state, reader):
            segment = next(reversed(state.assigned[reader]))
            state.apply([SegmentReleased(reader, segment, 0)])
        elif state.unassigned and rank_reader(state, reader) == len(state.assigned) - 1:
            # The reader with the least load looks first.
            taken = list(state.unassigned)[: count_acquirable(state, reader)]
            state.apply([SegmentAcquired(reader, segment) for segment in taken])
    counts = [len(each) for each in state.assigned.values()]
    assert sum(counts) == total
    assert max(counts) - min(counts) <= 1


def test_the_first_reader_takes_its_share_of_what_is_free() -> None:
    assert count_acquirable(make_state({"a": 0}, 5), "a") == 5
    assert count_acquirable(make_state({"a": 0, "b": 0}, 5), "a") == 3
    assert count_acquirable(make_state({"a": 2, "b": 2}, 1), "a") == 1
    assert count_acquirable(make_state({"a": 2, "b": 2}), "a") == 0


def test_a_reader_far_from_the_tail_counts_its_segments_more() -> None:
    state = make_state({"a": 2, "b": 2, "c": 0})
    state.distances = {"a": 10 * DISTANCE_MS_MIN, "b": 1, "c": DISTANCE_UNKNOWN}
    assert find_loads(state) == {"a": 2.0, "b": 0.2, "c": 0.0}
    assert [rank_reader(state, each) for each in "abc"] == [0, 1, 2]
    assert has_too_many(state, "a")
    assert not has_too_many(state, "b")


def test_a_reader_tells_the_distance_of_the_others() -> None:
    state = make_state({"a": 2, "b": 2, "c": 0, "d": 1})
    assert estimate_distance(state, "a") == DISTANCE_MS_MIN
    state.distances |= {"a": 1 << 50, "b": 1 << 40, "c": 1 << 60, "d": DISTANCE_UNKNOWN}
    assert estimate_distance(state, "a") == 1 << 40
