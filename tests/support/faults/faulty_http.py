"""A proxy between an HTTP client and a server that does to requests what networks and busy servers
do.

Owns: ``FaultyHttpProxy`` and the kinds of faults.

Invariants:
1. A request reaches the server whole or not at all, and at most once.
2. Every connection carries one request: what is lost is lost alone.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial

import trio

HEAD_BYTES_MAX = 64 * 1024
RECEIVE_BYTES = 256 * 1024


class HttpFault(Enum):
    """The fault of one request."""

    NONE = auto()
    NOT_SENT = auto()
    """The connection breaks before the server has the request."""
    REPLY_LOST = auto()
    """The server does the work; the connection breaks before the answer."""
    FULL = auto()
    """403 QuotaExceeded, as of a bucket with a quota; the server never has the request."""
    SLOW_DOWN = auto()
    """503 SlowDown; the server never has the request."""
    BAD_KEY = auto()
    """403 InvalidAccessKeyId; the server never has the request."""
    FORBIDDEN = auto()
    """403 AccessDenied; the server never has the request."""
    SKEWED = auto()
    """403 RequestTimeTooSkewed; the server never has the request."""
    ERROR = auto()
    """500 InternalError; the server never has the request."""
    ERROR_AFTER = auto()
    """500 InternalError, but the server has done the work."""
    LATE = auto()
    """The connection breaks, and the server gets the request only ``late_seconds`` later, or when
    ``wait_settled`` is called."""
    TRUNCATED = auto()
    """The answer ends in the middle of its body."""
    CORRUPT = auto()
    """A byte in the middle of the body of an object that is read is another one."""


ERRORS = {
    HttpFault.BAD_KEY: (403, "InvalidAccessKeyId"),
    HttpFault.FORBIDDEN: (403, "AccessDenied"),
    HttpFault.FULL: (403, "QuotaExceeded"),
    HttpFault.SKEWED: (403, "RequestTimeTooSkewed"),
    HttpFault.SLOW_DOWN: (503, "SlowDown"),
    HttpFault.ERROR: (500, "InternalError"),
    HttpFault.ERROR_AFTER: (500, "InternalError"),
}


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """The properties of a request by which a fault may be chosen."""

    method: str
    target: str

    @property
    def reads_object(self) -> bool:
        """Return whether it asks for an object's bytes, not for a listing."""
        return self.method == "GET" and "list-type=" not in self.target


@dataclass(slots=True)
class FaultyHttpProxy:
    """Serve with ``run`` in a nursery; ``next_fault`` is asked for every request."""

    server: str
    """The server's URL, ``http://HOST:PORT``."""
    next_fault: Callable[[HttpRequest], HttpFault] = lambda _: HttpFault.NONE
    next_delay: Callable[[HttpRequest], float] = lambda _: 0.0
    late_seconds: float = 0.3
    requests: list[tuple[HttpRequest, HttpFault]] = field(default_factory=list)
    _late: set[trio.Event] = field(default_factory=set)
    _released: trio.Event = field(default_factory=trio.Event)

    async def run(self, *, task_status: trio.TaskStatus[str] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled. Reports the proxy's URL."""
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listeners[0].socket.getsockname()[1]
        async with trio.open_nursery() as nursery:
            serve = partial(trio.serve_listeners, self._serve, listeners, handler_nursery=nursery)
            nursery.start_soon(serve)
            task_status.started(f"http://127.0.0.1:{port}")

    async def wait_settled(self) -> None:
        """Deliver every late request to the server, and wait until it had them."""
        self._released.set()
        for settled in list(self._late):
            await settled.wait()

    async def _serve(self, client: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            async with client:
                await self._serve_request(client)

    async def _serve_request(self, client: trio.SocketStream) -> None:
        received = await _receive_request(client)
        if received is None:
            return
        request, raw = received
        fault = self.next_fault(request)
        if fault is HttpFault.CORRUPT and not request.reads_object:
            fault = HttpFault.NONE
        self.requests.append((request, fault))
        await trio.sleep(self.next_delay(request))
        if fault is HttpFault.NOT_SENT:
            return
        if fault is HttpFault.LATE:
            settled = trio.Event()
            self._late.add(settled)
            try:
                await client.aclose()
                with trio.move_on_after(self.late_seconds):
                    await self._released.wait()
                await self._forward(raw)
            finally:
                self._late.discard(settled)
                settled.set()
            return
        if fault not in ERRORS or fault is HttpFault.ERROR_AFTER:
            answer = await self._forward(raw)
        if fault is HttpFault.REPLY_LOST:
            return
        if fault in ERRORS:
            answer = _error(*ERRORS[fault])
        await client.send_all(_damaged(answer, fault))

    async def _forward(self, raw: bytes) -> bytes:
        """Send a request to the server; the whole answer."""
        host, _, port = self.server.removeprefix("http://").partition(":")
        answer = bytearray()
        async with await trio.open_tcp_stream(host, int(port)) as stream:
            await stream.send_all(raw)
            while data := await stream.receive_some(RECEIVE_BYTES):
                answer += data
        return bytes(answer)


async def _receive_request(client: trio.SocketStream) -> tuple[HttpRequest, bytes] | None:
    """Return a request, and the bytes that forward it on a connection that ends with the answer."""
    received = bytearray()
    while (end := received.find(b"\r\n\r\n")) < 0:
        data = await client.receive_some(RECEIVE_BYTES)
        if not data or len(received) > HEAD_BYTES_MAX:
            return None
        received += data
    first, *lines = bytes(received[:end]).split(b"\r\n")
    body = received[end + 4 :]
    length = 0
    kept = []
    for line in lines:
        name, _, value = line.partition(b":")
        match name.strip().lower():
            case b"content-length":
                length = int(value)
                kept.append(line)
            case b"expect":
                await client.send_all(b"HTTP/1.1 100 Continue\r\n\r\n")
            case b"connection":
                pass
            case _:
                kept.append(line)
    while len(body) < length:
        data = await client.receive_some(RECEIVE_BYTES)
        if not data:
            return None
        body += data
    method, target, _ = first.decode("latin-1").split(" ")
    head = b"\r\n".join([first, *kept, b"Connection: close"])
    return HttpRequest(method, target), head + b"\r\n\r\n" + bytes(body)


def _error(status: int, code: str) -> bytes:
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?><Error><Code>{code}</Code>'
        "<Message>injected</Message></Error>"
    ).encode()
    return (
        f"HTTP/1.1 {status} Injected\r\nContent-Type: application/xml\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    ).encode() + body


def _damaged(answer: bytes, fault: HttpFault) -> bytes:
    end = answer.find(b"\r\n\r\n") + 4
    middle = end + (len(answer) - end) // 2
    if fault is HttpFault.TRUNCATED and middle < len(answer):
        return answer[:middle]
    is_object = answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 206", b"HTTP/1.0 20"))
    if fault is HttpFault.CORRUPT and is_object and middle < len(answer):
        return answer[:middle] + bytes([answer[middle] ^ 0x40]) + answer[middle + 1 :]
    return answer
