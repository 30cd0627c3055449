"""The rules of scaling: splits of busy segments and merges of idle ones, by a stream's policy.

Owns: the ranges of a split, and the choice of neighbours that merge. Pure functions over segments.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence

from pravega_controller.rules.streams import ScalingPolicy, Segment

SPLITS_MIN = 2


def count_splits(policy: ScalingPolicy, asked: int) -> int:
    """Return the number of segments into which to split one: as requested, within the policy."""
    return min(max(SPLITS_MIN, asked), max(SPLITS_MIN, policy.scale_factor))


def split_range(low: float, high: float, count: int) -> list[tuple[float, float]]:
    """Return a range split into ``count`` ranges of equal width; fewer if it is too narrow.

    Neighbours share their boundary bit for bit, and the ends are those of the range. Returns one
    range if the given one cannot be split.
    """
    width = (high - low) / count
    inner = (low + index * width for index in range(1, count))
    ends = sorted({low, *(end for end in inner if low < end < high), high})
    return list(itertools.pairwise(ends))


def choose_to_merge(
    active: Sequence[Segment], segment_id: int, idle: Collection[int], count_min: int
) -> tuple[Segment, ...]:
    """Return the segments to merge: an idle segment and its idle neighbours.

    ``active`` is ordered by key. If the merge of three segments would leave less
    than ``count_min``, only the first two of them are returned. Returns nothing when there is
    nothing to merge.
    """
    position = next(
        (index for index, each in enumerate(active) if each.segment_id == segment_id), None
    )
    spare = len(active) - count_min
    if position is None or spare < 1:
        return ()
    nearby = active[max(0, position - 1) : position + 2]
    chosen = [each for each in nearby if each.segment_id == segment_id or each.segment_id in idle]
    chosen = chosen[: spare + 1]
    return tuple(chosen) if len(chosen) > 1 else ()
