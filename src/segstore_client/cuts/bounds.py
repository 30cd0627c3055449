"""The bounds of what a reader reads: offsets at which it begins and ends, by places of a stream.

Owns: ``find_bounds``.

Invariants:
1. When the end lies before the start, it is refused: a reader would look for the end in segments
   that do not lead to it, for ever. Held by ``test_an_end_before_the_start_is_refused``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

from segstore_client.controller.controller_client import ControllerClient
from segstore_client.cuts.places import Place, find_cut
from segstore_client.cuts.segment_info import segment_infos, tail_offsets
from segstore_client.errors import UsageError
from segstore_client.inputs import to_end, to_milliseconds
from segstore_client.positions import End, Position

At: TypeAlias = End | datetime | Mapping[int, int] | Place
"""A place of a stream, as a program says it: an end, also as a word, a time, or a stream cut."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Offsets by segment id. Reading ends with the stream where ``ends`` names no segment."""

    offsets: Mapping[int, int]
    ends: Mapping[int, int]


def find_bounds(
    controller: ControllerClient,
    scope: str,
    stream: str,
    *,
    start: At = Position.HEAD,
    end: At | None = None,
) -> Bounds:
    """Return the offsets between two places.

    ``Position.TAIL`` as the end is the tail that the stream has now, or the end of a sealed stream.

    Raises ``UsageError`` if the stream has no such place, or the end lies before the start.
    """
    first = find_offsets(controller, scope, stream, start)
    if end is None:
        return Bounds(first, {})
    place = make_place(end)
    last = find_offsets(controller, scope, stream, place, is_end=True)
    # No place lies behind the tail.
    if first and last and place.end is not Position.TAIL:
        controller.segments_between(scope, stream, first, last)
    return Bounds(first, last)


def find_offsets(
    controller: ControllerClient, scope: str, stream: str, at: At, *, is_end: bool = False
) -> dict[int, int]:
    """Return the offsets of a place; none for the tail of a sealed stream.

    A cut's -1, which means the end of a segment, becomes its length. Raises ``UsageError`` if the
    stream has no such place.
    """
    place = make_place(at)
    if place.end is Position.TAIL:
        return tail_offsets(controller, scope, stream)
    cut = find_cut(controller, scope, stream, place, is_end=is_end)
    ended = [segment for segment, offset in cut.items() if offset < 0]
    if ended:
        infos = segment_infos(controller, scope, stream, ended)
        # One that a truncation has deleted has no bytes to read.
        cut |= {each: infos[each].write_offset if each in infos else 0 for each in ended}
    return cut


def make_place(at: At) -> Place:
    """Return a place as a ``Place``."""
    if isinstance(at, Place):
        return at
    if isinstance(at, str):
        return Place(end=to_end(at))
    if isinstance(at, datetime):
        return Place(time_ms=to_milliseconds(at))
    if isinstance(at, Mapping):
        return Place(cut=at)
    raise UsageError(f"{at!r} is no place of a stream: give a Position, a datetime or a stream cut")
