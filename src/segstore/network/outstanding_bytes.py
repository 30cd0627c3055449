"""Back-pressure: payload bytes that were received and are not yet durable.

Owns: how many such bytes a connection, a container and all of them together may have before the
server leaves the rest in their sockets.

Invariants:
1. Every connection may have its first ``outstanding_bytes_free`` bytes as long as its containers
   have room. The more all of them have, the less one of them may have.
2. A container has a share for what users send and one for ``_system/`` segments. A share may have
   as much as is left for all others: ``n`` shares that stand still leave ``1 / (n + 1)`` free.
3. A share without bytes may always have one command, whatever the others have: what stands still
   stops only connections that write there.
4. Whoever waits is woken by the release that makes room, and looks again. It has bytes of its own
   to be released, or its share has: no command waits for other connections.
"""

from __future__ import annotations

from typing import Final

import trio

from pravega_wire.commands import COMMAND_BYTES_MAX
from pravega_wire.names import SYSTEM_PREFIX, container_of
from segstore.process.config import ConnectionSettings


class OutstandingTotal:
    """The bytes of all connections, and the shares of ``container_count`` containers in them."""

    def __init__(self, settings: ConnectionSettings, container_count: int = 1) -> None:
        self.settings = settings
        self.total = 0
        self.total_max: Final = settings.outstanding_bytes_total_max
        self.tight_from: Final = (self.total_max - COMMAND_BYTES_MAX) // 2
        """Number of bytes in total below which every share has room for any command."""
        self._users = [Share(self) for _ in range(container_count)]
        self._system = [Share(self) for _ in range(container_count)]

    def share_of(self, segment: str) -> Share:
        """Return the share of a segment's container."""
        shares = self._system if segment.startswith(SYSTEM_PREFIX) else self._users
        return shares[container_of(segment, len(shares)) % len(shares)]


class Share:
    """The bytes of one container, on all connections."""

    __slots__ = ("_total", "count", "waiting")

    def __init__(self, total: OutstandingTotal) -> None:
        self._total = total
        self.count = 0
        self.waiting: set[trio.Event] = set()

    def has_room(self, length: int) -> bool:
        """Return whether a command with a payload of that length may be accepted."""
        total = self._total
        return not self.count or self.count + length <= total.total_max - total.total

    async def wait_for_room(self, length: int) -> None:
        """Return when such a command may be accepted."""
        while not self.has_room(length):
            await _wait(self.waiting)


class OutstandingBytes:
    """The bytes of one connection."""

    __slots__ = ("_shared_max", "_total", "_waiting", "count", "free")

    def __init__(self, total: OutstandingTotal) -> None:
        settings = total.settings
        self._total = total
        self.free: Final = max(1, settings.outstanding_bytes_free)
        """Number of bytes below which the connection is not full, so that a waiting command has
        something to be released."""
        self._shared_max = 2 * settings.outstanding_bytes_max
        self._waiting: set[trio.Event] = set()
        self.count = 0

    def share_of(self, segment: str) -> Share:
        """Return the share of a segment's container."""
        return self._total.share_of(segment)

    def add(self, count: int, share: Share) -> None:
        """Count bytes that were received."""
        self.count += count
        share.count += count
        self._total.total += count

    def release(self, count: int, share: Share) -> None:
        """Count bytes no longer, which are durable or refused."""
        self.count -= count
        share.count -= count
        self._total.total -= count
        if self._waiting:
            _wake(self._waiting)
        if share.waiting:
            _wake(share.waiting)

    @property
    def is_full(self) -> bool:
        """Return whether nothing more of this connection should be accepted."""
        return self.free <= self.count >= self._shared_max - self._total.total

    @property
    def is_tight(self) -> bool:
        """Return whether a share may have no room for its next command."""
        return self._total.total >= self._total.tight_from

    async def wait_for_room(self) -> None:
        """Return when the connection may go on."""
        while self.is_full:
            await _wait(self._waiting)


async def _wait(waiting: set[trio.Event]) -> None:
    event = trio.Event()
    waiting.add(event)
    try:
        await event.wait()
    finally:
        waiting.discard(event)


def _wake(waiting: set[trio.Event]) -> None:
    for event in waiting:
        event.set()
    waiting.clear()
