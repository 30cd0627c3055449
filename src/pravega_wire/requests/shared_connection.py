"""Requests of many tasks over one connection to a segment store; replies are matched by id.

Owns: the tasks of the connection, one that sends the requests, one that takes the replies and one
that notices when they are late, and who waits for which reply.

Requests that come while others are sent are sent together, by one write. A task with many requests
waits once for all of their replies, without a timer of its own: that would be the dearest part of a
request.

Invariants:
1. When replies come in another order than the requests were sent, each task gets its own. Held by
   ``test_each_task_gets_the_reply_to_its_own_request``.
2. When a connection breaks, every task that waits on it gets an error at once. Held by
   ``test_a_broken_connection_is_told_to_all_who_wait_and_opened_again``.
3. When a task is cancelled while its request is sent, the request is sent whole. Held by
   ``test_a_request_that_is_cancelled_is_sent_whole``.
4. When a reply is late, its task notices. Held by ``test_a_store_that_is_silent_or_away_is_told``.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

import anyio

from pravega_wire.blocking import ConnectionLostError
from pravega_wire.commands import Hello, KeepAlive, Reply, Request
from pravega_wire.requests.store_connection import StoreConnection, run_until_one_ends

MakeRequest: TypeAlias = Callable[[int], Request]
"""Builds a request with the given request id."""


class Replies:
    """The replies for which a task waits."""

    __slots__ = ("arrived", "by_id", "deadline", "missing_count")

    def __init__(self, count: int, deadline: float) -> None:
        self.missing_count = count
        self.deadline = deadline
        self.arrived = anyio.Event()
        """Set when all replies have arrived, or when no more will arrive."""
        self.by_id: dict[int, Reply] = {}


class SharedConnection:
    """One connection, from before it is open until it has ended; ``run`` must run as a task.

    ``open_connection`` opens it; the store's Hello may come later. A task whose replies have not
    arrived within ``quiet_seconds`` ends it, or calls ``on_silence``, which waits for them, raises,
    or ends it.
    """

    def __init__(
        self,
        open_connection: Callable[[], AbstractAsyncContextManager[StoreConnection]],
        *,
        quiet_seconds: float,
        on_silence: Callable[[Replies], Awaitable[None]] | None = None,
        keep_alive_seconds: float = math.inf,
    ) -> None:
        self.error: Exception | None = None
        """The error that has ended the connection."""
        self._open_connection = open_connection
        self._quiet_seconds = quiet_seconds
        self._on_silence = on_silence
        self._keep_alive_seconds = keep_alive_seconds
        self._connection: StoreConnection | None = None
        self._opened = anyio.Event()
        self._in_flight: dict[int, Replies] = {}
        self._unsent: list[bytes] = []
        self._news = anyio.Event()
        self._scope = anyio.CancelScope()

    @property
    def is_open(self) -> bool:
        """Return whether requests can be sent now."""
        return self._connection is not None and self.error is None

    async def wait_until_open(self) -> StoreConnection:
        """Wait for the connection. Raises the error by which it has ended, for one more task."""
        if self._connection is None:
            await self._opened.wait()
        if self._connection is None or self.error is not None:
            raise self._copy_error()
        return self._connection

    async def ask_all(self, makes: Sequence[MakeRequest]) -> list[Reply]:
        """Send requests together, and return their replies in the same order.

        Raises the error by which the connection ends: the requests may have been done. Raises
        ``ProtocolError`` if a request is too long.
        """
        connection = await self.wait_until_open()
        encoded = {
            (request_id := connection.next_request_id()): connection.encode(make(request_id))
            for make in makes
        }
        replies = Replies(len(encoded), anyio.current_time() + self._quiet_seconds)
        self._unsent += encoded.values()
        self._in_flight.update(dict.fromkeys(encoded, replies))
        self._news.set()
        try:
            await replies.arrived.wait()
            if replies.missing_count and self.error is None:
                if self._on_silence is None:
                    text = f"no reply of {connection.peer} within {self._quiet_seconds:g} s"
                    self.end(ConnectionLostError(text))
                else:
                    replies.arrived = anyio.Event()
                    await self._on_silence(replies)
        finally:
            for request_id in encoded:
                self._in_flight.pop(request_id, None)
        if replies.missing_count:
            raise self._copy_error()
        return [replies.by_id[request_id] for request_id in encoded]

    def end(self, error: Exception) -> None:
        """Close the connection, and tell all who wait. The first error counts."""
        if self.error is None:
            self.error = error
            self._opened.set()
            for replies in self._in_flight.values():
                replies.arrived.set()
            self._scope.cancel()

    async def run(self) -> None:
        """Open the connection, and send and receive on it until it ends."""
        try:
            with self._scope:
                async with self._open_connection() as self._connection:
                    self._opened.set()
                    await run_until_one_ends(
                        self._send_requests, self._take_replies, self._tell_late, self._keep_alive
                    )
        except Exception as error:
            # Whoever waits, or asks next, raises it.
            self.end(error)
        finally:
            self.end(ConnectionLostError("the connection was closed"))

    async def _send_requests(self) -> None:
        assert self._connection is not None
        while True:
            while self._unsent:
                data = b"".join(self._unsent)
                self._unsent.clear()
                await self._connection.send_bytes(data)
            self._news = anyio.Event()
            await self._news.wait()

    async def _take_replies(self) -> None:
        assert self._connection is not None
        while True:
            for reply in await self._connection.receive():
                request_id = getattr(reply, "request_id", -1)
                replies = self._in_flight.pop(request_id, None)
                if replies is not None:
                    replies.by_id[request_id] = reply
                    replies.missing_count -= 1
                    if not replies.missing_count:
                        replies.arrived.set()
                elif isinstance(reply, Hello):
                    self._connection.check_hello(reply)

    async def _tell_late(self) -> None:
        """Wake each task whose replies are late."""
        while True:
            now = anyio.current_time()
            # No request that comes after now is late earlier.
            deadline = now + self._quiet_seconds
            for replies in self._in_flight.values():
                if replies.deadline <= now:
                    replies.deadline = math.inf
                    replies.arrived.set()
                elif replies.deadline < deadline:
                    deadline = replies.deadline
                    break
            await anyio.sleep_until(deadline)

    async def _keep_alive(self) -> None:
        assert self._connection is not None
        while True:
            await anyio.sleep(self._keep_alive_seconds)
            self._unsent.append(self._connection.encode(KeepAlive()))
            self._news.set()

    def _copy_error(self) -> Exception:
        """Return the error of the connection for one more task."""
        assert self.error is not None
        copy = type(self.error)(*self.error.args)
        copy.__cause__ = self.error
        return copy
