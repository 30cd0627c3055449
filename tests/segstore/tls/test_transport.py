"""Checks what is different with TLS; ``runtime/test_transport.py`` has what is not."""

from __future__ import annotations

import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from pravega_security.tls import ServerCertificate, client_context
from segstore.runtime.reactor import current_reactor
from segstore.runtime.transport import ReceiveBuffer
from segstore.tls import transport as module
from segstore.tls.transport import (
    CIPHER_BYTES,
    GROUP_RECORDS,
    HANDSHAKE_BYTES_MAX,
    PlainBuffer,
    TlsRefusedError,
    TlsTransport,
)
from support.tls_peers import Certificates, TlsPeer

BUFFER_BYTES = 256 * 1024


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@asynccontextmanager
async def connected(
    certificates: Certificates,
) -> AsyncIterator[tuple[TlsTransport, TlsPeer]]:
    """Return a transport and its peer, before the handshake."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery, listener:
        await nursery.start(current_reactor().run)
        other = await trio.open_tcp_stream(*listener.socket.getsockname())
        stream = await listener.accept()
        async with other, stream:
            transport = TlsTransport(
                stream,
                ServerCertificate(certificates.issue()).server_context(),
                ReceiveBuffer(BUFFER_BYTES),
                PlainBuffer(BUFFER_BYTES),
                current_reactor(),
            )
            context = client_context(certificates.ca, check_hostname=True)
            yield transport, TlsPeer(other, context)
            await transport.aclose()
        nursery.cancel_scope.cancel()


async def shake_hands(transport: TlsTransport, peer: TlsPeer) -> None:
    with trio.fail_after(60):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(peer.handshake)
            nursery.start_soon(transport.handshake, trio.CapacityLimiter(1))


async def test_much_goes_both_ways(certificates: Certificates) -> None:
    data = os.urandom(10_000_000)
    received, returned = bytearray(), bytearray()
    async with connected(certificates) as (transport, peer):
        await shake_hands(transport, peer)

        async def receive() -> None:
            while len(received) < len(data):
                received.extend(await transport.receive())

        async def receive_back() -> None:
            while len(returned) < len(data):
                returned.extend(await peer.receive_some(1 << 20))

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(transport.send, data)
                nursery.start_soon(peer.send_all, data)
                nursery.start_soon(receive)
                nursery.start_soon(receive_back)
    assert received == data
    assert returned == data


async def test_many_small_records_come_at_once(certificates: Certificates) -> None:
    async with connected(certificates) as (transport, peer):
        await shake_hands(transport, peer)
        await peer.stream.send_all(b"".join(peer.encrypt(b"%d," % each) for each in range(3000)))
        received = bytearray()
        with trio.fail_after(60):
            while not received.endswith(b"2999,"):
                received += await transport.receive()
        assert received == b"".join(b"%d," % each for each in range(3000))


async def test_ciphertext_is_bounded_while_the_peer_does_not_read(
    certificates: Certificates,
) -> None:
    data = os.urandom(20_000_000)
    async with connected(certificates) as (transport, peer):
        await shake_hands(transport, peer)
        taken = transport.send_now(data)
        assert 0 < taken < len(data)
        assert transport.send_now(memoryview(data)[taken:]) == 0
        assert 0 < len(transport._unsent) <= GROUP_RECORDS * CIPHER_BYTES
        received = bytearray()
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(transport.send, memoryview(data)[taken:])
                while len(received) < len(data):
                    received += await peer.receive_some(1 << 20)
        assert received == data
        assert transport._unsent == b""


@pytest.mark.parametrize("has_word", [True, False])
async def test_the_end_of_the_peer_is_no_bytes_with_and_without_a_word(
    certificates: Certificates, has_word: bool
) -> None:
    async with connected(certificates) as (transport, peer):
        await shake_hands(transport, peer)
        last = peer.encrypt(b"last") + (peer.encrypt_end() if has_word else b"")
        await peer.stream.send_all(last)
        await peer.stream.send_eof()
        with trio.fail_after(60):
            assert [await transport.receive() for _ in range(3)] == [b"last", b"", b""]
            await transport.send(b"answer")
            assert await peer.receive_some(100) == b"answer"


async def test_our_end_is_told_and_the_rest_still_received(certificates: Certificates) -> None:
    async with connected(certificates) as (transport, peer):
        await shake_hands(transport, peer)
        with trio.fail_after(60):
            await transport.send(b"last")
            await transport.send_eof()
            assert await peer.receive_some(100) == b"last"
            assert await peer.receive_some(100) == b""
            await peer.stream.send_all(peer.encrypt(b"rest") + peer.encrypt_end())
            assert await transport.receive() == b"rest"
            assert await transport.receive() == b""


async def test_changed_ciphertext_ends_the_connection(certificates: Certificates) -> None:
    async with connected(certificates) as (transport, peer):
        await shake_hands(transport, peer)
        good, bad = peer.encrypt(b"good"), bytearray(peer.encrypt(b"bad"))
        bad[-1] ^= 1
        await peer.stream.send_all(good + bad)
        with trio.fail_after(60):
            assert await transport.receive() == b"good"
            with pytest.raises(trio.BrokenResourceError):
                await transport.receive()


async def test_commands_behind_the_handshake_are_received(certificates: Certificates) -> None:
    async with connected(certificates) as (transport, peer):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(transport.handshake, trio.CapacityLimiter(1))
            held: list[bytes] = []
            send_all = peer.stream.send_all

            async def hold(data: bytes) -> None:
                held.append(data)
                if len(held) == 1:
                    await send_all(data)

            peer.stream.send_all = hold  # type: ignore[method-assign, assignment]
            await peer.handshake()
            await send_all(held[1] + peer.encrypt(b"at once"))
        with trio.fail_after(60):
            assert await transport.receive() == b"at once"


async def refuse(certificates: Certificates, act: Callable[[TlsPeer], Awaitable[None]]) -> str:
    """Return why the transport refuses a peer that acts so."""
    reason = ""
    async with connected(certificates) as (transport, peer), trio.open_nursery() as nursery:
        nursery.start_soon(act, peer)
        with pytest.raises(TlsRefusedError) as caught, trio.fail_after(60):
            await transport.handshake(trio.CapacityLimiter(1))
        reason = str(caught.value)
        nursery.cancel_scope.cancel()
    return reason


async def test_a_peer_without_tls_is_refused(certificates: Certificates) -> None:
    async def greet(peer: TlsPeer) -> None:
        await peer.stream.send_all(b"\xff\xff\xff\x81\x00\x00\x00\x08")

    assert await refuse(certificates, greet) == "the peer does not speak TLS"


async def test_a_peer_that_goes_in_the_handshake_is_refused(certificates: Certificates) -> None:
    async def go(peer: TlsPeer) -> None:
        await peer.stream.send_all(b"\x16\x03")
        await peer.stream.send_eof()

    assert "the peer ended the connection" in await refuse(certificates, go)


async def test_a_peer_that_trusts_another_ca_is_refused(
    certificates: Certificates, tmp_path: Path
) -> None:
    other = client_context(Certificates(tmp_path, "other").ca, check_hostname=True)

    async def distrust(peer: TlsPeer) -> None:
        strict = TlsPeer(peer.stream, other)
        with pytest.raises(module.ssl.SSLCertVerificationError):
            await strict.handshake()
        await peer.stream.send_all(strict._outgoing.read())

    assert "unknown ca" in await refuse(certificates, distrust)


async def test_a_slow_handshake_is_cut_off(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HANDSHAKE_SECONDS_MAX", 0.2)

    async def dawdle(peer: TlsPeer) -> None:
        for each in b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc" + bytes(500):
            await peer.stream.send_all(bytes([each]))
            await trio.sleep(0.02)

    assert "the peer let us wait" in await refuse(certificates, dawdle)


async def test_an_endless_handshake_is_cut_off(certificates: Certificates) -> None:
    async def flood(peer: TlsPeer) -> None:
        record = b"\x16\x03\x01\x40\x00" + b"\x01\x01\xff\xff" + bytes(0x4000 - 4)
        more = b"\x16\x03\x01\x40\x00" + bytes(0x4000)
        await peer.stream.send_all(record + more * (HANDSHAKE_BYTES_MAX // 0x4000))

    reason = await refuse(certificates, flood)
    assert "is longer than" in reason or "the TLS handshake failed" in reason


async def test_a_reset_in_the_middle_is_an_error(certificates: Certificates) -> None:
    async with connected(certificates) as (transport, peer):
        await shake_hands(transport, peer)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await peer.aclose()
        with trio.fail_after(60), pytest.raises(trio.BrokenResourceError):
            await transport.receive()
        with pytest.raises(trio.BrokenResourceError):
            await transport.send(b"anybody there?")


@asynccontextmanager
async def two_sides(
    certificates: Certificates, host: str
) -> AsyncIterator[tuple[TlsTransport, TlsTransport]]:
    """Return both sides of a connection before the handshake, the client first, whose server has to
    prove to be a host."""
    [listener] = await trio.open_tcp_listeners(0, host="127.0.0.1")
    buffers = ReceiveBuffer(BUFFER_BYTES), PlainBuffer(BUFFER_BYTES), current_reactor()
    contexts = (
        client_context(certificates.ca, check_hostname=True),
        ServerCertificate(certificates.issue()).server_context(),
    )
    async with trio.open_nursery() as nursery, listener:
        await nursery.start(current_reactor().run)
        dialled = await trio.open_tcp_stream(*listener.socket.getsockname())
        accepted = await listener.accept()
        client = TlsTransport(dialled, contexts[0], *buffers, server_hostname=host)
        server = TlsTransport(accepted, contexts[1], *buffers)
        yield client, server
        await client.aclose()
        await server.aclose()
        nursery.cancel_scope.cancel()


async def test_a_client_and_a_server_speak(certificates: Certificates) -> None:
    threads = trio.CapacityLimiter(1)
    data = os.urandom(3_000_000)
    async with two_sides(certificates, "localhost") as (client, server):
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(client.handshake, threads)
                nursery.start_soon(server.handshake, threads)
            for sender, receiver in ((client, server), (server, client)):
                received = bytearray()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(sender.send, data)
                    while len(received) < len(data):
                        received += await receiver.receive()
                assert received == data
            await server.send_eof()
            assert await client.receive() == b""


async def test_a_client_refuses_a_server_of_another_host(certificates: Certificates) -> None:
    threads = trio.CapacityLimiter(1)
    async with two_sides(certificates, "elsewhere.example") as (client, server):

        async def fail(side: TlsTransport, sentence: str) -> None:
            with pytest.raises(TlsRefusedError, match=sentence):
                await side.handshake(threads)

        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(fail, client, "Hostname mismatch")
                nursery.start_soon(fail, server, "alert")
