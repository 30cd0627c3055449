"""One connection to a segment store, for tasks that do not block.

Owns: a byte stream, the greeting, and the tasks of a connection that is busy on both
sides.

Only one task sends on a connection, and nobody cancels it but who closes the connection then: a
command of which a part was sent would take its rest from the next one.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable
from typing import Protocol

import anyio

from pravega_wire.blocking import ConnectionLostError
from pravega_wire.commands import HELLO, Hello, KeepAlive, Reply, Request
from pravega_wire.connection import Connection, Role

REPLY_SECONDS = 30.0
RECEIVE_BYTES = 256 * 1024
STREAM_ERRORS = (
    OSError,
    anyio.EndOfStream,
    anyio.BrokenResourceError,
    anyio.ClosedResourceError,
)
"""The errors by which a byte stream says that it is lost."""


class ByteStream(Protocol):
    """The part of AnyIO's streams that a connection needs. Raises ``STREAM_ERRORS``."""

    async def send(self, item: bytes, /) -> None:
        """Send all of the bytes."""

    async def receive(self, max_bytes: int, /) -> bytes:
        """Return the next bytes, at least one."""
        ...


class StoreConnection:
    """A connection to a segment store. One task may send while another receives."""

    def __init__(
        self, stream: ByteStream, peer: str, *, receive_bytes: int = RECEIVE_BYTES
    ) -> None:
        """Take ``receive_bytes``, the maximum number of bytes that are received at once."""
        self.peer = peer
        self._receive_bytes = receive_bytes
        self._stream = stream
        self._connection = Connection(Role.CLIENT)
        self._request_ids = itertools.count(1)

    def next_request_id(self) -> int:
        """Return a request id that this connection has not returned before."""
        return next(self._request_ids)

    def encode(self, command: Request) -> bytes:
        """Return the bytes of a command. Raises ``ProtocolError`` if it is too long."""
        return self._connection.send(command)

    async def send(self, command: Request) -> None:
        """Send a command. Raises ``ConnectionLostError``."""
        await self.send_bytes(self.encode(command))

    async def send_bytes(self, data: bytes) -> None:
        """Send bytes as they are. Raises ``ConnectionLostError``."""
        try:
            await self._stream.send(data)
        except STREAM_ERRORS as error:
            raise ConnectionLostError(f"{self.peer} is gone: {error}") from error

    async def receive(self) -> list[Reply]:
        """Return the next replies, at least one. Raises ``ProtocolError``."""
        while True:
            try:
                data = await self._stream.receive(self._receive_bytes)
            except STREAM_ERRORS as error:
                raise ConnectionLostError(f"{self.peer} is gone: {error}") from error
            replies = self._connection.receive_data(data)
            if replies:
                return replies  # type: ignore[return-value]

    async def call(self, request: Request) -> Reply:
        """Send a request when no other one is under way, and return its reply.

        Raises ``ConnectionLostError``, also when none comes in ``REPLY_SECONDS``.
        """
        others = KeepAlive if isinstance(request, Hello) else KeepAlive | Hello
        with anyio.move_on_after(REPLY_SECONDS):
            await self.send(request)
            while True:
                for reply in await self.receive():
                    if not isinstance(reply, others):
                        return reply
        raise ConnectionLostError(f"no reply of {self.peer} within {REPLY_SECONDS:g} s")

    async def greet(self) -> None:
        """Say Hello, and wait for the answer. Raises ``ConnectionLostError``."""
        self.check_hello(await self.call(HELLO))

    def check_hello(self, reply: Reply) -> None:
        """Raise ``ConnectionLostError`` unless a reply is the Hello of a store that suits us."""
        if not isinstance(reply, Hello):
            raise ConnectionLostError(f"{self.peer} answered Hello with {type(reply).__name__}")
        if not reply.suits_us:
            raise ConnectionLostError(f"{self.peer} speaks other versions: {reply}")


async def run_until_one_ends(*steps: Callable[[], Awaitable[None]]) -> None:
    """Run steps at the same time until one of them returns or raises; cancel the others.

    Raises its error. A task group would raise a group of errors.
    """
    failures: list[Exception] = []

    async def guard(step: Callable[[], Awaitable[None]]) -> None:
        try:
            await step()
        except Exception as error:
            failures.append(error)
        group.cancel_scope.cancel()

    async with anyio.create_task_group() as group:
        for step in steps:
            group.start_soon(guard, step)
    if failures:
        raise failures[0]
