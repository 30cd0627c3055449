from __future__ import annotations

import os
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest
import trio
import trio.testing

from pravega_security.tls import ServerCertificate, client_context
from segstore.runtime.reactor import current_reactor
from segstore.runtime.transport import ReceiveBuffer, SocketTransport, StreamTransport
from segstore.tls.transport import RECORD_BYTES, PlainBuffer, TlsTransport
from support.tls_peers import Certificates, TlsPeer


class PlainPeer:
    """The other end of a connection without TLS."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.socket = stream.socket
        self.setsockopt = stream.setsockopt
        self.send_all = stream.send_all
        self.receive_some = stream.receive_some
        self.send_eof = stream.send_eof
        self.aclose = stream.aclose

    def encrypt(self, data: bytes) -> bytes:
        return data


class Pair:
    """A transport and the peer at its other end."""

    def __init__(
        self, transport: SocketTransport, other: PlainPeer | TlsPeer, piece_bytes_max: int
    ) -> None:
        self.transport = transport
        self.other = other
        self.piece_bytes_max = piece_bytes_max


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(params=["plain", "TLSv1.2", "TLSv1.3"])
async def pair(
    nursery: trio.Nursery, certificates: Certificates, request: pytest.FixtureRequest
) -> AsyncIterator[Pair]:
    await nursery.start(current_reactor().run)
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener:
        other = await trio.open_tcp_stream(*listener.socket.getsockname())
        stream = await listener.accept()
        async with other, stream:
            buffer = ReceiveBuffer(1000)
            if request.param == "plain":
                transport = SocketTransport(stream, buffer, current_reactor())
                yield Pair(transport, PlainPeer(other), 1000)
            else:
                settings = msgspec.structs.replace(certificates.issue(), versions=(request.param,))
                context = ServerCertificate(settings).server_context()
                transport = TlsTransport(
                    stream, context, buffer, PlainBuffer(1000), current_reactor()
                )
                peer = TlsPeer(other, client_context(certificates.ca, check_hostname=True))
                async with trio.open_nursery() as handshakes:
                    handshakes.start_soon(peer.handshake)
                    handshakes.start_soon(transport.handshake, trio.CapacityLimiter(1))
                # A record comes as a whole.
                yield Pair(transport, peer, 1000 + RECORD_BYTES)
            await transport.aclose()


async def test_bytes_come_as_they_are_there(pair: Pair) -> None:
    await pair.other.send_all(b"hello")
    assert await pair.transport.receive() == b"hello"


async def test_more_than_the_buffer_comes_in_pieces(pair: Pair) -> None:
    await pair.other.send_all(bytes(2500))
    received = 0
    while received < 2500:
        data = await pair.transport.receive()
        assert 0 < len(data) <= pair.piece_bytes_max
        received += len(data)


async def test_what_was_received_is_not_overwritten_by_what_comes_next(pair: Pair) -> None:
    await pair.other.send_all(b"first")
    first = await pair.transport.receive()
    await pair.other.send_all(b"other")
    await pair.transport.receive()
    assert first == b"first"


async def test_the_end_of_the_peer_is_no_bytes(pair: Pair) -> None:
    await pair.other.send_eof()
    assert await pair.transport.receive() == b""


async def test_sending_waits_for_a_peer_that_reads_slowly(pair: Pair) -> None:
    data = bytes(range(256)) * 40_000
    received = bytearray()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.transport.send, data)
        await trio.testing.wait_all_tasks_blocked()
        assert nursery.child_tasks
        while len(received) < len(data):
            received += await pair.other.receive_some(100_000)
    assert received == data


async def test_a_peer_that_reset_the_connection_is_broken(pair: Pair) -> None:
    pair.other.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    await pair.other.aclose()
    with pytest.raises(trio.BrokenResourceError):
        await pair.transport.receive()
    with pytest.raises(trio.BrokenResourceError):
        await pair.transport.send(b"anybody there?")


async def test_dead_peers_are_looked_for(pair: Pair) -> None:
    connection = pair.transport._stream.socket
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1
    assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 60


async def test_the_peer_has_a_name(pair: Pair) -> None:
    host, port = pair.other.socket.getsockname()
    assert pair.transport.peer == f"{host}:{port}"


async def test_closing_wakes_who_receives(pair: Pair) -> None:
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await pair.transport.receive()

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await pair.transport.aclose()


async def test_a_closed_transport_leaves_the_next_owner_of_its_descriptor_alone(
    nursery: trio.Nursery,
) -> None:
    reactor = current_reactor()
    await nursery.start(reactor.run)
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with listener, await trio.open_tcp_stream(*listener.socket.getsockname()):
        stream = await listener.accept()
        transport = SocketTransport(stream, ReceiveBuffer(10), reactor)
        descriptor = stream.socket.fileno()
        ours, theirs = socket.socketpair()
        came = trio.Event()
        with ours, theirs:
            await transport.aclose()
            os.dup2(ours.fileno(), descriptor)
            reactor.watch(descriptor, lambda _: came.set())
            await transport.aclose()
            with pytest.raises(trio.BrokenResourceError):
                transport.send_now(b"for somebody else")
            theirs.send(b"hello")
            with trio.fail_after(60):
                await came.wait()
            reactor.unwatch(descriptor)
            os.close(descriptor)


async def test_streams_in_memory_carry_bytes_both_ways() -> None:
    stream, other = trio.testing.memory_stream_pair()
    transport = StreamTransport(stream)
    await transport.send(b"ping")
    assert await other.receive_some(10) == b"ping"
    await other.send_all(b"pong")
    assert await transport.receive() == b"pong"
    await transport.send_eof()
    assert await other.receive_some(10) == b""
    await transport.aclose()


async def test_who_sends_much_lets_others_have_their_turn(pair: Pair) -> None:
    data = memoryview(os.urandom(8 << 20))
    received = bytearray()
    turns = 0

    async def send() -> None:
        await pair.transport.send(data)
        await pair.transport.send_eof()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(send)
        while part := await pair.other.receive_some(1 << 20):
            received += part
            turns += 1
    assert received == data
    assert turns > 8


async def test_what_comes_is_taken_without_resuming_who_waits(pair: Pair) -> None:
    taken: list[bytes] = []
    returned = False

    def take(data: bytes) -> bool:
        taken.append(data)
        return data != b"last"

    async def wait() -> None:
        nonlocal returned
        await pair.transport.receive_with(take)
        returned = True

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            for data in (b"first", b"second"):
                await trio.testing.wait_all_tasks_blocked()
                await pair.other.send_all(data)
                while taken[-1:] != [data]:
                    await trio.lowlevel.checkpoint()
                assert not returned
            await pair.other.send_all(b"last")
    assert taken == [b"first", b"second", b"last"]


async def test_who_waits_goes_on_when_more_is_there_than_fits(pair: Pair) -> None:
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return True

    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.transport.receive_with, take)
            await trio.testing.wait_all_tasks_blocked()
            await pair.other.send_all(bytes(1500))
        received = sum(map(len, taken))
        while received < 1500:
            received += len(await pair.transport.receive())


@asynccontextmanager
async def taking_until_the_end(pair: Pair) -> AsyncIterator[list[bytes]]:
    """Let the transport deliver what it receives, until the end, during a block that sends it."""
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return bool(data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pair.transport.receive_with, take)
        await trio.testing.wait_all_tasks_blocked()
        yield taken


async def test_the_end_is_taken_as_no_bytes(pair: Pair) -> None:
    with trio.fail_after(60):
        async with taking_until_the_end(pair) as taken:
            await pair.other.send_all(b"bytes")
            while not taken:
                await trio.lowlevel.checkpoint()
            await pair.other.send_eof()
        assert b"".join(taken) == b"bytes"
        assert taken[-1] == b""
        assert await pair.transport.receive() == b""


async def test_an_end_that_came_with_the_last_bytes_is_noticed(pair: Pair) -> None:
    with trio.fail_after(60):
        async with taking_until_the_end(pair) as taken:
            # Both before the event loop looks again: there is only one edge.
            os.write(pair.other.socket.fileno(), pair.other.encrypt(b"bytes"))
            await pair.other.send_eof()
        assert taken[0] == b"bytes"
        assert await pair.transport.receive() == b""


async def test_a_peer_that_breaks_off_is_told_from_one_that_ends(pair: Pair) -> None:
    with trio.fail_after(60):
        async with taking_until_the_end(pair) as taken:
            pair.other.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await trio.aclose_forcefully(pair.other.stream)  # a reset
        assert taken == []
        for _ in range(2):
            with pytest.raises(trio.BrokenResourceError):
                await pair.transport.receive()


async def test_an_end_that_came_with_the_last_bytes_is_received_after_them(pair: Pair) -> None:
    os.write(pair.other.socket.fileno(), pair.other.encrypt(b"last"))
    await pair.other.send_eof()
    with trio.fail_after(60):
        assert [await pair.transport.receive() for _ in range(3)] == [b"last", b"", b""]


async def test_what_comes_after_a_cancelled_receive_is_not_lost(pair: Pair) -> None:
    taken: list[bytes] = []

    def take(data: bytes) -> bool:
        taken.append(data)
        return True

    for receive in (pair.transport.receive, lambda: pair.transport.receive_with(take)):
        with trio.move_on_after(0.01) as scope:
            await receive()
        assert scope.cancelled_caught
        await pair.other.send_all(b"a")
        await trio.testing.wait_all_tasks_blocked(0.01)
        with trio.fail_after(60):
            assert await pair.transport.receive() == b"a"
    assert taken == []


async def test_what_is_there_already_is_left_to_the_caller(pair: Pair) -> None:
    def take(data: bytes) -> bool:
        raise AssertionError("there is something to receive")

    await pair.other.send_all(b"a")
    await trio.testing.wait_all_tasks_blocked(0.01)
    with trio.fail_after(60):
        await pair.transport.receive_with(take)
        assert await pair.transport.receive() == b"a"


async def test_nothing_is_received_with_a_closed_transport(pair: Pair) -> None:
    async with trio.open_nursery() as nursery:

        async def receive() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await pair.transport.receive_with(lambda _: True)

        nursery.start_soon(receive)
        await trio.testing.wait_all_tasks_blocked()
        await pair.transport.aclose()
    await receive()


async def test_what_a_callback_raises_is_raised_in_the_task_that_receives(pair: Pair) -> None:
    def take(data: bytes) -> bool:
        raise ZeroDivisionError

    with pytest.RaisesGroup(ZeroDivisionError), trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(pair.transport.receive_with, take)
            await trio.testing.wait_all_tasks_blocked()
            await pair.other.send_all(b"a")
