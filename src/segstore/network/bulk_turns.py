"""Who gets the processor while readers are behind: writers that send much take turns.

Owns: ``BulkTurns``, one for all connections of an event loop: whether readers are behind, and the
turns of those that would otherwise all be received from in one turn of the event loop.

A reader that is behind waits for a turn of the event loop with each request and with each piece of
a long reply, and so gets the less the longer a turn is. With sixteen writers that are never done,
a turn would take up megabytes.

Invariants:
1. While no reader is behind, nobody waits.
2. A reader counts as behind for ``BEHIND_SECONDS`` after it got bytes with more behind them.
3. While one is, at most ``places`` bulk receives happen in a turn of the event loop, in the order
   in which they were asked for: every writer gets on, a bounded number of turns later.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import trio

BEHIND_SECONDS: Final = 0.05
"""Longer than a reader takes to ask again."""
BULK_BYTES_MIN: Final = 64 * 1024
"""A connection from which that much came at once is one that sends much."""


class BulkTurns:
    """See the module. ``places`` is 0 where nobody shall wait; ``now`` is a steady clock."""

    def __init__(self, places: int, now: Callable[[], float] = trio.current_time) -> None:
        self._limiter = trio.CapacityLimiter(places) if places else None
        self._now = now
        self._behind_until = -1.0

    def note_behind(self) -> None:
        """Note that a reader got bytes, and has more to read."""
        self._behind_until = self._now() + BEHIND_SECONDS

    @property
    def are_needed(self) -> bool:
        """Whether those that send much have to take turns now."""
        return self._limiter is not None and self._now() < self._behind_until

    async def take(self) -> None:
        """Return when it is the caller's turn; a checkpoint if that is needed at all."""
        if self._limiter is not None and self.are_needed:
            async with self._limiter:
                await trio.lowlevel.checkpoint()
