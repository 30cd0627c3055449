from __future__ import annotations

import gc
import struct
import weakref
from collections import Counter
from contextlib import suppress
from random import Random

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from pravega_wire import commands as wire
from pravega_wire.codec import encode
from pravega_wire.commands import COMMAND_BYTES_MAX
from pravega_wire.connection import append_block
from segstore.network.admission.buffer_bytes import (
    COMMAND_BYTES_USUAL,
    MIB,
    PLACES,
    READ_BYTES_MAX,
    READ_BYTES_SHORT,
    REPLY_BYTES_FREE,
    USUAL_ROOM,
    LargeReplies,
    ReplyBytes,
    ReplyPlaces,
    Reservation,
    Reservations,
)
from segstore.network.admission.policy import Admission, ConnectionAdmission
from segstore.process.config import ConnectionSettings
from segstore.testing.wire_client import WireClient
from support.models.memory_store import memory_store

READ_TABLE = 78
SEGMENT = "scope/stream/0.#epoch.0"
WRITER = bytes(range(16))


def half_command(length: int, received: int) -> bytes:
    """Return the beginning of a ReadTable."""
    return struct.pack(">ii", READ_TABLE, length) + bytes(received)


@given(st.lists(st.integers(0, READ_BYTES_MAX), max_size=200))
def test_replies_become_shorter_before_their_total_is_reached(lengths: list[int]) -> None:
    total = ReplyBytes(32 * MIB)
    for length in lengths:
        longest = total.read_bytes_max
        assert READ_BYTES_SHORT <= longest <= READ_BYTES_MAX
        total.count += min(length, longest)
    assert total.count <= total.count_max + len(lengths) * READ_BYTES_SHORT


async def test_a_peer_that_takes_no_replies_delays_no_reads_of_others() -> None:
    settings = ConnectionSettings(buffer_bytes_total_max=2 * MIB)
    async with memory_store(settings) as store:
        await store.container.create_segment(SEGMENT)
        await store.container.append(SEGMENT, bytes(MIB))
        replies = store.server.admission.buffers.replies
        stuck, theirs = trio.testing.lockstep_stream_pair()
        store.nursery.start_soon(store.server.serve, theirs)
        requests = [wire.ReadSegment(SEGMENT, 0, MIB, "", number) for number in range(200)]
        store.nursery.start_soon(WireClient(stuck).send, *requests)
        await trio.testing.wait_all_tasks_blocked()
        assert replies.count >= replies.count_max
        other = store.connect()
        with trio.fail_after(60):
            reply = await other.call(wire.ReadSegment(SEGMENT, 0, MIB, "", 7))
            assert isinstance(reply, wire.SegmentRead)
            assert len(reply.data) == READ_BYTES_SHORT
            await other.send(wire.ReadSegment(SEGMENT, MIB, 100, "", 8))
            await trio.testing.wait_all_tasks_blocked()
            await store.container.append(SEGMENT, b"late")
            assert (await other.expect(wire.SegmentRead)).data == b"late"
        assert replies.count >= replies.count_max


@given(st.data())
def test_reservations_keep_to_their_bound_and_nobody_waits_for_ever(data: st.DataObject) -> None:
    """The commands have any lengths and any order, each with the rest of an append block or
    without."""
    count_max = 48 * MIB
    lengths = data.draw(st.lists(st.integers(1, 16 * MIB), min_size=1, max_size=20))
    ends = [data.draw(st.integers(0, 16 * MIB)) for _ in lengths]
    done: list[int] = []

    async def receive(reservations: Reservations, length: int, end: int) -> None:
        reservation = Reservation(reservations)
        await reservation.grow(length)
        assert reservations.count <= count_max + 16 * MIB
        await trio.lowlevel.checkpoint()
        await reservation.grow(length + end)
        assert reservations.count <= count_max + 16 * MIB
        await trio.lowlevel.checkpoint()
        reservation.release()
        done.append(length)

    async def main() -> None:
        reservations = Reservations(count_max)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for length, end in zip(lengths, ends, strict=True):
                    nursery.start_soon(receive, reservations, length, end)
        assert reservations.count == 0
        assert not reservations.holders
        assert not reservations.are_waited_for

    trio.run(main)
    assert sorted(done) == sorted(lengths)


async def test_usual_commands_do_not_wait_for_long_ones() -> None:
    waiting: list[bool] = []
    reservations = Reservations(32 * MIB, waiting.append)
    held = [Reservation(reservations) for _ in range(4)]
    async with trio.open_nursery() as nursery:
        for each in held:
            nursery.start_soon(each.grow, 16 * MIB)
        await trio.testing.wait_all_tasks_blocked()
        assert waiting
        assert waiting[-1]
        assert reservations.count <= 32 * MIB - USUAL_ROOM
        usual = Reservation(reservations)
        assert usual.try_grow(COMMAND_BYTES_USUAL)
        nursery.cancel_scope.cancel()
    assert not waiting[-1]


async def test_reservations_are_granted_in_order_and_growing_ones_first() -> None:
    reservations = Reservations(100)
    one, other, first, second = (Reservation(reservations) for _ in range(4))
    assert one.try_grow(40)
    assert other.try_grow(40)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(first.grow, 60)
        await trio.testing.wait_all_tasks_blocked()
        # There is room for 10 bytes, but another reservation asked before.
        assert not second.try_grow(10)
        nursery.start_soon(second.grow, 10)
        # One that grows may exceed the bound; the next one waits for it.
        assert one.try_grow(70)
        nursery.start_soon(other.grow, 100)
        await trio.testing.wait_all_tasks_blocked()
        assert [each.count for each in (one, other, first, second)] == [70, 40, 0, 0]
        one.release()
        await trio.testing.wait_all_tasks_blocked()
        assert [each.count for each in (one, other, first, second)] == [0, 100, 0, 0]
        other.release()
    assert [each.count for each in (one, other, first, second)] == [0, 0, 60, 10]


class LoopTurns(trio.abc.Instrument):
    """A counter of the turns of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


async def test_few_connections_send_a_piece_in_one_turn() -> None:
    total, turns = ReplyBytes(MIB), LoopTurns()
    sent: Counter[int] = Counter()

    async def send() -> None:
        await total.wait_for_turn()
        sent[turns.count] += 1

    trio.lowlevel.add_instrument(turns)
    async with trio.open_nursery() as nursery:
        for _ in range(5 * PLACES):
            nursery.start_soon(send)
    trio.lowlevel.remove_instrument(turns)
    assert sent.total() == 5 * PLACES
    assert max(sent.values()) == PLACES


async def test_a_connection_has_few_long_replies_under_way_whatever_it_asks() -> None:
    places = ReplyPlaces(8)
    under_way: list[str] = []
    done = trio.Event()

    async def reply(share: str) -> None:
        async with places.reserve(share):
            under_way.append(share)
            await done.wait()

    async with trio.open_nursery() as nursery:
        for share in "abcd":
            for _ in range(20):
                nursery.start_soon(reply, share)
            await trio.testing.wait_all_tasks_blocked()
        # The first share took all that it may; a share that stands still leaves one to each other.
        assert "".join(under_way) == "aaaaaaaabcd"
        done.set()
    assert len(under_way) == 80


async def test_what_one_share_of_large_replies_gives_back_another_one_may_have() -> None:
    replies = LargeReplies(100, ReplyBytes(100))
    stuck, waiting = Reservation(replies.of(1)), Reservation(replies.of(1))
    long = Reservation(replies.of(2))
    await stuck.grow(10)
    await long.grow(80)
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(waiting.grow, 10)
            await trio.testing.wait_all_tasks_blocked()
            assert waiting.count == 0
            long.release()
    assert waiting.count == 10
    waiting.release()
    stuck.release()
    assert replies.count == 0


@pytest.mark.parametrize("seed", range(20))
def test_all_buffers_together_keep_to_one_total(seed: int) -> None:
    """Peers take no replies. What waits goes on when they have ended."""
    random = Random(seed)
    peer_count, container_count = random.randint(1, 20), random.randint(1, 3)
    settings = ConnectionSettings(buffer_bytes_total_max=4 * COMMAND_BYTES_MAX)
    kinds = random.choices(["long", "read", "command"], (3, 1, 1), k=100)
    longest = random.choice((MIB, COMMAND_BYTES_MAX))
    payload = memoryview(bytes(COMMAND_BYTES_MAX))
    first_bytes = peer_count * (REPLY_BYTES_FREE + READ_BYTES_SHORT)
    bound = settings.buffer_bytes_total_max + first_bytes + (1 + container_count) * len(payload)

    async def act(
        admission: Admission, peer: ConnectionAdmission, kind: str, length: int, number: int
    ) -> None:
        if kind == "command":
            reservation = Reservation(admission.buffers.commands)
            await reservation.grow(length)
            await trio.sleep(0.1)
            reservation.release()
        elif kind == "read":
            await peer.replies.wait_for_room()
            peer.replies.put(payload[: min(length, admission.buffers.replies.read_bytes_max)])
        else:
            request = wire.GetTableSegmentInfo(1, f"scope/stream/{number}.#epoch.0", "")
            async with peer.long_reply(request, length):
                await trio.lowlevel.checkpoint()
                peer.replies.put(payload[:length])
        assert admission.buffers.count <= bound

    async def main() -> None:
        admission = Admission(settings, container_count)
        peers = [ConnectionAdmission(admission, None, lambda now: None) for _ in range(peer_count)]
        with trio.fail_after(1000):
            async with trio.open_nursery() as nursery:
                for number, kind in enumerate(kinds):
                    peer, length = random.choice(peers), random.randint(0, longest)
                    nursery.start_soon(act, admission, peer, kind, length, number)
                await trio.sleep(0.2)
                for peer in peers:
                    peer.drop()
        assert admission.buffers.count == 0

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_a_connection_that_ends_inside_a_command_leaves_nothing_in_memory() -> None:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        client = store.connect()
        await client.set_up(WRITER, SEGMENT)
        await client.append(WRITER, b"x", number=1)
        await client.expect(wire.DataAppended)
        await client.stream.send_all(half_command(15 * MIB, 10 * MIB))
        await trio.testing.wait_all_tasks_blocked()
        [connection] = store.server.connections
        protocol = weakref.ref(connection.protocol)
        left = weakref.ref(connection)
        del connection
        was_enabled = gc.isenabled()
        gc.disable()
        try:
            await client.stream.aclose()
            await trio.testing.wait_all_tasks_blocked()
            assert protocol() is None
            assert left() is None
        finally:
            if was_enabled:
                gc.enable()
        assert store.server.admission.buffers.commands.count == 0


async def send_slowly(stream: trio.abc.Stream) -> None:
    while True:
        await trio.sleep(6)
        await stream.send_all(bytes(1))


@pytest.mark.parametrize("received", [100, 100_000])
async def test_a_command_that_stops_in_the_middle_ends_its_connection(
    received: int, autojump_clock: trio.testing.MockClock
) -> None:
    async with memory_store(ConnectionSettings(stalled_seconds_max=8)) as store:
        store.nursery.start_soon(store.server.end_stalled)
        stalled, slow, idle = store.connect(), store.connect(), store.connect()
        for client in (stalled, slow, idle):
            assert await client.call(wire.HELLO) == wire.HELLO
        began = trio.current_time()
        await slow.stream.send_all(half_command(200_000, 0))
        store.nursery.start_soon(send_slowly, slow.stream)
        await stalled.stream.send_all(half_command(200_000, received))
        with capture_logs() as logs:
            await stalled.expect_close()
        assert 8 <= trio.current_time() - began <= 8 + 2 * 2
        assert "no progress for 8" in logs[0]["reason"]
        # A slow one goes on as long as something comes, and one without a command as well.
        await trio.sleep(100)
        assert await idle.call(wire.KeepAlive()) == wire.KeepAlive()
        assert store.server.connection_count == 2


async def test_a_long_command_waits_until_stalled_ones_are_ended(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        store.nursery.start_soon(store.server.end_stalled)
        stalled = [store.connect() for _ in range(20)]
        for client in stalled:
            await client.stream.send_all(half_command(15 * MIB, 100_000))
        await trio.testing.wait_all_tasks_blocked()
        buffers = store.server.admission.buffers
        assert buffers.commands.count <= 48 * MIB
        held = sum(len(each.protocol._pending) for each in store.server.connections)
        assert held < 20 * 200_000
        began = trio.current_time()
        writer = store.connect()
        await writer.set_up(WRITER, SEGMENT)
        # Usual ones at once, a long one in its turn.
        await writer.append(WRITER, bytes(MIB), number=1)
        assert (await writer.expect(wire.DataAppended)).event_number == 1
        assert trio.current_time() - began < 0.1
        await writer.append(WRITER, bytes(8 * MIB), number=2)
        assert (await writer.expect(wire.DataAppended)).event_number == 2
        assert trio.current_time() - began < 30
        assert buffers.commands.count <= 48 * MIB


async def test_a_trickle_does_not_keep_what_others_wait_for(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with memory_store(ConnectionSettings(stalled_seconds_max=1000)) as store:
        store.nursery.start_soon(store.server.end_stalled)
        holders = [store.connect() for _ in range(2)]
        for client in holders:
            await client.stream.send_all(half_command(15 * MIB, 100_000))
        await trio.sleep(20)
        assert store.server.connection_count == 2
        for client in holders:
            store.nursery.start_soon(trickle, client.stream)
        waiting = store.connect()
        await waiting.stream.send_all(half_command(15 * MIB, 100_000))
        for client in holders:
            await client.expect_close()


async def test_a_writer_without_a_break_lets_others_have_their_turn(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Its connection has a part of the next command whenever one is complete."""
    async with memory_store(ConnectionSettings(buffer_bytes_total_max=32 * MIB)) as store:
        store.nursery.start_soon(store.server.end_stalled)
        await store.container.create_segment(SEGMENT)
        busy, other = store.connect(), store.connect()
        await busy.set_up(WRITER, SEGMENT)
        await other.set_up(WRITER[::-1], SEGMENT)
        block = append_block(WRITER, [bytes(12 * MIB)], last_event_number=1, request_id=1)
        keep_alive = encode(wire.KeepAlive())
        await busy.stream.send_all(block + keep_alive[:5])
        await trio.testing.wait_all_tasks_blocked()
        await busy.stream.send_all(keep_alive[5:] + keep_alive[:5])
        await trio.testing.wait_all_tasks_blocked()
        assert store.server.admission.buffers.commands.count == 0
        await other.append(WRITER[::-1], bytes(12 * MIB), number=1)
        assert (await other.expect(wire.DataAppended)).event_number == 1
        assert store.server.connection_count == 2


async def trickle(stream: trio.abc.Stream) -> None:
    with suppress(trio.BrokenResourceError):
        while True:
            await trio.sleep(0.2)
            await stream.send_all(bytes(1))


async def test_an_append_block_without_its_end_counts(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        store.nursery.start_soon(store.server.end_stalled)
        client = store.connect()
        await client.set_up(WRITER, SEGMENT)
        await client.stream.send_all(encode(wire.AppendBlock(WRITER, bytes(4 * MIB))))
        await trio.testing.wait_all_tasks_blocked()
        assert store.server.admission.buffers.commands.count >= 4 * MIB
        await client.stream.send_all(encode(wire.AppendBlockEnd(WRITER, 4 * MIB, b"", 1, 1, 1)))
        assert (await client.expect(wire.DataAppended)).event_number == 1
        await trio.testing.wait_all_tasks_blocked()
        assert store.server.admission.buffers.commands.count == 0
        await client.stream.send_all(encode(wire.AppendBlock(WRITER, bytes(4 * MIB))))
        await client.expect_close()
        assert store.server.admission.buffers.commands.count == 0
