"""Bounds the bytes in the buffers of all connections: unsent replies and incomplete commands.

Owns: the maximum number of such bytes in a process, and the order in which connections wait when it
is reached. A reservation is *long* if it is for more than ``COMMAND_BYTES_USUAL`` bytes.

``BufferBytes`` divides the maximum among three parts. Example, with 160 MiB:

    incomplete commands     40 MiB    a longer command waits until its bytes are reserved
    replies being made      40 MiB    a long reply waits until its bytes are reserved
    unsent replies          80 MiB    at 40 MiB replies to reads are 16 KiB; at 80 MiB no further
                                      long reply is made

Invariants:
1. The more bytes of unsent replies all connections have, the shorter the next reply to a read is.
   Held by ``test_replies_become_shorter_before_their_total_is_reached``. When a peer does not take
   its replies, reads of other peers are still answered. Held by
   ``test_a_peer_that_takes_no_replies_delays_no_reads_of_others``.
2. When a command is longer than ``COMMAND_BYTES_FREE``, its bytes are received only after they were
   reserved. Held by ``test_a_long_command_waits_until_stalled_ones_are_ended``. A connection that
   has a reservation can always receive the rest of its command. Held by
   ``test_reservations_keep_to_their_bound_and_nobody_waits_for_ever``.
3. When long reservations wait, others do not wait for them, and find ``USUAL_ROOM`` free. Held by
   ``test_usual_commands_do_not_wait_for_long_ones``. Otherwise reservations are granted in the
   order of the requests, but one that grows comes first, because others wait for its bytes. Held by
   ``test_reservations_are_granted_in_order_and_growing_ones_first``.
4. When long replies about the segments of one container wait for it, those about other containers
   are still made: a share may reserve as much as is left for all others, and always one reply. Held
   by ``test_table_reads_that_wait_for_their_container_keep_no_others_waiting``. When a share
   releases bytes, another one gets them. Held by
   ``test_what_one_share_of_large_replies_gives_back_another_one_may_have``.
5. When a connection asks for many long replies, only ``count_max`` of ``ReplyPlaces`` are under
   way, and one more for each further share. Held by
   ``test_a_connection_has_few_long_replies_under_way_whatever_it_asks``.
6. When many connections have long replies to send, at most ``PLACES`` of them send a piece in one
   turn of the event loop. Held by ``test_few_connections_send_a_piece_in_one_turn``.
7. When peers take no replies, all parts together still keep to the maximum. Only these can exceed
   it: one command, one long reply of each share, and the first bytes of each connection. Held by
   ``test_all_buffers_together_keep_to_one_total``.
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
"""Maximum size, in bytes, of a usual command. Official clients end an append block after 1 MiB,
unless an event is longer."""
USUAL_ROOM: Final = 4 * COMMAND_BYTES_USUAL
"""Number of bytes that longer commands leave free for usual ones."""
REPLY_BYTES_FREE: Final = 16 * KIB
"""Number of bytes of unsent replies that a connection may have, however many the others have."""
READ_BYTES_MAX: Final = 2 * MIB
"""Maximum length, in bytes, of one reply to a read."""
READ_BYTES_SHORT: Final = 16 * KIB
"""Maximum length, in bytes, of one reply to a read when the unsent replies of all connections have
reached their maximum."""
LARGE_REPLY_PAUSE_SECONDS: Final = 0.05
PLACES: Final = 8


class ReplyBytes:
    """The unsent replies of all connections."""

    __slots__ = ("at_once_max", "count", "count_max", "places")

    def __init__(self, count_max: int) -> None:
        self.count = 0
        self.count_max = count_max
        """Number of bytes that replies to reads may fill; long replies may add as many."""
        self.at_once_max = count_max // 2
        """Number of bytes of unsent replies below which reads that waited for data are answered at
        once. With more, they are answered one after another."""
        self.places = trio.CapacityLimiter(PLACES)

    @property
    def read_bytes_max(self) -> int:
        """Return the present maximum length of a reply to a read."""
        room = (self.count_max - self.count) // 8
        return max(READ_BYTES_SHORT, min(READ_BYTES_MAX, room))

    @property
    def has_room_for_large(self) -> bool:
        """Return whether a reply may be made whose length cannot be reduced."""
        # Reads get shorter replies and leave room for it.
        return self.count < 2 * self.count_max

    async def wait_for_large(self) -> None:
        """Wait until a reply may be made whose length cannot be reduced."""
        # Peers that take no replies lose their connections.
        while not self.has_room_for_large:  # noqa: ASYNC110 (or each send would notify)
            await trio.sleep(LARGE_REPLY_PAUSE_SECONDS)

    async def wait_for_turn(self) -> None:
        """Wait until the caller may send a piece of a long reply."""
        async with self.places:
            pass


class Reservations:
    """Reserved bytes, up to ``count_max`` in total, and the reservations that wait for more.

    ``on_waiting_changed`` is called when the first reservation begins to wait, and when none waits
    any more. ``others`` returns the number of bytes that count as reserved besides these, and
    ``wake_others`` is called when bytes became free for others.
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
        """Grow a reservation to ``count`` bytes if there is room now; return whether it grew."""
        more = count - reservation.count
        left = 0 if count <= COMMAND_BYTES_USUAL else USUAL_ROOM
        if self.count and self.count + more > self._count_max - self._others() - left:
            # One reservation at a time that already has bytes may exceed the bound for the rest of
            # its command: otherwise several, each with a part of its bytes, could wait for each
            # other.
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
        """Wait until the reservation has ``count`` bytes."""
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
        """Wait until some reservation waits."""
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

    ``end_if_stalled`` is called from time to time while others wait for its bytes.
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
        """Return whether it has bytes while other reservations wait."""
        return self.count > 0 and self._all.are_waited_for

    def try_grow(self, count: int) -> bool:
        """Grow to at least ``count`` bytes if there is room now; return whether it has them."""
        if count <= self.count:
            return True
        return (self.count > 0 or self._all.may_go_first(count)) and self._all.grant(self, count)

    async def grow(self, count: int) -> None:
        """Wait until it has at least ``count`` bytes."""
        if not self.try_grow(count):
            await self._all.wait(self, count)

    def release(self) -> None:
        """Free all bytes. Idempotent."""
        if self.count:
            self._all.release(self)


class LargeReplies:
    """Reservations for long replies that are being made, whose length is known only afterwards.
    Each container has a share, as invariant 4 describes. ``unsent`` are the replies that were made.
    """

    def __init__(self, count_max: int, unsent: ReplyBytes) -> None:
        self._count_max = count_max
        self._unsent = unsent
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

    @asynccontextmanager
    async def reserve(self, share: Hashable, count: int) -> AsyncIterator[None]:
        """Wait until a reply of ``count`` bytes may be made, and reserve these bytes meanwhile."""
        reservation = Reservation(self.of(share))
        try:
            while True:
                await self._unsent.wait_for_large()
                await reservation.grow(count)
                if self._unsent.has_room_for_large:
                    break
                # Replies that had their bytes earlier have filled the room meanwhile.
                reservation.release()
            yield
        finally:
            reservation.release()

    def _wake_all(self) -> None:
        """Wake the waiting reservations of all shares, because one share has released bytes."""
        for each in self._shares.values():
            if each.are_waited_for:
                each.wake()


class ReplyPlaces:
    """Limits the long replies that one connection has under way to ``count_max``, but allows one of
    each share.

    A reply can be longer than its reservation. So only few are made at a time for a peer that does
    not take them, however many containers it asks.
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
    """The bytes that the connections of a process have in buffers; see the module."""

    def __init__(
        self,
        settings: ConnectionSettings,
        on_waiting_changed: Callable[[bool], None] = lambda waiting: None,
    ) -> None:
        part = settings.buffer_bytes_total_max // 4
        self.replies = ReplyBytes(part)
        self.commands = Reservations(max(part, COMMAND_BYTES_MAX), on_waiting_changed)
        self.large_replies = LargeReplies(max(part, COMMAND_BYTES_MAX), self.replies)

    @property
    def count(self) -> int:
        """Return how many bytes are in buffers now; 0 when there are no connections."""
        return self.replies.count + self.commands.count + self.large_replies.count
