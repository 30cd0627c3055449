"""One connection to a segment store: requests go out as they come, replies find theirs by id.

Owns: the socket, the requests in flight, and when the connection counts as lost.

Requests that come while others are sent wait in the outbox, and go out together with one write.

Invariants:
1. A request id is used once on a connection; every request in flight gets exactly one outcome: its
   reply, or ``ConnectionLostError``.
2. At most ``REQUESTS_IN_FLIGHT_MAX`` requests wait at a time; further callers queue.
3. A connection that broke the protocol, ran out of time, or was left in the middle of a frame is
   closed and never used again.
4. A caller that gives up cuts no frame short: what is in the outbox is sent whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
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
"""Builds a request from the request id it is to carry."""

log = structlog.get_logger(__name__)


class ConnectionLostError(ControllerError):
    """The connection broke, or no reply came in time; the request may or may not have happened."""


class _Slot:
    """Where a caller waits for its reply."""

    __slots__ = ("arrived", "reply")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.reply: Reply | None = None


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

    async def call(self, make: MakeRequest) -> Reply:
        """Send a request and return its reply, whatever it says. Else ``ConnectionLostError``."""
        try:
            self._places.acquire_nowait()
        except trio.WouldBlock:
            await self._places.acquire()
        try:
            return await self._call(make)
        finally:
            self._places.release()

    async def _call(self, make: MakeRequest) -> Reply:
        if self.is_lost:
            raise ConnectionLostError(f"the connection to {self._peer} is lost")
        request_id = next(self._request_ids)
        slot = _Slot()
        self._outbox.append(self._wire.send(make(request_id)))
        self._filled.set()
        self._in_flight[request_id] = slot
        try:
            with trio.move_on_after(self._reply_seconds_max):
                await slot.arrived.wait()
        finally:
            del self._in_flight[request_id]
        if slot.reply is not None:
            return slot.reply
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
            log.info("segment store takes no more requests", peer=self._peer)
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
        """Drop the connection; everything in flight fails. Idempotent."""
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
        slot = self._in_flight.get(getattr(reply, "request_id", -1))
        if slot is None:
            log.debug("reply to nobody", peer=self._peer, reply=type(reply).__name__)
            return
        slot.reply = reply
        slot.arrived.set()

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
