"""Takes the routing keys of events from the events themselves, as users say where they are.

Owns: the text ``json:/POINTER``. The pointer is one of RFC 6901.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from segstore_client.errors import UsageError

KeyOf = Callable[[bytes], str]
SCHEME = "json:"
_INDEX = re.compile(r"0|[1-9][0-9]*")


def parse_key_source(text: str) -> KeyOf:
    """Return the function that a text names, which returns the routing key of an event.

    It raises ``UsageError`` for an event that has no key there.
    """
    pointer = text.removeprefix(SCHEME)
    if not text.startswith(SCHEME) or not (pointer == "" or pointer.startswith("/")):
        raise UsageError(f"--key-from is json:/POINTER, such as json:/user/id, not {text!r}")
    names = [name.replace("~1", "/").replace("~0", "~") for name in pointer.split("/")[1:]]
    return partial(_find_key, names, pointer)


def _find_key(names: Sequence[str], pointer: str, event: bytes) -> str:
    try:
        value = msgspec.json.decode(event)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"an event is not JSON: {error}") from None
    for name in names:
        if isinstance(value, dict) and name in value:
            value = value[name]
        elif isinstance(value, list) and _INDEX.fullmatch(name) and int(name) < len(value):
            value = value[int(name)]
        else:
            raise UsageError(f"an event has nothing at {pointer}, where its key should be")
    if isinstance(value, str):
        return value
    if isinstance(value, bool | int | float):
        return msgspec.json.encode(value).decode()
    raise UsageError(f"what an event has at {pointer} is neither a text nor a number")
