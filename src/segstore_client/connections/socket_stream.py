"""The bytes of one TCP connection without TLS, received in pieces as long as the caller wants.

Owns: the socket of the connection.

AnyIO's own stream receives at most 256 KiB at once on asyncio, in three turns of the event loop.
That took half of the CPU time of a program that reads events of 10 KB.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Any

import anyio
import anyio.lowlevel

AddressInfo = tuple[Any, ...]
"""A line of ``socket.getaddrinfo``."""


class SocketStream:
    """A byte stream over a connected socket that does not block.

    One task may send while another one receives.
    """

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected

    def fileno(self) -> int:
        """Return the descriptor of the socket; -1 when the stream is closed."""
        return self._socket.fileno()

    async def send(self, item: bytes) -> None:
        """Send all of the bytes. Raises ``OSError`` if the connection is lost."""
        await anyio.lowlevel.checkpoint()
        rest = memoryview(item)
        while rest:
            try:
                rest = rest[self._socket.send(rest) :]
            except BlockingIOError:
                await anyio.wait_writable(self._socket)

    async def receive(self, max_bytes: int) -> bytes:
        """Return the next bytes, at least one.

        Raises ``EndOfStream`` when the peer has ended the connection, and ``OSError`` if it is
        lost.
        """
        await anyio.lowlevel.checkpoint()
        while True:
            try:
                data = self._socket.recv(max_bytes)
            except BlockingIOError:
                await anyio.wait_readable(self._socket)
                continue
            if not data:
                raise anyio.EndOfStream
            return data

    async def aclose(self) -> None:
        """Close the connection. Who waits on it gets ``ClosedResourceError``."""
        if self.fileno() >= 0:
            anyio.notify_closing(self._socket)
            self._socket.close()


async def connect_socket(host: str, port: int, *, seconds_max: float) -> SocketStream:
    """Return a stream to the first address of a host that answers.

    Each address has an equal part of the seconds. Raises ``OSError``, also when none answers in its
    part.
    """
    found = await _find_addresses(host, port)
    for place, info in enumerate(found, start=1):
        try:
            with anyio.fail_after(seconds_max / len(found)):
                return SocketStream(await _connect(info))
        except OSError:
            if place == len(found):
                raise
    raise AssertionError("getaddrinfo returns at least one address")


async def _find_addresses(host: str, port: int) -> Sequence[AddressInfo]:
    """Return the addresses of a host; only names are asked for in a thread."""
    try:
        return socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_NUMERICHOST)
    except socket.gaierror:
        return await anyio.getaddrinfo(host, port, type=socket.SOCK_STREAM)


async def _connect(info: AddressInfo) -> socket.socket:
    family, kind, protocol, _, address = info
    made = socket.socket(family, kind, protocol)
    try:
        made.setblocking(False)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, True)
        try:
            made.connect(address)
        except BlockingIOError:
            await anyio.wait_writable(made)
            if code := made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                raise OSError(code, os.strerror(code)) from None
    except BaseException:
        made.close()
        raise
    return made
