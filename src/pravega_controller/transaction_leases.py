"""Watches the ends of leases: one timer for all open transactions.

Owns: the order of deadlines. A renewal costs nothing: it only moves the lease's own end, at which
the timer looks when the lease's earlier end has come.

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
"""Minimum interval of rounds, in seconds: leases that end within it are handed over together."""
LEFT_OVER_MAX = 1_000
"""Maximum number of leases that ended early and are kept until their time comes."""


class Lease(Protocol):
    """Something that ends unless it is renewed."""

    lease_end: float
    """Time, by trio's clock."""

    @property
    def is_running(self) -> bool:
        """Return whether the lease still matters."""


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
        """Watch a lease from now on; call this again if its end was moved to an earlier time."""
        is_first = not self._ends or lease.lease_end < self._ends[0][0]
        heapq.heappush(self._ends, (lease.lease_end, next(self._ties), lease))
        if is_first:
            self._is_earlier.set()

    def count_early_end(self) -> None:
        """Count a lease that ended before its time came; remove such leases when there are too
        many.
        """
        self._left_over += 1
        if self._left_over > max(LEFT_OVER_MAX, len(self._ends) // 2):
            self._ends = [end for end in self._ends if end[2].is_running]
            heapq.heapify(self._ends)
            self._left_over = 0

    async def run(self) -> None:
        """Call ``expire`` with the leases that end, forever."""
        while True:
            self._is_earlier = trio.Event()
            end = self._ends[0][0] if self._ends else float("inf")
            with trio.move_on_at(end):
                await self._is_earlier.wait()
            if self._ends and self._ends[0][0] <= trio.current_time():
                self._expire(self._remove_due())
                await trio.sleep(ROUND_SECONDS_MIN)

    def _remove_due(self) -> list[L]:
        """Remove and return the leases that have ended; put those that were renewed back."""
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
