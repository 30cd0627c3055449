"""Revisions of a reader group's state, as the official clients write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from pravega_wire.names import segment_name
from pravega_wire.reader_groups.states import GroupSettings, encode_begun
from pravega_wire.versioned import write_compact_int, write_text, write_versioned

ID = UUID("11111111-2222-3333-4444-555555555555")


def begins(*streams: str, segments: Iterable[int] = (0,)) -> bytes:
    """Return the revision with which a group begins at the head of streams with such segments."""
    cuts: Mapping[str, Mapping[int, int]] = {each: {} for each in streams}
    settings = GroupSettings(
        starts=cuts,
        ends=cuts,
        checkpoint_ms=-1,
        refresh_ms=3000,
        outstanding_max=3,
        retention=0,
        generation=0,
        identifier=ID.bytes,
    )
    return encode_begun(settings, {each: dict.fromkeys(segments, 0) for each in streams})


def change(kind: int, *parts: bytes) -> bytes:
    """Return the revision with one change, of such parts."""
    data = bytes([0, kind]) + write_versioned(parts)[1:]
    return (2).to_bytes(4, "big") + len(data).to_bytes(4, "big") + data


def comes(reader: str) -> bytes:
    return change(2, write_text(reader))


def acquires(reader: str, segment: str) -> bytes:
    return change(5, write_text(reader) + write_text(segment))


def tells(reader: str, segment: str, offset: int) -> bytes:
    positions = write_text(segment) + bytes(16) + offset.to_bytes(8, "big")
    return change(6, write_text(reader) + bytes(8), write_compact_int(1) + positions)


def name_segment(stream: str, segment: int) -> str:
    """Return the name of a segment of a scoped stream."""
    scope, _, name = stream.partition("/")
    return segment_name(scope, name, segment)
