"""Makes connections that send much take turns while readers are behind.

Owns: ``BulkTurns``, one for all connections of an event loop: it knows whether readers are behind,
and has the queue of connections that wait for their turn to receive.

A reader is *behind* when a reply did not have all data of the segment. Such a reader waits for a
turn of the event loop with each request, and with each piece of a long reply, so long turns make it
slow. Without ``BulkTurns``, one turn with sixteen busy writers would receive megabytes.

Invariants:
1. While no reader is behind, no connection waits. Held by
   ``test_without_readers_that_are_behind_nobody_waits``.
2. When a reader got bytes and the segment has more, it counts as behind. Held by
   ``test_a_reader_with_more_to_read_is_behind``. After ``BEHIND_SECONDS`` it no longer does. Held
   by ``test_a_reader_counts_as_behind_for_a_while``.
3. While a reader is behind, connections that send much receive in the order in which they asked, at
   most ``bytes_max`` bytes in a turn of the event loop, but always one connection. So each gets its
   turn after a bounded number of others. Held by
   ``test_beside_readers_so_much_comes_in_a_turn_and_all_writers_get_on``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

BEHIND_SECONDS: Final = 0.05
"""Time, in seconds, for which a reader counts as behind: readers ask again within it."""


class BulkTurns:
    """See the module. With ``bytes_max`` 0, no connection waits. ``now`` is a monotonic clock."""

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
        """Wait until about ``count`` bytes may be received. A checkpoint if turns are needed."""
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
