"""Plans a scaling: the segments to seal, and the key ranges of the new ones.

Owns: arithmetic on key ranges.

Invariants:
1. The new ranges cover the same keys as the sealed segments, and each key once. Held by
   ``test_a_replacement_covers_every_key_once``. The outer bounds are copied and never computed, so
   they are equal to the last bit. Held by ``test_a_split_keeps_the_outer_bounds_to_the_bit``.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from pravega_wire.sessions.routes import SegmentRange
from segstore_client.errors import ConflictError, NotFoundError, UsageError


@dataclass(frozen=True, slots=True)
class ScalePlan:
    """The segments to seal, and the key ranges of the segments that follow them."""

    sealed: tuple[int, ...]
    ranges: tuple[tuple[float, float], ...]


def plan_replacement(current: Sequence[SegmentRange], count: int) -> ScalePlan:
    """Plan to replace all segments by ``count`` of equal width."""
    if not current:
        raise ConflictError("a sealed stream cannot be scaled")
    ordered = sorted(current, key=lambda item: item.low)
    sealed = tuple(item.segment_id for item in ordered)
    return ScalePlan(sealed, _even_ranges(ordered[0].low, ordered[-1].high, count))


def plan_split(current: Sequence[SegmentRange], segment: int, count: int) -> ScalePlan:
    """Plan to replace one segment by ``count`` of equal width."""
    item = _find(current, segment)
    return ScalePlan((segment,), _even_ranges(item.low, item.high, count))


def plan_merge(current: Sequence[SegmentRange], segments: Sequence[int]) -> ScalePlan:
    """Plan to replace neighbouring segments by one."""
    if len(set(segments)) != len(segments) or len(segments) < 2:
        raise UsageError("a merge takes at least two different segments")
    ordered = sorted((_find(current, segment) for segment in segments), key=lambda item: item.low)
    for left, right in itertools.pairwise(ordered):
        if left.high != right.low:
            raise UsageError(
                f"segments {left.segment_id} and {right.segment_id} are not neighbours"
            )
    sealed = tuple(item.segment_id for item in ordered)
    return ScalePlan(sealed, ((ordered[0].low, ordered[-1].high),))


def _find(current: Sequence[SegmentRange], segment: int) -> SegmentRange:
    for item in current:
        if item.segment_id == segment:
            return item
    raise NotFoundError(f"segment {segment} is not one of the stream's current segments")


def _even_ranges(low: float, high: float, count: int) -> tuple[tuple[float, float], ...]:
    width = (high - low) / count
    bounds = [low, *(low + width * index for index in range(1, count)), high]
    return tuple(itertools.pairwise(bounds))
