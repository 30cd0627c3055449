"""Reads that are held, and writers that wait for their turn, at the edges."""

from __future__ import annotations

import struct

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from pravega_wire import commands as wire
from segstore.network.admission.bulk_turns import BulkTurns
from segstore.network.admission.read_pacing import HeldReads
from segstore.process.config import ConnectionSettings
from segstore.runtime.alarm import SleepingAlarm
from segstore.runtime.reactor import current_reactor
from segstore.testing.wire_client import PeerClosedError, WireClient
from support.models.memory_store import memory_store

SEGMENT = "scope/stream/0.#epoch.0"
AGE = 0.001


async def test_a_held_read_is_held_once(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    holds = 0
    hold = HeldReads.hold

    def count(self: HeldReads, asked: float, answer: object) -> object:
        nonlocal holds
        holds += 1
        assert holds < 100, "held again and again in one turn"
        return hold(self, asked, answer)  # type: ignore[arg-type]

    monkeypatch.setattr(HeldReads, "hold", count)
    start = next(x / 10 for x in range(1, 1000) if (x / 10 + AGE) - x / 10 < AGE)
    async with memory_store(ConnectionSettings(reply_age_seconds_min=AGE)) as store:
        store.nursery.start_soon(store.server.admission.held_reads.run, SleepingAlarm())
        await store.container.create_segment(SEGMENT)
        await store.container.append(SEGMENT, b"x")
        client = store.connect()
        await trio.testing.wait_all_tasks_blocked()
        autojump_clock.jump(start - trio.current_time())
        assert trio.current_time() == start
        await client.send(wire.ReadSegment(SEGMENT, 0, 1000, "", 7))
        assert isinstance(await client.receive(), wire.SegmentRead)
        assert holds == 1


@pytest.mark.parametrize("age", [0.0, AGE])
async def test_held_is_answered_at_the_peers_end_without_room(
    autojump_clock: MockClock, age: float
) -> None:
    """This holds whether a read is held or not."""
    async with memory_store(ConnectionSettings(reply_age_seconds_min=age)) as store:
        store.nursery.start_soon(store.server.admission.held_reads.run, SleepingAlarm())
        await store.container.create_segment(SEGMENT)
        await store.container.append(SEGMENT, bytes(100_000))
        ours, theirs = trio.testing.lockstep_stream_pair()
        store.nursery.start_soon(store.server.serve, theirs)
        client = WireClient(ours)
        await client.send(wire.ReadSegment(SEGMENT, 0, 90_000, "", 1))
        await client.send(wire.ReadSegment(SEGMENT, 99_000, 1_000, "", 2))
        await ours.send_eof()
        await trio.testing.wait_all_tasks_blocked()
        for number in (1, 2):
            reply = await client.receive()
            assert isinstance(reply, wire.SegmentRead)
            assert reply.request_id == number
        with pytest.raises(PeerClosedError):
            await client.receive()


async def test_a_writer_that_waits_for_its_turn_is_not_taken_for_stalled() -> None:
    """Its bytes lie in the socket: it is this store that does not take them."""
    settings = ConnectionSettings(stalled_seconds_max=0.3)
    async with memory_store(settings) as store:
        server = store.server
        turns: BulkTurns = server.admission.bulk_turns
        await store.container.create_segment(SEGMENT)
        [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
        async with listener, trio.open_nursery() as nursery:
            await nursery.start(current_reactor().run)
            nursery.start_soon(server.end_stalled)
            peer = await trio.open_tcp_stream(*listener.socket.getsockname())
            nursery.start_soon(server.serve, await listener.accept())
            client = WireClient(peer)
            await client.send(wire.Hello(17, 5))
            await client.receive()
            # A long command: the first part comes at once, then the writer's turn is awaited.
            frame = struct.pack(">ii", -1, 1_500_000) + bytes(1_500_000)  # padding
            await peer.send_all(frame[:1_000_000])
            [connection] = server.connections
            while connection._received_bytes < 1_000_000:  # noqa: ASYNC110
                await trio.sleep(0.001)
            connection._transport._bulk_bytes = 200_000
            turns._admitted_bytes = 10**9  # others are in the line before it
            turns._behind_until = trio.current_time() + 100
            nursery.start_soon(peer.send_all, frame[1_000_000:])
            await trio.sleep(1.5)
            is_closed = connection._closing
            # The rest may still be on its way: end its sending before the socket.
            nursery.cancel_scope.cancel()
            await peer.aclose()
        assert not is_closed, "closed while its bytes waited here"
