"""Checksums of a chunk, and which blocks a read takes in."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.chunks.checksums import BLOCK_BYTES, Checksums, sum_count

DATA = random.Random(1).randbytes(5 * BLOCK_BYTES)
lengths = st.integers(0, len(DATA))


@given(start=st.integers(0, 2**40), length=lengths, ends=st.tuples(lengths, lengths))
def test_a_read_takes_in_whole_blocks(start: int, length: int, ends: tuple[int, int]) -> None:
    checksums = Checksums.at(start).extended([DATA[:length]])
    assert len(checksums.sums) == 4 * sum_count(checksums.phase, length)
    begin, end = min(ends), max(ends)
    first, last = checksums.blocks_around(begin, end)
    if begin >= min(end, length):
        assert first == last == begin, "no byte of it has a checksum"
        return
    assert 0 <= first <= begin < last <= length
    assert first == 0 or (start + first) % BLOCK_BYTES == 0
    assert last == length or (start + last) % BLOCK_BYTES == 0
    assert begin - first < BLOCK_BYTES
    assert last - min(end, length) < BLOCK_BYTES
    assert checksums.find_damage(DATA[first:], first, last) is None
    damaged = bytearray(DATA[first:])
    damaged[begin - first] ^= 8
    found = checksums.find_damage(damaged, first, last)
    assert found is not None
    assert found <= begin < found + BLOCK_BYTES


@given(start=st.integers(0, 2**40), middle=lengths, length=lengths)
def test_what_is_noted_later_is_put_behind(start: int, middle: int, length: int) -> None:
    middle = min(middle, length)
    early = Checksums.at(start).extended([DATA[:middle]])
    late = early.extended([DATA[middle:length]])
    assert late == Checksums.at(start).extended([DATA[:length]])
    assert early.with_sums_from(middle, length, late.sums_from(middle)) == late
    assert late.with_sums_from(middle, length, late.sums_from(middle)) == late


@pytest.mark.parametrize("start", [0, BLOCK_BYTES, 1024 * 1024 * 7])
def test_reads_that_end_at_blocks_of_the_segment_read_no_more(start: int) -> None:
    checksums = Checksums.at(start + 100).extended([DATA])
    assert checksums.blocks_around(BLOCK_BYTES - 100, 3 * BLOCK_BYTES - 100) == (
        BLOCK_BYTES - 100,
        3 * BLOCK_BYTES - 100,
    )
