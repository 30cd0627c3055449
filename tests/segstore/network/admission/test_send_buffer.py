from __future__ import annotations

import pytest
import trio
import trio.testing

from segstore.network.admission.buffer_bytes import REPLY_BYTES_FREE, ReplyBytes
from segstore.network.admission.send_buffer import JOINED_BYTES_MAX, SendBuffer
from segstore.runtime.reactor import Reactor, current_reactor
from segstore.runtime.transport import SENT_BYTES_MAX, SendNow


@pytest.fixture
async def reactor(nursery: trio.Nursery) -> Reactor:
    await nursery.start(current_reactor().run)
    return current_reactor()


def send_buffer(*, pause_bytes: int, send_now: SendNow | None = None) -> SendBuffer:
    return SendBuffer(pause_bytes=pause_bytes, total=ReplyBytes(1 << 30), send_now=send_now)


class RecordingStream:
    """A stream that remembers what each send carried; ``gate`` holds sends up."""

    def __init__(self) -> None:
        self.sent: list[bytes | memoryview] = []
        self.gate = trio.Event()
        self.gate.set()

    async def send(self, data: bytes | memoryview) -> None:
        await self.gate.wait()
        self.sent.append(data)


async def test_what_is_put_in_one_turn_leaves_in_one_send() -> None:
    buffer, stream = send_buffer(pause_bytes=100), RecordingStream()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.run, stream.send)
        await trio.testing.wait_all_tasks_blocked()
        for part in (b"one ", b"two ", b"three"):
            buffer.put(part)
        await trio.testing.wait_all_tasks_blocked()
        buffer.put(b"four")
        await trio.testing.wait_all_tasks_blocked()
        buffer.finish()
    assert stream.sent == [b"one two three", b"four"]
    assert buffer.size == 0


class RecordingSocket:
    """A socket that takes at most ``room`` bytes."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken: list[bytes] = []

    def send_now(self, data: bytes | memoryview) -> int:
        if self.room < 0:
            raise trio.BrokenResourceError("gone")
        count = min(self.room, len(data))
        self.room -= count
        self.taken.append(bytes(data[:count]))
        return count


async def test_replies_leave_in_a_step_without_the_task(reactor: Reactor) -> None:
    socket, stream = RecordingSocket(room=100), RecordingStream()
    buffer = send_buffer(pause_bytes=10, send_now=socket.send_now)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.run, stream.send)
        await trio.testing.wait_all_tasks_blocked()
        for part in (b"one ", b"two ", b"three"):
            buffer.put(part)
        assert buffer.is_full
        assert socket.taken == []
        reactor.run_step(lambda: None)
        assert (buffer.size, buffer.is_full) == (0, False)
        buffer.finish()
    assert socket.taken == [b"one two three"]
    assert stream.sent == []


async def test_the_task_sends_what_the_socket_does_not_take_and_all_that_comes_after(
    reactor: Reactor,
) -> None:
    socket, stream = RecordingSocket(room=5), RecordingStream()
    buffer = send_buffer(pause_bytes=100, send_now=socket.send_now)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.run, stream.send)
        await trio.testing.wait_all_tasks_blocked()
        buffer.put(b"12345678")
        reactor.run_step(lambda: None)
        buffer.put(b"9")
        reactor.run_step(lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        assert buffer.size == 0
        buffer.finish()
    assert b"".join([*socket.taken, *stream.sent]) == b"123456789"
    assert [bytes(part) for part in stream.sent] == [b"678", b"9"]


async def test_a_peer_that_is_gone_is_left_to_the_task(reactor: Reactor) -> None:
    socket, stream = RecordingSocket(room=-1), RecordingStream()
    buffer = send_buffer(pause_bytes=100, send_now=socket.send_now)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.run, stream.send)
        await trio.testing.wait_all_tasks_blocked()
        buffer.put(b"lost")
        reactor.run_step(lambda: None)
        await trio.testing.wait_all_tasks_blocked()
        buffer.finish()
    assert [bytes(part) for part in stream.sent] == [b"lost"]


async def test_what_is_discarded_before_its_turn_is_not_sent(reactor: Reactor) -> None:
    socket, stream = RecordingSocket(room=100), RecordingStream()
    buffer = send_buffer(pause_bytes=100, send_now=socket.send_now)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.run, stream.send)
        await trio.testing.wait_all_tasks_blocked()
        buffer.put(b"dropped")
        buffer.discard()
        reactor.run_step(lambda: None)
    assert (socket.taken, stream.sent, buffer.size) == ([], [], 0)


async def test_large_replies_are_not_copied_together() -> None:
    buffer, stream = send_buffer(pause_bytes=100), RecordingStream()
    large = bytes(JOINED_BYTES_MAX)
    for part in (b"a", large, b"b", b"c"):
        buffer.put(part)
    buffer.finish()
    await buffer.run(stream.send)
    assert stream.sent == [b"a", large, b"bc"]


async def test_a_long_reply_is_sent_from_where_it_is_and_not_all_in_one_turn(
    reactor: Reactor,
) -> None:
    socket, stream = RecordingSocket(room=1 << 30), RecordingStream()
    buffer = send_buffer(pause_bytes=100, send_now=socket.send_now)
    kept = memoryview(bytes(range(256)) * 4096)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.run, stream.send)
        await trio.testing.wait_all_tasks_blocked()
        for part in (b"head", kept, b"tail"):
            buffer.put(part)
        reactor.run_step(lambda: None)
        assert socket.taken == [b"head", kept[:SENT_BYTES_MAX]]
        await trio.testing.wait_all_tasks_blocked()
        assert buffer.size == 0
        buffer.finish()
    *rest, tail = stream.sent
    for part in rest:
        assert isinstance(part, memoryview)
        assert part.obj is kept.obj
        assert len(part) <= SENT_BYTES_MAX
    assert b"".join([*socket.taken, *rest, tail]) == b"head" + kept + b"tail"


async def test_finishing_sends_what_is_there_and_takes_nothing_more() -> None:
    buffer, stream = send_buffer(pause_bytes=100), RecordingStream()
    buffer.put(b"before")
    buffer.finish()
    buffer.put(b"after")
    await buffer.run(stream.send)
    assert stream.sent == [b"before"]


async def test_room_comes_back_when_bytes_are_sent() -> None:
    buffer, stream = send_buffer(pause_bytes=10), RecordingStream()
    stream.gate = trio.Event()
    buffer.put(bytes(10))
    assert buffer.is_full
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.run, stream.send)
        with pytest.raises(trio.TooSlowError), trio.fail_after(0.01):
            await buffer.wait_for_room()
        stream.gate.set()
        await buffer.wait_for_room()
        assert not buffer.is_full
        buffer.finish()


async def test_a_buffer_is_full_earlier_when_all_connections_have_much() -> None:
    total = ReplyBytes(3 * REPLY_BYTES_FREE)
    buffers = [SendBuffer(pause_bytes=1 << 30, total=total) for _ in range(3)]
    buffers[0].put(bytes(REPLY_BYTES_FREE - 1))
    buffers[1].put(bytes(REPLY_BYTES_FREE))
    buffers[2].put(bytes(REPLY_BYTES_FREE))
    assert [each.is_full for each in buffers] == [False, False, False]
    buffers[2].put(b"x")
    assert [each.is_full for each in buffers] == [False, True, True]
    buffers[2].discard()
    assert not buffers[1].is_full


async def test_discarding_ends_without_sending() -> None:
    buffer, stream = send_buffer(pause_bytes=10), RecordingStream()
    buffer.put(bytes(20))
    buffer.discard()
    await buffer.run(stream.send)
    assert stream.sent == []
    assert buffer.size == 0
    await buffer.wait_for_room()


class CountingReply:
    """A late reply whose number is read at the moment when it is sent."""

    def __init__(self) -> None:
        self.number = 0
        self.is_sent = False

    def __len__(self) -> int:
        return 2

    def to_bytes(self) -> bytes:
        self.is_sent = True
        return b"%02d" % self.number


async def test_a_late_reply_keeps_its_place_and_tells_what_is_so_when_it_is_sent() -> None:
    buffer, stream = send_buffer(pause_bytes=8), RecordingStream()
    stream.gate = trio.Event()
    first, second = CountingReply(), CountingReply()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(buffer.run, stream.send)
        buffer.put(b"before ")
        await trio.testing.wait_all_tasks_blocked()
        buffer.put(first)
        assert buffer.is_full
        buffer.put(b" between ")
        buffer.put(second)
        first.number, second.number = 17, 4
        assert not first.is_sent
        stream.gate.set()
        await trio.testing.wait_all_tasks_blocked()
        assert first.is_sent
        buffer.put(CountingReply())
        buffer.finish()
    assert stream.sent == [b"before ", b"17 between 04", b"00"]
    assert buffer.size == 0
