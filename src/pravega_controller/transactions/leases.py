"""Watches the ends of leases: one timer for all open transactions.

Owns: the order of deadlines. All times are by trio's monotonic clock. A renewal only changes the
end in the lease; when the earlier end comes, the timer reads the new one.

Invariants:
1. When a lease is renewed, ``expire`` gets it at its new end or later, never earlier.
   Held by ``test_a_lease_ends_at_its_end_and_no_earlier``.
2. When many transactions end before their leases do, their leases take at most as much memory as
   the running ones, or as ``LEFT_OVER_MAX`` leases.
   Held by ``test_leases_that_ended_early_take_no_room``.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

import trio

ROUND_SECONDS_MIN = 0.1
"""Minimum interval, in seconds, between two calls of ``expire``. Leases that end within it are
passed together."""
LEFT_OVER_MAX = 1_000
"""Number of leases that ended early and may be kept until their deadlines."""


class Lease(Protocol):
    """Something that ends unless it is renewed."""

    lease_end: float
    """The time of its end, by trio's clock."""

    @property
    def is_running(self) -> bool:
        """Return whether the end of the lease would have an effect."""


L = TypeVar("L", bound=Lease)


class LeaseTimer(Generic[L]):
    """Waits for the ends of leases."""

    def __init__(self) -> None:
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
        """Count a lease that ended before its deadline; if there are too many, remove them all."""
        self._left_over += 1
        if self._left_over > max(LEFT_OVER_MAX, len(self._ends) // 2):
            self._ends = [end for end in self._ends if end[2].is_running]
            heapq.heapify(self._ends)
            self._left_over = 0

    async def run(self, expire: Callable[[Sequence[L]], None]) -> None:
        """Call ``expire`` with the leases that have ended; runs forever."""
        while True:
            self._is_earlier = trio.Event()
            end = self._ends[0][0] if self._ends else float("inf")
            with trio.move_on_at(end):
                await self._is_earlier.wait()
            if self._ends and self._ends[0][0] <= trio.current_time():
                expire(self._remove_due())
                await trio.sleep(ROUND_SECONDS_MIN)

    def _remove_due(self) -> list[L]:
        """Remove and return the leases that have ended; keep watching those that were renewed."""
        now = trio.current_time()
        # A lease whose end was moved to an earlier time is in the heap twice: return it once.
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
