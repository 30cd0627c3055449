"""Clients that want to exhaust the store, while others use it.

Owns: ``HalfFrameClient``, ``DeafReader`` and ``LongRequestClient``.

Invariants:
1. What these do concerns their own connections: the other clients of the run get their answers, and
   everything that is checked of them holds.
2. The server ends a connection whose command makes no progress, and one that sends what no client
   sends.
"""

from __future__ import annotations

import struct
from functools import cache

import trio

from pravega_wire import commands as wire
from pravega_wire.codec import encode
from pravega_wire.commands import COMMAND_BYTES_MAX
from segstore.testing.wire_client import WireClient
from simulation.plan import KIB
from simulation.wire_clients import ConnectionOverError, WireUser

LONG_REQUEST_ITEMS = 100_000
APPEND_BLOCK_END = 4

_HEADER = struct.Struct(">ii")


class HostileClient(WireUser):
    """A client that opens a connection for each of its attacks, and leaves it at the end."""

    what = ""

    async def use(self, client: WireClient) -> None:
        """Attack, and leave."""
        self.world.host.note(self.what)
        try:
            await self.attack(client)
        finally:
            await self.leave()
        raise ConnectionOverError

    async def attack(self, client: WireClient) -> None:
        """Do what is hostile."""
        raise NotImplementedError

    async def await_end(self, client: WireClient) -> None:
        """Wait until the server has had enough; it may answer before."""

        async def wait() -> None:
            while True:
                await client.receive()

        await self.in_time(wait)


class HalfFrameClient(HostileClient):
    """A client that sends a part of a long command and stays."""

    what = "half a frame is sent"

    async def attack(self, client: WireClient) -> None:
        length = self.random.choice([60 * KIB, 600 * KIB, COMMAND_BYTES_MAX - KIB])
        sent = self.random.randrange(length)
        frame = _HEADER.pack(APPEND_BLOCK_END, length) + bytes(sent)

        async def send() -> None:
            for start in range(0, len(frame), 256 * KIB):
                await client.stream.send_all(frame[start : start + 256 * KIB])

        await self.in_time(send)
        await self.await_end(client)


class DeafReader(HostileClient):
    """A client that asks for a lot, reads none of it, and stays for a while."""

    what = "replies are not read"

    async def attack(self, client: WireClient) -> None:
        segment = self.world.stream.segment(0)
        with trio.move_on_after(self.random.choice([1, 10, 60])) as patience:
            for _ in range(self.random.choice([4, 40])):
                request_id = client.next_request_id()
                await client.send(wire.ReadSegment(segment, 0, 1 << 20, "", request_id))
            await trio.sleep(patience.deadline - trio.current_time())


class LongRequestClient(HostileClient):
    """A client that sends a request about more than any client asks for."""

    what = "a request of 100,000 items is sent"

    async def attack(self, client: WireClient) -> None:
        request = _long_request(self.world.stream.segment(0))
        await self.in_time(lambda: client.stream.send_all(request))
        await self.await_end(client)


@cache
def _long_request(target: str) -> bytes:
    sources = (f"{target}-none",) * LONG_REQUEST_ITEMS
    return encode(wire.MergeSegmentsBatch(1, target, sources, ""))
