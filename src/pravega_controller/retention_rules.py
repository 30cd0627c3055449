"""The rules of retention: where a policy and its subscribers allow to truncate a stream.

Owns: the lower bound of several stream cuts, the bytes between two, and the choice of a cut.
Functions that the caller gives look up what is needed for that.

Cuts are compared key by key. One cut is before another if it is at or before it everywhere and they
differ; two cuts overlap if neither is at or before the other.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pravega_controller.streams import RetentionPolicy, RetentionType, Segment, StreamCut

INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StoredCut:
    """A cut at the tail that a stream had at some time. ``size`` counts the bytes before it from a
    position that is the same for all cuts of the stream."""

    time_ms: int
    size: int


FetchCut: TypeAlias = Callable[[StoredCut], Awaitable[StreamCut]]
"""Reads the cut of a stored entry, which may be long."""

IsAtOrAfter: TypeAlias = Callable[[StreamCut, StreamCut], Awaitable[bool]]
"""Returns whether the first cut is at or after the second one for every key."""


@dataclass(frozen=True, slots=True)
class Released:
    """The part that all subscribers have released: everything before ``cut``. ``kept_bytes`` lie
    between it and the latest stored cut.
    """

    cut: StreamCut
    kept_bytes: int


def lower_bound(segments: Mapping[int, Segment], cuts: Iterable[StreamCut]) -> dict[int, int]:
    """Return the latest cut that is, for every key, at or before each of the cuts.

    There is at least one cut; all are valid, and ``segments`` has the segments that they name.
    """
    lowest: dict[int, int] = {}
    for cut in cuts:
        for segment_id, offset in cut.items():
            lowest[segment_id] = min(offset, lowest.get(segment_id, offset))
    bound: dict[int, int] = {}
    covered: list[tuple[float, float]] = []
    for segment_id in sorted(lowest, key=lambda each: (segments[each].epoch, each)):
        segment = segments[segment_id]
        free = _uncovered(segment.low, segment.high, covered)
        if not free:
            continue
        # While a subscriber is in an older segment, this one is not certain to be begun by all.
        is_whole = free == [segment.key_range]
        bound[segment_id] = lowest[segment_id] if is_whole else -1
        covered = sorted([*covered, *free])
    return bound


def count_bytes(
    between: Iterable[int], start: StreamCut, end: StreamCut, lengths: StreamCut
) -> int:
    """Return the number of bytes between two cuts, of which the first is not behind the second.

    ``between`` are the segments with bytes between them; ``lengths`` has the lengths of those that
    the second cut does not name.
    """
    total = 0
    for segment_id in between:
        first = max(0, start.get(segment_id, 0))
        last = end[segment_id] if segment_id in end else lengths.get(segment_id, 0)
        total += max(0, last - first)
    return total


async def choose_truncation(
    policy: RetentionPolicy,
    stored: Sequence[StoredCut],
    fetch: FetchCut,
    released: Released | None,
    is_at_or_after: IsAtOrAfter,
    *,
    now_ms: int,
) -> StreamCut | None:
    """Return the cut to truncate a stream at, or None. ``stored`` is in order, the latest last."""
    if not stored:
        return None
    choice = _Choice(policy, stored, fetch, is_at_or_after, now_ms)
    if released is None:
        return None if choice.at_minimum is None else await fetch(choice.at_minimum)
    if policy.retention_type is RetentionType.SIZE:
        return await choice.by_size(released)
    return await choice.by_time(released)


class _Choice:
    """The stored cuts that matter to a policy, and the bounds that subscribers set."""

    def __init__(
        self,
        policy: RetentionPolicy,
        stored: Sequence[StoredCut],
        fetch: FetchCut,
        is_at_or_after: IsAtOrAfter,
        now_ms: int,
    ) -> None:
        self._policy = policy
        self._stored = stored
        self._fetch = fetch
        self._is_at_or_after = is_at_or_after
        self._now_ms = now_ms
        self._maximum = policy.maximum if 0 < policy.maximum < INT64_MAX else INT64_MAX
        values = [(self._value(each), each) for each in stored]
        enough = [pair for pair in values if pair[0] >= policy.minimum]
        fitting = [pair for pair in enough if pair[0] <= self._maximum]
        # The latest that keeps the minimum, and the earliest that keeps no more than the maximum.
        self.at_minimum = enough[-1][1] if enough else None
        self.at_maximum = fitting[0][1] if fitting else self.at_minimum

    async def by_size(self, released: Released) -> StreamCut | None:
        """Return the cut to truncate at, by the bytes that are kept: what subscribers need, at
        least the minimum, and at most the maximum if subscribers lag.
        """
        kept = released.kept_bytes
        if kept < self._policy.minimum:
            return await self._latest_released(released.cut)
        if kept >= self._maximum:
            limit = self.at_maximum
            if limit is not None and self._value(limit) < kept:
                return await self._fetch(limit)
        return released.cut

    async def by_time(self, released: Released) -> StreamCut | None:
        """Return the cut to truncate at like ``choose_truncation``, by the age of the kept data."""
        if self.at_minimum is None:
            return None
        if not await self._is_at_or_after(await self._fetch(self.at_minimum), released.cut):
            return await self._latest_released(released.cut)
        too_old = [each for each in self._stored if self._value(each) > self._maximum]
        if not too_old:
            return released.cut
        oldest_kept = await self._fetch(too_old[-1])
        if await self._is_at_or_after(released.cut, oldest_kept):
            return released.cut
        if self.at_maximum is not None and await self._is_at_or_after(oldest_kept, released.cut):
            return await self._fetch(self.at_maximum)
        return oldest_kept

    async def _latest_released(self, cut: StreamCut) -> StreamCut | None:
        """Return the latest stored cut that keeps the minimum and all that subscribers need."""
        usable = [each for each in self._stored if self._value(each) >= self._policy.minimum]
        low, high = 0, len(usable)
        found: StreamCut | None = None
        # Each stored cut is at or behind the one before it.
        while low < high:
            middle = (low + high) // 2
            candidate = await self._fetch(usable[middle])
            if await self._is_at_or_after(cut, candidate):
                found, low = candidate, middle + 1
            else:
                high = middle
        return found

    def _value(self, stored: StoredCut) -> int:
        """Return how much would be kept if the stream were truncated there."""
        if self._policy.retention_type is RetentionType.SIZE:
            return self._stored[-1].size - stored.size
        return self._now_ms - stored.time_ms


def _uncovered(
    low: float, high: float, covered: Sequence[tuple[float, float]]
) -> list[tuple[float, float]]:
    """Return the parts of a range that none of the others, ordered and disjoint, covers."""
    free = []
    for start, end in covered:
        if end <= low or high <= start:
            continue
        if low < start:
            free.append((low, start))
        low = end
    if low < high:
        free.append((low, high))
    return free
