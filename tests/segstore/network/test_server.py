"""The whole server over TCP."""

from __future__ import annotations

import errno
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from pravega_wire import commands as wire
from pravega_wire.blocking import ConnectionLostError, SegmentConnection
from pravega_wire.codec import encode
from pravega_wire.connection import append_block
from segstore.api import SegmentContainer
from segstore.errors import DataDirectoryError
from segstore.network.server import (
    ACCEPT_PAUSE_SECONDS,
    AddressInUseError,
    ConnectionServer,
    serve,
    serve_connections,
)
from segstore.process.config import ConnectionSettings, SegmentStoreConfig
from segstore.process.registry import ContainerRegistry
from segstore.runtime.reactor import OnEvent, Reactor
from segstore.tables.settings import TableSettings
from segstore.testing.wire_client import PeerClosedError, WireClient
from support.models.memory_container import MemoryContainer

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = bytes(range(16))


@asynccontextmanager
async def open_memory_container(number: int) -> AsyncIterator[SegmentContainer]:
    yield MemoryContainer(number)


def config(tmp_path: Path, *, port: int = 0) -> SegmentStoreConfig:
    return SegmentStoreConfig(port=port, data_dir=tmp_path, drain_seconds=0.2)


class Server:
    """A running server; ``in_thread`` runs blocking client code against it."""

    def __init__(self, port: int, shutdown: trio.Event) -> None:
        self.port = port
        self.shutdown = shutdown

    async def in_thread(self, client: Callable[[SegmentConnection], None]) -> None:
        def run() -> None:
            with SegmentConnection("127.0.0.1", self.port, timeout=60) as connection:
                client(connection)

        with trio.fail_after(60):
            await trio.to_thread.run_sync(run)


@pytest.fixture
async def server(tmp_path: Path, nursery: trio.Nursery) -> Server:
    shutdown = trio.Event()
    port = await nursery.start(
        partial(serve, config(tmp_path), open_memory_container, shutdown=shutdown)
    )
    return Server(port, shutdown)


def create_and_set_up(connection: SegmentConnection) -> None:
    request = wire.CreateSegment(connection.next_request_id(), SEGMENT, 0, 0, "")
    assert isinstance(connection.call(request), wire.SegmentCreated)
    setup = wire.SetupAppend(connection.next_request_id(), WRITER, SEGMENT, "")
    assert isinstance(connection.call(setup), wire.AppendSetup)


async def test_a_writer_and_a_reader_over_tcp(server: Server) -> None:
    def client(connection: SegmentConnection) -> None:
        assert connection.server_hello == wire.HELLO
        create_and_set_up(connection)
        for number in range(1000):
            connection.send_bytes(
                append_block(WRITER, [b"event %d" % number], last_event_number=number, request_id=1)
            )
        previous, length = -(2**63), 0
        while previous < 999:
            ack = connection.receive()
            assert isinstance(ack, wire.DataAppended)
            assert ack.previous_event_number == previous
            previous, length = ack.event_number, ack.current_segment_write_offset
        read = connection.call(
            wire.ReadSegment(SEGMENT, 0, length, "", connection.next_request_id())
        )
        assert isinstance(read, wire.SegmentRead)
        assert len(read.data) == length
        assert read.data.endswith(b"event 999")

    await server.in_thread(client)


@pytest.mark.parametrize("pause_seconds", [0, 0.1])
async def test_what_was_asked_before_a_shutdown_of_sending_is_answered(
    server: Server, pause_seconds: float
) -> None:
    stream = await trio.open_tcp_stream("127.0.0.1", server.port)
    client = WireClient(stream)
    await client.call(wire.HELLO)
    await client.send(wire.CreateSegment(1, SEGMENT, 0, 0, ""))
    await client.expect(wire.SegmentCreated)
    await client.set_up(WRITER, SEGMENT)
    for number in range(100):
        await client.append(WRITER, b"x", number=number)
    await client.send(wire.GetStreamSegmentInfo(2, SEGMENT, ""))
    await trio.sleep(pause_seconds)
    await stream.send_eof()
    replies: list[wire.Command] = []
    with suppress(PeerClosedError):
        while True:
            replies.append(await client.receive())
    acks = [reply for reply in replies if isinstance(reply, wire.DataAppended)]
    assert acks[-1].event_number == 99
    assert wire.StreamSegmentInfo in {type(reply) for reply in replies}
    await stream.aclose()


async def test_appends_larger_than_every_buffer_arrive_whole(server: Server) -> None:
    event = bytes(range(256)) * (8 << 12)

    def client(connection: SegmentConnection) -> None:
        create_and_set_up(connection)
        connection.send_bytes(
            append_block(WRITER, [event], last_event_number=0, request_id=1, framed=False)
        )
        assert isinstance(connection.receive(), wire.DataAppended)
        data = b""
        while len(data) < len(event):
            read = connection.call(
                wire.ReadSegment(SEGMENT, len(data), 1 << 30, "", connection.next_request_id())
            )
            assert isinstance(read, wire.SegmentRead)
            data += read.data
        assert data == event

    await server.in_thread(client)


async def test_a_frame_may_arrive_byte_by_byte(server: Server) -> None:
    def client(connection: SegmentConnection) -> None:
        create_and_set_up(connection)
        for byte in append_block(WRITER, [b"slow"], last_event_number=0, request_id=1):
            connection.send_bytes(bytes([byte]))
        assert isinstance(connection.receive(), wire.DataAppended)

    await server.in_thread(client)


async def test_the_refusal_of_a_superseded_writer_arrives_although_it_goes_on_sending(
    server: Server,
) -> None:
    def client(connection: SegmentConnection) -> None:
        create_and_set_up(connection)
        with SegmentConnection("127.0.0.1", server.port, timeout=60) as other:
            other.call(wire.SetupAppend(1, WRITER, SEGMENT, ""))
            other.send_bytes(append_block(WRITER, [b"x"], last_event_number=9, request_id=1))
            assert isinstance(other.receive(), wire.DataAppended)
        block = append_block(WRITER, [bytes(100_000)], last_event_number=10, request_id=1)
        try:
            for _ in range(100):
                connection.send_bytes(block)
        except ConnectionLostError:
            pytest.fail("the server reset the connection before its reply could be read")
        assert isinstance(connection.receive(), wire.InvalidEventNumber)
        with pytest.raises(ConnectionLostError):
            connection.receive()

    await server.in_thread(client)


async def test_hundreds_of_connections_with_parked_reads(server: Server) -> None:
    def client(connection: SegmentConnection) -> None:
        create_and_set_up(connection)
        read = connection._connection.send(wire.ReadSegment(SEGMENT, 0, 100, "", 5))
        hello = connection._connection.send(wire.HELLO)
        others = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
        try:
            for other in others:
                other.settimeout(60)
                other.sendall(hello + read)
                assert other.recv(16, socket.MSG_WAITALL) == hello
            connection.send_bytes(append_block(WRITER, [b"x"], last_event_number=0, request_id=1))
            for other in others:
                code, length = struct.unpack(">ii", other.recv(8, socket.MSG_WAITALL))
                assert code == wire.SegmentRead.code
                assert other.recv(length, socket.MSG_WAITALL).endswith(
                    b"\0\0\0\1x" + (5).to_bytes(8, "big")
                )
        finally:
            for other in others:
                other.close()

    await server.in_thread(client)


async def test_a_shutdown_closes_connections_and_the_port(
    tmp_path: Path, nursery: trio.Nursery
) -> None:
    shutdown = trio.Event()
    stopped = trio.Event()

    async def run(task_status: trio.TaskStatus[int]) -> None:
        await serve(
            config(tmp_path), open_memory_container, shutdown=shutdown, task_status=task_status
        )
        stopped.set()

    port = await nursery.start(run)
    server = Server(port, shutdown)

    def client(connection: SegmentConnection) -> None:
        create_and_set_up(connection)
        trio.from_thread.run_sync(shutdown.set)
        with pytest.raises(ConnectionLostError):
            connection.receive()

    await server.in_thread(client)
    with trio.fail_after(60):
        await stopped.wait()
    with pytest.raises(OSError, match="failed"):
        await trio.open_tcp_stream("127.0.0.1", port)


async def test_a_shutdown_does_not_wait_for_ever(
    autojump_clock: trio.testing.MockClock,
) -> None:
    container = MemoryContainer()

    @asynccontextmanager
    async def open_container(number: int) -> AsyncIterator[SegmentContainer]:
        yield container

    registry = ContainerRegistry(
        open_container,
        container_count=1,
        container_ids=[0],
        tables=TableSettings(),
        restart_seconds_min=1,
        restart_seconds_max=1,
    )
    server = ConnectionServer(registry, ConnectionSettings())
    client, stream = trio.testing.memory_stream_pair()
    shutdown = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(registry.run)
        await registry.wait_until_tried()
        container.auto_commit = False
        async with trio.open_nursery() as serving:
            await serving.start(
                partial(
                    serve_connections,
                    server,
                    [OneConnection(stream)],
                    drain_seconds=7,
                    shutdown=shutdown,
                )
            )
            await client.send_all(encode(wire.CreateSegment(1, SEGMENT, 0, 0, "")))
            await trio.testing.wait_all_tasks_blocked()
            assert container.queued_count == 1
            started = trio.current_time()
            shutdown.set()
        assert trio.current_time() - started == pytest.approx(7)
        nursery.cancel_scope.cancel()


class OneConnection(trio.abc.Listener[trio.abc.HalfCloseableStream]):
    """A listener that accepts one stream."""

    def __init__(self, stream: trio.abc.HalfCloseableStream) -> None:
        self.streams = [stream]

    async def accept(self) -> trio.abc.HalfCloseableStream:
        await trio.lowlevel.checkpoint()
        if self.streams:
            return self.streams.pop()
        await trio.sleep_forever()
        raise AssertionError

    async def aclose(self) -> None:
        await trio.lowlevel.checkpoint()


async def test_a_port_in_use_is_a_clear_error(tmp_path: Path, server: Server) -> None:
    with pytest.raises(AddressInUseError, match=f"{server.port} is in use"):
        await serve(config(tmp_path, port=server.port), open_memory_container)


async def test_an_unusable_data_directory_is_reported_as_itself(tmp_path: Path) -> None:
    @asynccontextmanager
    async def open_container(number: int) -> AsyncIterator[SegmentContainer]:
        raise DataDirectoryError("in use by another process")
        yield

    with pytest.raises(DataDirectoryError):
        await serve(config(tmp_path), open_container)


async def test_the_port_opens_although_a_container_takes_long_to_recover(tmp_path: Path) -> None:
    recovered = trio.Event()

    @asynccontextmanager
    async def open_container(number: int) -> AsyncIterator[SegmentContainer]:
        if number == 2:
            await recovered.wait()
        yield MemoryContainer(number)

    settings = SegmentStoreConfig(port=0, data_dir=tmp_path, start_seconds_max=0.05)
    async with trio.open_nursery() as nursery:
        port = await nursery.start(partial(serve, settings, open_container))
        server = Server(port, trio.Event())
        # examples/test/0 is in container 0.
        request = wire.CreateSegment(1, "examples/test/0", 0, 0, "")
        await server.in_thread(
            lambda connection: check(isinstance(connection.call(request), wire.SegmentCreated))
        )
        nursery.cancel_scope.cancel()


def check(condition: bool) -> None:
    assert condition


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
async def test_accepting_survives_a_lack_of_file_descriptors(
    number: int, autojump_clock: trio.testing.MockClock
) -> None:
    client, stream = trio.testing.memory_stream_pair()
    began = trio.current_time()

    class ShortOfFiles(trio.abc.Listener[trio.abc.HalfCloseableStream]):
        failures = 300

        async def accept(self) -> trio.abc.HalfCloseableStream:
            await trio.lowlevel.checkpoint()
            if self.failures > 0:
                self.failures -= 1
                raise OSError(number, os.strerror(number))
            if self.failures == 0:
                self.failures = -1
                return stream
            await trio.sleep_forever()
            raise AssertionError

        async def aclose(self) -> None:
            await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def open_container(number: int) -> AsyncIterator[SegmentContainer]:
        yield MemoryContainer(number)

    registry = ContainerRegistry(
        open_container,
        container_count=1,
        container_ids=[0],
        tables=TableSettings(),
        restart_seconds_min=1,
        restart_seconds_max=1,
    )
    server = ConnectionServer(registry, ConnectionSettings())
    shutdown = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(
            partial(serve_connections, server, [ShortOfFiles()], drain_seconds=1, shutdown=shutdown)
        )
        with capture_logs() as logs:
            await client.send_all(encode(wire.HELLO))
            assert await client.receive_some(100) == encode(wire.HELLO)
        shutdown.set()
    # It paused after each failure, and wrote a line now and then.
    assert trio.current_time() - began >= 300 * ACCEPT_PAUSE_SECONDS
    assert [line["event"] for line in logs] == ["connection refused"] * len(logs)
    assert len(logs) <= 5
    assert sum(line["count"] for line in logs) > 200
    assert os.strerror(number) in logs[0]["reason"]


async def test_a_socket_that_cannot_be_watched_costs_only_its_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Reactor, descriptor: int, on_event: OnEvent) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patches:
        patches.setattr(Reactor, "watch", fail)
        stream = await trio.open_tcp_stream("127.0.0.1", server.port)
        with trio.fail_after(60):
            assert await stream.receive_some(1) == b""
        await stream.aclose()
    await server.in_thread(create_and_set_up)
