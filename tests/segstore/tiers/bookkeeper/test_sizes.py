"""Counting bytes behind a position."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from segstore.tiers.bookkeeper.sizes import SAMPLE_BYTES_MAX, LogSizes


@given(
    st.lists(st.integers(0, 3 * SAMPLE_BYTES_MAX), min_size=1, max_size=50),
    st.lists(st.integers(0, 60), max_size=5),
)
def test_bytes_are_right_to_a_sample(lengths: list[int], drops: list[int]) -> None:
    sizes = LogSizes()
    for position, length in enumerate(lengths, 1):
        sizes.add(position, length)
    assert sizes.held == sum(lengths)
    furthest = 0
    for position in drops:
        furthest = max(furthest, position)
        sizes.drop_before(position)
        exact = sum(lengths[max(furthest - 1, 0) :])
        # The sample before may be that far away, and the entry there is counted whole.
        assert exact <= sizes.held <= exact + SAMPLE_BYTES_MAX + max(lengths)


def test_few_bytes_are_counted_to_the_byte() -> None:
    """A log of some kilobytes was held whole after each truncation: its limit was never kept."""
    sizes = LogSizes()
    for position in range(1, 101):
        sizes.add(position, 300)
    sizes.drop_before(90)
    assert sizes.held == 11 * 300
