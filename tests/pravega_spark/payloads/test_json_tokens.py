"""A text is cut into the tokens that Spark's parser sees."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.payloads.json_tokens import FIELD, INTEGER, REAL, STRING, Tokens, unescape

JSONS: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def value(tokens: Tokens) -> Any:
    """Return the value that begins at the present token."""
    if tokens.kind == "[":
        elements = []
        while tokens.advance() != "]":
            elements.append(value(tokens))
        return elements
    if tokens.kind == "{":
        members = {}
        while tokens.advance() != "}":
            assert tokens.kind == FIELD
            name = tokens.name
            tokens.advance()
            assert tokens.name == name
            members[name] = value(tokens)
        return members
    if tokens.kind == STRING:
        return tokens.string
    assert tokens.kind in (INTEGER, REAL, "true", "false", "null")
    return json.loads(tokens.raw)


@given(JSONS, st.sampled_from([None, 2]))
def test_tokens_are_those_of_the_text(wanted: Any, indent: int | None) -> None:
    tokens = Tokens(json.dumps(wanted, indent=indent).encode())
    tokens.advance()
    # Texts, since NaN is no NaN.
    assert repr(value(tokens)) == repr(wanted)
    assert tokens.advance() is None


def advance_to_the_end(tokens: Tokens) -> None:
    while tokens.advance() is not None:
        pass


@pytest.mark.parametrize(
    "text",
    [
        *("{", '{"a"', '{"a":', '{"a":1', '{"a":1,}', '{"a" 1}', '{"a":1 "b":2}', "[1,]", "[1 2]"),
        *("[,1]", "{1:2}", "[01]", "[1.]", "[.5]", "[+1]", "[--1]", "[-]", "[nan]", "[truex]"),
        *('["\\x"]', '["\n"]', '["\\u12"]', "[}", '{"a":1]', "[1 /**/]", "[:]", "{:}", "[INF]"),
    ],
)
def test_a_fault_is_told_each_time(text: str) -> None:
    tokens = Tokens(text.encode())
    for _ in range(2):
        with pytest.raises(ValueError, match="is not JSON"):
            advance_to_the_end(tokens)


@pytest.mark.parametrize("rest", ["", " x", "{", "\0"])
def test_what_follows_the_first_value_is_not_looked_at(rest: str) -> None:
    tokens = Tokens(f"[1]{rest}".encode())
    assert [tokens.advance() for _ in range(4)] == ["[", INTEGER, "]", None]


def test_spark_takes_more_than_json() -> None:
    tokens = Tokens(b"['a\\'\"', NaN, -INF, +Infinity, Infinity]")
    found = [tokens.advance() for _ in range(7)]
    assert found == ["[", STRING, REAL, REAL, REAL, REAL, "]"]


def test_blank_texts_have_no_token() -> None:
    assert Tokens(b" \t\r\n").advance() is None
    assert Tokens(b"").advance() is None


def test_escapes_are_the_characters_that_they_stand_for() -> None:
    assert unescape('\\u00e4\\n\\"\\/\\\\n') == 'ä\n"/\\n'
    assert unescape("\\ud83d\\ude00") == "😀"
    assert unescape("\\ud83d-") == "\ud83d-"


def test_skipping_goes_to_the_end_of_a_value() -> None:
    tokens = Tokens(b'{"a":[1,{"b":[]}],"c":2}')
    assert [tokens.advance() for _ in range(3)] == ["{", FIELD, "["]
    tokens.skip_children()
    assert tokens.kind == "]"
    assert (tokens.name, tokens.advance(), tokens.name) == ("a", FIELD, "c")
