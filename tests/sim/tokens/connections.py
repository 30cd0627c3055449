"""The connections of clients to the store, which several writers and readers share.

Owns: ``Pool``, ``Flow``. As in official clients a request's id begins with the number of its flow,
and a flow ends with its connection.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Awaitable, Callable
from random import Random

import trio

from pravega_wire import commands as wire
from pravega_wire.connection import Append, Connection, Role, append_block

FLOW_BITS = 32
FLOWS_MAX = 4
"""Maximum number of flows that a connection has at a time."""
RECEIVE_BYTES = 65_536

OpenStream = Callable[[], Awaitable[trio.abc.HalfCloseableStream]]


class FlowEndedError(Exception):
    """The connection of a flow is over, or could not be made."""


class SharedConnection:
    """One connection; ``run`` runs as a task."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.is_over = False
        self.flows: dict[int, trio.MemorySendChannel[wire.Reply]] = {}
        self._stream = stream
        self._wire = Connection(Role.CLIENT)
        self._sending = trio.StrictFIFOLock()

    async def run(self) -> None:
        """Give each reply to its flow, until the connection is over."""
        try:
            while data := await self._stream.receive_some(RECEIVE_BYTES):
                for reply in self._wire.receive_data(bytes(data)):
                    assert not isinstance(reply, Append)
                    flow = self.flows.get(getattr(reply, "request_id", 0) >> FLOW_BITS)
                    if flow is not None:
                        assert isinstance(reply, wire.Reply)
                        flow.send_nowait(reply)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            self.is_over = True
            for flow in self.flows.values():
                flow.close()
            await trio.aclose_forcefully(self._stream)

    async def send(self, data: bytes) -> None:
        """Send bytes of one flow. Raises ``FlowEndedError``."""
        try:
            async with self._sending:
                await self._stream.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            raise FlowEndedError from None


class Flow:
    """The requests of one writer or reader, on a connection with others."""

    def __init__(self, connection: SharedConnection, number: int) -> None:
        self._connection = connection
        self._number = number
        self._ids = itertools.count(number << FLOW_BITS)
        sends, self._replies = trio.open_memory_channel[wire.Reply](math.inf)
        connection.flows[number] = sends

    @property
    def is_over(self) -> bool:
        """Return whether nothing can be asked here any more."""
        return self._connection.is_over

    def next_id(self) -> int:
        """Return the id of the next request."""
        return next(self._ids)

    async def call(self, request: wire.Request) -> wire.Reply:
        """Send a request and return the next reply. Raises ``FlowEndedError``."""
        await self._connection.send(Connection(Role.CLIENT).send(request))
        return await self.receive()

    async def append(self, writer_id: bytes, event: bytes, number: int) -> None:
        """Send one append, which ``receive`` has the answer of. Raises ``FlowEndedError``."""
        await self._connection.send(
            append_block(writer_id, [event], last_event_number=number, request_id=self.next_id())
        )

    async def receive(self) -> wire.Reply:
        """Return the next reply. Raises ``FlowEndedError``."""
        try:
            return await self._replies.receive()
        except trio.EndOfChannel:
            raise FlowEndedError from None

    def close(self) -> None:
        """End the flow, and leave its connection to others."""
        self._connection.flows.pop(self._number, None)


class Pool:
    """The connections of one client."""

    def __init__(self, open_stream: OpenStream, nursery: trio.Nursery, random: Random) -> None:
        self._open_stream = open_stream
        self._nursery = nursery
        self._random = random
        self._numbers = itertools.count(1)
        self._connections: list[SharedConnection] = []
        self._opening = trio.StrictFIFOLock()

    async def open_flow(self) -> Flow:
        """Return a new flow, mostly on a connection that is there. Raises ``FlowEndedError``."""
        async with self._opening:
            self._connections = [each for each in self._connections if not each.is_over]
            free = [each for each in self._connections if len(each.flows) < FLOWS_MAX]
            if not free or self._random.random() < 0.1:
                try:
                    connection = SharedConnection(await self._open_stream())
                except OSError:
                    raise FlowEndedError from None
                self._nursery.start_soon(connection.run)
                self._connections.append(connection)
                await connection.send(Connection(Role.CLIENT).send(wire.HELLO))
                free = [connection]
            return Flow(self._random.choice(free), next(self._numbers))
