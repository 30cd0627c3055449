"""The transport of a connection to a bookie: an interface, and the usual transport over TCP.

Owns: ``Transport``, which an embedding program may implement itself, and the usual kind,
``StreamTransport``, on any stream of trio.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol, TypeAlias

import trio

RECEIVE_BYTES = 256 * 1024

OnReceived = Callable[[bytes], bool]
"""Gets the received bytes, none at the end; returns whether it wants more."""
SendNow = Callable[[bytes], int]
"""Sends bytes at once as far as possible and returns their number; raises
``trio.BrokenResourceError``."""


class Transport(Protocol):
    """One connection. A broken one raises ``trio.BrokenResourceError``, or ends what is received;
    a use after ``aclose`` raises ``trio.ClosedResourceError``, or ends what is received."""

    @property
    def send_now(self) -> SendNow | None:
        """Return a function that sends without waiting; None when only ``send`` can be used."""
        ...

    async def send(self, data: bytes | memoryview) -> None:
        """Send all of ``data``."""
        ...

    async def receive(self) -> bytes:
        """Return some bytes, or none when the bookie has finished."""
        ...

    async def receive_with(self, on_received: OnReceived) -> None:
        """Call ``on_received`` with received bytes until it returns False; may return earlier.

        Raises what ``on_received`` raises.
        """
        ...

    async def aclose(self) -> None:
        """Close at once. Idempotent."""
        ...


OpenTransport: TypeAlias = Callable[[str, int], Awaitable[Transport]]
"""Connects to a host and port. Raises ``OSError``."""


class StreamTransport:
    """A stream of trio; only tasks send and receive."""

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
