"""Histories made of random splits and merges, held to the invariants of the module."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_controller.errors import InvalidRequestError, NotFoundError, ScalePreconditionError
from pravega_controller.history import (
    StreamHistory,
    begin_history,
    first_epoch,
    history_of,
    scaled_epoch,
)
from pravega_controller.streams import even_ranges, tiles_key_space

THIRD = 1.0 / 3


@st.composite
def histories(draw: st.DrawFn, scales_max: int = 8) -> StreamHistory:
    """A stream that was scaled at random: every scale replaces a run of neighbours."""
    count = draw(st.integers(1, 5))
    first = draw(st.integers(0, 20))
    history = begin_history(first_epoch(even_ranges(count), first_number=first, created_ms=1))
    for _ in range(draw(st.integers(0, scales_max))):
        active = history.latest
        start = draw(st.integers(0, len(active) - 1))
        end = draw(st.integers(start + 1, min(len(active), start + 3)))
        run = active[start:end]
        low, high = run[0].low, run[-1].high
        cuts = draw(st.lists(st.floats(low, high), max_size=2))
        bounds = sorted({low, *cuts, high})
        ranges = list(itertools.pairwise(bounds))
        sealed = [segment.segment_id for segment in run]
        history = history.extended(scaled_epoch(history, sealed, ranges, created_ms=2))
    return history


def small() -> StreamHistory:
    """Three segments; segment 0 split at 0.1; then its upper half merged with segment 1."""
    history = begin_history(first_epoch(even_ranges(3), first_number=0, created_ms=1))
    history = history.extended(scaled_epoch(history, [0], [(0.0, 0.1), (0.1, THIRD)], created_ms=2))
    upper = (1 << 32) + 4
    return history.extended(scaled_epoch(history, [upper, 1], [(0.1, 2 * THIRD)], created_ms=3))


@given(histories())
def test_every_epoch_tiles_the_key_space(history: StreamHistory) -> None:
    for number in range(len(history.epochs)):
        assert tiles_key_space(history.segments_in(number))


@given(histories())
def test_a_segment_lives_from_its_epoch_to_the_one_that_seals_it(history: StreamHistory) -> None:
    for segment_id, segment in history.segments.items():
        end = history.sealed_in.get(segment_id, len(history.epochs))
        lived = [
            number
            for number in range(len(history.epochs))
            if segment in history.segments_in(number)
        ]
        assert lived == list(range(segment.epoch, end))


@given(histories())
def test_successors_cover_exactly_what_they_take_over(history: StreamHistory) -> None:
    for segment_id in history.sealed_in:
        segment = history.segments[segment_id]
        successors = history.successors(segment_id)
        assert successors
        assert min(s.segment.low for s in successors) <= segment.low
        assert max(s.segment.high for s in successors) >= segment.high
        for successor in successors:
            assert segment_id in successor.predecessors
            old = [history.segments[i] for i in successor.predecessors]
            assert all(predecessor.overlaps(successor.segment) for predecessor in old)
            assert min(s.low for s in old) <= successor.segment.low
            assert max(s.high for s in old) >= successor.segment.high


@given(histories())
def test_active_segments_have_no_successors(history: StreamHistory) -> None:
    assert all(not history.successors(segment.segment_id) for segment in history.latest)


@given(histories())
def test_segment_ids_are_unique_and_numbers_rise(history: StreamHistory) -> None:
    created = [segment.segment_id for epoch in history.epochs for segment in epoch.created]
    assert len(set(created)) == len(created)
    assert history.number_after_last() > max(s.number for s in history.segments.values())
    for number in range(len(history.epochs)):
        numbers = [segment.number for segment in history.segments_in(number)]
        assert len(set(numbers)) == len(numbers)


@given(histories())
@settings(max_examples=50)
def test_a_history_is_the_sum_of_its_epochs(history: StreamHistory) -> None:
    assert history_of(history.epochs) == history


def test_a_scale_numbers_on_from_the_highest_of_its_epoch() -> None:
    history = small()
    assert [s.segment_id for s in history.epochs[1].created] == [(1 << 32) + 3, (1 << 32) + 4]
    assert [s.segment_id for s in history.epochs[2].created] == [(2 << 32) + 5]


def test_the_successors_of_a_split_and_a_merge() -> None:
    history = small()
    (lower, upper) = history.successors(0)
    assert (lower.segment.key_range, lower.predecessors) == ((0.0, 0.1), (0,))
    assert (upper.segment.key_range, upper.predecessors) == ((0.1, THIRD), (0,))
    (merged,) = history.successors(1)
    assert merged == history.successors((1 << 32) + 4)[0]
    assert merged.predecessors == (1, (1 << 32) + 4)


def test_an_unknown_segment_has_no_successors() -> None:
    assert small().successors(99) == ()


def test_an_epoch_that_is_not_there_is_not_found() -> None:
    with pytest.raises(NotFoundError):
        small().segments_in(3)
    with pytest.raises(InvalidRequestError):
        small().segments_in(-1)


def test_only_active_segments_can_be_scaled() -> None:
    with pytest.raises(ScalePreconditionError):
        scaled_epoch(small(), [0], [(0.0, 0.1), (0.1, THIRD)], created_ms=9)
    with pytest.raises(ScalePreconditionError):
        scaled_epoch(small(), [99], [(0.0, 0.1)], created_ms=9)


@pytest.mark.parametrize(
    ("sealed", "ranges"),
    [
        ([2], [(2 * THIRD, 0.9)]),
        ([2], [(2 * THIRD, 0.9), (0.8, 1.0)]),
        ([2], [(0.9, 2 * THIRD), (0.9, 1.0)]),
        ([2], [(2 * THIRD, 0.6666666666666667), (0.667, 1.0)]),
        ([2], []),
        ([], [(0.0, 1.0)]),
        ([2, 2], [(2 * THIRD, 1.0)]),
        ([2], [(2 * THIRD, float("nan"))]),
    ],
)
def test_new_ranges_must_cover_exactly_what_is_sealed(
    sealed: list[int], ranges: list[tuple[float, float]]
) -> None:
    with pytest.raises(InvalidRequestError):
        scaled_epoch(small(), sealed, ranges, created_ms=9)


def test_apart_blocks_can_be_scaled_together() -> None:
    history = begin_history(first_epoch(even_ranges(4), first_number=0, created_ms=1))
    ranges = [(0.0, 0.1), (0.1, 0.25), (0.5, 0.75)]
    epoch = scaled_epoch(history, [0, 2], ranges, created_ms=2)
    assert tiles_key_space(history.extended(epoch).latest)
