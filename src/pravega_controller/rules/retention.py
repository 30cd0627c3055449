"""The rules of retention: where a policy and its subscribers allow to truncate a stream.

Owns: the lower bound of several stream cuts, the number of bytes between two cuts, and the choice
of the cut at which a stream is truncated. The caller passes functions that read cuts and compare
them.

One cut is at or before another if it is so for every key. Example: a policy by size keeps at least
200 bytes, and for lagging subscribers up to 400. The stream has stored cuts at the sizes 0, 150,
300 and 500, its tail. Truncating at them keeps 500, 350, 200 and 0 bytes.

    subscribers                              truncated    bytes kept
    none                                     at 300       200
    have released all but the last 250       at 250       250          as they released it
    have released all but the last 450       at 150       350          more than 400 is not kept
    have released all but the last 50        at 300       200          less than 200 is not kept
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from pravega_controller.rules.streams import RetentionPolicy, RetentionType, Segment, StreamCut

INT64_MAX = 2**63 - 1


@dataclass(frozen=True, slots=True)
class StoredCut:
    """A cut that was the stream's tail at ``time_ms``. ``size`` is the number of bytes before it,
    counted from a position that is the same for all cuts of the stream."""

    time_ms: int
    size: int


FetchCut: TypeAlias = Callable[[StoredCut], Awaitable[StreamCut]]
"""Reads a stored cut. It is read when it is needed, because it may have thousands of segments."""

IsAtOrAfter: TypeAlias = Callable[[StreamCut, StreamCut], Awaitable[bool]]
"""Returns whether the first cut is at or after the second one for every key."""


@dataclass(frozen=True, slots=True)
class Released:
    """The cut up to which all subscribers have released the stream. ``kept_bytes`` is the number of
    bytes between it and the latest stored cut.
    """

    cut: StreamCut
    kept_bytes: int


def lower_bound(segments: Mapping[int, Segment], cuts: Sequence[StreamCut]) -> dict[int, int]:
    """Return the latest cut that is, for every key, at or before each of the cuts.

    There is at least one cut; all are valid, and ``segments`` has the segments that they name. Each
    cut lies behind a segment for all keys of it, or for none (``refuse_partly_read``). So the first
    key of a segment tells whether some cut is still in an older one.
    """
    by_key = [sorted((segments[each] for each in cut), key=lambda one: one.low) for cut in cuts]
    tilings = [([each.low for each in ordered], ordered) for ordered in by_key]
    bound: dict[int, int] = {}
    for cut in cuts:
        for segment_id, offset in cut.items():
            low, epoch = segments[segment_id].low, segments[segment_id].epoch
            if segment_id in bound:
                bound[segment_id] = min(offset, bound[segment_id])
            elif all(
                ordered[bisect_right(lows, low) - 1].epoch >= epoch for lows, ordered in tilings
            ):
                bound[segment_id] = offset
    return bound


def count_bytes(
    between: Iterable[int], start: StreamCut, end: StreamCut, lengths: StreamCut
) -> int:
    """Return the number of bytes between two cuts; ``start`` is at or before ``end``.

    ``between`` are the segments with bytes between them; ``lengths`` has the lengths of those
    segments that ``end`` does not name.
    """
    total = 0
    for segment_id in between:
        first = start.get(segment_id, 0)
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
    """Return the cut at which to truncate a stream; None for no truncation.

    ``stored`` is in order, the latest last; ``released`` is None if no subscriber has released any.
    """
    if not stored:
        return None
    choice = _Choice(policy, stored, fetch, is_at_or_after, now_ms)
    if released is None:
        return None if choice.at_minimum is None else await fetch(choice.at_minimum)
    if policy.retention_type is RetentionType.SIZE:
        return await choice.by_size(released)
    return await choice.by_time(released)


class _Choice:
    """The choice of a cut among the stored ones, by a policy and by what subscribers released."""

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
        # The latest cut that keeps the minimum, and the earliest that keeps the maximum at most.
        self.at_minimum = enough[-1][1] if enough else None
        self.at_maximum = fitting[0][1] if fitting else self.at_minimum

    async def by_size(self, released: Released) -> StreamCut | None:
        """Return the cut at which to truncate by a policy of bytes.

        It keeps what subscribers need, but at least the minimum, and at most the maximum.
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
        """Return the cut at which to truncate by a policy of ages, as ``by_size`` does."""
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
        # Each stored cut is at or after the one before it, so search by bisection.
        while low < high:
            middle = (low + high) // 2
            candidate = await self._fetch(usable[middle])
            if await self._is_at_or_after(cut, candidate):
                found, low = candidate, middle + 1
            else:
                high = middle
        return found

    def _value(self, stored: StoredCut) -> int:
        """Return how many bytes or milliseconds are kept if the stream is truncated at a cut."""
        if self._policy.retention_type is RetentionType.SIZE:
            return self._stored[-1].size - stored.size
        return self._now_ms - stored.time_ms
