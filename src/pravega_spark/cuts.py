"""Positions in a stream, and the rules by which a query advances from one to the next. Pure.

Owns: ``Cut``, its JSON, and these rules.

A cut gives for each of a set of segments the number of bytes before it. It becomes an offset of
of Spark as ``{"stream": "scope/name", "cut": {"<segment id>": offset}}``.

Invariants:
1. A query reads a segment only after all of its predecessors have been read to their ends by
   earlier batches. So events of one routing key come in order, whatever tasks do in parallel.
2. A segment that was read to its end stays in the cut until all of its successors may be read.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pravega_spark.errors import OptionError
from pravega_wire.stream_cut_text import StreamCutTextError, decode_cut_text

Cut = Mapping[int, int]
"""Segment id -> offset."""

EPOCH_SHIFT = 32
NOT_BEGUN = -1
"""The position that controllers may send for a segment of which a stream cut has no byte."""


@dataclass(frozen=True, slots=True)
class SegmentState:
    """A segment store's information about a segment."""

    start_offset: int
    length: int
    is_sealed: bool


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that follows others, all of which must be read before it."""

    segment_id: int
    predecessors: frozenset[int]


@dataclass(frozen=True, slots=True)
class Slice:
    """Bytes [start, end) of a segment."""

    segment_id: int
    start: int
    end: int


def cut_to_offset(stream: str, cut: Cut) -> dict[str, Any]:
    """Return the cut as an offset of Spark; ``stream`` is ``scope/name``."""
    return {"stream": stream, "cut": {str(segment): cut[segment] for segment in sorted(cut)}}


def offset_to_cut(stream: str, offset: Mapping[str, Any]) -> dict[int, int]:
    """Return the cut of an offset; ``OptionError`` if it is of another stream or is none.

    A position of -1 means 0: a stream cut may have it for a segment that has not begun.
    """
    found = offset.get("stream")
    if found != stream:
        raise OptionError(
            f"the checkpoint belongs to stream {found!r}, and this query reads {stream!r}: use"
            " another checkpointLocation"
        )
    try:
        cut = {int(segment): int(position) for segment, position in offset["cut"].items()}
    except (KeyError, AttributeError, ValueError, TypeError) as error:
        raise OptionError(f"{offset!r} is no offset of stream {stream}") from error
    if any(position < NOT_BEGUN for position in cut.values()):
        raise OptionError(f"{offset!r} is no offset of stream {stream}: a position is negative")
    return {segment: max(0, position) for segment, position in cut.items()}


def parse_cut(stream: str, text: str) -> dict[int, int]:
    """Return the cut that a user wrote: an offset or its ``cut`` alone in JSON, or official text.

    Raises ``OptionError`` for a text without a cut, or for the cut of another stream.
    """
    if not text.lstrip().startswith(("{", "[")):
        return _parse_official(stream, text)
    try:
        value = json.loads(text)
    except ValueError as error:
        raise _no_cut(text) from error
    if not isinstance(value, dict):
        raise OptionError(f"{text!r} is no stream cut: it must be a JSON object")
    return offset_to_cut(stream, value if "cut" in value else {"stream": stream, "cut": value})


def _parse_official(stream: str, text: str) -> dict[int, int]:
    try:
        name, cut = decode_cut_text(text)
    except StreamCutTextError:
        raise _no_cut(text) from None
    if name != stream:
        raise OptionError(f"the stream cut is of {name}, and {stream} is read")
    return offset_to_cut(stream, {"stream": stream, "cut": cut})


def _no_cut(text: str) -> OptionError:
    return OptionError(
        f"{text!r} is no stream cut: say earliest, latest, unbounded, JSON such as"
        ' {"0": 0}, or what asText() of the official StreamCut gives'
    )


def epoch_of(segment_id: int) -> int:
    """Return the epoch in which a segment was created."""
    return segment_id >> EPOCH_SHIFT


def is_behind(segment_id: int, end: Cut | None) -> bool:
    """Return whether a segment lies wholly after the cut ``end``; False if there is no such cut.

    Segments of the cut and their ancestors were created no later than the youngest of the cut;
    segments created after the cut was taken are younger.
    """
    if end is None or segment_id in end:
        return False
    return epoch_of(segment_id) > max(map(epoch_of, end), default=-1)


def readable_end(segment_id: int, state: SegmentState, end: Cut | None) -> int:
    """Return the end up to which a segment may be read now, nothing of it behind ``end``."""
    if end is None or segment_id not in end:
        return state.length
    return min(state.length, end[segment_id])


def find_completed(cut: Cut, states: Mapping[int, SegmentState], end: Cut | None) -> frozenset[int]:
    """Return the segments of the cut that were read to their ends and may have successors."""
    return frozenset(
        segment
        for segment, offset in cut.items()
        if states[segment].is_sealed
        and offset >= states[segment].length
        and not (end is not None and segment in end)
    )


def replace_completed(
    cut: Cut,
    completed: frozenset[int],
    successors: Mapping[int, Iterable[Successor]],
    end: Cut | None,
) -> dict[int, int]:
    """Return the cut with completed segments replaced by their successors, at offset 0.

    ``successors`` are those of each completed segment. Segments are replaced together with all that
    share a successor with them, or not at all, so that a valid cut stays valid. Segments behind
    ``end`` never enter. A completed segment without successors is the last of a sealed stream and
    stays.
    """
    leaving = {segment for segment in completed if successors[segment]}
    while True:
        staying = {
            segment
            for segment in leaving
            for successor in successors[segment]
            if not successor.predecessors <= leaving or is_behind(successor.segment_id, end)
        }
        if not staying:
            break
        leaving -= staying
    replaced = {segment: offset for segment, offset in cut.items() if segment not in leaving}
    for segment in leaving:
        replaced.update({successor.segment_id: 0 for successor in successors[segment]})
    return replaced


def slices_between(start: Cut, end: Cut) -> list[Slice]:
    """Return the slices that a batch from ``start`` to ``end`` reads, by segment id."""
    slices = [Slice(segment, start.get(segment, 0), end[segment]) for segment in sorted(end)]
    return [each for each in slices if each.start < each.end]
