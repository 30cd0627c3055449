"""Stream cuts over random histories, and the cases that the original was asked."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.errors import InvalidStreamCutError
from pravega_controller.rules.history import first_epoch, scaled_epoch
from pravega_controller.rules.stream_cuts import CUT_SEGMENTS_MAX, pieces
from pravega_controller.rules.streams import Segment, even_ranges
from support.models.history_model import HistoryModel

THIRD = 1.0 / 3
S3, S4, S5 = (1 << 32) + 3, (1 << 32) + 4, (2 << 32) + 5


def append_scale(
    history: HistoryModel, sealed: list[int], ranges: list[tuple[float, float]]
) -> None:
    number = len(history.epochs)
    history.append(scaled_epoch(history.latest, sealed, ranges, number=number, created_ms=number))


def small() -> HistoryModel:
    """Return the segments 0, 1, 2; then 0 -> S3, S4; then S4 and 1 -> S5."""
    history = HistoryModel()
    history.append(first_epoch(even_ranges(3), first_number=0, created_ms=1))
    append_scale(history, [0], [(0.0, 0.1), (0.1, THIRD)])
    append_scale(history, [S4, 1], [(0.1, 2 * THIRD)])
    return history


@pytest.mark.parametrize(
    "cut",
    [
        {0: 0, 1: 0, 2: 0},
        {S3: 0, S4: 0, 1: 5, 2: 0},
        {S3: 0, S5: 0, 2: 0},
    ],
)
def test_cuts_that_cover_every_key_once_are_valid(cut: dict[int, int]) -> None:
    assert small().is_valid(cut)


@pytest.mark.parametrize(
    "cut",
    [
        {},
        {99: 0},
        {0: 0, 1: 0},
        {S3: 0, S4: 0, S5: 0, 2: 0},
        {0: 0, S3: 0, 1: 0, 2: 0},
        {0: 5, 1: 5, 2: -1},
        {S3: 0, S4: 0, 1: 5, S5: -1, 2: 0},
        {S3: 0, 2: 0},
    ],
)
def test_cuts_with_gaps_overlaps_or_strangers_are_not(cut: dict[int, int]) -> None:
    assert not small().is_valid(cut)


def ids(found: list) -> list[int]:
    return [segment.segment_id for segment in found]


def test_segments_between_include_both_ends() -> None:
    history = small()
    start, tail = {0: 0, 1: 0, 2: 0}, {S3: 0, S5: 0, 2: 0}
    assert ids(history.segments_between(start, tail)) == [0, 1, 2, S3, S4, S5]
    assert ids(history.segments_between(start, {S3: 0, S4: 0, 1: 5, 2: 0})) == [
        0, 1, 2, S3, S4,
    ]  # fmt: skip
    assert ids(history.segments_between({S3: 0, S4: 0, 1: 5, 2: 0}, tail)) == [
        1, 2, S3, S4, S5,
    ]  # fmt: skip
    assert ids(history.segments_between(start, {0: 4, 1: 4, 2: 0})) == [0, 1, 2]


def test_an_end_before_the_start_is_refused() -> None:
    with pytest.raises(InvalidStreamCutError):
        small().segments_between({0: 5, 1: 0, 2: 0}, {0: 4, 1: 0, 2: 0})
    with pytest.raises(InvalidStreamCutError):
        small().segments_between({S3: 0, S5: 0, 2: 0}, {0: 0, 1: 0, 2: 0})


def test_what_lies_before_a_cut_is_told_once() -> None:
    history = small()
    first = {S3: 0, S4: 0, 1: 9, 2: 9}
    assert ids(history.segments_before(first, since={})) == [0]
    tail = {S3: 0, S5: 0, 2: 9}
    assert sorted(ids(history.segments_before(tail, since={}))) == [0, 1, S4]
    assert sorted(ids(history.segments_before(tail, since=first))) == [1, S4]


def test_a_cut_is_not_before_itself_and_order_is_by_every_key() -> None:
    history = small()
    assert history.is_at_or_after({0: 3, 1: 3, 2: 3}, {0: 3, 1: 3, 2: 3})
    assert not history.is_at_or_after({0: 9, 1: 2, 2: 9}, {0: 3, 1: 3, 2: 3})
    assert history.is_at_or_after({S3: 0, S4: 0, 1: 3, 2: 3}, {0: 9, 1: 3, 2: 3})


@st.composite
def random_history_and_cuts(draw: st.DrawFn) -> tuple[HistoryModel, dict, dict]:
    history = HistoryModel()
    count = draw(st.integers(1, 4))
    history.append(first_epoch(even_ranges(count), first_number=0, created_ms=1))
    for _ in range(draw(st.integers(0, 6))):
        active = history.latest
        start = draw(st.integers(0, len(active) - 1))
        end = draw(st.integers(start + 1, min(len(active), start + 2)))
        low, high = active[start].low, active[end - 1].high
        middle = draw(st.booleans())
        ranges = [(low, (low + high) / 2), ((low + high) / 2, high)] if middle else [(low, high)]
        sealed = [segment.segment_id for segment in active[start:end]]
        append_scale(history, sealed, ranges)

    def cut() -> dict[int, int]:
        """Draw a cut through random epochs: begin with one epoch, step some segments onward."""
        position = {s.segment_id: 0 for s in history.segments_in(0)}
        for epoch in history.epochs[1:]:
            if set(epoch.sealed_ids) <= position.keys() and draw(st.booleans()):
                for segment_id in epoch.sealed_ids:
                    del position[segment_id]
                position.update({s.segment_id: 0 for s in epoch.created})
        return {segment_id: draw(st.integers(0, 3)) for segment_id in position}

    return history, cut(), cut()


@given(random_history_and_cuts())
def test_order_between_is_consistent(data: tuple[HistoryModel, dict, dict]) -> None:
    history, a, b = data
    assert history.is_valid(a)
    assert history.is_at_or_after(a, a)
    if history.is_at_or_after(a, b) and history.is_at_or_after(b, a):
        assert a == b


@given(random_history_and_cuts())
def test_every_segment_is_before_between_or_after(data: tuple[HistoryModel, dict, dict]) -> None:
    history, a, b = data
    if not history.is_at_or_after(b, a):
        return
    before = set(ids(history.segments_before(a, since={})))
    between = set(ids(history.segments_between(a, b)))
    to_end = set(ids(history.segments_before(b, since=a)))
    assert a.keys() <= between
    assert b.keys() <= between
    assert not before & between
    assert to_end <= between
    assert not to_end & b.keys()


def test_a_cut_that_could_not_be_stored_is_refused() -> None:
    segments = {number: Segment(number, 0.0, 1.0) for number in range(CUT_SEGMENTS_MAX + 1)}
    cut = dict.fromkeys(segments, 0)
    with pytest.raises(InvalidStreamCutError, match="at most 10000 segments, not 10001"):
        pieces(segments, cut)


def slow_pieces(segments: list[Segment], cut: dict[int, int]) -> list[tuple] | None:
    """Find the positions of the keys by looking at every segment for each.

    None for no valid cut.
    """
    named = {segment.segment_id: segment for segment in segments}
    bounds = sorted({0.0, 1.0, *(end for i in cut for end in (named[i].low, named[i].high))})
    found = []
    for low, high in itertools.pairwise(bounds):
        serving = [named[i] for i in cut if named[i].low <= low < named[i].high]
        if len(serving) != 1 or cut[serving[0].segment_id] < 0:
            return None
        found.append((low, high, serving[0].epoch, cut[serving[0].segment_id]))
    return found


@given(
    st.lists(
        st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(0, 8), st.integers(-1, 1)),
        min_size=1,
        max_size=9,
    )
)
def test_pieces_are_those_of_every_key_looked_at_alone(
    drawn: list[tuple[int, int, int, int]],
) -> None:
    segments = [
        Segment((epoch << 32) + number, start / 6, min(6, start + width) / 6)
        for number, (start, width, epoch, _) in enumerate(drawn)
    ]
    cut = {s.segment_id: one[3] for s, one in zip(segments, drawn, strict=True)}
    expected = slow_pieces(segments, cut)
    try:
        found = pieces({segment.segment_id: segment for segment in segments}, cut)
    except InvalidStreamCutError:
        assert expected is None
        return
    assert expected is not None
    refined = [
        (low, high, epoch, offset)
        for low, high, epoch, offset in expected
        if any(
            p.low <= low and high <= p.high and (p.epoch, p.offset) == (epoch, offset)
            for p in found
        )
    ]
    assert refined == expected
