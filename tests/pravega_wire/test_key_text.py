"""Tests of keys as texts."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pravega_wire.key_text import decode_key_text, encode_key_text, key_after


@given(st.binary(max_size=40) | st.text(max_size=20).map(str.encode))
@example(b"hex:00")
@example(b"hex:")
@example("a\u202eb".encode())
@example(b"a\nb")
def test_all_bytes_have_a_text_that_is_read_again(data: bytes) -> None:
    text = encode_key_text(data)
    assert text.isprintable()
    assert decode_key_text(text) == data


def test_digits_that_are_none_are_refused() -> None:
    with pytest.raises(ValueError, match="'hex:0g' is not hexadecimal"):
        decode_key_text("hex:0g")


def test_the_next_key_has_the_same_length() -> None:
    assert key_after(b"\x00\xff") == b"\x01\x00"
    assert key_after(b"\xff\xff") == b""
