"""Fetches one segment, piece by piece, through restarts of its segment store.

Owns: one connection at a time, the request that is under way on it, and the waiting at the tail.
The position is that of a cursor, which makes events or bytes of the pieces.

While the program works on a piece, the store already sends the next one, into the buffers of the
connection. A program that reads a single piece, and then elsewhere, does not make the store read in
vain: so the first piece of a connection is handed over before the second one is requested.

Invariants:
1. When connections break, the next one goes on at the cursor's offset: nothing is missing, and
   nothing is handed over twice. Held by ``test_bytes_come_once_however_connections_break``.
2. When nothing comes, because the cursor is at the tail, the store is asked whether it lives. Held
   by ``test_a_store_that_falls_silent_is_left``.
3. When a piece is handed over, the next one is requested already, unless it is the first one. Held
   by ``test_the_next_piece_is_requested_before_the_program_has_this_one``.
4. When that request fails, the piece is handed over all the same. Held by
   ``test_a_piece_is_not_lost_when_the_next_one_cannot_be_requested``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import cache
from typing import Generic, TypeVar

import anyio

from pravega_wire import commands as wire
from pravega_wire.errors import ProtocolError, RemoteProtocolError
from pravega_wire.requests.store_connection import StoreConnection
from pravega_wire.sessions.read_cursor import SegmentCursor
from segstore_client.access.tokens import StoreAccess
from segstore_client.addresses import Address
from segstore_client.backoff import Patience
from segstore_client.connections.calls import call_blocking, wait_to_repeat
from segstore_client.connections.connection import open_connection
from segstore_client.controller.controller_client import RETRIED_ERRORS
from segstore_client.errors import PravegaError, RefusedError

T = TypeVar("T")
READ_BYTES = 1024 * 1024
RECEIVE_BYTES = READ_BYTES + 64 * 1024
"""A reply to a request for ``READ_BYTES``, with the longest name of a segment, fits."""
KEEP_ALIVE_SECONDS = 20.0
SILENCE_SECONDS_MAX = 60.0
KEPT_BYTES = 4 * READ_BYTES


@cache
def keep_freed_memory() -> None:
    """Let the memory of one piece serve the next one.

    glibc gives freed memory back to the system at once when there is more than twice the longest
    mapping that was freed. The buffers of a piece are at that limit, so that each of their pages
    would be mapped anew for each piece, which took a fourth of a reader's time.
    """
    bytearray(KEPT_BYTES)


class SegmentFetch(Generic[T]):
    """The way from a segment to its reader. ``run`` is one task of the reader.

    ``what`` is the stream's name, for errors.
    """

    def __init__(
        self,
        cursor: SegmentCursor[T],
        locate: Callable[[], Address],
        hand_over: Callable[[list[T]], Awaitable[None]],
        *,
        what: str,
        access: StoreAccess,
        patience: float,
    ) -> None:
        self._cursor = cursor
        self._locate = locate
        self._hand_over = hand_over
        self._what = what
        self._access = access
        self._patience = Patience(patience)

    async def run(self) -> None:
        """Fetch until the cursor is at its end.

        Raises ``PravegaError`` for what cannot be read, ``UnavailableError`` when servers are
        unreachable for too long, and errors of the cursor.
        """
        keep_freed_memory()
        while not self._cursor.is_at_end:
            try:
                await self._fetch_over_one_connection()
            except RETRIED_ERRORS as error:
                await wait_to_repeat(self._patience, error, f"{self._what} could not be read")

    async def _fetch_over_one_connection(self) -> None:
        host, port = await call_blocking(self._locate)
        async with open_connection(
            host, port, self._access, receive_bytes=RECEIVE_BYTES
        ) as connection:
            await self._request(connection)
            reads_ahead = False
            while True:
                reply = await self._receive(connection)
                self._patience.renew()
                try:
                    found = self._cursor.take(reply)
                except RemoteProtocolError as error:
                    raise PravegaError(str(error)) from error
                if found is None:
                    raise self._refusal(reply)
                is_at_end = self._cursor.is_at_end
                try:
                    if reads_ahead and not is_at_end:
                        await self._request(connection)
                finally:
                    # The cursor is behind them: nobody reads them again.
                    if found:
                        await self._hand_over(found)
                if is_at_end:
                    break
                if not reads_ahead:
                    await self._request(connection)
                reads_ahead = True

    async def _request(self, connection: StoreConnection) -> None:
        """Request the next bytes."""
        token = await call_blocking(self._access.token) if self._access.has_tokens else ""
        request_id = connection.next_request_id()
        cursor, length = self._cursor, self._cursor.bytes_wanted(READ_BYTES)
        await connection.send(
            wire.ReadSegment(cursor.name, cursor.offset, length, token, request_id)
        )

    async def _receive(self, connection: StoreConnection) -> wire.Reply:
        """Return the reply to the request; at the tail it comes with the next bytes.

        Raises ``ProtocolError`` when the store does not even answer that it lives.
        """
        quiet_seconds = 0.0
        while quiet_seconds < SILENCE_SECONDS_MAX:
            replies: list[wire.Reply] = []
            with anyio.move_on_after(KEEP_ALIVE_SECONDS):
                replies = await connection.receive()
            for reply in replies:
                if not isinstance(reply, wire.KeepAlive):
                    return reply
            quiet_seconds = 0.0 if replies else quiet_seconds + KEEP_ALIVE_SECONDS
            if not replies:
                await connection.send(wire.KeepAlive())
        raise ProtocolError(f"{connection.peer} has fallen silent")

    def _refusal(self, reply: wire.Reply) -> Exception:
        if isinstance(reply, wire.AuthTokenCheckFailed):
            return self._access.refusal(reply, f"no permission to read {self._what}")
        if isinstance(reply, wire.ErrorMessage):
            return RefusedError(f"the segment store refused a read: {reply.message}")
        # The reply is WrongHost, or unknown: ask the controller again which store to use.
        return ProtocolError(f"unexpected {type(reply).__name__}")
