"""Requests go out in their order, each is answered once, and none waits for a bookie for ever."""

from __future__ import annotations

import struct
from collections.abc import Callable

import pytest
import trio
import trio.testing

from bookkeeper_client.connections.connections import BookieConnection, ConnectionLimits
from bookkeeper_client.connections.transports import OnReceived, OpenTransport, Transport
from bookkeeper_client.registry import BookieRegistry
from bookkeeper_client.wire.protocol import Code, Operation, encode_read
from support.models.memory_server import MemoryZooKeeper

SECONDS_MAX = 60.0
_REPLY = struct.Struct(">Iiiqq")
settle = trio.testing.wait_all_tasks_blocked


async def until(is_so: Callable[[], bool]) -> None:
    while not is_so():  # noqa: ASYNC110
        await trio.sleep(0.01)


async def find_nowhere(bookie: str) -> tuple[str, int]:
    await trio.lowlevel.checkpoint()
    return "nowhere", 1


class HandTransport:
    """A transport that takes as many bytes as the test gives it room for."""

    def __init__(self, room: int) -> None:
        self.sent = bytearray()
        self.is_broken = False
        self.come, self._coming = trio.open_memory_channel[bytes](100)
        self._room = room
        self._has_room = trio.Event()

    async def open(self, host: str, port: int) -> Transport:
        await trio.lowlevel.checkpoint()
        return self

    def send_now(self, data: bytes | memoryview) -> int:
        if self.is_broken:
            raise trio.BrokenResourceError
        count = min(self._room, len(data))
        self.sent += data[:count]
        self._room -= count
        return count

    async def send(self, data: bytes | memoryview) -> None:
        await trio.lowlevel.checkpoint()
        rest = bytes(data)
        while rest := rest[self.send_now(rest) :]:
            await self._has_room.wait()

    def give_room(self, count: int) -> None:
        self._room += count
        self._has_room.set()
        self._has_room = trio.Event()

    async def receive(self) -> bytes:
        return await self._coming.receive()

    async def receive_with(self, on_received: OnReceived) -> None:
        while on_received(await self.receive()):
            pass

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


REQUEST_BYTES = len(encode_read(1, 0))


class Asked:
    """Requests to read entries, and their answers in the order in which they came."""

    def __init__(self, connection: BookieConnection) -> None:
        self._connection = connection
        self.answers: list[tuple[int, Code | None]] = []

    def ask(self, entry_id: int) -> None:
        def on_answer(code: Code | None, _: bytes) -> None:
            self.answers.append((entry_id, code))

        key = (Operation.READ, 1, entry_id)
        self._connection.send(key, (encode_read(1, entry_id),), on_answer)


def reply_to(entry_id: int) -> bytes:
    packet_bytes = _REPLY.size - 4
    return _REPLY.pack(packet_bytes, 2 << 24 | Operation.READ << 16, Code.NO_ENTRY, 1, entry_id)


async def connect(transport: HandTransport, nursery: trio.Nursery) -> Asked:
    """Connect, and have one request answered."""
    connection = BookieConnection("x", find_nowhere, ConnectionLimits(), transport.open)
    nursery.start_soon(connection.run)
    asked = Asked(connection)
    asked.ask(0)
    await settle()
    transport.come.send_nowait(reply_to(0))
    await settle()
    assert asked.answers == [(0, Code.NO_ENTRY)]
    return asked


async def test_a_request_leaves_at_once_where_there_is_room(nursery: trio.Nursery) -> None:
    transport = HandTransport(room=100 * REQUEST_BYTES)
    asked = await connect(transport, nursery)
    for entry_id in range(1, 4):
        asked.ask(entry_id)
        assert transport.sent.endswith(encode_read(1, entry_id))
    for entry_id in range(1, 4):
        transport.come.send_nowait(reply_to(entry_id))
    await settle()
    assert asked.answers[1:] == [(entry_id, Code.NO_ENTRY) for entry_id in range(1, 4)]


@pytest.mark.parametrize("room", [0, 1, REQUEST_BYTES - 1, REQUEST_BYTES, REQUEST_BYTES + 1])
async def test_requests_keep_their_order_behind_one_that_waits(
    room: int, nursery: trio.Nursery
) -> None:
    transport = HandTransport(room=REQUEST_BYTES + room)
    asked = await connect(transport, nursery)
    for entry_id in range(1, 3):
        asked.ask(entry_id)
    assert len(transport.sent) == REQUEST_BYTES + room
    await settle()
    asked.ask(3)
    transport.give_room(REQUEST_BYTES)
    asked.ask(4)
    await settle()
    transport.give_room(100 * REQUEST_BYTES)
    asked.ask(5)
    await settle()
    # Nothing waits any more: this one leaves at once again.
    asked.ask(6)
    assert transport.sent == b"".join(encode_read(1, entry_id) for entry_id in range(7))


@pytest.mark.parametrize("room", [0, 1])
async def test_what_a_broken_connection_had_not_sent_is_answered_once(
    room: int, nursery: trio.Nursery
) -> None:
    transport = HandTransport(room=REQUEST_BYTES + room)
    asked = await connect(transport, nursery)
    if room:
        asked.ask(1)
        await settle()
        transport.is_broken = True
        transport.give_room(0)
    else:
        transport.is_broken = True
        asked.ask(1)
    asked.ask(2)
    assert len(asked.answers) == 1
    await settle()
    assert asked.answers[1:] == [(1, None), (2, None)]


async def test_a_request_of_an_answer_to_a_failed_one_connects_again(nursery: trio.Nursery) -> None:
    transport = HandTransport(room=100 * REQUEST_BYTES)
    asked = await connect(transport, nursery)

    def ask_again(code: Code | None, _: bytes) -> None:
        assert code is None
        transport.is_broken = False
        asked.ask(2)

    transport.is_broken = True
    key = (Operation.READ, 1, 1)
    asked._connection.send(key, (encode_read(1, 1),), ask_again)
    await settle()
    transport.come.send_nowait(reply_to(2))
    await settle()
    assert asked.answers[1:] == [(2, Code.NO_ENTRY)]


async def ask(connection: BookieConnection) -> Code | None:
    done = trio.Event()
    codes: list[Code | None] = []

    def on_answer(code: Code | None, data: bytes) -> None:
        codes.append(code)
        done.set()

    connection.send((Operation.READ, 1, 2), (encode_read(1, 2),), on_answer)
    assert not codes
    with trio.fail_after(SECONDS_MAX):
        await done.wait()
    return codes[0]


@pytest.mark.parametrize("behavior", ["garbage", "end", "another's answer"])
async def test_a_peer_that_is_no_bookie_is_a_failed_bookie(
    behavior: str, nursery: trio.Nursery, open_transport: OpenTransport
) -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        if behavior == "garbage":
            await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        elif behavior == "another's answer":
            reply = "00000018 02010000 00000000 0000000000000009 0000000000000009"
            await stream.send_all(bytes.fromhex(reply))

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    nursery.start_soon(trio.serve_listeners, serve, listeners)
    port = listeners[0].socket.getsockname()[1]

    async def find_address(bookie: str) -> tuple[str, int]:
        return "127.0.0.1", port

    connection = BookieConnection("x", find_address, ConnectionLimits(), open_transport)
    nursery.start_soon(connection.run)
    for _ in range(2):
        assert await ask(connection) is None


async def test_what_waits_for_a_bookie_is_bounded(nursery: trio.Nursery) -> None:
    async def find_address(bookie: str) -> tuple[str, int]:
        await trio.sleep_forever()
        raise AssertionError

    limits = ConnectionLimits(waiting_bytes_max=100)
    connection = BookieConnection("x", find_address, limits)
    nursery.start_soon(connection.run)
    refused: list[Code | None] = []
    for _ in range(6):
        connection.send(
            (Operation.READ, 1, 2), (encode_read(1, 2),), lambda code, data: refused.append(code)
        )
    with trio.fail_after(SECONDS_MAX):
        await until(lambda: len(refused) >= 2)
    await trio.testing.wait_all_tasks_blocked()
    assert refused == [None, None]


async def test_a_bookie_whose_address_is_not_known_is_a_failed_bookie(
    nursery: trio.Nursery,
) -> None:
    server = MemoryZooKeeper()
    registry = BookieRegistry(server.open_session(), "/ledgers")
    connection = BookieConnection("nameless", registry.find_address, ConnectionLimits())
    nursery.start_soon(connection.run)
    assert await ask(connection) is None
    assert await registry.find_address("host:3181") == ("host", 3181)
