"""Decides which commands are dispatched and which replies are made, by all limits together.

Owns: ``Admission``, one for all connections of an event loop, and ``ConnectionAdmission``, which a
connection asks before it dispatches a command or makes a reply.

Two totals bound the bytes, because different sides free them. ``buffers`` has what peers free, as
they read replies and finish commands; ``outstanding`` has payloads, which tier 1 frees. With one
total, peers that read nothing would stop the appends of all others.

Invariants:
1. When a connection has too many requests or unsent replies, all its commands wait until one of
   these is released. Held by ``test_what_is_full_makes_every_command_wait``.
2. When a container's share has no room for a payload, the command waits, and commands without a
   payload continue. Held by ``test_a_payload_waits_for_its_container_and_others_do_not``. A command
   continues only when both its connection and its share have room. Held by
   ``test_who_waits_goes_on_when_both_have_room``.
3. While a long reply is made, its bytes are reserved; afterwards they are released. Held by
   ``test_long_replies_take_places_and_bytes``.
4. When a connection ends, ``drop`` releases all that it has in buffers. Held by
   ``test_what_goes_with_a_connection_is_given_back``.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from pravega_wire import commands as wire
from pravega_wire.connection import Append
from segstore.network.admission.buffer_bytes import (
    COMMAND_BYTES_FREE,
    BufferBytes,
    ReplyPlaces,
    Reservation,
)
from segstore.network.admission.bulk_turns import BulkTurns
from segstore.network.admission.outstanding_requests import (
    OutstandingRequests,
    OutstandingTotal,
    Share,
)
from segstore.network.admission.read_pacing import HeldReads
from segstore.network.admission.request_lanes import RequestLanes
from segstore.network.admission.send_buffer import SendBuffer
from segstore.process.config import ConnectionSettings
from segstore.runtime.transport import SendNow


class Admission:
    """The limits and queues that all connections of a server share."""

    def __init__(
        self,
        settings: ConnectionSettings,
        container_count: int,
        on_waiting_changed: Callable[[bool], None] = lambda waiting: None,
    ) -> None:
        self.settings = settings
        self.outstanding = OutstandingTotal(settings, container_count)
        self.buffers = BufferBytes(settings, on_waiting_changed)
        self.bulk_turns = BulkTurns(settings.bulk_bytes_beside_readers)
        self.held_reads = HeldReads(settings.reply_age_seconds_min)


class ConnectionAdmission:
    """The limits and queues of one connection. ``end_if_stalled`` is called from time to time while
    others wait for bytes that it has reserved."""

    def __init__(
        self,
        admission: Admission,
        send_now: SendNow | None,
        end_if_stalled: Callable[[float], None],
    ) -> None:
        self.settings = settings = admission.settings
        self.replies = SendBuffer(
            pause_bytes=settings.send_bytes_pause,
            total=admission.buffers.replies,
            send_now=send_now,
        )
        self.outstanding = OutstandingRequests(admission.outstanding)
        self.lanes = RequestLanes()
        self.reserved = Reservation(admission.buffers.commands, end_if_stalled)
        self._buffers = admission.buffers
        self._reply_places = ReplyPlaces(settings.large_replies_max)

    # ---- Commands --------------------------------------------------------------------------------

    @property
    def is_full(self) -> bool:
        """Return whether no further command of this connection may be dispatched."""
        replies, outstanding = self.replies, self.outstanding
        return (
            # Cheap comparisons come first, because they usually decide.
            (replies.size > 0 and replies.is_full)
            or (outstanding.count >= outstanding.free and outstanding.is_full)
            or outstanding.request_count >= outstanding.requests_max
        )

    def must_wait(self, command: Any) -> bool:
        """Return whether a command has to wait, for room or for a share."""
        replies, outstanding = self.replies, self.outstanding
        is_tight = outstanding.total.total >= outstanding.total.tight_from
        if not (
            is_tight
            or replies.size
            or outstanding.request_count
            or outstanding.count >= outstanding.free
        ):
            return False  # the usual case, which needs no further checks
        if self.is_full:
            return True
        length = payload_bytes(command) if is_tight else 0
        return length > 0 and not self.share_of(command).has_room(length)

    async def wait_for_room(self) -> None:
        """Wait until the connection is not full."""
        while self.is_full:
            await self.replies.wait_for_room()
            await self.outstanding.wait_for_room()

    async def wait_for(self, command: Any) -> None:
        """Wait until a command may be dispatched, or has to be checked again."""
        await self.wait_for_room()
        if self.outstanding.is_tight and (length := payload_bytes(command)):
            await self.share_of(command).wait_for_room(length)

    def share_of(self, command: Any) -> Share:
        """Return the share of the container that a command is for."""
        return self.outstanding.share_of(command.segment)

    def hold(self, request: Any) -> None:
        """Count a request that waits or is being served, and its payload."""
        length = payload_bytes(request)
        self.outstanding.add_request(length, self.share_of(request) if length else None)

    def release(self, request: Any) -> None:
        """Release a request and its payload, and wake what waits for them."""
        length = payload_bytes(request)
        self.outstanding.release_request(length, self.share_of(request) if length else None)

    def renew_reserved(self, needed: int) -> None:
        """Release the reservation of commands that are complete.

        The connection of a busy writer has a part of the next command by then, which needs
        ``needed`` bytes. That command gets them only after the reservations that wait already.
        """
        self.reserved.release()
        if needed > COMMAND_BYTES_FREE:
            self.reserved.try_grow(needed)

    # ---- Replies ---------------------------------------------------------------------------------

    @asynccontextmanager
    async def long_reply(self, request: Any, bytes_max: int) -> AsyncIterator[None]:
        """Wait until a reply of at most ``bytes_max`` bytes may be made, and reserve these bytes
        while the block makes it."""
        share = self.share_of(request)
        async with self._reply_places.reserve(share):
            await self.replies.wait_for_room()
            async with self._buffers.large_replies.reserve(share, bytes_max):
                yield

    @property
    def peer_takes_no_replies(self) -> bool:
        """Return whether this connection has unsent replies while all connections together have
        many."""
        total = self._buffers.replies
        return self.replies.size > 0 and total.count > total.count_max // 2

    # ---- The end ---------------------------------------------------------------------------------

    def drop(self) -> None:
        """Release the bytes in buffers, and objects that would keep the connection in memory."""
        self.reserved.release()
        self.reserved = Reservation(self._buffers.commands)
        self.lanes = RequestLanes()
        self.replies.discard()


def payload_bytes(request: Any) -> int:
    """Return how many bytes of payload a request keeps in memory until it is durable."""
    kind = type(request)
    if kind is Append:
        return len(request.data)
    if kind is wire.UpdateTableEntries:
        return sum(len(entry.key.key) + len(entry.value) for entry in request.table_entries)
    if kind is wire.RemoveTableKeys:
        return sum(len(key.key) for key in request.keys)
    return 0
