"""Chooses when the bytes of a segment are flushed to tier 2.

Owns: ``FlushTiming``, which finds the segments that are due.

Invariants:
1. While at most ``few_segments`` segments of a container are unflushed, each waits
   ``flush_seconds``, however full the cache is. Held by
   ``test_few_segments_wait_as_long_whatever_is_held``.
2. With more segments, the fuller the cache is, the shorter a short flush waits, from
   ``flush_seconds_max`` down to 0 when writers would be slowed down. Held by
   ``test_many_segments_wait_the_less_the_more_is_held``.
3. When many segments are written at the same time, their flushes keep the cache below the size at
   which writers are slowed down. Held by
   ``test_many_segments_take_turns_when_their_bytes_fill_the_cache``.

Names of values are those of ``FlushPolicy``. A longer wait makes fewer files: a file costs the same
for few bytes as for many. Segments become due in the order in which their first unflushed operation
came, so their flushes are spread over the time of the wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf

from segstore.writer.flush_policy import FlushPolicy
from segstore.writer.segment_aggregator import SegmentAggregator


class FlushTiming:
    """Timing of one container's flushes.

    ``held_share`` returns the size of the unflushed bytes in the cache, divided by the size at
    which writers are slowed down.
    """

    def __init__(self, held_share: Callable[[], float], policy: FlushPolicy) -> None:
        self._held_share = held_share
        self._policy = policy
        self._everything_before = -inf
        self.log_is_long = False
        """True if the container keeps so many bytes of tier 1 from being freed that no flush waits
        longer than ``flush_seconds``."""

    def make_everything_due(self, now: float) -> None:
        """Make all operations that are unflushed at ``now`` due, in this round or a later one."""
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
        # With the square, the number of unflushed segments stays below BACKLOG_MAX, unless more
        # segments than that are written within flush_seconds.
        most = policy.flush_seconds_max * (policy.many_segments / count) ** 2
        longest = policy.flush_seconds if self.log_is_long else max(policy.flush_seconds, most)
        return min(seconds, longest)
