"""The byte stream of a connection, over real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from typing import Any

import anyio
import pytest

from pravega_wire.blocking import ConnectionLostError
from segstore_client.access.tokens import PLAIN
from segstore_client.connections import connection, socket_stream
from segstore_client.connections.socket_stream import SocketStream, connect_socket
from support.event_loops import RunClient

LONG_BYTES = 3 * 2**20
"""More than the buffers of a socket have room for."""


@contextlib.contextmanager
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        yield listener


async def open_stream(listener: socket.socket) -> tuple[SocketStream, socket.socket]:
    """Return a stream, and the socket of its peer."""
    stream = await connect_socket(*listener.getsockname(), seconds_max=60)
    peer, _ = listener.accept()
    return stream, peer


async def receive_all(stream: SocketStream, max_bytes: int) -> list[bytes]:
    found = []
    with contextlib.suppress(anyio.EndOfStream):
        while True:
            found.append(await stream.receive(max_bytes))
    return found


async def test_bytes_come_in_order_and_not_more_at_once_than_wanted(run_client: RunClient) -> None:
    data = os.urandom(LONG_BYTES)

    async def main() -> None:
        with listening() as listener:
            stream, peer = await open_stream(listener)
            with peer:
                sender = threading.Thread(
                    target=lambda: (peer.sendall(data), peer.shutdown(socket.SHUT_WR))
                )
                sender.start()
                found = await receive_all(stream, 10_000)
                sender.join()
            assert b"".join(found) == data
            assert 0 < max(map(len, found)) <= 10_000
            await stream.aclose()

    await run_client(main)


async def test_all_that_has_come_is_received_at_once(run_client: RunClient) -> None:
    """A reader of long replies needs one turn of its event loop for what asyncio cuts up."""

    async def main() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        theirs.setblocking(False)
        for each in (ours, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, LONG_BYTES)
        with theirs:
            sent = theirs.send(bytes(LONG_BYTES))
            stream = SocketStream(ours)
            assert len(await stream.receive(LONG_BYTES)) == sent
            await stream.aclose()

    await run_client(main)


async def test_what_does_not_fit_the_peers_buffers_is_sent_when_it_reads(
    run_client: RunClient,
) -> None:
    data = os.urandom(LONG_BYTES)

    async def main() -> None:
        with listening() as listener:
            stream, peer = await open_stream(listener)
            received = bytearray()
            is_waiting = threading.Event()

            def read() -> None:
                is_waiting.wait(60)
                while piece := peer.recv(65536):
                    received.extend(piece)

            reader = threading.Thread(target=read)
            reader.start()
            async with anyio.create_task_group() as group:
                group.start_soon(stream.send, data)
                await anyio.wait_all_tasks_blocked()
                is_waiting.set()
            await stream.aclose()
            reader.join()
            peer.close()
            assert received == data

    await run_client(main)


async def test_a_wait_that_is_cancelled_loses_no_byte(run_client: RunClient) -> None:
    async def main() -> None:
        with listening() as listener:
            stream, peer = await open_stream(listener)
            with peer:
                with anyio.move_on_after(0.01):
                    await stream.receive(100)
                    pytest.fail("nothing was sent")
                peer.sendall(b"abc")
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await stream.receive(100)
                    pytest.fail("a call that is cancelled took the bytes")
                assert await stream.receive(100) == b"abc"
            await stream.aclose()

    await run_client(main)


@pytest.mark.parametrize("is_reset", [False, True])
async def test_the_end_of_the_peer_is_told(run_client: RunClient, is_reset: bool) -> None:
    async def main() -> None:
        with listening() as listener:
            stream, peer = await open_stream(listener)
            if is_reset:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            peer.close()
            with pytest.raises(ConnectionError if is_reset else anyio.EndOfStream):
                await stream.receive(100)
            await stream.aclose()

    await run_client(main)


async def test_closing_tells_who_waits_and_ends_the_connection(run_client: RunClient) -> None:
    async def main() -> None:
        with listening() as listener:
            stream, peer = await open_stream(listener)

            async def wait() -> None:
                with pytest.raises(anyio.ClosedResourceError):
                    await stream.receive(100)

            with peer:
                peer.settimeout(60)
                async with anyio.create_task_group() as group:
                    group.start_soon(wait)
                    await anyio.wait_all_tasks_blocked()
                    await stream.aclose()
                assert stream.fileno() == -1
                assert await anyio.to_thread.run_sync(peer.recv, 1) == b""
            with pytest.raises(OSError, match="Bad file descriptor"):
                await stream.receive(100)

    await run_client(main)


async def test_the_next_address_of_a_host_is_tried(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    with listening() as listener, socket.create_server(("127.0.0.1", 0)) as other:
        refusing = other.getsockname()
        other.close()
        addresses = [
            (socket.AF_INET, socket.SOCK_STREAM, 0, "", address)
            for address in (refusing, refusing, listener.getsockname())
        ]

        async def find(host: str, port: int) -> Any:
            return addresses

        monkeypatch.setattr(socket_stream, "_find_addresses", find)

        async def main() -> None:
            stream = await connect_socket("host", 1, seconds_max=60)
            await stream.aclose()
            addresses.pop()
            with pytest.raises(ConnectionRefusedError):
                await connect_socket("host", 1, seconds_max=60)

        await run_client(main)


async def test_a_host_may_have_a_name(run_client: RunClient) -> None:
    async def main() -> None:
        with listening() as listener:
            port = listener.getsockname()[1]
            stream = await connect_socket("localhost", port, seconds_max=60)
            await stream.aclose()
        with pytest.raises(socket.gaierror):
            await connect_socket("no.such.host.invalid", port, seconds_max=60)

    await run_client(main)


async def test_a_name_that_nobody_resolves_is_given_up_in_time(
    run_client: RunClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The looking up of a name counts: a resolver that never answers must not hold the call."""

    async def find(host: str, port: int) -> Any:
        await anyio.sleep_forever()

    monkeypatch.setattr(socket_stream, "_find_addresses", find)
    monkeypatch.setattr(connection, "CONNECT_SECONDS", 0.1)

    async def main() -> None:
        with pytest.raises(ConnectionLostError, match="cannot connect to host:1"):
            await connection.connect_stream("host", 1, PLAIN)

    await run_client(main)
