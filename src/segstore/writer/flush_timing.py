"""Chooses when the bytes of a segment are flushed to tier 2.

Owns: ``FlushTiming``, which tells the segments that are due.

Invariants (values are those of ``FlushPolicy``):
1. While at most ``few_segments`` of a container are unflushed, each waits ``flush_seconds``,
   however full the cache is.
2. With more segments, short flushes wait longer while the cache has room, at most
   ``flush_seconds_max``, because a file costs the same for few bytes as for many. The fuller the
   cache, the shorter the wait; there is none when writers are about to be slowed down.
3. Segments become due in the order in which they became unflushed. All wait equally long, so
   flushes are spread over that time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from segstore.writer.flush_policy import FlushPolicy
from segstore.writer.segment_aggregator import SegmentAggregator


class FlushTiming:
    """Timing of one container's flushes.

    ``held_share`` returns how much of the cache is unflushed, as a share of the amount at which
    writers are slowed down.
    """

    def __init__(self, held_share: Callable[[], float], policy: FlushPolicy) -> None:
        self._held_share = held_share
        self._policy = policy
        self._everything_before = -inf
        self.log_is_long = False
        """True if the container holds so much of tier 1 that no flush may wait for more bytes."""

    def make_everything_due(self, now: float) -> None:
        """Make everything that is unflushed at ``now`` due, in this round or a later one."""
        self._everything_before = now

    def due(
        self, aggregators: Mapping[int, SegmentAggregator], now: float, *, everything: bool
    ) -> Iterable[SegmentAggregator]:
        """Return the aggregators that are due, in insertion order."""
        policy = self._policy
        seconds = 0.0 if everything else self.seconds(len(aggregators))
        before = max(self._everything_before, now - seconds)
        long_before = max(before, now - policy.flush_seconds)
        short_bytes_max, flush_bytes = policy.short_bytes_max, policy.flush_bytes
        return (
            each
            for each in aggregators.values()
            if each.must_flush
            or each.pending_bytes >= flush_bytes
            or each.oldest <= (before if each.pending_bytes <= short_bytes_max else long_before)
        )

    def seconds(self, count: int) -> float:
        """Return how long a short flush waits while ``count`` segments are unflushed."""
        policy = self._policy
        if count <= policy.few_segments:
            return policy.flush_seconds
        seconds = policy.flush_seconds_max * max(0.0, 1.0 - self._held_share())
        # The square keeps the number of unflushed segments below BACKLOG_MAX, unless more than
        # that are written within flush_seconds.
        most = policy.flush_seconds_max * (policy.many_segments / count) ** 2
        longest = policy.flush_seconds if self.log_is_long else max(policy.flush_seconds, most)
        return min(seconds, longest)
