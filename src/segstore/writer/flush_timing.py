"""When the bytes of a segment go to tier 2.

Owns: ``FlushTiming``, which tells which segments are due.

Invariants:
1. Up to ``FEW_SEGMENTS`` of a container that owe something wait ``FLUSH_SECONDS`` each, whatever
   else is held.
2. With more, short flushes wait for longer while there is room, at most ``FLUSH_SECONDS_MAX``: a
   file costs as much for few bytes as for many. The more of the cache tier 2 lacks the less they
   wait, and not at all when writers are about to be slowed down.
3. Those that owe for the longest time are due first: the wait of one is that of all, and flushes
   spread over it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from math import inf
from typing import Final

from segstore.writer.segment_aggregator import SegmentAggregator

# The original's writer: flush at 4 MiB or after 30 s; bytes of few segments after 5 s here, so that
# a restart replays less.
FLUSH_BYTES: Final = 4 * 1024 * 1024
FLUSH_SECONDS: Final = 5.0
FLUSH_SECONDS_MAX: Final = 30.0
FEW_SEGMENTS: Final = 256
MANY_SEGMENTS: Final = 2_500
"""With more of a container their wait is shorter again: what owes bytes cannot leave memory, and
with ``BACKLOG_MAX`` of them nobody can."""
SHORT_BYTES_MAX: Final = 256 * 1024
"""Flushes up to this length are under way together: what they take is the wait for the disk."""


class FlushTiming:
    """Of one container. ``held_share`` tells how much of the cache tier 2 lacks, as a share of that
    from which on writers are slowed down."""

    def __init__(self, held_share: Callable[[], float]) -> None:
        self._held_share = held_share
        self._everything_before = -inf
        self.log_is_long = False
        """Whether so much of tier 1 is held that nothing shall wait for more bytes."""

    def want_everything(self, now: float) -> None:
        """Whatever is owed now is due, also later."""
        self._everything_before = now

    def due(
        self, aggregators: Mapping[int, SegmentAggregator], now: float, *, everything: bool
    ) -> Iterable[SegmentAggregator]:
        """Those of them that shall write, in their order."""
        seconds = 0.0 if everything else self.seconds(len(aggregators))
        before = max(self._everything_before, now - seconds)
        long_before = max(before, now - FLUSH_SECONDS)
        return (
            each
            for each in aggregators.values()
            if each.must_flush
            or each.pending_bytes >= FLUSH_BYTES
            or each.oldest <= (before if each.pending_bytes <= SHORT_BYTES_MAX else long_before)
        )

    def seconds(self, count: int) -> float:
        """How long a short flush waits for more bytes when so many segments owe some."""
        if count <= FEW_SEGMENTS:
            return FLUSH_SECONDS
        seconds = FLUSH_SECONDS_MAX * max(0.0, 1.0 - self._held_share())
        # With the square what is owed stays below that, unless it did not after FLUSH_SECONDS.
        most = FLUSH_SECONDS_MAX * (MANY_SEGMENTS / count) ** 2
        return min(seconds, FLUSH_SECONDS if self.log_is_long else max(FLUSH_SECONDS, most))
