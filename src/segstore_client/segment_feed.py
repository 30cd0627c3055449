"""The way of one segment's events to a reader that does not block.

Owns: the requests to one segment, one at a time, through breaks of connections. At the tail of a
segment the store answers when the next event comes. A feed has at most one piece of its segment in
memory that ``deliver`` has not taken, so memory is bounded.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import anyio

from pravega_blocking.access.tokens import StoreAccess
from pravega_blocking.backoff import Patience
from pravega_blocking.controller_client import RETRIED_ERRORS, ControllerClient
from pravega_blocking.errors import PravegaError, RefusedError
from pravega_wire import commands as wire
from pravega_wire.errors import ProtocolError, RemoteProtocolError
from pravega_wire.names import scoped_name
from pravega_wire.sessions.read_cursor import ReadEvent, SegmentCursor
from pravega_wire.sessions.routes import Successor
from segstore_client.calls import call_blocking, repeat_calls, wait_to_repeat
from segstore_client.connection import StoreConnection, open_connection

READ_BYTES = 1024 * 1024
KEEP_ALIVE_SECONDS = 20.0
SILENCE_SECONDS_MAX = 60.0


class SegmentFeed:
    """Reads the segment of ``cursor``, which is of the given stream."""

    def __init__(
        self,
        controller: ControllerClient,
        scope: str,
        stream: str,
        cursor: SegmentCursor,
        *,
        access: StoreAccess,
        patience: float,
    ) -> None:
        self._controller = controller
        self._scope = scope
        self._stream = stream
        self._cursor = cursor
        self._access = access
        self._patience = patience
        self._what = f"{scoped_name(scope, stream)} could not be read"

    async def read(self, deliver: Callable[[list[ReadEvent]], Awaitable[None]]) -> None:
        """Deliver the events up to the end of the segment, or of the cursor, in pieces.

        Raises ``PravegaError`` if the segment's bytes are no events, and ``UnavailableError`` when
        servers are unreachable for too long.
        """
        cursor, patience = self._cursor, Patience(self._patience)
        while not cursor.is_at_end:
            try:
                await self._read_over_one_connection(deliver, patience)
            except RETRIED_ERRORS as error:
                await wait_to_repeat(patience, error, self._what)
        if cursor.pending:
            raise PravegaError(f"segment {cursor.name} ends within an event")

    async def find_successors(self) -> tuple[Successor, ...]:
        """Return the segments that follow this one, which was read to its end."""
        ask = self._controller.successors
        if self._cursor.is_gone:
            ask = self._controller.successors_of_gone
        return await repeat_calls(
            partial(ask, self._scope, self._stream, self._cursor.segment_id),
            Patience(self._patience),
            self._what,
        )

    async def _read_over_one_connection(
        self, deliver: Callable[[list[ReadEvent]], Awaitable[None]], patience: Patience
    ) -> None:
        cursor = self._cursor
        locate = partial(
            self._controller.segment_address, self._scope, self._stream, cursor.segment_id
        )
        host, port = await call_blocking(locate)
        async with open_connection(host, port, self._access) as connection:
            while not cursor.is_at_end:
                reply = await self._ask(connection)
                patience.renew()
                try:
                    events = cursor.take(reply)
                except RemoteProtocolError as error:
                    raise PravegaError(str(error)) from error
                if events is None:
                    raise self._refusal(reply)
                if events:
                    await deliver(events)

    async def _ask(self, connection: StoreConnection) -> wire.Reply:
        """Request the next bytes, and return the reply; at the tail it comes with the next event.

        Raises ``ProtocolError`` when the store does not even answer that it lives.
        """
        cursor = self._cursor
        token = await call_blocking(self._access.token) if self._access.has_tokens else ""
        request_id = connection.next_request_id()
        length = cursor.bytes_wanted(READ_BYTES)
        await connection.send(
            wire.ReadSegment(cursor.name, cursor.offset, length, token, request_id)
        )
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
            name = scoped_name(self._scope, self._stream)
            return self._access.refusal(reply, f"no permission to read {name}")
        if isinstance(reply, wire.ErrorMessage):
            return RefusedError(f"the segment store refused a read: {reply.message}")
        # The reply is WrongHost, or unknown: ask the controller again which store to use.
        return ProtocolError(f"unexpected {type(reply).__name__}")
