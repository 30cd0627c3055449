from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.errors import StorageError
from segstore.tiers.s3.keys import (
    Piece,
    Tombstone,
    check_length,
    chunk_prefix,
    decode_name,
    encode_name,
    object_name,
    parse_key,
)

names = st.text(st.characters() | st.sampled_from("./!$#"), max_size=30)
parts = st.one_of(
    st.builds(
        Piece,
        st.integers(0, 10**10 - 1),
        st.integers(0, 10**10 - 1),
        st.integers(0, 16**9 - 1),
        st.integers(0, 16**9 - 1),
    ),
    st.builds(Tombstone, st.integers(0, 10**10 - 1), st.integers(0, 10**10 - 1)),
)


@given(names)
def test_every_name_comes_back(name: str) -> None:
    assert decode_name(encode_name(name)) == name


@given(names, st.integers(0, 30))
def test_the_encoding_of_a_prefix_is_a_prefix(name: str, length: int) -> None:
    assert encode_name(name).startswith(encode_name(name[:length]))


@given(names, parts)
def test_keys_are_plain_and_come_back(name: str, part: Piece | Tombstone) -> None:
    key = chunk_prefix(name) + object_name(part)
    assert re.fullmatch(r"[A-Za-z0-9_.$!/-]+", key)
    components = key.split("/")
    assert "" not in components
    assert not any(each.startswith(".") for each in components[:-2])
    assert parse_key(key) == (name, part)


def test_a_segments_key_can_be_read() -> None:
    key = chunk_prefix("s/t/0.#epoch.0$00000000000000000000") + object_name(Piece(3, 17, 0, 4096))
    assert key == (
        "s/t/0.!23epoch.0$00000000000000000000.chunk/p0000000003.0000000017.000000000.000001000"
    )


@pytest.mark.parametrize(
    "key",
    ["segstore-store", "a.chunk/", "a.chunk/q", "a/p0000000003.0000000017.000000000.000001000", ""],
)
def test_foreign_keys_are_no_pieces(key: str) -> None:
    assert parse_key(key) is None


def test_a_key_that_is_too_long_is_refused() -> None:
    with pytest.raises(StorageError, match="no keys of 1025 bytes"):
        check_length("k" * 1025)
