"""Clients that speak the wire protocol over the simulated network, as the official ones do.

Owns: ``WireWriter``, ``WireReader`` and ``WireTransientWriter``.

Invariants:
1. A writer keeps an event until it is acknowledged. On every connection it sets itself up first, is
   told its last event number, drops what it has up to there and sends the rest again, in order.
2. Replies are taken for what they say: an acknowledgement is of all events up to its number, a seal
   sends what is not acknowledged to the next segment.
3. Whoever is connected gets an answer, or the end of the connection, in bounded time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from pravega_wire import commands as wire
from segstore.errors import ContainerOfflineError
from segstore.testing.wire_client import PeerClosedError, WireClient
from simulation.clients import RETRY_SECONDS, Client, World, make_event
from simulation.host import Session

T = TypeVar("T")

FIRST_NUMBER = 1000
"""Added to the numbers of these writers, in their events."""
REPLY_SECONDS_MAX = 2000.0
"""In simulated time; tier 2 is out of service for less than this."""


class ConnectionOverError(Exception):
    """The client has to connect again."""


class WireUser(Client):
    """A client that has a connection, or makes one."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.client: WireClient | None = None
        self.session: Session | None = None

    async def step(self, session: Session) -> None:
        """Do one operation; the connection may end in the middle of it."""
        try:
            await self.use(await self.connected(session))
        except (PeerClosedError, ConnectionOverError, trio.BrokenResourceError):
            await self.leave()
            await trio.sleep(RETRY_SECONDS)

    async def connected(self, session: Session) -> WireClient:
        """Return the connection to this life of the store."""
        if self.client is None or self.session is not session:
            await self.leave()
            self.client, self.session = session.dial(), session
            await self.greet(self.client)
        return self.client

    async def leave(self) -> None:
        """Close the connection, if there is one."""
        client, self.client = self.client, None
        if client is not None:
            await client.stream.aclose()

    async def greet(self, client: WireClient) -> None:
        """Send and receive the first message of a connection."""
        await client.send(wire.HELLO)
        await self.reply(client, wire.Hello)

    async def use(self, client: WireClient) -> None:
        """Do one operation."""
        raise NotImplementedError

    async def reply(self, client: WireClient, *kinds: type[wire.Command]) -> wire.Command:
        """Return the next reply.

        It has to be one of these; after one that says to come again it raises.
        """
        reply = await self.in_time(client.receive)
        if isinstance(reply, wire.WrongHost):
            raise ConnectionOverError
        if self.world.plan.damages_chunks and isinstance(reply, wire.ErrorMessage):
            # Official clients end what they do with the segment, and begin anew.
            raise ConnectionOverError
        if not isinstance(reply, kinds):
            raise self.world.model.violated(f"{type(self).__name__} {self.number}: got {reply}")
        return reply

    async def in_time(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Wait, but not for ever."""
        with trio.move_on_after(REPLY_SECONDS_MAX):
            return await wait()
        raise self.world.model.violated(
            f"{type(self).__name__} {self.number}: no reply in {REPLY_SECONDS_MAX} s"
        )

    async def create(self, client: WireClient, segment: str, *others: type[wire.Command]) -> None:
        """Make sure that the segment is there; replies of the other kinds are ignored."""
        await client.send(wire.CreateSegment(client.next_request_id(), segment, 0, 0, ""))
        kinds = (wire.SegmentCreated, wire.SegmentAlreadyExists)
        while not isinstance(await self.reply(client, *kinds, *others), kinds):
            pass


class WireWriter(WireUser):
    """A writer that writes events of the stream exactly once, through every end of its
    connections."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, FIRST_NUMBER + number)
        self.writer_id = bytes([8]) * 15 + bytes([number])
        self.segment_number = 0
        self.next_event = 0
        self.unacknowledged: deque[tuple[int, bytes]] = deque()
        self.sent_up_to = -1
        self.window = self.random.choice([1, 4, 20])
        world.stream.sent[self.number] = world.stream.acknowledged[self.number] = -1

    @property
    def segment(self) -> str:
        return self.world.stream.segment(self.segment_number)

    @property
    def acknowledged(self) -> int:
        return self.world.stream.acknowledged[self.number]

    async def greet(self, client: WireClient) -> None:
        """Say hello and set the writer up."""
        await super().greet(client)
        await self.set_up(client)

    async def set_up(self, client: WireClient, *, until_set_up: bool = False) -> None:
        """Read what is stored, and send the rest again.

        On a connection that was used for another segment refusals from there may come first.
        """
        others = (wire.SegmentIsSealed,) if until_set_up else ()
        if until_set_up:
            await self.create(client, self.segment, *others)
        while True:
            request_id = client.next_request_id()
            await client.send(wire.SetupAppend(request_id, self.writer_id, self.segment, ""))
            reply = await self.reply(client, wire.AppendSetup, wire.NoSuchSegment, *others)
            while isinstance(reply, wire.SegmentIsSealed):
                reply = await self.reply(client, wire.AppendSetup, wire.NoSuchSegment, *others)
            if isinstance(reply, wire.AppendSetup):
                break
            await self.create(client, self.segment, *others)
        stored = reply.last_event_number
        if stored != wire.NULL_ATTRIBUTE_VALUE:
            # One whose segment is new to it has written nothing there.
            if not self.acknowledged <= stored < self.next_event:
                raise self.world.model.violated(
                    f"writer {self.number}: {stored} is stored, {self.acknowledged} was"
                    f" acknowledged, {self.next_event - 1} was sent"
                )
            self.acknowledge(stored)
        self.sent_up_to = self.acknowledged
        await self.send_new(client)

    def acknowledge(self, number: int) -> None:
        """Note that everything up to this event is durable."""
        while self.unacknowledged and self.unacknowledged[0][0] <= number:
            self.world.stream.acknowledged[self.number] = self.unacknowledged.popleft()[0]

    async def send_new(self, client: WireClient) -> None:
        """Send what was not sent on this connection, one or several events at a time."""
        events = [event for event in self.unacknowledged if event[0] > self.sent_up_to]
        while events:
            count = min(len(events), self.random.choice([1, 1, 2, 5]))
            block, events = events[:count], events[count:]
            self.sent_up_to = block[-1][0]
            await client.append(
                self.writer_id,
                b"".join(data for _, data in block),
                number=self.sent_up_to,
                count=count,
                request_id=client.next_request_id(),
            )

    async def use(self, client: WireClient) -> None:
        """Write a few events, and take acknowledgements."""
        for _ in range(self.random.randint(1, self.window)):
            filler = self.world.some_bytes(self.random)
            event = make_event(self.number, self.next_event, 1, filler)
            self.unacknowledged.append((self.next_event, event))
            self.world.stream.sent[self.number] = self.next_event
            self.next_event += 1
        await self.send_new(client)
        wanted = 0 if self.random.random() < 0.3 else self.window
        while len(self.unacknowledged) > wanted:
            await self.take_reply(client)

    async def take_reply(self, client: WireClient) -> None:
        """Take one reply to an append."""
        reply = await self.reply(
            client, wire.DataAppended, wire.SegmentIsSealed, wire.InvalidEventNumber
        )
        if isinstance(reply, wire.InvalidEventNumber):
            # Appends of an older connection came in between: set up anew.
            raise ConnectionOverError
        if isinstance(reply, wire.SegmentIsSealed):
            await self.move_on(client, reply)
            return
        assert isinstance(reply, wire.DataAppended)
        previous, number = reply.previous_event_number, reply.event_number
        if reply.writer_id != self.writer_id or not previous < number <= self.sent_up_to:
            raise self.world.model.violated(f"writer {self.number}: {reply}")
        if number <= self.acknowledged or previous > self.acknowledged:
            raise self.world.model.violated(
                f"writer {self.number}: {reply} comes after {self.acknowledged}"
            )
        self.acknowledge(number)

    async def move_on(self, client: WireClient, sealed: wire.SegmentIsSealed) -> None:
        """Move on: what is not acknowledged goes to the next segment."""
        if sealed.segment != self.segment:
            return  # said of appends that were sent to the last one
        self.segment_number += 1
        self.world.stream.number = max(self.world.stream.number, self.segment_number)
        if self.random.random() < 0.5:
            raise ConnectionOverError
        # On the same connection the other refusals come before the setup's answer.
        await self.set_up(client, until_set_up=True)

    async def finish(self) -> None:
        """Wait until everything is acknowledged."""
        while self.unacknowledged:
            session = await self.world.host.connect()
            try:
                await self.step_to_end(session)
            except ContainerOfflineError:
                await trio.sleep(RETRY_SECONDS)
        await self.leave()

    async def step_to_end(self, session: Session) -> None:
        try:
            client = await self.connected(session)
            while self.unacknowledged:
                await self.take_reply(client)
        except (PeerClosedError, ConnectionOverError, trio.BrokenResourceError):
            await self.leave()
            await trio.sleep(RETRY_SECONDS)


class WireReader(WireUser):
    """A reader that follows the stream and reads anywhere in it, and checks the bytes that come."""

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number)
        self.segment_number = 0
        self.offset = 0

    async def use(self, client: WireClient) -> None:
        segment, offset = self.world.stream.segment(self.segment_number), self.offset
        request_id = client.next_request_id()
        length = self.random.choice([1, 100, 10_000, 1 << 20])
        await client.send(wire.ReadSegment(segment, offset, length, "", request_id))
        with trio.move_on_after(self.random.choice([0.01, 1, 30])):
            reply = await self.reply(
                client,
                wire.SegmentRead,
                wire.NoSuchSegment,
                wire.SegmentIsTruncated,
                wire.SegmentIsSealed,
                wire.ErrorMessage,
            )
            await self.take(reply, segment, offset, request_id)
            return
        # It gives up waiting at the tail, as readers do.
        raise ConnectionOverError

    async def take(self, reply: wire.Command, segment: str, offset: int, request_id: int) -> None:
        """Check what was read."""
        violated = self.world.model.violated
        if isinstance(reply, wire.SegmentIsTruncated):
            self.offset = reply.start_offset
        elif isinstance(reply, wire.SegmentRead):
            asked = (segment, offset, request_id)
            if (reply.segment, reply.offset, reply.request_id) != asked:
                raise violated(f"reader {self.number} asked {asked}, was told {reply}")
            model = self.world.model.segments.by_name.get(segment)
            end = offset + len(reply.data)
            if model is None or model.data[offset:end] != reply.data:
                raise violated(f"reader {self.number}: {segment} has other bytes at {offset}")
            self.offset = end
            if reply.end_of_segment and self.segment_number < self.world.stream.number:
                self.segment_number, self.offset = self.segment_number + 1, 0
        elif isinstance(reply, wire.SegmentIsSealed | wire.NoSuchSegment):
            if self.segment_number < self.world.stream.number:
                self.segment_number, self.offset = self.segment_number + 1, 0
        elif self.random.random() < 0.5:
            # Beyond the end, or tier 2 does not answer.
            self.offset = 0
