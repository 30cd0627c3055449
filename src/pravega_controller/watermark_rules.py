"""The rules of watermarks: the writers that count, the time, and the stream cut.

Owns: comparing positions, choosing the writers, and the cut that is behind all of their positions.
Pure functions over given segments.

A writer's mark is a time and a position: the offsets behind everything that it had written by then,
in the segments to which it wrote. So a position is no stream cut: it has gaps.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pravega_controller.streams import Segment

Position: TypeAlias = Mapping[Segment, int]
"""Segment -> offset. The segments may leave gaps, but do not overlap."""


@dataclass(frozen=True, slots=True)
class WriterState:
    """A writer's last time, and for how many seconds it has been behind the last watermark."""

    time: int
    is_alive: bool
    lagging_seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The writers that are gone, and the bounds of the others' times if all have advanced."""

    gone: tuple[str, ...]
    is_complete: bool
    lower: int = 0
    upper: int = 0


def goes_on(earlier: Mapping[int, int], later: Mapping[int, int]) -> bool:
    """Return whether a position can follow another: no offset falls in a segment of both."""
    return all(later[each] >= earlier[each] for each in earlier.keys() & later.keys())


def judge_writers(
    writers: Mapping[str, WriterState], last_lower: int | None, timeout_seconds: float
) -> Verdict:
    """Return the writers that count for the watermark after that lower bound, if there are any.

    A living writer that is behind it is awaited until the time-out; then it counts as gone.
    """
    gone: list[str] = []
    ahead: list[int] = []
    is_waited_for = False
    for name, state in writers.items():
        if last_lower is None or state.time > last_lower:
            ahead.append(state.time)
        elif state.is_alive and state.lagging_seconds < timeout_seconds:
            is_waited_for = True
        else:
            gone.append(name)
    if is_waited_for or not ahead:
        return Verdict(tuple(gone), is_complete=False)
    return Verdict(tuple(gone), True, min(ahead), max(ahead))


def add_to_bound(bound: dict[Segment, int], position: Position) -> None:
    """Move a bound to at or after a position; later segments replace earlier ones."""
    merged = dict(bound)
    for segment, offset in position.items():
        merged[segment] = max(merged.get(segment, 0), offset)
    bound.clear()
    # The oldest first: a removed segment has by then removed those before it.
    for segment in sorted(merged, key=lambda each: each.segment_id):
        for each in [each for each in bound if each.overlaps(segment)]:
            del bound[each]
        bound[segment] = merged[segment]


def find_gaps(bound: Iterable[Segment]) -> list[tuple[float, float]]:
    """Return the key ranges that no segment of a bound serves."""
    gaps = []
    covered = 0.0
    for segment in sorted(bound, key=lambda each: each.low):
        if segment.low > covered:
            gaps.append((covered, segment.low))
        covered = max(covered, segment.high)
    if covered < 1.0:
        gaps.append((covered, 1.0))
    return gaps


async def bound_cut(
    positions: Iterable[Position],
    last_cut: Position,
    segments_in: Callable[[int], Awaitable[Sequence[Segment]]],
) -> dict[Segment, int]:
    """Return a stream cut behind all the positions and behind the last watermark's cut.

    Where no writer wrote, it has the segments of the latest epoch that has writes, at their
    beginning. ``segments_in`` returns the segments of an epoch. There is at least one position.
    """
    known: dict[Segment, int] = {}
    for position in positions:
        for segment, offset in position.items():
            known[segment] = max(known.get(segment, 0), offset)
    bound: dict[Segment, int] = {}
    add_to_bound(bound, known)
    gaps = find_gaps(bound)
    bound.clear()
    for segment, offset in last_cut.items():
        known[segment] = max(known.get(segment, 0), offset)
    add_to_bound(bound, known)
    while bound:
        latest = await segments_in(max(segment.epoch for segment in bound))
        fill = [s for s in latest if any(s.low < high and low < s.high for low, high in gaps)]
        add_to_bound(bound, dict.fromkeys(fill, 0))
        gaps = find_gaps(bound)
        if not gaps:
            break
    return bound
