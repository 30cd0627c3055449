"""Writers that reconnect as the clients do, while containers crash and connections break.

Checked at the end: every acknowledged event is stored, once, in its writer's order, and the event
count is right. Faults: a container dies with any prefix of its queue durable; a connection breaks
with appends in flight; appends of an abandoned connection arrive late, before and behind those of
its successor; durability is slow and comes in bursts.
"""

from __future__ import annotations

import random
from collections import deque
from contextlib import suppress

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from pravega_wire import commands as wire
from segstore.model.attributes import EVENT_COUNT
from segstore.testing.wire_client import PeerClosedError, WireClient
from support.models.memory_store import MemoryStore, memory_store

SEGMENT = "scope/stream/0.#epoch.0"
EVENTS = 150
IN_FLIGHT_MAX = 12


def event(writer: int, number: int) -> bytes:
    return b"%02d:%06d;" % (writer, number)


class RetryingWriter:
    """A writer of ``EVENTS`` events that sends again what was not acknowledged, as the clients
    do."""

    def __init__(self, store: MemoryStore, number: int, rng: random.Random) -> None:
        self.store = store
        self.number = number
        self.writer_id = bytes([number + 1]) * 16
        self.rng = rng
        self.in_flight: deque[int] = deque()
        self.next_event = 0
        self.acked = -1
        self.reconnects = 0
        self.is_streaming = False
        self.client: WireClient
        self.broken = trio.CancelScope()

    async def run(self) -> None:
        while self.acked < EVENTS - 1:
            self.client = self.store.connect()
            self.broken = trio.CancelScope()
            with self.broken, suppress(PeerClosedError, trio.BrokenResourceError):
                await self.use_connection()
            await self.leave_connection()
            await trio.sleep(self.rng.random() * 0.02)
            self.reconnects += 1

    async def leave_connection(self) -> None:
        # Sent as far as the client knows; the network takes its time.
        count = self.rng.randint(0, 3) if self.is_streaming else 0
        late = range(self.next_event, min(EVENTS, self.next_event + count))
        self.in_flight.extend(late)
        self.next_event += len(late)
        seconds = self.rng.random() * 0.05
        self.store.nursery.start_soon(self.haunt, self.client, list(late), seconds)

    async def haunt(self, old: WireClient, late: list[int], seconds: float) -> None:
        """Deliver late what the network still held of the abandoned connection."""
        with suppress(trio.BrokenResourceError):
            for number in late:
                await trio.sleep(seconds)
                await old.append(self.writer_id, event(self.number, number), number=number)
        await old.stream.aclose()

    async def use_connection(self) -> None:
        self.is_streaming = False
        request_id = self.client.next_request_id()
        set_up = wire.SetupAppend(request_id, self.writer_id, SEGMENT, "")
        reply = await self.client.call(set_up)
        if isinstance(reply, wire.WrongHost):
            return  # the container is not open at the moment
        reply = await self.client.call(wire.SetupAppend(request_id, self.writer_id, SEGMENT, ""))
        if isinstance(reply, wire.WrongHost):
            # The container recovers: like all clients, come again.
            raise PeerClosedError
        assert isinstance(reply, wire.AppendSetup), reply
        self.note_acked(reply.last_event_number)
        for number in self.in_flight:
            await self.send(number)
        self.is_streaming = True
        while self.acked < EVENTS - 1:
            while self.next_event < EVENTS and len(self.in_flight) < IN_FLIGHT_MAX:
                self.in_flight.append(self.next_event)
                self.next_event += 1
                await self.send(self.in_flight[-1])
            reply = await self.client.receive()
            if isinstance(reply, wire.InvalidEventNumber):
                await self.client.expect_close()
                return
            if isinstance(reply, wire.WrongHost):
                return
            assert isinstance(reply, wire.DataAppended), reply
            assert reply.previous_event_number < reply.event_number
            assert self.in_flight, "an acknowledgement with nothing in flight"
            assert self.in_flight[0] > reply.previous_event_number
            self.note_acked(reply.event_number)

    async def send(self, number: int) -> None:
        # A stream of bytes breaks off, but it has no gaps.
        with trio.CancelScope(shield=True):
            await self.client.append(self.writer_id, event(self.number, number), number=number)

    def note_acked(self, number: int) -> None:
        self.acked = max(self.acked, number)
        while self.in_flight and self.in_flight[0] <= number:
            self.in_flight.popleft()


async def commit_in_bursts(store: MemoryStore, rng: random.Random) -> None:
    while True:
        await trio.sleep(rng.random() * 0.01)
        queued = store.container.queued_count
        store.container.commit(rng.randint(0, queued) if rng.random() < 0.7 else queued)


async def make_trouble(
    store: MemoryStore, writers: list[RetryingWriter], rng: random.Random
) -> None:
    while True:
        await trio.sleep(rng.random() * 0.04)
        if rng.random() < 0.4:
            store.fail(durable_count=rng.randint(0, store.container.queued_count))
            await store.wait_online(SEGMENT)
        else:
            rng.choice(writers).broken.cancel()


@pytest.mark.parametrize("seed", range(15))
async def test_every_event_is_stored_once_and_in_order(
    seed: int, autojump_clock: trio.testing.MockClock
) -> None:
    with capture_logs():
        await check_writers(random.Random(seed))


async def check_writers(rng: random.Random) -> None:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        store.container.auto_commit = False
        writers = [
            RetryingWriter(store, number, random.Random(rng.random())) for number in range(3)
        ]
        async with trio.open_nursery() as trouble:
            trouble.start_soon(commit_in_bursts, store, rng)
            trouble.start_soon(make_trouble, store, writers, rng)
            with trio.fail_after(10_000):
                async with trio.open_nursery() as writing:
                    for writer in writers:
                        writing.start_soon(writer.run)
            trouble.cancel_scope.cancel()
        await store.wait_online(SEGMENT)
        store.container.commit()
        length = store.container.segment_info(SEGMENT).length
        data = (await store.container.read(SEGMENT, offset=0, length_max=length)).data
        stored = [part + b";" for part in data.split(b";")[:-1]]
        for writer in writers:
            mine = [part for part in stored if part.startswith(b"%02d:" % writer.number)]
            assert mine == [event(writer.number, number) for number in range(EVENTS)]
        values = await store.container.get_attributes(SEGMENT, [EVENT_COUNT])
        assert values[EVENT_COUNT] == 3 * EVENTS
        assert sum(writer.reconnects for writer in writers) > 5, "there was no trouble"
