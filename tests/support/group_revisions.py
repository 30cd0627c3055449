"""Revisions of a reader group's state, as the official clients write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from uuid import UUID

from pravega_wire.names import segment_name
from pravega_wire.reader_groups.changes import (
    Change,
    PositionTold,
    ReaderAdded,
    SegmentAcquired,
    begin_group,
    encode_changes,
)
from pravega_wire.reader_groups.settings import GroupSettings

ID = UUID("11111111-2222-3333-4444-555555555555")


def begins(*streams: str, segments: Iterable[int] = (0,)) -> bytes:
    """Return the revision with which a group begins at the head of streams with such segments."""
    cuts: Mapping[str, Mapping[int, int]] = {each: {} for each in streams}
    settings = GroupSettings(starts=cuts, ends=cuts, checkpoint_ms=-1, identifier=ID.bytes)
    begun = begin_group(settings, {each: dict.fromkeys(segments, 0) for each in streams})
    return change(begun)


def change(made: Change) -> bytes:
    """Return the revision with one change."""
    return encode_changes([made])


def comes(reader: str) -> bytes:
    return change(ReaderAdded(reader))


def acquires(reader: str, segment: str) -> bytes:
    return change(SegmentAcquired(reader, segment))


def tells(reader: str, segment: str, offset: int) -> bytes:
    return change(PositionTold(reader, 0, {segment: offset}, {segment: (0.0, 0.0)}))


def name_segment(stream: str, segment: int) -> str:
    """Return the name of a segment of a scoped stream."""
    scope, _, name = stream.partition("/")
    return segment_name(scope, name, segment)
