"""A connection to one segment store, with what only the controller needs.

Owns: the maximum number of requests in flight, the controller's token, the questions to a store
that is silent, and streams of trio as the shared connection needs them.

Invariants:
1. When more than ``REQUESTS_IN_FLIGHT_MAX`` requests come, further callers wait, and each request
   gets its own reply. Held by ``test_more_requests_than_fit_in_flight_all_get_their_own_reply``.
2. When a connection breaks, its requests raise ``ConnectionLostError``, and are sent again over a
   new connection. Held by ``test_a_request_without_an_answer_is_sent_again_on_a_new_connection``.
3. When the peer breaks the protocol, or ends the stream within a frame, the connection is closed.
   Held by ``test_a_peer_that_is_no_segment_store_is_given_up``.
4. When a caller is cancelled, the requests of the other callers are still sent, and answered.
   Held by ``test_a_cancelled_request_leaves_the_others_alone``.
5. Where tokens are checked, each request that can have a token is sent with this controller's.
   Held by ``test_each_request_has_the_controllers_token``.
"""

from __future__ import annotations

import select
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, TypeAlias

import anyio
import msgspec
import structlog
import trio

from pravega_controller.errors import StoreDelayedError, StoreSilentError
from pravega_controller.store_client.placement import Address
from pravega_security.tls_streams import OpenStream
from pravega_wire.blocking import ConnectionLostError
from pravega_wire.commands import HELLO, Reply, Request
from pravega_wire.errors import RemoteProtocolError
from pravega_wire.requests.shared_connection import MakeRequest, Replies, SharedConnection
from pravega_wire.requests.store_connection import StoreConnection

REQUESTS_IN_FLIGHT_MAX = 512
SILENT_SHARE = 0.25
"""Part of the time for a reply after which a store that has not replied is asked for the reason."""

QUESTIONS_MAX = 2
"""Number of such questions without an answer after which a store counts as silent."""

GetToken: TypeAlias = Callable[[], str]
"""Returns a token that allows this controller everything."""

LOST: Final = (ConnectionLostError, RemoteProtocolError)
"""The errors of a connection that has ended. Its requests may have been carried out."""

log = structlog.get_logger(__name__)


class StoreLink(SharedConnection):
    """A connection to one segment store, from before it is open; ``run`` must run as a task."""

    def __init__(
        self,
        address: Address,
        *,
        open_stream: OpenStream,
        reply_seconds_max: float,
        ask_delays: Callable[[], Awaitable[str | None]],
        token: GetToken | None,
    ) -> None:
        super().__init__(
            self._connect,
            quiet_seconds=SILENT_SHARE * reply_seconds_max,
            on_silence=self._question_silent_store,
        )
        self._address = address
        self._peer = name_store(address)
        self._open_stream = open_stream
        self._reply_seconds_max = reply_seconds_max
        self._ask_delays = ask_delays
        self._token = token
        self._stream: trio.abc.Stream | None = None
        self._places = trio.Semaphore(REQUESTS_IN_FLIGHT_MAX)

    @property
    def has_hung_up(self) -> bool:
        """Return whether there is no connection, by asking the kernel; for any thread.

        The task that reads may notice the loss too late: a client that has lost its own connection
        to the store asks within a millisecond which store to use.
        """
        if not self.is_open:
            return True
        # Below TLS, if there is any.
        below = getattr(self._stream, "transport_stream", self._stream)
        socket = getattr(below, "socket", None)
        if socket is None or (descriptor := socket.fileno()) < 0:
            return socket is not None
        poll = select.poll()
        poll.register(descriptor, select.POLLRDHUP)
        return bool(poll.poll(0))

    async def call_all(self, makes: Sequence[MakeRequest]) -> list[Reply]:
        """Send requests together and return their replies, of any kind, in the same order.

        They are sent in several parts if other requests are in flight.

        Raises an error of ``LOST``. A store that is silent for ``SILENT_SHARE`` of the time is
        asked for the reason; if it gives one, this raises ``StoreDelayedError``. If it does not
        answer this question ``QUESTIONS_MAX`` times, this raises ``StoreSilentError``.
        """
        if self._token is not None:
            makes = [partial(_make_with_token, make, self._token) for make in makes]
        replies: list[Reply] = []
        while len(replies) < len(makes):
            left = makes[len(replies) :]
            count = await self._reserve_places(len(left))
            try:
                replies += await self.ask_all(left[:count])
            finally:
                for _ in range(count):
                    self._places.release()
        return replies

    async def _reserve_places(self, wanted: int) -> int:
        """Reserve up to ``wanted`` places for requests in flight; wait only until one is free."""
        try:
            self._places.acquire_nowait()
        except trio.WouldBlock:
            await self._places.acquire()
        count = 1
        with suppress(trio.WouldBlock):
            while count < wanted:
                self._places.acquire_nowait()
                count += 1
        return count

    async def run(self) -> None:
        """Connect, and send and receive until the connection ends."""
        await super().run()
        if self._stream is not None:
            log.info("segment store connection broke", peer=self._peer, reason=str(self.error))

    @asynccontextmanager
    async def _connect(self) -> AsyncIterator[StoreConnection]:
        host, port = self._address
        try:
            with trio.fail_after(self._reply_seconds_max):
                self._stream = await self._open_stream(host, port)
        except (OSError, trio.TooSlowError) as error:
            reason = str(error) or "it took too long"
            raise ConnectionLostError(f"cannot connect to {host}:{port}: {reason}") from error
        async with self._stream:
            connection = StoreConnection(_TrioStream(self._stream), self._peer)
            # Requests do not wait for the answer.
            await connection.send(HELLO)
            yield connection

    async def _question_silent_store(self, replies: Replies) -> None:
        """Ask a store for the reason of its silence, and wait for the replies.

        It is asked again each time that ``SILENT_SHARE`` of the time has passed. This ends when the
        replies have arrived, the time is up, or ``QUESTIONS_MAX`` questions had no answer. If it
        gives a reason, the connection is closed, as after a time-out, which ends its requests.
        """
        unanswered = 0
        with trio.move_on_after((1 - SILENT_SHARE) * self._reply_seconds_max):
            while not replies.arrived.is_set():
                reason = await self._ask_delays()
                if reason:
                    problem = f"{self._peer} waits: {reason}"
                    self.end(ConnectionLostError(problem))
                    raise StoreDelayedError(problem)
                unanswered = 0 if reason is not None else unanswered + 1
                if unanswered == QUESTIONS_MAX and not replies.arrived.is_set():
                    # Whichever of the callers has found it out.
                    self.end(StoreSilentError(f"{self._peer} does not answer"))
                with trio.move_on_after(SILENT_SHARE * self._reply_seconds_max):
                    await replies.arrived.wait()
        if not replies.arrived.is_set():
            text = f"{self._peer} did not answer within {self._reply_seconds_max} s"
            self.end(ConnectionLostError(text))


class _TrioStream:
    """A stream of trio with the calls and errors of AnyIO's."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send(self, data: bytes) -> None:
        """Send all of the bytes."""
        try:
            await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise anyio.BrokenResourceError(str(error)) from error

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes, at least one."""
        try:
            data = await self._stream.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            raise anyio.BrokenResourceError(str(error)) from error
        if not data:
            raise anyio.EndOfStream("it ended the connection")
        return bytes(data)


async def ask_apart(
    address: Address,
    make: MakeRequest,
    *,
    seconds_max: float,
    open_stream: OpenStream,
    token: GetToken | None,
) -> Reply | None:
    """Return a store's reply to a question of ours; None without one in time.

    The command has a connection of its own, because a store that does not know it closes the
    connection.
    """
    make = make if token is None else partial(_make_with_token, make, token)
    with trio.move_on_after(seconds_max), suppress(OSError, *LOST):
        async with await open_stream(*address) as stream:
            connection = StoreConnection(_TrioStream(stream), name_store(address))
            await connection.send(HELLO)
            return await connection.call(make(connection.next_request_id()))
    return None


def name_store(address: Address) -> str:
    """Return the words for the store at an address."""
    host, port = address
    return f"segment store {host}:{port}"


def _make_with_token(make: MakeRequest, token: GetToken, request_id: int) -> Request:
    """Return a request with this controller's token, if the kind has one."""
    request = make(request_id)
    if not hasattr(request, "delegation_token"):
        return request
    return msgspec.structs.replace(request, delegation_token=token())
