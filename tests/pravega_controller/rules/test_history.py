"""Histories made of random splits and merges, held to the invariants of the module."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.errors import (
    CorruptMetadataError,
    InvalidRequestError,
    ScalePreconditionError,
)
from pravega_controller.rules.history import (
    apply_epochs,
    duplicate_epoch,
    first_epoch,
    scaled_epoch,
    successors_in,
    undo_epochs,
)
from pravega_controller.rules.streams import Segment, even_ranges, tiles_key_space
from support.models.history_model import HistoryModel

THIRD = 1.0 / 3


def append_scale(
    history: HistoryModel, sealed: list[int], ranges: list[tuple[float, float]]
) -> None:
    number = len(history.epochs)
    history.append(scaled_epoch(history.latest, sealed, ranges, number=number, created_ms=number))


@st.composite
def histories(draw: st.DrawFn, scales_max: int = 8) -> HistoryModel:
    """Draw a stream that was scaled at random: every scale replaces a run of neighbours."""
    history = HistoryModel()
    count = draw(st.integers(1, 5))
    first = draw(st.integers(0, 20))
    history.append(first_epoch(even_ranges(count), first_number=first, created_ms=1))
    for _ in range(draw(st.integers(0, scales_max))):
        active = history.latest
        start = draw(st.integers(0, len(active) - 1))
        end = draw(st.integers(start + 1, min(len(active), start + 3)))
        run = active[start:end]
        low, high = run[0].low, run[-1].high
        cuts = draw(st.lists(st.floats(low, high), max_size=2))
        bounds = sorted({low, *cuts, high})
        append_scale(history, [s.segment_id for s in run], list(itertools.pairwise(bounds)))
    return history


def small() -> HistoryModel:
    """Return three segments; segment 0 split at 0.1; then its upper half merged with segment 1."""
    history = HistoryModel()
    history.append(first_epoch(even_ranges(3), first_number=0, created_ms=1))
    append_scale(history, [0], [(0.0, 0.1), (0.1, THIRD)])
    append_scale(history, [(1 << 32) + 4, 1], [(0.1, 2 * THIRD)])
    return history


@given(histories())
def test_every_epoch_tiles_the_key_space(history: HistoryModel) -> None:
    for number in range(len(history.epochs)):
        assert tiles_key_space(history.segments_in(number))


@given(histories(), st.data())
def test_epochs_applied_and_undone_lead_from_one_to_the_other(
    history: HistoryModel, data: st.DataObject
) -> None:
    first = data.draw(st.integers(0, len(history.epochs) - 1))
    last = data.draw(st.integers(first, len(history.epochs) - 1))
    between = history.epochs[first + 1 : last + 1]
    assert apply_epochs(history.segments_in(first), between) == history.segments_in(last)
    assert undo_epochs(history.segments_in(last), between) == history.segments_in(first)


@given(histories())
def test_a_segment_lives_from_its_epoch_to_the_one_that_seals_it(history: HistoryModel) -> None:
    sealed_in = history.sealed_in
    for segment_id, segment in history.segments.items():
        end = sealed_in.get(segment_id, len(history.epochs))
        lived = [n for n in range(len(history.epochs)) if segment in history.segments_in(n)]
        assert lived == list(range(segment.epoch, end))


@given(histories())
def test_the_epoch_that_sealed_a_segment_knows_all_about_its_successors(
    history: HistoryModel,
) -> None:
    for epoch in history.epochs:
        for segment in epoch.sealed:
            found = successors_in(epoch, segment)
            assert found == history.successors(segment.segment_id)
            assert min(s.segment.low for s in found) <= segment.low
            assert max(s.segment.high for s in found) >= segment.high


@given(histories())
def test_segment_ids_are_unique_and_numbers_rise(history: HistoryModel) -> None:
    created = [segment.segment_id for epoch in history.epochs for segment in epoch.created]
    assert len(set(created)) == len(created)
    for number in range(len(history.epochs)):
        numbers = [segment.number for segment in history.segments_in(number)]
        assert len(set(numbers)) == len(numbers)


@given(histories(), st.data())
def test_duplicates_repeat_an_epoch_and_go_back_to_the_active_one(
    history: HistoryModel, data: st.DataObject
) -> None:
    """A rolling transaction adds two epochs: that of long ago, then the one that was active."""
    active, number = history.latest, len(history.epochs)
    old = data.draw(st.integers(0, number - 1))
    copied = history.segments_in(old)
    first = duplicate_epoch(active, copied, number=number, reference=old, created_ms=9)
    history.append(first)
    assert [(s.number, s.key_range) for s in history.latest] == [
        (s.number, s.key_range) for s in copied
    ]
    second = duplicate_epoch(
        history.latest, active, number=number + 1, reference=number - 1, created_ms=9
    )
    history.append(second)
    assert [(s.number, s.key_range) for s in history.latest] == [
        (s.number, s.key_range) for s in active
    ]
    assert all(segment.epoch == number + 1 for segment in history.latest)
    for segment in active:
        assert history.successors(segment.segment_id) == successors_in(first, segment)


def test_a_scale_numbers_on_from_the_highest_of_its_epoch() -> None:
    history = small()
    assert [s.segment_id for s in history.epochs[1].created] == [(1 << 32) + 3, (1 << 32) + 4]
    assert [s.segment_id for s in history.epochs[2].created] == [(2 << 32) + 5]


def test_the_successors_of_a_split_and_a_merge() -> None:
    _, split, merge = small().epochs
    (lower, upper) = successors_in(split, split.sealed[0])
    assert (lower.segment.key_range, lower.predecessors) == ((0.0, 0.1), (0,))
    assert (upper.segment.key_range, upper.predecessors) == ((0.1, THIRD), (0,))
    (merged,) = successors_in(merge, merge.sealed[1])
    assert merged == successors_in(merge, merge.sealed[0])[0]
    assert merged.predecessors == (1, (1 << 32) + 4)


def test_epochs_that_do_not_fit_are_damage() -> None:
    history = small()
    with pytest.raises(CorruptMetadataError, match="epoch 2 seals segment"):
        apply_epochs(history.segments_in(0), [history.epochs[2]])
    with pytest.raises(CorruptMetadataError, match="is not active after it"):
        undo_epochs(history.segments_in(0), [history.epochs[2]])
    with pytest.raises(CorruptMetadataError, match="do not cover"):
        apply_epochs([Segment(0, 0.0, 0.5)], [])


def test_only_active_segments_can_be_scaled() -> None:
    with pytest.raises(ScalePreconditionError):
        append_scale(small(), [0], [(0.0, 0.1), (0.1, THIRD)])
    with pytest.raises(ScalePreconditionError):
        append_scale(small(), [99], [(0.0, 0.1)])


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
        append_scale(small(), sealed, ranges)


def test_apart_blocks_can_be_scaled_together() -> None:
    history = HistoryModel()
    history.append(first_epoch(even_ranges(4), first_number=0, created_ms=1))
    append_scale(history, [0, 2], [(0.0, 0.1), (0.1, 0.25), (0.5, 0.75)])
    assert tiles_key_space(history.latest)
