from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import closing

import pytest
import trio
import trio.testing

from segstore.runtime.readiness import Readiness, ReadySockets


@pytest.fixture
async def ready_sockets() -> AsyncIterator[ReadySockets]:
    with closing(ReadySockets()) as watched:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watched.run)
            yield watched
            nursery.cancel_scope.cancel()


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


async def test_what_comes_wakes_who_waits(
    ready_sockets: ReadySockets, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    readiness = ready_sockets.watch(ours.fileno())
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(readiness.wait)
            await trio.testing.wait_all_tasks_blocked()
            theirs.send(b"a")
        assert ours.recv(10) == b"a"
        readiness.note_read(emptied=True)
        theirs.send(b"b")
        await readiness.wait()
        assert ours.recv(10) == b"b"


async def test_who_has_not_read_everything_need_not_wait(
    ready_sockets: ReadySockets, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    readiness = ready_sockets.watch(ours.fileno())
    theirs.send(b"ab")
    with trio.fail_after(60):
        await readiness.wait()
        assert ours.recv(1) == b"a"
        readiness.note_read(emptied=False)
        await readiness.wait()
    readiness.note_read(emptied=True)
    with trio.move_on_after(0.05) as waiting:
        await readiness.wait()
    assert waiting.cancelled_caught


async def test_an_end_that_came_with_the_last_bytes_is_seen_after_them(
    ready_sockets: ReadySockets, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    readiness = ready_sockets.watch(ours.fileno())
    theirs.send(b"last")
    theirs.close()
    with trio.fail_after(60):
        await readiness.wait()
        assert ours.recv(10) == b"last"
        readiness.note_read(emptied=True)
        await readiness.wait()
        assert ours.recv(10) == b""


async def test_what_comes_after_a_cancelled_wait_is_remembered(
    ready_sockets: ReadySockets, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    readiness = ready_sockets.watch(ours.fileno())
    with trio.move_on_after(0.01) as waiting:
        await readiness.wait()
    assert waiting.cancelled_caught
    theirs.send(b"a")
    await trio.testing.wait_all_tasks_blocked(0.01)
    assert readiness.ready
    await readiness.wait()


async def test_nobody_waits_for_a_forgotten_socket(
    ready_sockets: ReadySockets, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    readiness = ready_sockets.watch(ours.fileno())
    ready_sockets.forget(ours.fileno())
    ready_sockets.forget(ours.fileno())
    theirs.send(b"a")
    await trio.testing.wait_all_tasks_blocked(0.01)
    with pytest.raises(trio.ClosedResourceError):
        await readiness.wait()


async def test_flushes_come_in_order_in_the_next_turn(ready_sockets: ReadySockets) -> None:
    flushed: list[int] = []

    def again() -> None:
        flushed.append(1)
        ready_sockets.flush_soon(lambda: flushed.append(3))

    ready_sockets.flush_soon(again)
    ready_sockets.flush_soon(lambda: flushed.append(2))
    assert flushed == []
    await trio.testing.wait_all_tasks_blocked()
    assert flushed == [1, 2, 3]


class Reader:
    """Reads for a task that does not want to be resumed, until it has read ``last``."""

    def __init__(self, readiness: Readiness, ours: socket.socket, last: bytes) -> None:
        self._readiness = readiness
        self._socket = ours
        self._last = last
        self.read: list[bytes] = []

    def on_ready(self) -> bool:
        self.read.append(self._socket.recv(100))
        self._readiness.note_read(emptied=True)
        return self.read[-1] != self._last


async def test_what_comes_is_passed_on_without_resuming_who_waits(
    ready_sockets: ReadySockets, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    readiness = ready_sockets.watch(ours.fileno())
    reader = Reader(readiness, ours, b"c")
    returned = trio.Event()

    async def wait() -> None:
        await readiness.pass_on(reader.on_ready)
        returned.set()

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            for data in (b"a", b"b"):
                await trio.testing.wait_all_tasks_blocked()
                theirs.send(data)
                while reader.read[-1:] != [data]:
                    await trio.lowlevel.checkpoint()
                assert not returned.is_set()
            theirs.send(b"c")
            await returned.wait()
        theirs.send(b"d")
        await readiness.wait()
    assert reader.read == [b"a", b"b", b"c"]
    assert ours.recv(10) == b"d"


async def test_what_is_there_already_is_left_to_who_asks(
    ready_sockets: ReadySockets, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    readiness = ready_sockets.watch(ours.fileno())
    theirs.send(b"a")
    with trio.fail_after(60):
        await readiness.wait()
        await readiness.pass_on(Reader(readiness, ours, b"").on_ready)
    assert ours.recv(10) == b"a"


async def test_nothing_is_passed_on_after_a_cancellation(
    ready_sockets: ReadySockets, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = sockets
    readiness = ready_sockets.watch(ours.fileno())
    reader = Reader(readiness, ours, b"")
    with trio.move_on_after(0.01):
        await readiness.pass_on(reader.on_ready)
    theirs.send(b"a")
    with trio.fail_after(60):
        await readiness.wait()
    assert reader.read == []


async def test_nothing_is_passed_on_of_a_socket_that_is_forgotten(
    ready_sockets: ReadySockets, sockets: tuple[socket.socket, socket.socket]
) -> None:
    ours, _ = sockets
    readiness = ready_sockets.watch(ours.fileno())
    ready_sockets.forget(ours.fileno())
    with pytest.raises(trio.ClosedResourceError):
        await readiness.pass_on(Reader(readiness, ours, b"").on_ready)
