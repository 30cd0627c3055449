"""Stream cuts: their validity, their order, and the segments around and between them.

Owns: the rules for valid cuts of a stream, and comparisons of cuts and segments.
The functions are pure: the caller reads the segments that a cut names. ``cut_checks`` does so for
cuts of clients, ``streams.history`` to walk from one cut to another.

A valid cut gives every key one position: (epoch of a segment, offset in it). The segments that
served one key, one after the other, have rising epochs, so the positions of one key compare as
pairs. Example: segment 0 serves [0, 0.5) and segment 1 [0.5, 1), both of epoch 0. Then segment 0 is
split into segments 2 and 3 of epoch 1. ``pieces`` lists the positions by key:

    {0: 100, 1: 50}         [0, 0.5): (0, 100)                             [0.5, 1): (0, 50)
    {2: 0, 3: 10, 1: 50}    [0, 0.25): (1, 0)    [0.25, 0.5): (1, 10)      [0.5, 1): (0, 50)

(The ids of segments 2 and 3 are 1 << 32 | 2 and 1 << 32 | 3.) The second cut is at or after the
first one for every key. Segment 0 lies wholly before the second cut.

A client names the end of a sealed segment by ``END_OF_SEGMENT``. ``resolve_offsets`` replaces it by
the segment's length, so that no recorded cut has a negative offset.

Invariants:
1. When a cut is valid, ``pieces`` covers [0, 1) exactly once, in order.
   Held by ``test_pieces_are_those_of_every_key_looked_at_alone``.
2. When a cut has gaps, overlaps or negative offsets, or names a segment of another stream, it is
   refused. Held by ``test_cuts_with_gaps_overlaps_or_strangers_are_not``.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pravega_controller.errors import InvalidStreamCutError
from pravega_controller.rules.streams import SEGMENTS_PER_STREAM_MAX, Segment, StreamCut

END_OFFSET = 2**63 - 1
"""Maximum length of a segment, in bytes."""
END_OF_SEGMENT = -1
"""The offset by which clients name the end of a sealed segment."""
CUT_SEGMENTS_MAX = 2 * SEGMENTS_PER_STREAM_MAX
"""Maximum number of segments in a stream cut: a stored cut must fit one value of a table."""


@dataclass(frozen=True, slots=True)
class Piece:
    """The keys [low, high), and the position (epoch, offset) that a cut gives them."""

    low: float
    high: float
    epoch: int
    offset: int


def resolve_offsets(
    segments: Mapping[int, Segment], cut: StreamCut, lengths: StreamCut, sealed: Container[int]
) -> dict[int, int]:
    """Return a client's cut with lengths in place of ``END_OF_SEGMENT``.

    ``segments`` has the segments of the cut that the stream has, ``lengths`` the known lengths. The
    length of a segment before the head may be unknown; then any offset is accepted. Raises
    ``InvalidStreamCutError`` for a segment that the stream does not have, and for an offset beyond
    the length.
    """
    if not cut:
        raise InvalidStreamCutError("the stream cut names no segment")
    resolved = {}
    for segment_id, offset in cut.items():
        if segment_id not in segments:
            raise _foreign(segment_id)
        if offset == END_OF_SEGMENT:
            if segment_id not in sealed or segment_id not in lengths:
                raise InvalidStreamCutError(
                    f"offset {offset} is the end of a sealed segment, and segment {segment_id} is "
                    "not sealed"
                )
            offset = lengths[segment_id]
        if offset < 0:
            raise _negative(segment_id, offset)
        if offset > lengths.get(segment_id, END_OFFSET):
            raise InvalidStreamCutError(
                f"offset {offset} lies beyond the {lengths[segment_id]} bytes of segment "
                f"{segment_id}"
            )
        resolved[segment_id] = offset
    return resolved


def replace_ends(cut: StreamCut) -> dict[int, int]:
    """Return a client's cut with ``END_OFFSET`` in place of ``END_OF_SEGMENT``."""
    return {
        segment_id: END_OFFSET if offset == END_OF_SEGMENT else offset
        for segment_id, offset in cut.items()
    }


def fill_gaps(segments: Mapping[int, Segment], cut: StreamCut, end: StreamCut) -> dict[int, int]:
    """Return a cut to which segments of ``end`` are added for keys that the cut does not cover.

    A reader group with an end bound drops segments that it has read up to the bound. So its
    checkpoints do not cover all keys.
    """
    named = [segments[segment_id] for segment_id in cut if segment_id in segments]
    missing = {
        segment_id: offset
        for segment_id, offset in end.items()
        if segment_id in segments and not any(map(segments[segment_id].overlaps, named))
    }
    return {**missing, **cut}


def refuse_partly_read(walked: Iterable[Segment], tiling: Sequence[Piece]) -> None:
    """Raise ``InvalidStreamCutError`` if a cut lies after a segment for some of its keys only.

    A reader begins a successor when it has read all of its predecessors to their ends. So it is
    after a segment for all of its keys, or for none. A reader that began at such a cut would wait
    for ever.
    """
    for segment in walked:
        if is_partly_before(segment, tiling) and not is_before(segment, tiling):
            raise InvalidStreamCutError(
                f"the stream cut lies behind segment {segment.segment_id} for some keys, and not "
                "for others"
            )


def pieces(segments: Mapping[int, Segment], cut: StreamCut) -> tuple[Piece, ...]:
    """Return the positions of all keys in a cut, in the order of keys.

    ``segments`` has the segments of the cut that the stream has. Raises ``InvalidStreamCutError``
    unless the cut covers every key once.
    """
    if len(cut) > CUT_SEGMENTS_MAX:
        raise InvalidStreamCutError(
            f"a stream cut names at most {CUT_SEGMENTS_MAX} segments, not {len(cut)}"
        )
    positions: list[tuple[Segment, int]] = []
    for segment_id, offset in cut.items():
        segment = segments.get(segment_id)
        if segment is None:
            raise _foreign(segment_id)
        if offset < 0:
            raise _negative(segment_id, offset)
        positions.append((segment, offset))
    positions.sort(key=lambda entry: entry[0].low)
    result: list[Piece] = []
    covered = 0.0
    for segment, offset in positions:
        if segment.low < covered:
            raise InvalidStreamCutError(f"segment {segment.segment_id} overlaps another one")
        _refuse_gap(covered, segment.low)
        result.append(Piece(segment.low, segment.high, segment.epoch, offset))
        covered = segment.high
    _refuse_gap(covered, 1.0)
    return tuple(result)


def is_at_or_after(later: Sequence[Piece], earlier: Sequence[Piece]) -> bool:
    """Return whether ``later`` is, for every key, at or after ``earlier``."""
    return all((a.epoch, a.offset) >= (b.epoch, b.offset) for a, b in _overlapping(later, earlier))


def is_at_or_after_all(later: Sequence[Piece], positions: Mapping[Segment, int]) -> bool:
    """Return whether a cut is at or after these positions for every key of their segments."""
    return all(
        (piece.epoch, piece.offset) >= (segment.epoch, offset)
        for segment, offset in positions.items()
        for piece in _under(segment, later)
    )


def cut_at(segments: Iterable[Segment], *, offset: int = 0) -> dict[int, int]:
    """Return the cut that has the same offset in every segment: by default, its beginning."""
    return {segment.segment_id: offset for segment in segments}


def is_before(segment: Segment, tiling: Sequence[Piece]) -> bool:
    """Return whether a segment lies wholly before a cut."""
    return all(piece.epoch > segment.epoch for piece in _under(segment, tiling))


def is_partly_before(segment: Segment, tiling: Sequence[Piece]) -> bool:
    """Return whether, for at least one key of the segment, the cut is in a later segment."""
    return any(piece.epoch > segment.epoch for piece in _under(segment, tiling))


def is_between(segment: Segment, first: Sequence[Piece], last: Sequence[Piece]) -> bool:
    """Return whether a segment has bytes between two cuts, both ends included."""
    return any(
        a.epoch <= segment.epoch and (segment.epoch, 0) <= (b.epoch, b.offset)
        for a, b in _overlapping(_under(segment, first), _under(segment, last))
        if max(a.low, b.low, segment.low) < min(a.high, b.high, segment.high)
    )


def _foreign(segment_id: int) -> InvalidStreamCutError:
    return InvalidStreamCutError(f"segment {segment_id} does not belong to this stream")


def _negative(segment_id: int, offset: int) -> InvalidStreamCutError:
    return InvalidStreamCutError(f"offset {offset} of segment {segment_id} is negative")


def _refuse_gap(covered: float, low: float) -> None:
    """Raise ``InvalidStreamCutError`` if no segment serves the keys from ``covered`` to ``low``."""
    if covered < low:
        raise InvalidStreamCutError(f"no segment covers the key {covered}")


def _overlapping(a: Sequence[Piece], b: Sequence[Piece]) -> Iterator[tuple[Piece, Piece]]:
    """Yield every pair of pieces, one of each tiling, that share a key."""
    i = j = 0
    while i < len(a) and j < len(b):
        yield a[i], b[j]
        i, j = i + (a[i].high <= b[j].high), j + (b[j].high <= a[i].high)


def _under(segment: Segment, tiling: Sequence[Piece]) -> Sequence[Piece]:
    """Return the pieces that share a key with the segment."""
    first = bisect_right(tiling, segment.low, key=lambda piece: piece.low) - 1
    return tiling[first : bisect_left(tiling, segment.high, key=lambda piece: piece.low)]
