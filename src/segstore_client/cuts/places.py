"""Places of a stream, as users write them: an end, a time, or a stream cut.

Owns: the forms of that text, and the stream cut of each.

    head, tail
    2026-03-01T12:00:00Z   a time in ISO 8601, UTC without a zone
    1772366400000          the same in milliseconds since 1970
    -15m                   this long ago
    0:4096,1:0             a stream cut: the offset of each segment id
    H4sIAAAA...            the same as official clients print it

A cut is numbers with colons, so no time is one.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass

from pravega_wire.names import scoped_name
from pravega_wire.stream_cut_text import StreamCutTextError, decode_cut_text
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import parse_duration_ms
from segstore_client.cuts.segment_info import tail_offsets
from segstore_client.cuts.times import parse_time
from segstore_client.cuts.watermarks import cut_of_time
from segstore_client.errors import ConflictError, UsageError
from segstore_client.positions import Position

FORMS = "head, tail, a time such as 2026-03-01T12:00:00Z or -15m, or a cut such as 0:4096,1:0"
_CUT = re.compile(r"[0-9]+:(?:-1|[0-9]+)(?:,[0-9]+:(?:-1|[0-9]+))*")
_AGO = re.compile(r"-[0-9.]+[a-z]+")
_TIME = re.compile(r"-?[0-9]+|[0-9]{4}-.*")


@dataclass(frozen=True, slots=True)
class Place:
    """A place: exactly one of the fields is set. ``stream`` is that of a cut which names one."""

    end: Position | None = None
    time_ms: int | None = None
    cut: Mapping[int, int] | None = None
    stream: str = ""


def parse_place(option: str, text: str) -> Place:
    """Return the place that a text means. Raises ``UsageError``, which names the option."""
    word = text.strip()
    if word in list(Position):
        return Place(end=Position(word))
    if _CUT.fullmatch(word):
        pairs = [part.split(":") for part in word.split(",")]
        return Place(cut={int(segment): int(offset) for segment, offset in pairs})
    if _AGO.fullmatch(word):
        return Place(time_ms=int(time.time() * 1000) - parse_duration_ms(word[1:]))
    if _TIME.fullmatch(word):
        return Place(time_ms=parse_time(option, word))
    try:
        stream, cut = decode_cut_text(word)
    except StreamCutTextError:
        raise UsageError(f"{option} is {FORMS}, or one as clients print it; not {text!r}") from None
    return Place(cut=cut, stream=stream)


def find_cut(
    controller: ControllerClient, scope: str, stream: str, place: Place, *, is_end: bool = False
) -> dict[int, int]:
    """Return the stream cut of a place. Raises ``UsageError`` if the stream has no such place.

    A time is a cut before its events; with ``is_end`` one after them.
    """
    if place.cut is not None:
        name = scoped_name(scope, stream)
        if place.stream not in ("", name):
            raise UsageError(f"the stream cut is one of {place.stream}, not of {name}")
        controller.check_cut(scope, stream, place.cut)
        return dict(place.cut)
    end = place.end
    if place.time_ms is not None:
        found = cut_of_time(controller, scope, stream, place.time_ms, is_end=is_end)
        if found is not None:
            return found
        end = Position.TAIL if is_end else Position.HEAD
    if end is Position.HEAD:
        return dict(controller.head_segments(scope, stream).offsets)
    tail = tail_offsets(controller, scope, stream)
    if not tail:
        raise ConflictError(f"stream {scoped_name(scope, stream)} is sealed, so it has no tail")
    return tail
