"""Tests of the picture of key ranges over epochs."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.console.epoch_picture import COLUMN, GAP, HEATS, HEIGHT, draw, shade
from pravega_controller.rules.history import Epoch, apply_epochs, first_epoch, scaled_epoch
from pravega_controller.rules.streams import Segment, even_ranges

Epochs = list[tuple[Epoch, tuple[Segment, ...]]]


@st.composite
def histories(draw_from: st.DrawFn) -> Epochs:
    """Draw the epochs of a stream, each of which splits or merges segments."""
    epoch = first_epoch(even_ranges(draw_from(st.integers(1, 5))), first_number=0, created_ms=0)
    segments = epoch.created
    found = [(epoch, segments)]
    for number in range(1, draw_from(st.integers(1, 8))):
        index = draw_from(st.integers(0, len(segments) - 1))
        old = segments[index : index + draw_from(st.integers(1, 3))]
        low, high = old[0].low, old[-1].high
        middle = (low + high) / 2
        ranges = [(low, high)] if draw_from(st.booleans()) else [(low, middle), (middle, high)]
        epoch = scaled_epoch(
            segments,
            [each.segment_id for each in old],
            ranges,
            number=number,
            first_number=100 * number,
            created_ms=number,
        )
        segments = apply_epochs(segments, [epoch])
        found.append((epoch, segments))
    return found


@given(histories())
def test_segments_cover_each_column_once(epochs: Epochs) -> None:
    picture = draw(epochs, {}, is_sealed=False)
    assert len(picture.columns) == len(epochs)
    assert len(picture.rectangles) == len({s for _, group in epochs for s in group})
    for column in picture.columns:
        middle = column.x + COLUMN / 2
        here = sorted(
            (each for each in picture.rectangles if each.x < middle < each.x + each.width),
            key=lambda each: each.y,
        )
        assert len(here) == column.segment_count
        ends = [GAP / 2 - GAP, *(each.segment.high * HEIGHT - GAP / 2 for each in here)]
        for each, end in zip(here, ends, strict=False):
            assert abs(each.y - (end + GAP)) < 1e-6
        assert abs(ends[-1] - (HEIGHT - GAP / 2)) < 1e-6


def test_what_is_written_most_has_the_strongest_shade() -> None:
    epoch = first_epoch(even_ranges(3), first_number=0, created_ms=0)
    rates = {0: 100.0, 1: 1.0, 2: None}
    picture = draw([(epoch, epoch.created)], rates, is_sealed=False)
    assert [each.heat for each in picture.rectangles] == [HEATS, 1, 0]
    sealed = draw([(epoch, epoch.created)], rates, is_sealed=True)
    assert [(each.heat, each.is_active) for each in sealed.rectangles] == [(0, False)] * 3
    assert shade(0.0, 0.0) == 0


def test_a_picture_of_too_many_segments_leaves_the_first_epochs_out() -> None:
    first = first_epoch(even_ranges(900), first_number=0, created_ms=0)
    ids = [each.segment_id for each in first.created]
    second = scaled_epoch(
        first.created, ids, even_ranges(900), number=1, first_number=900, created_ms=1
    )
    groups = apply_epochs(first.created, [second])
    picture = draw([(first, first.created), (second, groups)], {}, is_sealed=False)
    assert [each.epoch.number for each in picture.columns] == [1]
