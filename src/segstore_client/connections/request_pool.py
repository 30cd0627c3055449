"""Requests of many tasks to segment stores, over one connection to each store.

Owns: the connections, two tasks for each, one that sends the requests and one that takes the
replies, and who waits for which reply.

A connection is opened for the first request to a store, and closed with the pool, or when it breaks
or a request on it gets no reply in time; then all requests on it raise, and the next request opens
another one.

Invariants:
1. When replies come in another order than the requests were sent, each task gets its own. Held by
   ``test_each_task_gets_the_reply_to_its_own_request``.
2. When a connection breaks, every task that waits on it gets an error at once. Held by
   ``test_a_broken_connection_is_told_to_all_who_wait_and_opened_again``.
3. When a task is cancelled while its request is sent, the request is sent whole, or not at all.
   Held by ``test_a_request_that_is_cancelled_is_sent_whole``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import anyio
from anyio.abc import TaskGroup

from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError
from pravega_wire.errors import ProtocolError
from segstore_client.access.tokens import StoreAccess
from segstore_client.addresses import Address
from segstore_client.connections.connection import (
    REPLY_SECONDS,
    StoreConnection,
    open_connection,
    run_until_one_ends,
)
from segstore_client.errors import UntrustedServerError

KEEP_ALIVE_SECONDS = 20.0


class _Waiter:
    """A task that waits for the reply to a request."""

    __slots__ = ("data", "error", "event", "reply")

    def __init__(self, data: bytes) -> None:
        self.data = data
        """The bytes of the request."""
        self.event = anyio.Event()
        self.reply: wire.Reply | None = None
        self.error: Exception | None = None


class _SharedLink:
    """One connection, from before it is open until it has ended."""

    def __init__(self) -> None:
        self.opened = anyio.Event()
        self.connection: StoreConnection | None = None
        self.error: Exception | None = None
        self.waiters: dict[int, _Waiter] = {}
        self.unsent: list[int] = []
        """The ids of requests that were not sent."""
        self.news = anyio.Event()
        self.scope = anyio.CancelScope()

    def end(self, error: Exception) -> None:
        """Tell all who wait."""
        self.error = error
        self.opened.set()
        for waiter in self.waiters.values():
            waiter.error = error
            waiter.event.set()
        self.waiters.clear()


class RequestPool:
    """Asks segment stores. ``group`` runs its tasks, and has to be cancelled to end them."""

    def __init__(self, group: TaskGroup) -> None:
        self._group = group
        self._links: dict[Address, _SharedLink] = {}

    async def ask(
        self, address: Address, access: StoreAccess, make: Callable[[int], wire.Request]
    ) -> wire.Reply:
        """Return the reply to the request that ``make`` makes of its id.

        Raises ``ProtocolError`` when the store cannot be reached or does not answer within
        ``REPLY_SECONDS``: the request may have been done. Raises ``UntrustedServerError`` when TLS
        forbids to reach it.
        """
        link = self._links.get(address)
        if link is None:
            link = self._links[address] = _SharedLink()
            self._group.start_soon(self._run, address, access, link)
        with anyio.move_on_after(REPLY_SECONDS):
            await link.opened.wait()
            if link.connection is None or link.error is not None:
                raise _copied(link.error)
            request_id = link.connection.next_request_id()
            waiter = _Waiter(link.connection.encode(make(request_id)))
            link.waiters[request_id] = waiter
            link.unsent.append(request_id)
            link.news.set()
            try:
                await waiter.event.wait()
            finally:
                link.waiters.pop(request_id, None)
            if waiter.reply is None:
                raise _copied(waiter.error)
            return waiter.reply
        link.scope.cancel()
        raise ProtocolError(f"no reply of {address[0]}:{address[1]} within {REPLY_SECONDS:g} s")

    async def _run(self, address: Address, access: StoreAccess, link: _SharedLink) -> None:
        error: Exception = ConnectionLostError(f"{address[0]}:{address[1]} does not answer")
        try:
            with link.scope:
                async with open_connection(*address, access) as connection:
                    link.connection = connection
                    link.opened.set()
                    await run_until_one_ends(
                        partial(self._send_requests, connection, link),
                        partial(self._take_replies, connection, link),
                    )
        except (ProtocolError, OSError, UntrustedServerError) as caught:
            error = caught
        finally:
            if self._links.get(address) is link:
                del self._links[address]
            link.end(error)

    async def _send_requests(self, connection: StoreConnection, link: _SharedLink) -> None:
        while True:
            while link.unsent:
                # A task that asked may have been cancelled. All others' requests are one write.
                unsent = [link.waiters[each].data for each in link.unsent if each in link.waiters]
                link.unsent.clear()
                if unsent:
                    await connection.send_bytes(b"".join(unsent))
            link.news = anyio.Event()
            with anyio.move_on_after(KEEP_ALIVE_SECONDS):
                await link.news.wait()
            if not link.unsent:
                await connection.send(wire.KeepAlive())

    async def _take_replies(self, connection: StoreConnection, link: _SharedLink) -> None:
        while True:
            for reply in await connection.receive():
                waiter = link.waiters.get(getattr(reply, "request_id", -1))
                if waiter is not None:
                    waiter.reply = reply
                    waiter.event.set()


def _copied(error: Exception | None) -> Exception:
    """Return the error of a connection for one more who waits on it."""
    assert error is not None
    copy = type(error)(*error.args)
    copy.__cause__ = error
    return copy
