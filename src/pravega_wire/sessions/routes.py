"""Finds the segment of a stream that gets an event, by its key, through scalings.

Owns: ``SegmentRange`` and ``Successor``, and ``Routes``, the map from positions to segments.

A segment of [0.25, 0.75) that has ended gives its part of the key space to its successors. Another
part of a successor stays with its present segment until that ends, too:

    1: [0, 0.25)   2: [0.25, 0.75)   3: [0.75, 1)        2 ends; its successors are
    4: [0.25, 0.5)   5: [0.5, 1)                         5 is a merge of parts of 2 and of 3
    1: [0, 0.25)   4: [0.25, 0.5)   5: [0.5, 0.75)   3: [0.75, 1)

Invariants:
1. Each position of the key space has one segment, before and after a replacement. Held by
   ``test_each_position_has_one_segment_through_scalings``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SegmentRange:
    """A segment and the part of the key space, [low, high), that it serves."""

    segment_id: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Successor:
    """A segment that follows ``predecessors``, all of which must be read before it."""

    range: SegmentRange
    predecessors: frozenset[int]


class Routes:
    """The segments that get events, by the parts of the key space that they serve."""

    def __init__(self, ranges: Iterable[SegmentRange]) -> None:
        self._set(ranges)

    def find(self, position: float) -> int:
        """Return the segment of a position; of the last one, if the position is 1."""
        return self._ranges[bisect_right(self._lows, position) - 1].segment_id

    def copy(self) -> Routes:
        """Return another map of the same segments."""
        return Routes(self._ranges)

    @property
    def segments(self) -> list[int]:
        """Return each segment once, in the order of the key space."""
        return list(dict.fromkeys(item.segment_id for item in self._ranges))

    def replace(self, ended: int, successors: Iterable[SegmentRange]) -> list[int]:
        """Give the parts of a segment that has ended to its successors; return the new segments.

        A successor may have parts already: it is then not a new one.
        """
        known = set(self.segments)
        routes = [item for item in self._ranges if item.segment_id != ended]
        new = dict[int, None]()
        for part in self._ranges:
            if part.segment_id != ended:
                continue
            for successor in successors:
                low, high = max(part.low, successor.low), min(part.high, successor.high)
                if low < high:
                    routes.append(SegmentRange(successor.segment_id, low, high))
                    new[successor.segment_id] = None
        self._set(routes)
        return [segment for segment in new if segment not in known]

    def _set(self, ranges: Iterable[SegmentRange]) -> None:
        self._ranges = sorted(ranges, key=lambda item: item.low)
        self._lows = [item.low for item in self._ranges]
