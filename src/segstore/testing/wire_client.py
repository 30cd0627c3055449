"""A client of the wire protocol over any trio stream, for tests and simulations.

Owns: nothing but the order of replies as they came.
"""

from __future__ import annotations

import itertools
from collections import deque
from typing import TypeVar

import trio

from pravega_wire import commands as wire
from pravega_wire.connection import Append, Connection, Role, append_block

ReplyType = TypeVar("ReplyType", bound=wire.Command)

RECEIVE_BYTES = 1 << 20


class PeerClosedError(Exception):
    """The server closed the connection."""


class WireClient:
    """One connection, used by one task at a time."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self.stream = stream
        self._protocol = Connection(Role.CLIENT)
        self._replies: deque[wire.Command] = deque()
        self._request_ids = itertools.count(1)

    def next_request_id(self) -> int:
        """Return a request id that was not given before."""
        return next(self._request_ids)

    async def send(self, *requests: wire.Command) -> None:
        """Send requests in one piece."""
        await self.stream.send_all(b"".join(map(self._protocol.send, requests)))

    async def receive(self) -> wire.Command:
        """Return the next reply, whatever it is. Raises ``PeerClosedError`` when there are no
        more."""
        while not self._replies:
            try:
                data = await self.stream.receive_some(RECEIVE_BYTES)
            except trio.BrokenResourceError as error:
                raise PeerClosedError from error
            if not data:
                raise PeerClosedError
            for reply in self._protocol.receive_data(bytes(data)):
                assert not isinstance(reply, Append)
                self._replies.append(reply)
        return self._replies.popleft()

    async def expect(self, kind: type[ReplyType]) -> ReplyType:
        """Return the next reply, which has to be of that kind."""
        reply = await self.receive()
        assert isinstance(reply, kind), reply
        return reply

    async def call(self, request: wire.Request) -> wire.Command:
        """Send a request and return the next reply."""
        await self.send(request)
        return await self.receive()

    async def expect_silence(self, seconds: float = 0.05) -> None:
        """Check that no reply comes for a while."""
        with trio.move_on_after(seconds):
            raise AssertionError(f"an unexpected reply: {await self.receive()}")

    async def expect_close(self) -> None:
        """Check that the server closes the connection without another reply."""
        try:
            reply = await self.receive()
        except PeerClosedError:
            return
        raise AssertionError(f"an unexpected reply: {reply}")

    async def set_up(self, writer_id: bytes, segment: str) -> int:
        """Set a writer up; returns its last event number."""
        await self.send(wire.SetupAppend(self.next_request_id(), writer_id, segment, ""))
        return (await self.expect(wire.AppendSetup)).last_event_number

    async def append(
        self, writer_id: bytes, data: bytes, *, number: int, count: int = 1, request_id: int = 0
    ) -> None:
        """Send one append of raw bytes; its answer is left to ``receive``."""
        await self.stream.send_all(
            append_block(
                writer_id, [data], last_event_number=number, request_id=request_id, framed=False
            )
            if count == 1
            else self._protocol.send(
                wire.AppendBlockEnd(writer_id, 0, data, count, number, request_id)
            )
        )
