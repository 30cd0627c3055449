"""Tests of the forms in which events are shown."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.console.events.decoders import FORMS, View, decode, read_view
from pravega_controller.errors import InvalidRequestError


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
    shown = decode(data, View("auto"), is_whole=True)
    assert (shown.form, shown.note) == (form, "")
    assert text is None or shown.text == text


def test_a_document_that_is_long_or_asked_for_has_lines() -> None:
    assert decode(b'{"a": [1]}', View("json"), is_whole=True).text == '{\n  "a": [\n    1\n  ]\n}'
    assert "\n" in decode(b'{"a": "%s"}' % (b"x" * 200), View("auto"), is_whole=True).text


def test_what_is_not_of_the_form_is_shown_in_hexadecimal() -> None:
    shown = decode(b"\xff", View("text"), is_whole=True)
    assert (shown.form, shown.note) == ("hex", "This is no text.")
    assert decode(b"a", View("json"), is_whole=True).note == "This is no JSON."
    assert decode(b"7", View("json"), is_whole=True).text == "7"


def test_avro_is_shown_by_its_schema() -> None:
    text = '{"type": "record", "name": "R", "fields": [{"name": "a", "type": "string"}]}'
    view = read_view({"as": "avro", "schema": f" {text} "})
    assert read_view(dict(parse_qsl(view.query))) == view
    shown = decode(b"\x06caf", view, is_whole=True)
    assert (shown.text, shown.form, shown.note) == ('{"a": "caf"}', "avro", "")
    # A mark that turns the direction of text round is no part of the page.
    assert decode(b"\x06\xe2\x80\xae", view, is_whole=True).text == '{"a": "\\u202e"}'
    wrong = decode(b"\x06ca", view, is_whole=True)
    assert (wrong.form, wrong.note) == ("hex", "This is no Avro of the schema: it ends too early.")
    assert "too long" in decode(b"\x06caf", view, is_whole=False).note
    for query in ({"as": "avro"}, {"as": "avro", "schema": "x"}, {"as": "yaml"}):
        with pytest.raises(InvalidRequestError):
            read_view(query)
    # A schema that is not used is kept for the form, whatever it is.
    assert read_view({"schema": "x"}).query == "as=auto&schema=x"


def test_a_character_that_was_cut_is_left_out() -> None:
    assert decode("aé".encode()[:-1], View("auto"), is_whole=False).text == "a"
    assert decode("aé".encode()[:-1], View("auto"), is_whole=True).form == "hex"


@given(st.binary(max_size=600), st.sampled_from(FORMS), st.booleans())
def test_all_bytes_are_shown_in_all_forms(data: bytes, form: str, is_whole: bool) -> None:
    assert isinstance(decode(data, View(form), is_whole=is_whole).text, str)
