"""One connection to a segment store, for a task that does not block.

Owns: a byte stream of AnyIO, and the greeting.
"""

from __future__ import annotations

import itertools
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteStream

from pravega_blocking.access.tokens import StoreAccess, raise_if_untrusted
from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError
from pravega_wire.connection import Connection, Role

CONNECT_SECONDS = 10.0
REPLY_SECONDS = 30.0
_RECEIVE_BYTES = 256 * 1024
_LOST = (OSError, anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError)


class StoreConnection:
    """A connection after its greeting. One task may send while another receives."""

    def __init__(self, stream: ByteStream, peer: str) -> None:
        self.peer = peer
        self._stream = stream
        self._connection = Connection(Role.CLIENT)
        self._request_ids = itertools.count(1)
        self._others: list[wire.Reply] = []

    def next_request_id(self) -> int:
        """Return a request id that this connection has not returned before."""
        return next(self._request_ids)

    async def send(self, command: wire.Request) -> None:
        """Send a command. Raises ``ConnectionLostError``."""
        await self.send_bytes(self._connection.send(command))

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are. Raises ``ConnectionLostError``."""
        try:
            await self._stream.send(data)
        except _LOST as error:
            raise ConnectionLostError(f"{self.peer} is gone: {error}") from error

    async def receive(self) -> list[wire.Reply]:
        """Return the next replies, at least one. Raises ``ProtocolError``."""
        while True:
            try:
                data = await self._stream.receive(_RECEIVE_BYTES)
            except _LOST as error:
                raise ConnectionLostError(f"{self.peer} is gone: {error}") from error
            replies = self._connection.receive_data(data)
            if replies:
                return replies  # type: ignore[return-value]

    async def call(self, request: wire.Request) -> wire.Reply:
        """Send the first request of a connection, and return its reply.

        Raises ``ConnectionLostError``, also when none comes in ``REPLY_SECONDS``.
        """
        with anyio.move_on_after(REPLY_SECONDS):
            await self.send(request)
            while True:
                for reply in await self.receive():
                    if not isinstance(reply, wire.KeepAlive):
                        return reply
        raise ConnectionLostError(f"no reply of {self.peer} within {REPLY_SECONDS:g} s")


@asynccontextmanager
async def open_connection(
    host: str, port: int, access: StoreAccess
) -> AsyncIterator[StoreConnection]:
    """Connect to a segment store, and greet it.

    Raises ``ConnectionLostError``, and ``UntrustedServerError`` when TLS forbids it.
    """
    peer = f"{host}:{port}"
    async with await _connect(host, port, access) as stream:
        connection = StoreConnection(stream, peer)
        hello = await connection.call(wire.HELLO)
        if not isinstance(hello, wire.Hello):
            raise ConnectionLostError(f"{peer} answered Hello with {type(hello).__name__}")
        low, high = hello.low_version, hello.high_version
        if low > wire.WIRE_VERSION or high < wire.OLDEST_COMPATIBLE_VERSION:
            raise ConnectionLostError(f"{peer} speaks other versions: {hello}")
        yield connection


async def _connect(host: str, port: int, access: StoreAccess) -> ByteStream:
    try:
        with anyio.fail_after(CONNECT_SECONDS):
            context = access.make_context()
            if context is None:
                return await anyio.connect_tcp(host, port)
            return await anyio.connect_tcp(
                host, port, ssl_context=context, tls_standard_compatible=False
            )
    except (*_LOST, TimeoutError) as error:
        cause = error.__cause__ if isinstance(error.__cause__, ssl.SSLError) else error
        lost = ConnectionLostError(f"cannot connect to {host}:{port}: {error}")
        lost.__cause__ = cause
        raise_if_untrusted(lost, host, port)
        raise lost from cause
