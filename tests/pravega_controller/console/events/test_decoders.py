"""Tests of the forms in which events are shown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.console.events.decoders import FORMS, decode


@pytest.mark.parametrize(
    ("data", "form", "text"),
    [
        (b'{"a":[1, "\xc3\xa9"]}', "json", '{"a": [1, "é"]}'),
        (b"plain", "text", "plain"),
        (b"12", "text", "12"),
        (b'{"a": NaN}', "text", '{"a": NaN}'),
        (b"[" * 100_000, "text", "[" * 100_000),
        (b"\x00\xffA", "hex", "000000  00 ff 41" + " " * 40 + " ..A"),
        ("a\u202eb".encode(), "hex", None),
    ],
)
def test_the_form_is_found(data: bytes, form: str, text: str | None) -> None:
    shown = decode(data, "auto", is_whole=True)
    assert (shown.form, shown.note) == (form, "")
    assert text is None or shown.text == text


def test_a_document_that_is_long_or_asked_for_has_lines() -> None:
    assert decode(b'{"a": [1]}', "json", is_whole=True).text == '{\n  "a": [\n    1\n  ]\n}'
    assert "\n" in decode(b'{"a": "%s"}' % (b"x" * 200), "auto", is_whole=True).text


def test_what_is_not_of_the_form_is_shown_in_hexadecimal() -> None:
    shown = decode(b"\xff", "text", is_whole=True)
    assert (shown.form, shown.note) == ("hex", "This is no text.")
    assert decode(b"a", "json", is_whole=True).note == "This is no JSON."
    assert decode(b"7", "json", is_whole=True).text == "7"


def test_a_character_that_was_cut_is_left_out() -> None:
    assert decode("aé".encode()[:-1], "auto", is_whole=False).text == "a"
    assert decode("aé".encode()[:-1], "auto", is_whole=True).form == "hex"


@given(st.binary(max_size=600), st.sampled_from(FORMS), st.booleans())
def test_all_bytes_are_shown_in_all_forms(data: bytes, form: str, is_whole: bool) -> None:
    assert isinstance(decode(data, form, is_whole=is_whole).text, str)
