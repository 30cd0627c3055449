"""Keeps one TCP connection to each bookie. Requests are sent in order; answers come in any order.

Invariants:
1. When a connection breaks, each of its requests is answered exactly once, with None. Held by
   ``test_what_a_broken_connection_had_not_sent_is_answered_once``.
2. When a bookie is stopped, the bytes of the requests that wait for it are limited; further
   requests are answered with None. Held by ``test_what_waits_for_a_bookie_is_bounded``.
3. When the socket has space and nothing else waits, a request is sent within ``send``. Held by
   ``test_a_request_leaves_at_once_where_there_is_room``.
4. When earlier bytes wait, a request is sent after them. Held by
   ``test_requests_keep_their_order_behind_one_that_waits``.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from bookkeeper_client.connections.transports import (
    OpenTransport,
    SendNow,
    Transport,
    open_tcp_transport,
)
from bookkeeper_client.errors import BookieProtocolError, BookKeeperError
from bookkeeper_client.wire.protocol import Buffer, Code, Operation, ReplyDecoder
from zookeeper_client.api import ZooKeeperError

logger = logging.getLogger(__name__)

SEND_BYTES = 256 * 1024
"""Maximum number of bytes that are joined into one write."""

OnAnswer = Callable[[Code | None, bytes], None]
Key = tuple[Operation, int, int]
"""The operation, ledger id and entry id by which a reply is assigned to a request."""


@dataclass(frozen=True, slots=True)
class ConnectionLimits:
    """Limits beyond which a bookie counts as failed."""

    connect_seconds_max: float = 5.0
    answer_seconds_max: float = 10.0
    waiting_bytes_max: int = 256 * 1024 * 1024


@dataclass(slots=True)
class _Request:
    key: Key
    frame: Sequence[Buffer]
    size: int
    deadline: float
    on_answer: OnAnswer


class BookieConnection:
    """See the module. ``run`` connects when there are requests to send."""

    def __init__(
        self,
        bookie: str,
        find_address: Callable[[str], Awaitable[tuple[str, int]]],
        limits: ConnectionLimits,
        open_transport: OpenTransport = open_tcp_transport,
    ) -> None:
        self._bookie = bookie
        self._find_address = find_address
        self._limits = limits
        self._open_transport = open_transport
        self._unsent: deque[_Request] = deque()
        self._sent: dict[Key, deque[_Request]] = {}
        self._waiting_bytes = 0
        self._has_unsent = trio.Event()
        """Set while the task in ``run`` has to connect or send."""
        self._send_now: SendNow | None = None
        """Sends within the call; used only while no earlier bytes wait."""
        self._rest: bytes | memoryview = b""
        """The bytes that ``_send_now`` did not send."""
        self._decoder = ReplyDecoder()
        self._address: tuple[str, int] | None = None
        """The last known address of the bookie."""

    def send(self, key: Key, frame: Sequence[Buffer], on_answer: OnAnswer) -> None:
        """Send a request, or queue it. ``on_answer`` is called with the answer, or with None if
        there is none, and never before this returns."""
        size = sum(map(len, frame))
        if self._waiting_bytes + size > self._limits.waiting_bytes_max:
            trio.lowlevel.current_trio_token().run_sync_soon(on_answer, None, b"")
            return
        deadline = trio.current_time() + self._limits.answer_seconds_max
        self._unsent.append(_Request(key, frame, size, deadline, on_answer))
        self._waiting_bytes += size
        if self._send_now is None or self._has_unsent.is_set():
            self._has_unsent.set()
        else:
            self._send_without_task(self._send_now)

    async def run(self) -> None:
        """Connect, send and receive, again and again, until cancelled."""
        while True:
            await self._has_unsent.wait()
            try:
                await self._exchange()
            except (OSError, trio.TooSlowError, BookKeeperError, ZooKeeperError) as error:
                logger.debug("bookie %s: %r", self._bookie, error)
            self._give_up()

    async def _exchange(self) -> None:
        with trio.fail_after(self._limits.connect_seconds_max):
            host, port = await self._find()
            transport = await self._open_transport(host, port)
        try:
            self._send_now = transport.send_now
            async with trio.open_nursery() as nursery:
                for act in (self._send_all, self._receive_all, self._watch):
                    nursery.start_soon(self._until_it_breaks, act, transport, nursery.cancel_scope)
        finally:
            self._send_now = None
            await transport.aclose()

    async def _find(self) -> tuple[str, int]:
        """Return the bookie's address. If ZooKeeper does not answer, return the last known one."""
        with trio.move_on_after(self._limits.connect_seconds_max / 2):
            try:
                self._address = await self._find_address(self._bookie)
            except ZooKeeperError:
                if self._address is None:
                    raise
        if self._address is None:
            raise BookKeeperError(f"ZooKeeper has no address of bookie {self._bookie}")
        return self._address

    async def _until_it_breaks(
        self,
        act: Callable[[Transport], Awaitable[None]],
        transport: Transport,
        scope: trio.CancelScope,
    ) -> None:
        try:
            await act(transport)
        except (trio.BrokenResourceError, trio.ClosedResourceError, BookieProtocolError) as error:
            logger.debug("bookie %s: %r", self._bookie, error)
        scope.cancel()

    def _send_without_task(self, send_now: SendNow) -> None:
        data = self._next_bytes()
        try:
            sent = send_now(data)
        except trio.BrokenResourceError:
            sent = 0  # the task in ``run`` will find the failure and end the connection
        if sent < len(data):
            self._rest = memoryview(data)[sent:]
            self._has_unsent.set()

    async def _send_all(self, transport: Transport) -> None:
        while True:
            await self._has_unsent.wait()
            while data := self._rest or self._next_bytes():
                await transport.send(data)
                self._rest = b""
            self._has_unsent = trio.Event()

    def _next_bytes(self) -> bytes:
        """Move queued requests to the sent ones; return their bytes, joined."""
        pieces: list[Buffer] = []
        size = 0
        while self._unsent and size < SEND_BYTES:
            request = self._unsent.popleft()
            self._sent.setdefault(request.key, deque()).append(request)
            pieces += request.frame
            size += request.size
        return b"".join(pieces)

    async def _receive_all(self, transport: Transport) -> None:
        self._decoder = ReplyDecoder()
        while data := await transport.receive():
            if self._data_received(data):
                await transport.receive_with(self._data_received)

    def _data_received(self, data: bytes) -> bool:
        """Call ``on_answer`` of the requests whose replies came; return False at the end of the
        stream."""
        for reply in self._decoder.feed(data):
            key = (reply.operation, reply.ledger_id, reply.entry_id)
            requests = self._sent.get(key)
            if requests is None:
                raise BookieProtocolError(f"an answer to {key} without a request")
            request = requests.popleft()
            if not requests:
                del self._sent[key]
            self._waiting_bytes -= request.size
            request.on_answer(reply.code, reply.entry)
        return bool(data)

    async def _watch(self, _: Transport) -> None:
        """Return when an answer has taken too long, which ends the connection."""
        while True:
            await trio.sleep(self._limits.answer_seconds_max / 10)
            # The first key is not always the oldest request, but close enough for a time limit.
            oldest = next(iter(self._sent.values()), None)
            if oldest is not None and oldest[0].deadline < trio.current_time():
                logger.debug("bookie %s does not answer", self._bookie)
                return

    def _give_up(self) -> None:
        requests = [request for each in self._sent.values() for request in each]
        requests += self._unsent
        self._sent.clear()
        self._unsent.clear()
        self._rest = b""
        self._waiting_bytes = 0
        self._has_unsent = trio.Event()
        for request in requests:
            request.on_answer(None, b"")
