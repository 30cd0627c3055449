"""One connection to a segment store, for tasks that do not block.

Owns: a byte stream of AnyIO, the greeting, and the two tasks of a connection that is busy on both
sides.

Only one task sends on a connection, and nobody cancels it but who closes the connection then: a
command of which a part was sent would take its rest from the next one.
"""

from __future__ import annotations

import itertools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import anyio
from anyio.abc import ByteStream

from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError
from pravega_wire.connection import Connection, Role
from segstore_client.access.tokens import StoreAccess, raise_if_untrusted
from segstore_client.append_refusals import SegmentEndedError
from segstore_client.controller.controller_client import RETRIED_ERRORS
from segstore_client.errors import PravegaError

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

    def next_request_id(self) -> int:
        """Return a request id that this connection has not returned before."""
        return next(self._request_ids)

    def encode(self, command: wire.Request) -> bytes:
        """Return the bytes of a command. Raises ``ProtocolError`` if it is too long."""
        return self._connection.send(command)

    async def send(self, command: wire.Request) -> None:
        """Send a command. Raises ``ConnectionLostError``."""
        await self.send_bytes(self.encode(command))

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
    async with await connect_stream(host, port, access) as stream:
        connection = StoreConnection(stream, peer)
        hello = await connection.call(wire.HELLO)
        if not isinstance(hello, wire.Hello):
            raise ConnectionLostError(f"{peer} answered Hello with {type(hello).__name__}")
        if not hello.suits_us:
            raise ConnectionLostError(f"{peer} speaks other versions: {hello}")
        yield connection


async def run_until_one_ends(*steps: Callable[[], Awaitable[None]]) -> None:
    """Run steps at the same time until one of them returns or raises; cancel the others.

    Raises its error. A task group would raise a group of errors.
    """
    failures: list[Exception] = []

    async def guard(step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except (SegmentEndedError, PravegaError, *RETRIED_ERRORS) as error:
            failures.append(error)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for step in steps:
            group.start_soon(guard, step)
    if failures:
        raise failures[0]


async def connect_stream(host: str, port: int, access: StoreAccess) -> ByteStream:
    """Return a stream of bytes to a segment store. Raises errors as ``open_connection``."""
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
        raise_if_untrusted(lost, host, port, access.words)
        raise lost from cause
