"""Murmur3 against another implementation, and the consistent hash against its definition."""

from enum import StrEnum

import mmh3
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from _fast.hashing import consistent_hash, murmur3_128, place_text


@given(st.binary(max_size=100), st.integers(0, 2**32 - 1))
@example(b"", 0)
def test_murmur_agrees_with_another_implementation(data: bytes, seed: int) -> None:
    expected = mmh3.hash_bytes(data, seed, x64arch=True)
    assert murmur3_128(data, seed) == expected
    assert murmur3_128(memoryview(data), seed) == expected
    assert murmur3_128(bytearray(data), seed) == expected


@pytest.mark.parametrize("length", range(48))
def test_murmur_takes_every_length_of_tail(length: int) -> None:
    data = bytes(range(200, 200 + length))
    assert murmur3_128(data) == mmh3.hash_bytes(data, 0, x64arch=True)


LETTERS = st.one_of(
    st.text(st.characters(max_codepoint=255)), st.text(), st.text("\ud800\U0001f600a")
)


@given(LETTERS, st.integers(1, 20), st.integers(-(2**31), 2**31 - 1))
@example("a" * 128, 1, 1)
@example("a" * 129, 1, 1)
def test_a_text_is_placed_by_the_hash_of_its_units(text: str, times: int, seed: int) -> None:
    units = (text * times).encode("utf-16-le", "surrogatepass")
    upper = int.from_bytes(murmur3_128(units, seed)[:8], "little") >> 12
    assert place_text(text * times, seed) == upper / 2**52


def test_a_text_of_another_class_is_placed_as_its_letters() -> None:
    class Color(StrEnum):
        RED = "red"

    assert place_text(Color.RED, 1) == place_text("red", 1)
    with pytest.raises(TypeError, match="a text is wanted, not bytes"):
        place_text(b"red", 1)  # type: ignore[arg-type]


def test_a_negative_seed_is_sign_extended() -> None:
    assert murmur3_128(b"key", -1) != murmur3_128(b"key", 2**32 - 1)
    # The halves of an empty input's hash depend on the seed alone: both start as all ones.
    value = 2**64 - 1
    first = second = value
    first = (first + second) % 2**64
    second = (second + first) % 2**64
    first, second = finished(first), finished(second)
    first = (first + second) % 2**64
    second = (second + first) % 2**64
    expected = first.to_bytes(8, "little") + second.to_bytes(8, "little")
    assert murmur3_128(b"", -1) == expected


def finished(value: int) -> int:
    for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        value ^= value >> 33
        value = value * factor % 2**64
    return value ^ value >> 33


def consistent_hash_slowly(value: int, bucket_count: int) -> int:
    state, candidate = value % 2**64, 0
    while True:
        state = (state * 2862933555777941757 + 1) % 2**64
        draw = (state >> 33) + 1
        if draw == 2**31:  # which is negative in 32 bits
            return candidate
        following = (candidate + 1) / (draw / 2**31)
        if following >= bucket_count:
            return candidate
        candidate = int(following)


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 2**31 - 1))
@example(-1, 1)
def test_consistent_hash_follows_its_definition(value: int, bucket_count: int) -> None:
    assert consistent_hash(value, bucket_count) == consistent_hash_slowly(value, bucket_count)


def test_the_greatest_draw_ends_the_walk() -> None:
    state = (2**31 - 1) << 33
    value = (state - 1) * pow(2862933555777941757, -1, 2**64) % 2**64
    assert consistent_hash(value - 2**64 if value >= 2**63 else value, 1000) == 0


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 100))
def test_one_more_bucket_moves_values_only_into_it(value: int, bucket_count: int) -> None:
    before, after = (consistent_hash(value, bucket_count + more) for more in (0, 1))
    assert after in (before, bucket_count)


@pytest.mark.parametrize("bucket_count", [0, -1])
def test_there_is_at_least_one_bucket(bucket_count: int) -> None:
    with pytest.raises(ValueError, match="must be positive"):
        consistent_hash(1, bucket_count)
