"""Connections of the HTTP port that are slow, many, malformed, or held open."""

from __future__ import annotations

import resource
from collections.abc import Awaitable, Callable, Iterator
from random import Random
from typing import Any

import pytest
import trio
from starlette.responses import Response

import pravega_controller.http.application as application
from pravega_controller.http import connections, health
from pravega_controller.http.connections import connections_max
from pravega_controller.http.port import HttpPort
from pravega_controller.http.routes import ROUTES
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from support.http_controllers import HttpClient, serve_http

SECONDS_MAX = 60.0
LONG = bytes(64 * 1024 * 1024)
"""An answer that no buffers between server and client hold."""
GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
UPGRADE = (
    b"GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n\xff\xff\xff"
)
"""A request for a WebSocket, and bytes that are none of its protocol."""
MANY = 2000
Connect = Callable[[int], Awaitable[trio.SocketStream]]


async def answer(scope: Any, receive: Any, send: Any) -> None:
    """Answer ``/long`` with very much, and other requests with little."""
    if scope["type"] == "websocket":
        await send({"type": "websocket.close"})
        return
    await Response(LONG if scope["path"] == "/long" else b"here")(scope, receive, send)


async def listen(nursery: trio.Nursery) -> int:
    port = HttpPort("127.0.0.1", 0)
    number = port.listen()
    nursery.start_soon(port.serve, lambda: answer)
    return number


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Open connections, which are closed at the end."""
    opened: list[trio.SocketStream] = []

    async def connect(port: int) -> trio.SocketStream:
        opened.append(await trio.open_tcp_stream("127.0.0.1", port))
        return opened[-1]

    yield connect
    for stream in opened:
        stream.socket._sock.close()


async def receive_all(stream: trio.SocketStream) -> bytes:
    """Return what comes until the server closes the connection."""
    received = bytearray()
    with trio.fail_after(SECONDS_MAX):
        try:
            async for piece in stream:
                received += piece
        except trio.BrokenResourceError:
            received += b" reset"
    return bytes(received)


async def ask(stream: trio.SocketStream) -> bytes:
    """Return the answer to a request, on a connection that stays open."""
    await stream.send_all(GET)
    received = b""
    with trio.fail_after(SECONDS_MAX):
        while not received.endswith(b"here"):
            piece = await stream.receive_some(65536)
            assert piece, received
            received += piece
    return received


async def test_a_connection_that_fails_ends_no_other(
    nursery: trio.Nursery, connect: Connect
) -> None:
    port = await listen(nursery)
    other = await connect(port)
    await ask(other)
    for _ in range(3):
        failing = await connect(port)
        await failing.send_all(UPGRADE)
        await receive_all(failing)
        assert (await ask(other)).startswith(b"HTTP/1.1 200")
    nursery.cancel_scope.cancel()


@pytest.mark.parametrize("begin", [b"", b"GET / HT", GET[:-2]])
async def test_slow_clients_are_cut_off(
    nursery: trio.Nursery, connect: Connect, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS_MAX", 0.5)
    stream = await connect(await listen(nursery))
    await stream.send_all(begin)
    assert not (await receive_all(stream)).startswith(b"HTTP/1.1 200")
    nursery.cancel_scope.cancel()


async def test_an_upgrade_that_goes_no_further_is_cut_off(
    nursery: trio.Nursery, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS_MAX", 0.5)
    stream = await connect(await listen(nursery))
    await stream.send_all(GET[:-2] + b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\n\r\n")
    await stream.send_eof()
    assert (await receive_all(stream)).startswith(b"HTTP/1.1 101")
    nursery.cancel_scope.cancel()


async def test_a_client_that_sends_its_head_byte_by_byte_is_cut_off(
    nursery: trio.Nursery, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS_MAX", 0.5)
    stream = await connect(await listen(nursery))

    async def send() -> None:
        await stream.send_all(b"GET / HTTP/1.1\r\nX: ")
        while True:
            await stream.send_all(b"a")
            await trio.sleep(0.05)

    with trio.fail_after(SECONDS_MAX), pytest.raises(trio.BrokenResourceError):
        await send()
    nursery.cancel_scope.cancel()


async def test_a_client_that_reads_nothing_is_cut_off(
    nursery: trio.Nursery, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "IDLE_SECONDS_MAX", 0.5)
    served = watch_ends(monkeypatch)
    stream = await connect(await listen(nursery))
    await stream.send_all(GET.replace(b"/", b"/long", 1))
    with trio.fail_after(SECONDS_MAX):
        await served.wait()
    nursery.cancel_scope.cancel()


def watch_ends(monkeypatch: pytest.MonkeyPatch) -> trio.Event:
    """Return what is set when a connection has ended."""
    ended, serve = trio.Event(), connections._Connections.serve

    async def watched(*arguments: Any) -> None:
        try:
            await serve(*arguments)
        finally:
            ended.set()

    monkeypatch.setattr(connections._Connections, "serve", watched)
    return ended


async def test_a_client_that_reads_nothing_does_not_hold_up_the_end(
    connect: Connect,
) -> None:
    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            stream = await connect(await listen(nursery))
            await stream.send_all(GET.replace(b"/", b"/long", 1))
            await stream.receive_some(1)
            nursery.cancel_scope.cancel()


async def test_a_body_that_comes_slowly_is_refused(
    client: HttpClient, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(application, "BODY_SECONDS_MAX", 0.5)
    stream = await connect(client.port)
    head = b"POST /v1/scopes HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"
    received = bytearray()

    async def receive() -> None:
        received.extend(await stream.receive_some(65536))
        nursery.cancel_scope.cancel()

    with trio.fail_after(SECONDS_MAX):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(receive)
            await stream.send_all(head)
            while True:
                await stream.send_all(b" ")
                await trio.sleep(0.05)
    assert received.startswith(b"HTTP/1.1 408 ")


async def test_connections_beyond_the_maximum_are_closed(
    nursery: trio.Nursery, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "CONNECTIONS_MAX", 3)
    port = await listen(nursery)
    first = [await connect(port) for _ in range(3)]
    for stream in first:
        await ask(stream)
    assert await receive_all(await connect(port)) in (b"", b" reset")
    assert (await ask(first[0])).startswith(b"HTTP/1.1 200")
    # A place is free when one has ended.
    await first[1].aclose()
    with trio.fail_after(SECONDS_MAX):
        while True:
            stream = await connect(port)
            try:
                await ask(stream)
                break
            except (AssertionError, trio.BrokenResourceError):
                await trio.sleep(0.01)
    nursery.cancel_scope.cancel()


def test_connections_leave_descriptors_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, expected in ((1024, 256), (1 << 20, 4096), (resource.RLIM_INFINITY, 4096)):
        monkeypatch.setattr(resource, "getrlimit", lambda kind, limit=limit: (limit, limit))
        assert connections_max() == expected


@pytest.mark.proof
async def test_a_request_is_answered_among_two_thousand_connections(
    client: HttpClient, connect: Connect
) -> None:
    """Half of them are idle, half have begun a request."""
    assert connections_max() > MANY, "the limit of open files is too low for this test"
    held = []
    for number in range(MANY):
        stream = await connect(client.port)
        await stream.send_all(b"POST /v1/sc" if number % 2 else b"")
        held.append(stream)
    for _ in range(10):
        assert (await client.ask("GET", "/v1/scopes")).status == 200
    for stream in held:
        await stream.aclose()
    assert (await client.ask("GET", "/ping")).status == 200


# ---- Malformed requests --------------------------------------------------------------------------

PIECES = (
    *(b"\x00", b"\xff\xfe", b"%", b"%zz", b"%00", b"%ff", b"..", b"//", b"?", b"&=;", b"#", b" "),
    *(b"\r", b"\n", b"\r\n", b"\r\n\r\n", b":", b"HTTP/9.9", b"HTTP/1.0", b"a" * 20_000),
)
HEADERS = (
    *(b"Content-Length: -1", b"Content-Length: 1e3", b"Content-Length: 99999999999999999999"),
    *(b"Content-Length: 1\r\nContent-Length: 2", b"Transfer-Encoding: chunked"),
    *(b"Transfer-Encoding: gzip, chunked", b"Expect: 100-continue", b"Expect: \xff"),
    *(b"Upgrade: websocket\r\nConnection: upgrade", b"Upgrade: h2c\r\nHTTP2-Settings: !!!"),
    *(b"Upgrade: h2c\r\nHTTP2-Settings: AAMAAABk", b"Authorization: Basic !", b"Authorization:"),
    *(b"Authorization: Bearer a.b.c", b"Host: \xff", b" folded: a", b"\x00: a", b"A" * 20_000),
    *(b"Content-Encoding: gzip", b"Content-Type: \xff", b"Range: bytes=5-1", b"Cookie: =;=;"),
)
BODIES = (
    *(b"", b"{", b"[]", b"null", b'{"scopeName": "\\ud800"}', b"\xff" * 100, b"[" * 30_000),
    *(b'{"scopeName": 1e999}', b'{"streamName": {}, "scalingPolicy": []}', b"0\r\n\r\n", b"zz\r\n"),
    b'{"streamState": null}',
    b'{"streamName": "a", "scalingPolicy": {"type": "FIXED_NUM_SEGMENTS", "minSegments": -1}}',
)


def malformed(draw: Random, method: str, path: str) -> bytes:
    """Return a request to a route, of which one part or some make no sense."""
    names = {"scope": "s", "stream": "t", "group": "g", "part": "GRPCServer"}
    target = path.replace(":path", "").format(**names).encode()
    line = b"%s %s HTTP/1.1" % (method.encode(), target)
    headers = [b"Host: x", b"Connection: close"]
    body = b""
    for kind in draw.sample(("line", "header", "body", "cut"), draw.randint(1, 3)):
        if kind == "line":
            at = draw.randrange(len(line) + 1)
            line = line[:at] + draw.choice(PIECES) + line[at + draw.randrange(3) :]
        elif kind == "header":
            headers.insert(draw.randrange(len(headers) + 1), draw.choice(HEADERS))
        elif kind == "body":
            body = draw.choice(BODIES)
            headers.append(b"Content-Length: %d" % (len(body) + draw.choice((0, 0, 0, 1, -1))))
    request = b"\r\n".join([line, *headers, b"", body])
    return request[: draw.randrange(len(request) + 1)] if draw.randrange(8) == 0 else request


@pytest.fixture
def impatience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a server that starts later wait shortly for the rest of requests."""
    monkeypatch.setattr(connections, "IDLE_SECONDS_MAX", 0.5)
    monkeypatch.setattr(application, "BODY_SECONDS_MAX", 0.5)


@pytest.mark.parametrize("count", [15, pytest.param(1000, marks=pytest.mark.proof)])
@pytest.mark.timeout(1800)
async def test_malformed_requests_are_refused_and_fail_nothing(
    impatience: None,
    memory_store: MemorySegmentStore,
    nursery: trio.Nursery,
    monkeypatch: pytest.MonkeyPatch,
    connect: Connect,
    count: int,
) -> None:
    # On a busy machine, a store that answers late is no failure of the request.
    monkeypatch.setattr(health, "ANSWER_SECONDS_MAX", 60.0)
    patience = {"reply_seconds_max": 60.0, "retry_seconds_max": 60.0}
    client = await serve_http(memory_store, nursery, **patience)
    draw, statuses, failures = Random(35), set[int](), list[bytes]()
    limiter = trio.CapacityLimiter(20)

    async def send(request: bytes) -> None:
        async with limiter:
            stream = await connect(client.port)
            try:
                await stream.send_all(request)
                await stream.send_eof()
            except trio.BrokenResourceError:
                # It was refused before all of it was sent.
                pass
            told = await receive_all(stream)
            await stream.aclose()
        status = int(told[9:12]) if told.startswith(b"HTTP/1.1 ") else 0
        statuses.add(status)
        if status >= 500 and status != 501:
            failures.append(request)

    for path, methods in ROUTES.items():
        for method in methods:
            if (method, path) == ("PUT", "/v1/scopes/{scope}/streams/{stream}/state"):
                continue
            async with trio.open_nursery() as senders:
                for _ in range(count):
                    senders.start_soon(send, malformed(draw, method, path))
            assert not failures, failures[0][:300]
            assert (await client.ask("GET", "/ping")).status == 200
    assert statuses >= {200, 400, 404, 405, 431}
