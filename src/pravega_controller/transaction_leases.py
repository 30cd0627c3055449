"""When leases end: one timer for all open transactions.

Owns: the order of deadlines. A renewal costs nothing: it only moves the lease's own end, and the
timer looks at that when the time comes at which the lease ended before.

Invariants:
1. Times are those of trio's monotonic clock; nothing here knows the time of day.
2. A lease is handed to ``expire`` at its end or later, never before.
3. Leases that ended early take no more room than those that run.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import trio

ROUND_SECONDS_MIN = 0.1
"""Leases that end within this time of each other are handed over together."""
LEFT_OVER_MAX = 1_000
"""So many leases that ended early may be kept at least until their time comes."""


class Lease(Protocol):
    """Something that ends unless it is renewed."""

    lease_end: float
    """By trio's clock."""

    @property
    def is_running(self) -> bool:
        """Whether the lease still matters to anybody."""


L = TypeVar("L", bound=Lease)


class LeaseTimer(Generic[L]):
    """Waits for the ends of leases."""

    def __init__(self, expire: Callable[[Sequence[L]], None]) -> None:
        self._expire = expire
        self._ends: list[tuple[float, int, L]] = []
        self._ties = itertools.count()
        self._left_over = 0
        self._is_earlier = trio.Event()

    def add(self, lease: L) -> None:
        """Watch a lease from now on; again, if it was made to end earlier than it was to."""
        is_first = not self._ends or lease.lease_end < self._ends[0][0]
        heapq.heappush(self._ends, (lease.lease_end, next(self._ties), lease))
        if is_first:
            self._is_earlier.set()

    def note_end(self) -> None:
        """Take note that a lease no longer runs although its time has not come."""
        self._left_over += 1
        if self._left_over > max(LEFT_OVER_MAX, len(self._ends) // 2):
            self._ends = [end for end in self._ends if end[2].is_running]
            heapq.heapify(self._ends)
            self._left_over = 0

    async def run(self) -> None:
        """Hand over what ends, for ever."""
        while True:
            self._is_earlier = trio.Event()
            end = self._ends[0][0] if self._ends else float("inf")
            with trio.move_on_at(end):
                await self._is_earlier.wait()
            if self._ends and self._ends[0][0] <= trio.current_time():
                self._expire(self._take())
                await trio.sleep(ROUND_SECONDS_MIN)

    def _take(self) -> list[L]:
        """The leases that have ended; those that were renewed are put back."""
        now = trio.current_time()
        # One that was made to end earlier is watched for both ends: it is handed over once.
        ended: dict[int, L] = {}
        while self._ends and self._ends[0][0] <= now:
            _, tie, lease = heapq.heappop(self._ends)
            if not lease.is_running:
                self._left_over = max(0, self._left_over - 1)
                continue
            if lease.lease_end <= now:
                ended[id(lease)] = lease
            else:
                heapq.heappush(self._ends, (lease.lease_end, tie, lease))
        return list(ended.values())
