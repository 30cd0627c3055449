"""Bounds the bytes in the buffers of all connections of a process: replies on their way out,
commands on their way in.

Owns: how many such bytes there may be together, and who waits for whom when there are more.

Invariants:
1. The longer the unsent replies of all connections, the shorter the next reply to a read. Nobody
   waits for replies that another peer does not take.
2. A command longer than ``COMMAND_BYTES_FREE`` is received when its bytes are reserved. Whoever has
   a reservation can receive the whole command, so that it ends or its peer is found to be stalled.
3. Reservations are made in the order in which they were asked for, those for commands of up to
   ``COMMAND_BYTES_USUAL`` before longer ones, which leave them some room. One that grows goes
   first: its owner holds what others wait for.
4. Long replies that are being made reserve by shares: each may have as much as is left for all
   others, and one reply always. What waits for a container that stands still keeps replies about
   its own segments from being made, and no others.
5. In one turn of the event loop at most ``PLACES`` pieces of long replies are made or sent.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Final

import trio

from pravega_wire.commands import COMMAND_BYTES_MAX
from segstore.process.config import ConnectionSettings

KIB: Final = 1024
MIB: Final = 1024 * KIB

COMMAND_BYTES_FREE: Final = 32 * KIB
"""Maximum size, in bytes, of an incomplete command that needs no reservation."""
COMMAND_BYTES_USUAL: Final = 2 * MIB
"""Size, in bytes, that a usual command does not exceed: official clients end an append block after
1 MiB, unless an event is longer."""
USUAL_ROOM: Final = 4 * COMMAND_BYTES_USUAL
"""Room, in bytes, that longer commands leave for usual ones."""
REPLY_BYTES_FREE: Final = 16 * KIB
"""Number of bytes of unsent replies that a connection may have whatever the others have."""
READ_BYTES_MAX: Final = 2 * MIB
"""Maximum length, in bytes, of one reply to a read."""
READ_BYTES_SHORT: Final = 16 * KIB
"""Maximum length, in bytes, of one reply to a read when all unsent replies use what they may."""
LARGE_REPLY_PAUSE_SECONDS: Final = 0.05
PLACES: Final = 8


class ReplyBytes:
    """The unsent replies of all connections."""

    __slots__ = ("at_once_max", "count", "count_max", "places")

    def __init__(self, count_max: int) -> None:
        self.count = 0
        self.count_max = count_max
        self.at_once_max = count_max // 2
        """Maximum number of long replies at which reads that waited are answered at once; with
        more, one after the other."""
        self.places = trio.CapacityLimiter(PLACES)

    @property
    def read_bytes_max(self) -> int:
        """Return how long a reply to a read may be now."""
        room = (self.count_max - self.count) // 8
        return max(READ_BYTES_SHORT, min(READ_BYTES_MAX, room))

    async def wait_for_large(self) -> None:
        """Return when a reply may be made that cannot become shorter."""
        # Reads leave room for it, and what other peers do not take ends their connections.
        while self.count >= 2 * self.count_max:  # noqa: ASYNC110 (every sent reply would have to tell)
            await trio.sleep(LARGE_REPLY_PAUSE_SECONDS)

    async def wait_for_turn(self) -> None:
        """Return when it is the caller's turn to send a piece of a long reply."""
        async with self.places:
            pass


class Reservations:
    """Bytes that are reserved, up to ``count_max`` together, and who waits for some.

    ``on_waiting_changed`` is called when the first one begins to wait, and when none waits any
    more. ``others`` tells what is taken besides, and ``wake_others`` is called when they may have
    more.
    """

    def __init__(
        self,
        count_max: int,
        on_waiting_changed: Callable[[bool], None] = lambda waiting: None,
        others: Callable[[], int] = lambda: 0,
        wake_others: Callable[[], None] = lambda: None,
    ) -> None:
        self.count = 0
        self._count_max = count_max
        self._others = others
        self._wake_others = wake_others
        self._on_waiting_changed = on_waiting_changed
        self._waiting: deque[_Waiting] = deque()
        self._waiting_long: deque[_Waiting] = deque()
        self._over: Reservation | None = None
        self._wait_began = trio.Event()
        self.holders: dict[Reservation, None] = {}
        """The reservations that are not empty."""

    @property
    def are_waited_for(self) -> bool:
        """Return whether a reservation waits."""
        return bool(self._waiting or self._waiting_long)

    def grant(self, reservation: Reservation, count: int) -> bool:
        """Grow a reservation to ``count`` bytes, if it may now; return whether it did."""
        more = count - reservation.count
        left = 0 if count <= COMMAND_BYTES_USUAL else USUAL_ROOM
        if self.count and self.count + more > self._count_max - self._others() - left:
            # Whoever has some may have the rest of one command beyond the bound, one at a time:
            # otherwise several could wait for each other.
            if not reservation.count or self._over not in (None, reservation):
                return False
            self._over = reservation
        self.count += more
        reservation.count = count
        self.holders[reservation] = None
        return True

    def release(self, reservation: Reservation) -> None:
        """End a reservation and free its bytes."""
        self.count -= reservation.count
        reservation.count = 0
        del self.holders[reservation]
        if self._over is reservation:
            self._over = None
        self.wake()
        self._wake_others()

    async def wait(self, reservation: Reservation, count: int) -> None:
        """Return when the reservation has ``count`` bytes."""
        waiting = _Waiting(reservation, count)
        queue = self._waiting if count <= COMMAND_BYTES_USUAL else self._waiting_long
        if reservation.count:
            queue.appendleft(waiting)
        else:
            queue.append(waiting)
        self._on_waiting_changed(True)
        self._wait_began.set()
        try:
            await waiting.granted.wait()
        finally:
            if not waiting.granted.is_set():
                queue.remove(waiting)
                self.wake()

    async def wait_until_waited_for(self) -> None:
        """Wait until a reservation waits."""
        if not self.are_waited_for:
            self._wait_began = trio.Event()
            await self._wait_began.wait()

    def may_go_first(self, count: int) -> bool:
        """Return whether no earlier reservation waits."""
        return not (self._waiting or (count > COMMAND_BYTES_USUAL and self._waiting_long))

    def wake(self) -> None:
        """Grow the reservations that wait, as far as there is room now."""
        for queue in (self._waiting, self._waiting_long):
            while queue and self.grant(queue[0].reservation, queue[0].count):
                queue.popleft().granted.set()
        if not self.are_waited_for:
            self._on_waiting_changed(False)


class _Waiting:
    __slots__ = ("count", "granted", "reservation")

    def __init__(self, reservation: Reservation, count: int) -> None:
        self.reservation = reservation
        self.count = count
        self.granted = trio.Event()


class Reservation:
    """The reservation of one connection; ``count`` is its number of bytes.

    ``end_if_stalled`` is called now and then while others wait for what it has.
    """

    __slots__ = ("_all", "count", "end_if_stalled")

    def __init__(
        self,
        reservations: Reservations,
        end_if_stalled: Callable[[float], None] = lambda now: None,
    ) -> None:
        self._all = reservations
        self.count = 0
        self.end_if_stalled = end_if_stalled

    @property
    def is_in_the_way(self) -> bool:
        """Return whether it has some while others wait."""
        return self.count > 0 and self._all.are_waited_for

    def try_grow(self, count: int) -> bool:
        """Grow to at least ``count`` bytes if that is possible at once; return whether it was."""
        if count <= self.count:
            return True
        return (self.count > 0 or self._all.may_go_first(count)) and self._all.grant(self, count)

    async def grow(self, count: int) -> None:
        """Return when it has at least ``count`` bytes."""
        if not self.try_grow(count):
            await self._all.wait(self, count)

    def release(self) -> None:
        """Free all bytes. Idempotent."""
        if self.count:
            self._all.release(self)


class LargeReplies:
    """Replies about tables that are being made, whose length is unknown before: shares of
    what they may be together, see invariant 4."""

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._shares: dict[Hashable, Reservations] = {}

    @property
    def count(self) -> int:
        """Return how many bytes are reserved."""
        return sum(each.count for each in self._shares.values())

    def of(self, share: Hashable) -> Reservations:
        """Return the reservations of one share."""
        found = self._shares.get(share)
        if found is None:
            found = Reservations(
                self._count_max, others=lambda: self.count, wake_others=self._wake_all
            )
            self._shares[share] = found
        return found

    def _wake_all(self) -> None:
        """Wake the waiting reservations of all shares: what one share gives back may help
        another."""
        for each in self._shares.values():
            if each.are_waited_for:
                each.wake()


class ReplyPlaces:
    """Counts the long replies that one connection has under way: ``count_max`` together, and always
    one of each share.

    A reply can be longer than what is reserved for it, so a peer that takes none must not have
    many made at a time, whatever the number of containers that it asks.
    """

    def __init__(self, count_max: int) -> None:
        self._count_max = count_max
        self._taken: Counter[Hashable] = Counter()
        self._waiting = trio.lowlevel.ParkingLot()

    @asynccontextmanager
    async def reserve(self, share: Hashable) -> AsyncIterator[None]:
        """Wait for a place, and reserve it."""
        while self._taken[share] and self._taken.total() >= self._count_max:
            await self._waiting.park()
        self._taken[share] += 1
        try:
            yield
        finally:
            self._taken[share] -= 1
            self._waiting.unpark_all()


class BufferBytes:
    """Everything that the connections of a process have in buffers."""

    def __init__(
        self,
        settings: ConnectionSettings,
        on_waiting_changed: Callable[[bool], None] = lambda waiting: None,
    ) -> None:
        half = settings.buffer_bytes_total_max // 2
        self.replies = ReplyBytes(half)
        self.commands = Reservations(max(half, COMMAND_BYTES_MAX), on_waiting_changed)
        self.large_replies = LargeReplies(max(half, COMMAND_BYTES_MAX))

    @property
    def count(self) -> int:
        """Return how many bytes that is now; 0 when there are no connections."""
        return self.replies.count + self.commands.count + self.large_replies.count
