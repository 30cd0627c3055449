import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.errors import InvalidRequestError
from pravega_controller.rules.streams import (
    SEGMENTS_PER_STREAM_MAX,
    Segment,
    even_ranges,
    fixed_configuration,
    merge_adjacent,
    segments_in_ranges,
    tiles_key_space,
    validate_configuration,
)


@given(st.integers(1, SEGMENTS_PER_STREAM_MAX))
def test_even_ranges_tile_the_key_space_exactly(count: int) -> None:
    ranges = even_ranges(count)
    assert len(ranges) == count
    assert ranges[0][0] == 0.0
    assert ranges[-1][1] == 1.0
    assert all(low < high for low, high in ranges)
    assert all(a[1] == b[0] for a, b in itertools.pairwise(ranges))


def test_even_ranges_of_three_have_the_bounds_that_clients_know() -> None:
    assert even_ranges(3) == [
        (0.0, 0.3333333333333333),
        (0.3333333333333333, 0.6666666666666666),
        (0.6666666666666666, 1.0),
    ]


def test_the_last_range_ends_at_one_where_a_product_of_widths_would_not() -> None:
    assert 49 * (1.0 / 49) < 1.0
    assert even_ranges(49)[-1][1] == 1.0


def test_segments_are_numbered_in_the_order_of_their_ranges() -> None:
    segments = segments_in_ranges([(0.0, 0.5), (0.5, 1.0)], epoch=3, first_number=7)
    assert [(s.number, s.epoch) for s in segments] == [(7, 3), (8, 3)]
    assert segments[0].segment_id == (3 << 32) + 7


def test_merging_joins_ranges_that_meet_and_keeps_gaps() -> None:
    assert merge_adjacent([(0.5, 0.7), (0.1, 0.2), (0.2, 0.3)]) == [(0.1, 0.3), (0.5, 0.7)]


def test_merging_refuses_overlaps() -> None:
    assert merge_adjacent([(0.0, 0.6), (0.5, 1.0)]) is None


def test_a_gap_or_an_overlap_is_no_tiling() -> None:
    assert tiles_key_space([Segment(0, 0.0, 0.5), Segment(1, 0.5, 1.0)])
    assert not tiles_key_space([Segment(0, 0.0, 0.5), Segment(1, 0.6, 1.0)])
    assert not tiles_key_space([Segment(0, 0.0, 0.5), Segment(1, 0.4, 1.0)])
    assert not tiles_key_space([])


@pytest.mark.parametrize("count", [0, -1, SEGMENTS_PER_STREAM_MAX + 1])
def test_a_stream_cannot_have_such_a_number_of_segments(count: int) -> None:
    with pytest.raises(InvalidRequestError):
        validate_configuration(fixed_configuration(count))
