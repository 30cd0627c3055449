"""Checks what a program hands over, before anything of it is queued or sent.

Owns: the sentences about values of a wrong kind, which would otherwise fail much later.
"""

from __future__ import annotations

from datetime import datetime

from pravega_wire.hashing import routing_key_hash
from segstore_client.errors import UsageError
from segstore_client.positions import Position


def to_bytes(data: object, what: str) -> bytes:
    """Return bytes as they are, and a copy of a buffer that may change.

    Raises ``UsageError``, with ``what`` it is, for anything else.
    """
    if isinstance(data, bytes):
        return data
    if isinstance(data, bytearray | memoryview):
        return bytes(data)
    raise UsageError(f"{what} is bytes, not {data.__class__.__name__}")


def to_event(data: object) -> bytes:
    """Return the bytes of an event, as ``to_bytes`` does."""
    return data if isinstance(data, bytes) else to_bytes(data, "an event")


def to_position(key: str) -> float:
    """Return the position of a routing key in the key space. Raises ``UsageError`` if it is no
    text."""
    try:
        return routing_key_hash(key)
    except TypeError:
        raise UsageError(f"a routing key is text (str), not {key.__class__.__name__}") from None


def to_end(word: str) -> Position:
    """Return the end of a stream that a word means. Raises ``UsageError`` for another word."""
    try:
        return Position(word)
    except ValueError:
        raise UsageError(f"{word!r} is no end of a stream: it is head or tail") from None


def to_milliseconds(time: datetime) -> int:
    """Return a time in milliseconds since 1970. Raises ``UsageError`` if it has no zone."""
    if time.tzinfo is None:
        raise UsageError(f"the time {time.isoformat()} has no zone: give one, such as datetime.UTC")
    return int(time.timestamp() * 1000)
