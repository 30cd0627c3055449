"""Back-pressure: bounds the requests without a reply, and the payload bytes that are not yet
durable.

Owns: the maximum number of requests of a connection, and the maximum numbers of such bytes of a
connection, of a container and in total. When one is reached, the server leaves further bytes in the
sockets.

A container has two *shares* of the bytes in total: one for the segments of users, one for
``_system/`` segments.

Invariants:
1. The more bytes all connections have, the fewer one of them may have. Held by
   ``test_the_more_all_have_the_less_one_may_have``. But a connection may always have its first
   ``outstanding_bytes_free`` bytes while its containers have room. Held by
   ``test_the_first_bytes_are_free``.
2. When ``n`` shares release nothing, ``1 / (n + 1)`` of the bytes stays free for the others: a
   share may have as many bytes as are left for all others. Held by
   ``test_containers_that_stand_still_leave_room_for_the_others``.
3. When a share has no bytes, it may have one command, however many bytes the others have. Held by
   ``test_a_share_without_bytes_has_room_for_one_command_of_any_length``. So when a container stands
   still, only connections that write to it wait. Held by
   ``test_a_stopped_container_stops_no_connection_of_another``.
4. When bytes of a share are released, commands that wait for the share check again. Held by
   ``test_a_release_on_the_share_wakes_those_who_wait_for_it_and_no_others``. When bytes of a
   connection are released, its waiting command checks again. Held by
   ``test_a_release_of_the_connection_wakes_it``. One of the two always comes, because what waits
   has bytes of its own, or its share has.
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
        """Wait until a command with a payload of that length may be accepted."""
        while not self.has_room(length):
            await _wait(self.waiting)


class OutstandingRequests:
    """The requests of one connection that are not answered yet, and the bytes of their payloads.

    ``append_count`` is counted by the append processor. Reads do not count, because nothing waits
    for them.
    """

    __slots__ = (
        "_request_bytes",
        "_shared_max",
        "_waiting",
        "append_count",
        "count",
        "free",
        "request_count",
        "requests_max",
        "total",
    )

    def __init__(self, total: OutstandingTotal) -> None:
        settings = total.settings
        self.total = total
        self.free: Final = max(1, settings.outstanding_bytes_free)
        """Number of bytes below which the connection is not full. So a connection that waits has
        bytes whose release wakes it."""
        self.requests_max: Final = settings.requests_max
        self._shared_max = 2 * settings.outstanding_bytes_max
        self._waiting: set[trio.Event] = set()
        self._request_bytes: dict[Share, int] = {}
        self.count = 0
        self.append_count = 0
        self.request_count = 0

    def share_of(self, segment: str) -> Share:
        """Return the share of a segment's container."""
        return self.total.share_of(segment)

    def add(self, count: int, share: Share) -> None:
        """Count bytes that were received."""
        self.count += count
        share.count += count
        self.total.total += count

    def release(self, count: int, share: Share) -> None:
        """Release bytes that are durable or were refused."""
        self.count -= count
        share.count -= count
        self.total.total -= count
        if self._waiting:
            _wake(self._waiting)
        if share.waiting:
            _wake(share.waiting)

    def add_request(self, count: int, share: Share | None) -> None:
        """Count a request, with the bytes of its payload in a share if it has some."""
        self.request_count += 1
        if share is not None:
            self._request_bytes[share] = self._request_bytes.get(share, 0) + count
            self.add(count, share)

    def release_request(self, count: int, share: Share | None) -> None:
        """Release a request that was answered."""
        self.request_count -= 1
        if share is not None:
            self._request_bytes[share] -= count
            self.release(count, share)
        elif self._waiting:
            _wake(self._waiting)

    def release_requests(self) -> None:
        """Release the bytes of all requests. Requests that have not begun will never begin."""
        for share, count in self._request_bytes.items():
            self.release(count, share)
        self._request_bytes.clear()

    @property
    def is_empty(self) -> bool:
        """Return whether all requests and appends are answered."""
        return not self.request_count and not self.append_count

    @property
    def is_full(self) -> bool:
        """Return whether nothing more of this connection should be accepted."""
        return self.request_count >= self.requests_max or (
            self.free <= self.count >= self._shared_max - self.total.total
        )

    @property
    def is_tight(self) -> bool:
        """Return whether a share may have no room for its next command."""
        return self.total.total >= self.total.tight_from

    async def wait_for_room(self) -> None:
        """Wait until the connection is not full."""
        while self.is_full:
            await _wait(self._waiting)

    async def wait_for_change(self) -> None:
        """Wait until a request or an append is answered."""
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
