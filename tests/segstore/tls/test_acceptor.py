"""Checks whole servers with TLS on the port."""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from structlog.testing import capture_logs

from pravega_security import tls
from pravega_security.tls import CertificateError, TlsSettings, client_context
from pravega_security.tls_streams import OpenStream, open_tls_with
from pravega_wire import commands as wire
from segstore.api import SegmentContainer
from segstore.network.server import serve
from segstore.process.config import SegmentStoreConfig
from segstore.testing.wire_client import WireClient
from segstore.tls import acceptor
from support.models.memory_container import MemoryContainer
from support.tls_peers import Certificates, TlsPeer

SEGMENT = "scope/stream/0.#epoch.0"
WRITER = bytes(range(16))


@asynccontextmanager
async def open_memory_container(number: int) -> AsyncIterator[SegmentContainer]:
    yield MemoryContainer(number)


class Server:
    """A running server."""

    def __init__(self, port: int, shutdown: trio.Event, certificates: Certificates) -> None:
        self.port = port
        self.shutdown = shutdown
        self.certificates = certificates
        self.context = client_context(certificates.ca, check_hostname=True)
        self.streams: list[trio.abc.Stream] = []
        """The streams to close."""

    async def open(self, open_stream: OpenStream = trio.open_tcp_stream) -> Any:
        stream = await open_stream("127.0.0.1", self.port)
        self.streams.append(stream)
        return stream

    async def open_tls(self) -> Any:
        return await self.open(open_tls_with(self.context))

    async def connect(self) -> WireClient:
        return WireClient(await self.open_tls())


@asynccontextmanager
async def serving(tmp_path: Path, settings: TlsSettings | None) -> AsyncIterator[Server]:
    shutdown = trio.Event()
    config = SegmentStoreConfig(port=0, data_dir=tmp_path, drain_seconds=5.0, tls=settings)
    certificates = Certificates(tmp_path)
    async with trio.open_nursery() as nursery:
        run = partial(serve, config, open_memory_container, shutdown=shutdown)
        if settings is not None:
            certificates.issue()
        port = await nursery.start(run)
        with trio.fail_after(60):
            server = Server(port, shutdown, certificates)
            yield server
        for stream in server.streams:
            await trio.aclose_forcefully(stream)
        nursery.cancel_scope.cancel()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    settings = TlsSettings(certificate=tmp_path / "server.pem", key=tmp_path / "server.key")
    async with serving(tmp_path, settings) as running:
        yield running


async def set_up(client: WireClient, segment: str = SEGMENT) -> None:
    await client.call(wire.HELLO)
    await client.send(wire.CreateSegment(1, segment, 0, 0, ""))
    await client.expect(wire.SegmentCreated)
    await client.set_up(WRITER, segment)


async def test_a_writer_and_a_reader_with_tls(server: Server) -> None:
    client = await server.connect()
    await set_up(client)
    for number in range(1, 301):
        await client.append(WRITER, b"event %d" % number, number=number)
    ack = 0
    while ack < 300:
        ack = (await client.expect(wire.DataAppended)).event_number
    await client.send(wire.ReadSegment(SEGMENT, 0, 1 << 20, "", 9))
    assert (await client.expect(wire.SegmentRead)).data.endswith(b"event 300")


async def test_a_peer_without_tls_is_counted_in_one_line(server: Server) -> None:
    with capture_logs() as logs:
        for _ in range(5):
            stream = await server.open()
            client = WireClient(stream)
            await client.send(wire.HELLO)
            assert await stream.receive_some(100) == b""
    refused = [each for each in logs if each["event"] == "connection refused"]
    assert [each["reason"] for each in refused] == ["the peer does not speak TLS"]


async def test_a_peer_with_tls_is_named_where_there_is_none(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path, None) as server:
        with capture_logs() as logs, pytest.raises(OSError, match="no TLS with"):
            await server.connect()
        while not logs:
            await trio.lowlevel.checkpoint()
    assert "this looks like TLS" in logs[0]["reason"]


async def test_a_new_certificate_drops_no_connection(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tls, "LOOK_SECONDS", 0.0)
    first = await server.open_tls()
    client = WireClient(first)
    await set_up(client)
    await trio.sleep(1.05)  # the look that was due before
    seen = {first.getpeercert(binary_form=True)}
    for number in range(1, 6):
        server.certificates.issue()
        other = await server.open_tls()
        seen.add(other.getpeercert(binary_form=True))
        await trio.aclose_forcefully(other)
        await client.append(WRITER, b"x", number=number)
        assert (await client.expect(wire.DataAppended)).event_number == number
    assert len(seen) >= 5


async def test_others_are_served_while_many_peers_shake_hands(server: Server) -> None:
    client = await server.connect()
    await set_up(client)
    connected = 0

    async def come() -> None:
        nonlocal connected
        other = await server.connect()
        await other.call(wire.HELLO)
        connected += 1

    async with trio.open_nursery() as nursery:
        for _ in range(100):
            nursery.start_soon(come)
        number = 0
        while connected < 100:
            number += 1
            await client.append(WRITER, b"x", number=number)
            assert (await client.expect(wire.DataAppended)).event_number == number
    assert number > 10


async def test_the_memory_of_many_handshakes_is_returned(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    returned: list[int] = []
    monkeypatch.setattr(acceptor, "return_free_memory", lambda: returned.append(1))
    monkeypatch.setattr(acceptor, "MANY_HANDSHAKES", 3)
    client = await server.connect()
    await client.call(wire.HELLO)
    assert not returned

    async def come() -> None:
        await (await server.connect()).call(wire.HELLO)

    async with trio.open_nursery() as nursery:
        for _ in range(20):
            nursery.start_soon(come)
    assert returned


async def test_a_shutdown_does_not_wait_for_handshakes(server: Server) -> None:
    stream = await server.open()
    await stream.send_all(b"\x16\x03")
    await trio.sleep(0.05)
    server.shutdown.set()
    with trio.fail_after(3):
        assert await stream.receive_some(100) == b""


async def test_a_client_without_a_certificate_is_refused(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    settings = TlsSettings(
        certificate=tmp_path / "server.pem", key=tmp_path / "server.key", client_ca=ca
    )
    async with serving(tmp_path, settings) as server:
        with capture_logs() as logs:
            stream = await server.open()
            peer = TlsPeer(stream, client_context(ca, check_hostname=True))
            with pytest.raises((ssl.SSLError, EOFError)):  # noqa: PT012
                await peer.handshake()
                await peer.send_all(b"hello")
                assert await peer.receive_some(100)
                raise EOFError
            while not logs:
                await trio.lowlevel.checkpoint()
        own = server.certificates.issue("client", name="client")
        context = client_context(ca, check_hostname=True, certificate=own.certificate, key=own.key)
        stream = await server.open(open_tls_with(context))
        await set_up(WireClient(stream))
    assert "certificate" in logs[0]["reason"]


async def test_a_store_without_its_certificate_does_not_start(tmp_path: Path) -> None:
    settings = TlsSettings(certificate=tmp_path / "no.pem", key=tmp_path / "no.key")
    config = SegmentStoreConfig(port=0, data_dir=tmp_path, tls=settings)
    with pytest.raises(CertificateError, match=r"no\.pem cannot be used: there is no such file"):
        await serve(config, open_memory_container)
