"""Sums of blocks, next to sums of each block alone."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from _fast.crc import crc32c
from _fast.log.block_sums import extend_sums, find_damage

BLOCK = 16


def expected_sums(phase: int, data: bytes, block: int = BLOCK) -> bytes:
    padded = bytes(phase) + data
    blocks = [padded[max(start, phase) : start + block] for start in range(0, len(padded), block)]
    return b"".join(struct.pack(">I", crc32c(each)) for each in blocks) if data else b""


@given(
    phase=st.integers(0, BLOCK - 1),
    writes=st.lists(st.lists(st.binary(max_size=40), max_size=3), max_size=6),
)
def test_sums_grow_with_writes_of_any_length(phase: int, writes: list[list[bytes]]) -> None:
    sums, stored = b"", b""
    for write in writes:
        before = sums
        sums = extend_sums(sums, phase, len(stored), write, BLOCK)
        assert before == expected_sums(phase, stored), "what was given stays as it is"
        stored += b"".join(write)
        assert sums == expected_sums(phase, stored)


@given(
    phase=st.integers(0, BLOCK - 1),
    data=st.binary(min_size=1, max_size=100),
    choice=st.data(),
)
def test_any_wrong_bit_is_found_in_its_block(
    phase: int, data: bytes, choice: st.DataObject
) -> None:
    sums = extend_sums(b"", phase, 0, [data], BLOCK)
    starts = [start for start in range(len(data)) if start == 0 or (phase + start) % BLOCK == 0]
    first = choice.draw(st.sampled_from(starts))
    last = choice.draw(st.sampled_from([*(each for each in starts if each > first), len(data)]))
    assert find_damage(sums, phase, first, data[first:], last - first, BLOCK) == -1
    damaged = bytearray(data)
    wrong = choice.draw(st.integers(first, last - 1))
    damaged[wrong] ^= 1 << choice.draw(st.integers(0, 7))
    found = find_damage(sums, phase, first, memoryview(damaged)[first:], last - first, BLOCK)
    assert found == max(start for start in starts if start <= wrong)


def test_long_data_are_summed_without_the_lock() -> None:
    data = bytes(range(256)) * 1000
    sums = extend_sums(b"", 1000, 0, [data[:100_000], data[100_000:]], 65536)
    assert sums == expected_sums(1000, data, 65536)
    assert find_damage(sums, 1000, 0, data, len(data), 65536) == -1
    assert find_damage(sums, 1000, 0, bytes(len(data)), len(data), 65536) == 0


def test_what_does_not_fit_is_refused() -> None:
    sums = extend_sums(b"", 0, 0, [b"0123456789"], BLOCK)
    with pytest.raises(ValueError, match="no sums of 2 blocks"):
        extend_sums(sums, 0, 20, [b"x"], BLOCK)
    with pytest.raises(ValueError, match="no block"):
        extend_sums(b"", BLOCK, 0, [b"x"], BLOCK)
    with pytest.raises(ValueError, match="no sums of 20 bytes"):
        find_damage(sums, 0, 0, bytes(20), 20, BLOCK)
    with pytest.raises(ValueError, match="5 bytes are no 10"):
        find_damage(sums, 0, 0, b"01234", 10, BLOCK)
    with pytest.raises(TypeError):
        extend_sums(b"", 0, 0, ["text"], BLOCK)
