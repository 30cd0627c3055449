"""Stream cuts: their validity, their order, and the segments around and between them.

Owns: the arithmetic on positions in a whole stream. Pure functions over a cut and the segments that
it names, read by the caller; ``stream_history`` walks from one cut to another.

A valid cut gives every key one position: (epoch of a segment, offset in it). Along the history of
one key the segments that served it have rising epochs, so positions of one key compare as pairs. A
segment with a negative offset has not begun: it serves the keys whose earlier segments are all
read, and which no begun segment of the cut serves. Its offset sorts before every byte of it.

Invariants:
1. ``pieces`` covers [0, 1) exactly once, in order; a begun segment is exactly one piece.
2. Everything else here uses pieces only, so that an invalid cut is refused in one place.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pravega_controller.errors import InvalidStreamCutError
from pravega_controller.streams import SEGMENTS_PER_STREAM_MAX, Segment, StreamCut

END_OFFSET = 2**63 - 1
"""Maximum offset at which a segment ends."""
CUT_SEGMENTS_MAX = 2 * SEGMENTS_PER_STREAM_MAX
"""Maximum number of segments in a stream cut: a stored cut must fit one value of a table."""


@dataclass(frozen=True, slots=True)
class Piece:
    """Part of the key space, and the position that a cut gives its keys."""

    low: float
    high: float
    epoch: int
    offset: int


def pieces(segments: Mapping[int, Segment], cut: StreamCut) -> tuple[Piece, ...]:
    """Return the positions a cut gives to the keys, by key. Raises ``InvalidStreamCutError``.

    ``segments`` holds those the cut names, as far as the stream has them.
    """
    if len(cut) > CUT_SEGMENTS_MAX:
        raise InvalidStreamCutError(
            f"a stream cut names at most {CUT_SEGMENTS_MAX} segments, not {len(cut)}"
        )
    begun: list[tuple[Segment, int]] = []
    future: list[Segment] = []
    for segment_id, offset in cut.items():
        segment = segments.get(segment_id)
        if segment is None:
            raise InvalidStreamCutError(f"segment {segment_id} does not belong to this stream")
        if offset < 0:
            future.append(segment)
        else:
            begun.append((segment, offset))
    begun.sort(key=lambda entry: entry[0].low)
    result: list[Piece] = []
    covered = 0.0
    not_begun = _NotBegun(future)
    for segment, offset in begun:
        if segment.low < covered:
            raise InvalidStreamCutError(f"segment {segment.segment_id} overlaps another one")
        result += not_begun.pieces(covered, segment.low)
        result.append(Piece(segment.low, segment.high, segment.epoch, offset))
        covered = segment.high
    result += not_begun.pieces(covered, 1.0)
    _refuse_future_before_begun(future, result)
    return tuple(result)


def is_at_or_after(later: Sequence[Piece], earlier: Sequence[Piece]) -> bool:
    """Return whether ``later`` is, for every key, at or behind ``earlier``."""
    return all((a.epoch, a.offset) >= (b.epoch, b.offset) for a, b in _overlapping(later, earlier))


def is_at_or_after_all(later: Sequence[Piece], positions: Mapping[Segment, int]) -> bool:
    """Return whether a cut is at or behind these positions for every key of the segments."""
    return all(
        (piece.epoch, piece.offset) >= (segment.epoch, offset)
        for segment, offset in positions.items()
        if offset >= 0
        for piece in _under(segment, later)
    )


def cut_at(segments: Iterable[Segment], *, offset: int = 0) -> dict[int, int]:
    """Return the cut at one offset of every segment: by default, at its beginning."""
    return {segment.segment_id: offset for segment in segments}


def is_before(segment: Segment, tiling: Sequence[Piece]) -> bool:
    """Return whether a segment lies wholly before a cut."""
    return all(piece.epoch > segment.epoch for piece in _under(segment, tiling))


def is_partly_before(segment: Segment, tiling: Sequence[Piece]) -> bool:
    """Return whether a cut has left a segment for some key; it may be before a successor, too."""
    return any(piece.epoch > segment.epoch for piece in _under(segment, tiling))


def is_between(segment: Segment, first: Sequence[Piece], last: Sequence[Piece]) -> bool:
    """Return whether a segment has bytes between two cuts, both ends included."""
    return any(
        a.epoch <= segment.epoch and (segment.epoch, 0) <= (b.epoch, b.offset)
        for a, b in _overlapping(_under(segment, first), _under(segment, last))
        if max(a.low, b.low, segment.low) < min(a.high, b.high, segment.high)
    )


def _refuse_future_before_begun(future: Sequence[Segment], tiling: Sequence[Piece]) -> None:
    """Raise ``InvalidStreamCutError`` if a segment not begun precedes one that has begun."""
    begun = _RangeMaxima([piece.epoch if piece.offset >= 0 else -1 for piece in tiling])
    for late in future:
        if begun.highest(*_bounds(late, tiling)) >= late.epoch:
            raise InvalidStreamCutError(
                f"segment {late.segment_id} has not begun, but a successor of it has"
            )


class _NotBegun:
    """The pieces of segments not yet begun, where no begun segment of the cut serves."""

    def __init__(self, future: Iterable[Segment]) -> None:
        self._coming = sorted(future, key=lambda segment: segment.low, reverse=True)
        self._reached: list[tuple[int, float]] = []
        """A heap by epoch of those that begin at the present key or before, with their ends."""

    def pieces(self, low: float, high: float) -> Iterator[Piece]:
        """Return the pieces of a part; callers ask for parts by rising keys."""
        while low < high:
            while self._coming and self._coming[-1].low <= low:
                segment = self._coming.pop()
                heapq.heappush(self._reached, (segment.epoch, segment.high))
            while self._reached and self._reached[0][1] <= low:
                heapq.heappop(self._reached)
            if not self._reached:
                raise InvalidStreamCutError(f"no segment covers the key {low}")
            epoch, end = self._reached[0]
            end = min(end, high, self._coming[-1].low if self._coming else 1.0)
            yield Piece(low, end, epoch, -1)
            low = end


class _RangeMaxima:
    """The greatest of any run of values, each found by two comparisons."""

    def __init__(self, values: list[int]) -> None:
        self._levels = [values]
        while len(last := self._levels[-1]) > (half := 1 << (len(self._levels) - 1)):
            self._levels.append([max(a, b) for a, b in zip(last, last[half:], strict=False)])

    def highest(self, start: int, end: int) -> int:
        """Return the greatest value from ``start`` to before ``end``; -1 if there is none."""
        if start >= end:
            return -1
        level = (end - start).bit_length() - 1
        values = self._levels[level]
        return max(values[start], values[end - (1 << level)])


def _overlapping(a: Sequence[Piece], b: Sequence[Piece]) -> Iterator[tuple[Piece, Piece]]:
    """Yield every pair of pieces, one of each tiling, that share a key."""
    i = j = 0
    while i < len(a) and j < len(b):
        yield a[i], b[j]
        i, j = i + (a[i].high <= b[j].high), j + (b[j].high <= a[i].high)


def _under(segment: Segment, tiling: Sequence[Piece]) -> Sequence[Piece]:
    """Return the pieces that share a key with the segment."""
    first, end = _bounds(segment, tiling)
    return tiling[first:end]


def _bounds(segment: Segment, tiling: Sequence[Piece]) -> tuple[int, int]:
    """Return the indexes of the first piece that shares a key with the segment, and its end."""
    first = bisect_right(tiling, segment.low, key=lambda piece: piece.low) - 1
    return first, bisect_left(tiling, segment.high, key=lambda piece: piece.low)
