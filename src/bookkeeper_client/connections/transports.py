"""Declares the transport of a connection to a bookie, and implements it over TCP.

Owns: ``Transport``, which programs that use this package may implement themselves,
``StreamTransport``, which uses a stream of trio, and ``request_tls``, after which both sides of a
stream begin a handshake.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import trio

from bookkeeper_client.errors import BookieProtocolError, BookKeeperError
from bookkeeper_client.wire.start_tls import REPLY_BYTES_MAX, START_TLS, read_status

RECEIVE_BYTES = 256 * 1024

OnReceived = Callable[[bytes], bool]
"""Called with received bytes, empty at the end; returns whether it wants more."""
SendNow = Callable[[bytes], int]
"""Sends as many bytes as possible without waiting and returns their number. Raises
``trio.BrokenResourceError``."""


class Transport(Protocol):
    """One connection. If it breaks, calls raise ``trio.BrokenResourceError``, or ``receive``
    returns no bytes. After ``aclose`` they raise ``trio.ClosedResourceError``, or ``receive``
    returns no bytes."""

    @property
    def send_now(self) -> SendNow | None:
        """Return a function that sends without waiting; None if only ``send`` can be used."""
        ...

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of ``data``."""
        ...

    async def receive(self) -> bytes:
        """Return some bytes; none when the bookie has closed the connection."""
        ...

    async def receive_with(self, on_received: OnReceived) -> None:
        """Call ``on_received`` with received bytes until it returns False. It may also return
        earlier.

        Raises the errors of ``on_received``.
        """
        ...

    async def aclose(self) -> None:
        """Close at once. Idempotent."""
        ...


OpenTransport: TypeAlias = Callable[[str, int], Awaitable[Transport]]
"""Connects to a host and port. Raises ``OSError``."""


class StreamTransport:
    """A transport on a stream of trio. It cannot send without waiting."""

    send_now = None

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream

    async def send(self, data: bytes | memoryview) -> None:
        await self._stream.send_all(data)

    async def receive(self) -> bytes:
        return bytes(await self._stream.receive_some(RECEIVE_BYTES))

    async def receive_with(self, on_received: OnReceived) -> None:
        while on_received(await self.receive()):
            pass

    async def aclose(self) -> None:
        await trio.aclose_forcefully(self._stream)


async def open_tcp_transport(host: str, port: int) -> Transport:
    """Connect over TCP."""
    return StreamTransport(await trio.open_tcp_stream(host, port))


async def request_tls(stream: trio.abc.Stream) -> None:
    """Ask a bookie to speak TLS; the caller begins the handshake. Raises ``BookKeeperError`` if the
    bookie has no TLS, or hangs up."""
    try:
        await stream.send_all(START_TLS)
        length = int.from_bytes(await _receive_exactly(stream, 4), "big")
        if length > REPLY_BYTES_MAX:
            raise BookieProtocolError(f"a reply of {length} bytes to the request for TLS")
        status = read_status(await _receive_exactly(stream, length))
    except trio.BrokenResourceError as error:
        raise BookKeeperError("the bookie hangs up at the request for TLS") from error
    if status:
        raise BookKeeperError(f"the bookie refuses TLS, with status {status}")


async def _receive_exactly(stream: trio.abc.Stream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await stream.receive_some(count - len(data))
        if not more:
            raise BookKeeperError("the bookie hangs up at the request for TLS")
        data += more
    return data
