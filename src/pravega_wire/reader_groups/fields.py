"""The values that records of reader groups have in common: maps of positions, ranges, lists."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

from pravega_wire.versioned import VersionedReader, write_compact_int, write_text

T = TypeVar("T")

Positions = Mapping[str, int]
"""Offsets by the names of segments."""
KeyRange = tuple[float, float] | None
"""The part of the key space that a segment serves; None if the writer did not know it."""
_RANGE = struct.Struct(">dd")
_UNKNOWN = _RANGE.pack(-1.0, -1.0)


def write_long(value: int) -> bytes:
    """Return eight bytes."""
    return value.to_bytes(8, "big", signed=True)


def write_range(value: KeyRange) -> bytes:
    """Return sixteen bytes."""
    return _UNKNOWN if value is None else _RANGE.pack(*value)


def write_map(items: Mapping[str, T], write_value: Callable[[T], bytes]) -> bytes:
    """Return a map from texts, in its order."""
    parts = [write_compact_int(len(items))]
    for key, value in items.items():
        parts += [write_text(key), write_value(value)]
    return b"".join(parts)


def write_positions(positions: Positions) -> bytes:
    """Return a map from names of segments to offsets."""
    return write_map(positions, write_long)


def write_list(items: Iterable[T], write_item: Callable[[T], bytes]) -> bytes:
    """Return the number of items, and the items."""
    parts = [write_item(item) for item in items]
    return write_compact_int(len(parts)) + b"".join(parts)


def read_map(record: VersionedReader, read_value: Callable[[VersionedReader], T]) -> dict[str, T]:
    """Return a map from texts."""
    found: dict[str, T] = {}
    for _ in range(record.read_compact_int()):
        key = record.read_text()
        found[key] = read_value(record)
    return found


def read_positions(record: VersionedReader) -> dict[str, int]:
    """Return a map from names of segments to offsets."""
    return read_map(record, VersionedReader.read_long)


def read_range(record: VersionedReader) -> KeyRange:
    """Return a range; None for one that its writer did not know."""
    low, high = record.read_double(), record.read_double()
    return None if low < 0 or high < 0 else (low, high)


def read_longs(record: VersionedReader) -> list[int]:
    """Return a list of numbers."""
    data = record.read_bytes(8 * record.read_compact_int())
    return [each for (each,) in struct.iter_unpack(">q", data)]


def read_texts(record: VersionedReader) -> list[str]:
    """Return a list of texts."""
    return [record.read_text() for _ in range(record.read_compact_int())]
