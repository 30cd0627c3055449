"""A connection to a segment store: requests are sent at once, and replies are matched by id.

Owns: the socket, the requests in flight, and the decision that the connection is lost.

Requests that come while others are sent wait in the outbox, and are sent together by one write. One
caller's requests about many segments have one wait for all of their replies.

Invariants:
1. A request id is used once on a connection; every request in flight has exactly one outcome: its
   reply, or ``ConnectionLostError``.
2. At most ``REQUESTS_IN_FLIGHT_MAX`` requests wait at a time; further callers queue.
3. A connection is closed and never used again once the protocol was broken, its time ran out, or
   the stream ended in the middle of a frame.
4. A caller that gives up truncates no frame: the outbox is always sent whole.
"""

from __future__ import annotations

import itertools
import select
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeAlias

import structlog
import trio

from pravega_controller.errors import ControllerError
from pravega_wire.commands import (
    HELLO,
    OLDEST_COMPATIBLE_VERSION,
    WIRE_VERSION,
    Hello,
    KeepAlive,
    Reply,
    Request,
)
from pravega_wire.connection import Connection, Role
from pravega_wire.errors import RemoteProtocolError

REQUESTS_IN_FLIGHT_MAX = 512
RECEIVE_BYTES = 256 * 1024

OpenStream: TypeAlias = Callable[[str, int], Awaitable[trio.abc.Stream]]
"""Opens a byte stream to a host and port, as ``trio.open_tcp_stream`` does."""

MakeRequest: TypeAlias = Callable[[int], Request]
"""Builds a request with the given request id."""

log = structlog.get_logger(__name__)


class ConnectionLostError(ControllerError):
    """The connection broke, or no reply came in time; the request may or may not have happened."""


@dataclass(slots=True, eq=False)
class _Slot:
    """The replies for which a caller waits."""

    missing_count: int
    arrived: trio.Event = field(default_factory=trio.Event)
    """Set when all replies are there, or when no more will come."""
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
        self, stream: trio.abc.Stream, address: tuple[str, int], *, reply_seconds_max: float
    ) -> None:
        self.address = address
        self.is_lost = False
        self._stream = stream
        self._wire = Connection(Role.CLIENT)
        self._reply_seconds_max = reply_seconds_max
        self._request_ids = itertools.count(1)
        self._in_flight: dict[int, _Slot] = {}
        self._places = trio.Semaphore(REQUESTS_IN_FLIGHT_MAX)
        self._outbox: list[bytes] = [self._wire.send(HELLO)]
        self._filled = trio.Event()
        self._filled.set()

    @property
    def has_hung_up(self) -> bool:
        """Return whether the connection is lost, even if only the kernel knows yet; for any thread.

        A client that lost its own connection asks within a millisecond for another store.
        """
        if self.is_lost:
            return True
        socket = getattr(self._stream, "socket", None)
        if socket is None or (descriptor := socket.fileno()) < 0:
            return socket is not None
        poll = select.poll()
        poll.register(descriptor, select.POLLRDHUP)
        return bool(poll.poll(0))

    async def call(self, make: MakeRequest) -> Reply:
        """Send a request and return its reply, of any kind, or raise ``ConnectionLostError``."""
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
        """Reserve as many places as are free, at least one: a task that has some does not wait."""
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
            request_id: self._wire.send(make(request_id))
            for make, request_id in zip(makes, self._request_ids, strict=False)
        }
        slot = _Slot(len(encoded))
        self._outbox += encoded.values()
        self._filled.set()
        self._in_flight.update(dict.fromkeys(encoded, slot))
        try:
            with trio.move_on_after(self._reply_seconds_max):
                await slot.arrived.wait()
        finally:
            for request_id in encoded:
                self._in_flight.pop(request_id, None)
        if not slot.missing_count:
            return [slot.replies[request_id] for request_id in encoded]
        if not self.is_lost:
            await self.close()
            raise ConnectionLostError(
                f"{self._peer} did not answer within {self._reply_seconds_max} s"
            )
        raise ConnectionLostError(f"the connection to {self._peer} broke")

    async def run(self) -> None:
        """Send requests and hand replies to their callers until the connection is lost."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._send_requests)
            await self._receive_replies()
            nursery.cancel_scope.cancel()

    async def _send_requests(self) -> None:
        try:
            while True:
                await self._filled.wait()
                data = b"".join(self._outbox)
                self._outbox.clear()
                self._filled = trio.Event()
                with trio.fail_after(self._reply_seconds_max):
                    await self._stream.send_all(data)
        except trio.TooSlowError:
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
        if hello.low_version > WIRE_VERSION or hello.high_version < OLDEST_COMPATIBLE_VERSION:
            raise RemoteProtocolError(
                f"speaks wire versions {hello.low_version} to {hello.high_version}, "
                f"we speak {OLDEST_COMPATIBLE_VERSION} to {WIRE_VERSION}"
            )

    @property
    def _peer(self) -> str:
        host, port = self.address
        return f"segment store {host}:{port}"
