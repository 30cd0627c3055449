"""Writers that send much take turns while readers are behind, and only then."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from itertools import pairwise

import pytest
import trio
import trio.testing
from hypothesis import given, settings
from hypothesis import strategies as st

from pravega_wire import commands as wire
from segstore.network.admission.bulk_turns import BEHIND_SECONDS, BulkTurns
from segstore.process.config import ConnectionSettings
from segstore.runtime.reactor import current_reactor
from segstore.runtime.transport import BULK_BYTES_MIN, ReceiveBuffer, SocketTransport
from segstore.testing.wire_client import WireClient
from support.models.memory_store import MemoryStore, memory_store

SEGMENT = "scope/stream/0.#epoch.0"


class LoopTurns(trio.abc.Instrument):
    """A counter of the turns of the event loop."""

    def __init__(self) -> None:
        self.count = 0

    def after_io_wait(self, timeout: float) -> None:
        self.count += 1


def run_writers(
    bytes_max: int, receives: list[list[int]], *, behind: bool
) -> list[tuple[int, int, int]]:
    """Run writers that receive so much each time; the loop's turn, the writer and the bytes."""
    done: list[tuple[int, int, int]] = []
    turns = LoopTurns()

    async def write(bulk_turns: BulkTurns, writer: int, counts: list[int]) -> None:
        for count in counts:
            await bulk_turns.wait_for_turn(count)
            done.append((turns.count, writer, count))
            if not behind:
                await trio.lowlevel.checkpoint()

    async def main() -> None:
        bulk_turns = BulkTurns(bytes_max)
        if behind:
            bulk_turns.reader_is_behind()
        async with trio.open_nursery() as nursery:
            for writer, counts in enumerate(receives):
                nursery.start_soon(write, bulk_turns, writer, counts)
        assert bulk_turns._admitted_bytes == 0

    trio.run(main, clock=trio.testing.MockClock(), instruments=[turns])
    return done


counts = st.lists(st.integers(1, 10), max_size=8)


@settings(deadline=None)
@given(bytes_max=st.integers(1, 30), receives=st.lists(counts, max_size=8))
def test_beside_readers_so_much_comes_in_a_turn_and_all_writers_get_on(
    bytes_max: int, receives: list[list[int]]
) -> None:
    done = run_writers(bytes_max, receives, behind=True)
    for writer, wanted in enumerate(receives):
        assert [count for _, each, count in done if each == writer] == wanted
    in_turns = Counter[int]()
    for turn, _, count in done:
        in_turns[turn] += count
    # What is longer than all that may come in a turn comes alone.
    assert max(in_turns.values(), default=0) <= max(bytes_max, *(c for _, _, c in done), 0)
    # Who waits is overtaken a few times at most, however many receives the others want.
    for writer in range(len(receives)):
        own = [place for place, (_, each, _) in enumerate(done) if each == writer]
        for first, last in pairwise([-1, *own]):
            others = Counter(each for _, each, _ in done[first + 1 : last])
            assert max(others.values(), default=0) <= 3


@given(bytes_max=st.integers(0, 4), receives=st.lists(counts.filter(bool), min_size=2, max_size=8))
def test_without_readers_that_are_behind_nobody_waits(
    bytes_max: int, receives: list[list[int]]
) -> None:
    done = run_writers(bytes_max, receives, behind=False)
    first = done[: len(receives)]
    assert len({turn for turn, _, _ in first}) == 1
    assert {writer for _, writer, _ in first} == set(range(len(receives)))


async def test_a_writer_that_is_gone_keeps_no_others_waiting() -> None:
    turns = BulkTurns(10)
    done: list[str] = []

    async def take(name: str, scope: trio.CancelScope) -> None:
        with scope:
            await turns.wait_for_turn(10)
            done.append(name)

    turns.reader_is_behind()
    scopes = [trio.CancelScope() for _ in range(3)]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(take, "first", scopes[0])
        await trio.lowlevel.checkpoint()
        scopes[1].cancel()
        nursery.start_soon(take, "gone", scopes[1])
        nursery.start_soon(take, "last", scopes[2])
    assert "last" in done
    assert "gone" not in done
    assert turns._admitted_bytes == 0


def test_a_reader_counts_as_behind_for_a_while() -> None:
    time = 5.0
    turns = BulkTurns(1, now=lambda: time)
    assert not turns.are_needed
    turns.reader_is_behind()
    assert turns.are_needed
    time += BEHIND_SECONDS
    assert not turns.are_needed
    assert not BulkTurns(0, now=lambda: time).are_needed


def test_no_bound_means_no_turns() -> None:
    time = 5.0
    turns = BulkTurns(0, now=lambda: time)
    turns.reader_is_behind()
    assert not turns.are_needed
    with pytest.raises(ValueError, match="bulk_bytes_beside_readers"):
        ConnectionSettings(bulk_bytes_beside_readers=-1)


# ---- Sockets -------------------------------------------------------------------------------------


async def test_what_sends_much_is_left_to_its_own_task_while_readers_are_behind() -> None:
    time = 5.0
    turns = BulkTurns(1, now=lambda: time)
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return False

    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, trio.open_nursery() as nursery:
        await nursery.start(current_reactor().run)
        peer = await trio.open_tcp_stream(*listener.socket.getsockname())
        buffer = ReceiveBuffer(4 * BULK_BYTES_MIN)
        transport = SocketTransport(await listener.accept(), buffer, current_reactor(), turns)
        async with peer:
            await receive_much_at_once(transport, peer)
            turns.reader_is_behind()
            nursery.start_soon(peer.send_all, b"more")
            await transport.receive_with(take)
            assert taken == []
            assert await transport.receive() == b"more"
            # It sends little now: what comes next is taken for it again.
            nursery.start_soon(peer.send_all, b"little")
            await transport.receive_with(take)
            assert taken == [b"little"]
            await transport.aclose()
        nursery.cancel_scope.cancel()


async def receive_much_at_once(transport: SocketTransport, peer: trio.SocketStream) -> None:
    """Receive from a peer that sends so much that one receive has more than a bulk."""
    largest = 0
    while largest < BULK_BYTES_MIN:
        await peer.send_all(bytes(2 * BULK_BYTES_MIN))
        received = 0
        while received < 2 * BULK_BYTES_MIN:
            received += (largest := len(await transport.receive()))


# ---- Who is behind -------------------------------------------------------------------------------


@pytest.fixture
async def store() -> AsyncIterator[MemoryStore]:
    async with memory_store() as store:
        await store.container.create_segment(SEGMENT)
        await store.container.append(SEGMENT, bytes(100))
        yield store


@pytest.mark.parametrize(("length", "is_behind"), [(99, True), (100, False), (200, False)])
async def test_a_reader_with_more_to_read_is_behind(
    store: MemoryStore, length: int, is_behind: bool, autojump_clock: trio.testing.MockClock
) -> None:
    client: WireClient = store.connect()
    reply = await client.call(wire.ReadSegment(SEGMENT, 0, length, "", 7))
    assert isinstance(reply, wire.SegmentRead)
    assert store.server.admission.bulk_turns.are_needed is is_behind
