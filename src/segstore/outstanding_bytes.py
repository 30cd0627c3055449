"""Back-pressure: payload bytes that were received and are not yet durable.

Owns: how many such bytes a connection, and all of them together, may have before the server leaves
the rest in their sockets.

Invariants:
1. Every connection may have its first ``outstanding_bytes_free`` bytes unless the total is full.
2. The more all of them have, the less one of them may have.
3. Whoever waits is woken by the release that makes room, and looks again.
"""

from __future__ import annotations

import trio

from segstore.config import ConnectionSettings


class OutstandingTotal:
    """The bytes of all connections."""

    def __init__(self, settings: ConnectionSettings) -> None:
        self.settings = settings
        self.total = 0
        self.waiting: set[trio.Event] = set()


class OutstandingBytes:
    """The bytes of one connection."""

    __slots__ = ("_free", "_shared_max", "_total", "_total_max", "count")

    def __init__(self, total: OutstandingTotal) -> None:
        settings = total.settings
        self._total = total
        self._free = settings.outstanding_bytes_free
        self._shared_max = 2 * settings.outstanding_bytes_max
        self._total_max = settings.outstanding_bytes_total_max
        self.count = 0

    def add(self, count: int) -> None:
        """Note bytes that were received."""
        self.count += count
        self._total.total += count

    def release(self, count: int) -> None:
        """Note bytes that are durable or refused."""
        self.count -= count
        total = self._total
        total.total -= count
        if total.waiting:
            waiting, total.waiting = total.waiting, set()
            for event in waiting:
                event.set()

    @property
    def is_full(self) -> bool:
        """Whether nothing more of this connection should be taken up."""
        total = self._total.total
        return total >= self._total_max or self._free <= self.count >= self._shared_max - total

    async def wait_for_room(self) -> None:
        """Return when the connection may go on."""
        while self.is_full:
            event = trio.Event()
            self._total.waiting.add(event)
            try:
                await event.wait()
            finally:
                self._total.waiting.discard(event)
