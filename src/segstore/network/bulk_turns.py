"""Shares the processor while readers are behind: connections that send much wait for each other.

Owns: ``BulkTurns``, one for all connections of an event loop: whether readers are behind, and the
turns of those that would otherwise all be received from in one turn of the event loop.

A reader that is behind waits for a turn of the event loop with each request and with each piece of
a long reply, and so gets the less the longer a turn is. With sixteen writers that are never done,
a turn would receive megabytes.

Invariants:
1. While no reader is behind, no connection waits.
2. A reader counts as behind for ``BEHIND_SECONDS`` after it got bytes with more behind them.
3. While one is, connections that send much are let through in the order in which they asked, until
   ``bytes_max`` bytes are; the next ones when these have received. One is always let through: every
   writer gets on, a bounded number of turns later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

BEHIND_SECONDS: Final = 0.05
"""Time, in seconds, that is longer than a reader takes to ask again."""


class BulkTurns:
    """See the module. ``bytes_max`` is 0 where no connection shall wait; ``now`` is a steady
    clock."""

    def __init__(self, bytes_max: int, now: Callable[[], float] = trio.current_time) -> None:
        self._bytes_max = bytes_max
        self._now = now
        self._behind_until = -1.0
        self._admitted_bytes = 0
        self._waiting: deque[_WaitingReceive] = deque()

    def reader_is_behind(self) -> None:
        """Remember that a reader got bytes just now, and has more to read."""
        self._behind_until = self._now() + BEHIND_SECONDS

    @property
    def are_needed(self) -> bool:
        """Return whether connections that send much have to wait for each other now."""
        return self._bytes_max > 0 and self._now() < self._behind_until

    async def wait_for_turn(self, count: int) -> None:
        """Return when about ``count`` bytes may be received; a checkpoint if turns are needed."""
        if not self.are_needed:
            return
        if self._waiting or not self._has_room(count):
            await self._wait(count)
        else:
            self._admitted_bytes += count
        try:
            await trio.lowlevel.checkpoint()
        finally:
            self._leave(count)

    def _has_room(self, count: int) -> bool:
        return not self._admitted_bytes or self._admitted_bytes + count <= self._bytes_max

    async def _wait(self, count: int) -> None:
        self._waiting.append(waiting := _WaitingReceive(count))
        try:
            await waiting.admitted.wait()
        except BaseException:
            if waiting.admitted.is_set():
                self._leave(count)
            else:
                self._waiting.remove(waiting)
            raise

    def _leave(self, count: int) -> None:
        self._admitted_bytes -= count
        while self._waiting and self._has_room(self._waiting[0].count):
            admitted = self._waiting.popleft()
            self._admitted_bytes += admitted.count
            admitted.admitted.set()


class _WaitingReceive:
    __slots__ = ("admitted", "count")

    def __init__(self, count: int) -> None:
        self.count = count
        self.admitted = trio.Event()
