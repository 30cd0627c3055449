"""The rules of watermarks: the writers that count, the time, and the stream cut.

Owns: comparing positions, choosing the writers, and the cut that is after all of their positions.
These are pure functions; the caller passes the segments.

A writer sends a mark: a time and a position. The position has the offset after the last event that
it had written by then, for each segment to which it wrote. So it does not cover all keys, as a
stream cut does.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pravega_controller.rules.streams import Segment

Position: TypeAlias = Mapping[Segment, int]
"""Segment -> offset. The segments may leave gaps, but do not overlap."""


@dataclass(frozen=True, slots=True)
class WriterState:
    """A writer's last time, and for how many seconds the last watermark has been after it."""

    time: int
    is_alive: bool
    lagging_seconds: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """The writers that do not count any more, and the bounds of the times of the others.

    ``is_complete`` is false while a writer that counts has not sent a time after the last
    watermark.
    """

    gone: tuple[str, ...]
    is_complete: bool
    lower: int = 0
    upper: int = 0


def goes_on(earlier: Mapping[int, int], later: Mapping[int, int]) -> bool:
    """Return whether a position can follow another: no offset of a common segment is lower."""
    return all(later[each] >= earlier[each] for each in earlier.keys() & later.keys())


def judge_writers(
    writers: Mapping[str, WriterState], last_lower: int | None, timeout_seconds: float
) -> Verdict:
    """Return which writers count for the next watermark, which is after ``last_lower``.

    A writer that has sent no later time is awaited for ``timeout_seconds``; then it does not count
    any more.
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
    """Advance a bound such that it is at or after a position; successors replace predecessors."""
    merged = dict(bound)
    for segment, offset in position.items():
        merged[segment] = max(merged.get(segment, 0), offset)
    bound.clear()
    # Visit segments in the order of epochs: a segment that a later one removes has already removed
    # its own predecessors.
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
    """Return a stream cut at or after all positions and the last watermark's cut.

    For keys that no writer wrote, the cut has the segments of the latest epoch to which one wrote,
    at their beginning. ``segments_in`` returns the segments of an epoch. There is at least one
    position.
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
