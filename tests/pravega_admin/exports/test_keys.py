"""The routing keys of events, at places in their JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pravega_admin.exports.keys import parse_key_source
from segstore_client.errors import UsageError


@pytest.mark.parametrize(
    ("pointer", "event", "key"),
    [
        ("/user", {"user": "ann"}, "ann"),
        ("/user/id", {"user": {"id": 7}}, "7"),
        ("/items/1/name", {"items": [{}, {"name": "x"}]}, "x"),
        ("/a~1b/m~0n", {"a/b": {"m~n": "deep"}}, "deep"),
        ("/", {"": "empty"}, "empty"),
        ("/on", {"on": True}, "true"),
        ("/rate", {"rate": 1.5}, "1.5"),
        ("", "whole", "whole"),
        ("/ü", {"ü": "é"}, "é"),
    ],
)
def test_a_key_is_found_where_the_pointer_leads(pointer: str, event: Any, key: str) -> None:
    assert parse_key_source(f"json:{pointer}")(json.dumps(event).encode()) == key


@pytest.mark.parametrize(
    ("pointer", "event"),
    [
        ("/user", b"{}"),
        ("/user", b'{"user": null}'),
        ("/user", b'{"user": {}}'),
        ("/0", b'{"1": 2}'),
        ("/1", b"[1]"),
        ("/01", b"[1, 2]"),
        ("/-1", b"[1, 2]"),
        ("/user/id", b'{"user": "ann"}'),
        ("/user", b"user"),
        ("/user", b"\xff"),
        ("/user", b""),
    ],
)
def test_an_event_without_a_key_is_told(pointer: str, event: bytes) -> None:
    with pytest.raises(UsageError, match="event"):
        parse_key_source(f"json:{pointer}")(event)


@pytest.mark.parametrize("text", ["", "user", "/user", "json:user", "xml:/user"])
def test_other_texts_are_refused_with_the_form(text: str) -> None:
    with pytest.raises(UsageError, match="json:/POINTER"):
        parse_key_source(text)
