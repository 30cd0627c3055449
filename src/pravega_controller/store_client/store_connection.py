"""A connection to a segment store: requests are sent at once, and replies are matched by id.

Owns: the socket, the requests in flight, and the decision that the connection is lost.

Requests that come while others are sent wait in the outbox, and are sent together by one write. A
caller with requests about many segments waits once for all of their replies.

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

import itertools
import math
import select
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
import structlog
import trio

from pravega_controller.errors import ControllerError, StoreDelayedError, StoreSilentError
from pravega_wire.commands import (
    HELLO,
    Hello,
    KeepAlive,
    Reply,
    Request,
)
from pravega_wire.connection import Connection, Role
from pravega_wire.errors import RemoteProtocolError

REQUESTS_IN_FLIGHT_MAX = 512
RECEIVE_BYTES = 256 * 1024
SILENT_SHARE = 0.25
"""Part of the time for a reply after which a store that has not replied is asked for the reason."""

QUESTIONS_MAX = 2
"""Number of such questions without an answer after which a store counts as silent."""

OpenStream: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a byte stream to a host and port, as ``trio.open_tcp_stream`` does."""

MakeRequest: TypeAlias = Callable[[int], Request]
"""Builds a request with the given request id."""

GetToken: TypeAlias = Callable[[], str]
"""Returns a token that allows this controller everything."""

log = structlog.get_logger(__name__)


class ConnectionLostError(ControllerError):
    """The connection broke, or no reply came in time. The request may have been carried out."""


@dataclass(slots=True, eq=False)
class _Slot:
    """The replies for which a caller waits."""

    missing_count: int
    arrived: trio.Event = field(default_factory=trio.Event)
    """Set when all replies have arrived, or when no more will arrive."""
    replies: dict[int, Reply] = field(default_factory=dict)
    """Replies by request id."""

    def set_reply(self, request_id: int, reply: Reply) -> None:
        """Store the reply to a request that has none yet."""
        self.replies[request_id] = reply
        self.missing_count -= 1
        if not self.missing_count:
            self.arrived.set()


class StoreConnection:
    """A connected stream to one segment store; ``run`` must run as a task."""

    def __init__(
        self,
        stream: trio.abc.Stream,
        address: tuple[str, int],
        *,
        reply_seconds_max: float,
        ask_delays: Callable[[], Awaitable[str | None]],
        token: GetToken | None = None,
    ) -> None:
        self.address = address
        self.is_lost = False
        self._is_silent = False
        self._stream = stream
        self._wire = Connection(Role.CLIENT)
        self._reply_seconds_max = reply_seconds_max
        self._ask_delays = ask_delays
        self._token = token
        self._request_ids = itertools.count(1)
        self._in_flight: dict[int, _Slot] = {}
        self._places = trio.Semaphore(REQUESTS_IN_FLIGHT_MAX)
        self._outbox: list[bytes] = [self._wire.send(HELLO)]
        self._filled = trio.Event()
        self._filled.set()

    @property
    def has_hung_up(self) -> bool:
        """Return whether the connection is lost, by asking the kernel; for any thread.

        The task that reads may notice the loss too late: a client that has lost its own connection
        to the store asks within a millisecond which store to use.
        """
        if self.is_lost:
            return True
        # Below TLS, if there is any.
        below = getattr(self._stream, "transport_stream", self._stream)
        socket = getattr(below, "socket", None)
        if socket is None or (descriptor := socket.fileno()) < 0:
            return socket is not None
        poll = select.poll()
        poll.register(descriptor, select.POLLRDHUP)
        return bool(poll.poll(0))

    async def call(self, make: MakeRequest) -> Reply:
        """Send a request and return its reply, of any kind.

        Raises ``ConnectionLostError``. A store that is silent for ``SILENT_SHARE`` of the time is
        asked for the reason; if it gives one, this raises ``StoreDelayedError``. If it does not
        answer this question ``QUESTIONS_MAX`` times, this raises ``StoreSilentError``.
        """
        [reply] = await self.call_all([make])
        return reply

    async def call_all(self, makes: Sequence[MakeRequest]) -> list[Reply]:
        """Send requests together like ``call`` and return their replies in the same order.

        They are sent in several parts if other requests are in flight.
        """
        replies: list[Reply] = []
        while len(replies) < len(makes):
            left = makes[len(replies) :]
            count = await self._reserve_places(len(left))
            try:
                replies += await self._call_all(left[:count])
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

    async def _call_all(self, makes: Sequence[MakeRequest]) -> list[Reply]:
        if self.is_lost:
            raise ConnectionLostError(f"the connection to {self._peer} is lost")
        encoded = {
            request_id: self._wire.send(self._with_token(make(request_id)))
            for make, request_id in zip(makes, self._request_ids, strict=False)
        }
        slot = _Slot(len(encoded))
        self._outbox += encoded.values()
        self._filled.set()
        self._in_flight.update(dict.fromkeys(encoded, slot))
        try:
            # One cancel scope: almost every reply comes before the store counts as silent.
            with trio.move_on_after(SILENT_SHARE * self._reply_seconds_max):
                await slot.arrived.wait()
            if not slot.arrived.is_set():
                await self._question_silent_store(slot)
        finally:
            for request_id in encoded:
                self._in_flight.pop(request_id, None)
        if not slot.missing_count:
            return [slot.replies[request_id] for request_id in encoded]
        if self._is_silent:
            # Whichever of the callers has found it out.
            raise StoreSilentError(f"{self._peer} does not answer")
        if not self.is_lost:
            await self.close()
            raise ConnectionLostError(
                f"{self._peer} did not answer within {self._reply_seconds_max} s"
            )
        raise ConnectionLostError(f"the connection to {self._peer} broke")

    def _with_token(self, request: Request) -> Request:
        """Return a request with this controller's token, if there is one and the kind has one."""
        if self._token is None or not hasattr(request, "delegation_token"):
            return request
        return msgspec.structs.replace(request, delegation_token=self._token())

    async def _question_silent_store(self, slot: _Slot) -> None:
        """Ask a store for the reason of its silence, and wait for the replies.

        It is asked again each time that ``SILENT_SHARE`` of the time has passed. This ends when the
        replies have arrived, the time is up, or ``QUESTIONS_MAX`` questions had no answer.
        """
        unanswered = 0
        with trio.move_on_after((1 - SILENT_SHARE) * self._reply_seconds_max):
            while not slot.arrived.is_set():
                unanswered = 0 if await self._explain_silence() else unanswered + 1
                if unanswered == QUESTIONS_MAX and not slot.arrived.is_set():
                    self._is_silent = True
                    await self.close()
                with trio.move_on_after(SILENT_SHARE * self._reply_seconds_max):
                    await slot.arrived.wait()

    async def _explain_silence(self) -> bool:
        """Return whether the store answers when it is asked for the reason of its silence.

        Raises ``StoreDelayedError`` if it gives a reason. The connection is then closed, as after a
        time-out, which ends its requests.
        """
        reason = await self._ask_delays()
        if reason:
            await self.close()
            raise StoreDelayedError(f"{self._peer} waits: {reason}")
        return reason is not None

    async def run(self) -> None:
        """Send requests and hand replies to their callers until the connection is lost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_requests)
            await self._receive_replies()
            nursery.cancel_scope.cancel()

    async def _send_requests(self) -> None:
        try:
            # One cancel scope for all writes: making one costs more than all else of a small write.
            with trio.CancelScope() as write:
                while True:
                    await self._filled.wait()
                    data = b"".join(self._outbox)
                    self._outbox.clear()
                    self._filled = trio.Event()
                    write.deadline = trio.current_time() + self._reply_seconds_max
                    await self._stream.send_all(data)
                    write.deadline = math.inf
            log.info("segment store does not read requests", peer=self._peer)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.info("segment store connection broke", peer=self._peer, reason=repr(error))
        finally:
            await self.close()

    async def _receive_replies(self) -> None:
        try:
            while data := await self._stream.receive_some(RECEIVE_BYTES):
                for command in self._wire.receive_data(data):
                    assert isinstance(command, Reply)
                    self._deliver(command)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.info("segment store connection broke", peer=self._peer, reason=repr(error))
        except RemoteProtocolError as error:
            log.error("segment store broke the protocol", peer=self._peer, reason=str(error))
        finally:
            await self.close()

    async def close(self) -> None:
        """Close the connection; everything in flight fails. Idempotent."""
        self.is_lost = True
        for slot in self._in_flight.values():
            slot.arrived.set()
        await trio.aclose_forcefully(self._stream)

    def _deliver(self, reply: Reply) -> None:
        if isinstance(reply, Hello):
            self._check_versions(reply)
            return
        if isinstance(reply, KeepAlive):
            return
        request_id = getattr(reply, "request_id", -1)
        slot = self._in_flight.pop(request_id, None)
        if slot is None:
            log.debug("reply to an unknown request", peer=self._peer, reply=type(reply).__name__)
            return
        slot.set_reply(request_id, reply)

    def _check_versions(self, hello: Hello) -> None:
        if not hello.suits_us:
            raise RemoteProtocolError(
                f"speaks wire versions {hello.low_version} to {hello.high_version}, "
                f"we speak {HELLO.low_version} to {HELLO.high_version}"
            )

    @property
    def _peer(self) -> str:
        host, port = self.address
        return f"segment store {host}:{port}"
