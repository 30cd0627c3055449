"""Positions in a stream, and the rules by which a query advances from one to the next.

Owns: ``Cut``, its JSON, and these rules. The functions are pure.

A cut is a position in a stream: for each of several segments, the offset up to which it was read.
As an offset of Spark it is ``{"stream": "scope/name", "cut": {"<segment id>": offset}}``. For
example, segments 0 and 1 are merged into segment 2 of epoch 1, whose id is ``1 << 32 | 2`` =
4294967298. A query has read all 100 bytes of segment 0, and 40 of the 60 bytes of segment 1:

    >>> both = frozenset({0, 1})
    >>> merged = {0: [Successor(4294967298, both)], 1: [Successor(4294967298, both)]}
    >>> replace_completed({0: 100, 1: 40}, frozenset({0}), merged, None)
    {0: 100, 1: 40}
    >>> replace_completed({0: 100, 1: 60}, both, merged, None)  # after the next batch
    {4294967298: 0}

Invariants:
1. When a stream is scaled, a query reads a segment only after earlier batches have read all of its
   predecessors to their ends. So the events of one routing key come in order, even if tasks run in
   parallel. Held by ``test_every_byte_is_read_once_and_each_key_in_order``.
2. When a query ends at a given cut, it reads every byte before that cut, and none after it.
   Held by ``test_every_byte_is_read_once_and_each_key_in_order``.
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
END_OF_SEGMENT = -1
"""The position that the official clients give for the end of a sealed segment."""


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
    """Return the cut in an offset of Spark.

    Raises ``OptionError`` for the offset of another stream, and for a malformed one. Positions may
    be ``END_OF_SEGMENT``, because users write offsets, too.
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
    if any(position < END_OF_SEGMENT for position in cut.values()):
        raise OptionError(f"{offset!r} is no offset of stream {stream}: a position is negative")
    return cut


def parse_cut(stream: str, text: str) -> dict[int, int]:
    """Return the cut that a user wrote.

    The text is the JSON of an offset, the JSON of its member ``cut``, or the text of a cut that
    official clients print. Raises ``OptionError`` for other texts, and for the cut of another
    stream.
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


def resolve_ends(cut: Cut, states: Mapping[int, SegmentState]) -> dict[int, int]:
    """Return a user's cut in which lengths of segments replace ``END_OF_SEGMENT``.

    Raises ``OptionError`` if such a segment is not sealed, or does not exist.
    """
    resolved = dict(cut)
    for segment, position in cut.items():
        if position == END_OF_SEGMENT:
            state = states.get(segment)
            if state is None or not state.is_sealed:
                raise OptionError(
                    f"the stream cut says -1 for segment {segment}: that is the end of a sealed"
                    " segment, and it is not one"
                )
            resolved[segment] = state.length
    return resolved


def epoch_of(segment_id: int) -> int:
    """Return the epoch in which a segment was created."""
    return segment_id >> EPOCH_SHIFT


def is_behind(segment_id: int, end: Cut | None) -> bool:
    """Return whether a segment lies wholly after the cut ``end``; False if ``end`` is None.

    A segment after the cut was created after every segment of the cut, so its epoch is higher than
    each of theirs. The segments before the cut have no higher epoch than the highest of the cut.
    """
    if end is None or segment_id in end:
        return False
    return epoch_of(segment_id) > max(map(epoch_of, end), default=-1)


def readable_end(segment_id: int, state: SegmentState, end: Cut | None) -> int:
    """Return the offset up to which a segment may be read now: its length or, if less, that of
    ``end``."""
    if end is None or segment_id not in end:
        return state.length
    return min(state.length, end[segment_id])


def find_completed(cut: Cut, states: Mapping[int, SegmentState], end: Cut | None) -> frozenset[int]:
    """Return the segments of a cut that are sealed and were read to their ends.

    Segments that ``end`` names are left out, because a query does not read their successors.
    """
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

    ``successors`` has the successors of each completed segment. A segment stays in the cut in three
    cases: it has no successor, because the stream is sealed; another predecessor of a successor is
    not completed; or a successor lies after the cut ``end``.
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
