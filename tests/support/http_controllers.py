"""Controllers with an HTTP port, on a segment store in memory, and a client for them."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import trio

from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment
from pravega_controller.server import serve
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from segstore.testing.ports import free_ports

ANSWER_SECONDS_MAX = 30.0


@dataclass(frozen=True)
class Answer:
    """An answer of the HTTP port; ``document`` is its JSON or its text, None without a body."""

    status: int
    document: Any
    headers: dict[str, str]


@dataclass
class HttpClient:
    """Sends requests to a port, each by a connection of its own."""

    port: int
    trusted: Path | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def send(self, method: str, path: str, body: Any = None, headers: Any = None) -> Answer:
        """Return the answer to a request; the body is sent as JSON unless it is bytes."""
        connection: http.client.HTTPConnection
        if self.trusted is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, ANSWER_SECONDS_MAX)
        else:
            context = ssl.create_default_context(cafile=self.trusted)
            connection = http.client.HTTPSConnection(
                "127.0.0.1", self.port, timeout=ANSWER_SECONDS_MAX, context=context
            )
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        try:
            # One that is refused before all of it was sent has its answer, too.
            with suppress(BrokenPipeError, ConnectionResetError):
                connection.request(method, path, data, {**self.headers, **(headers or {})})
            reply = connection.getresponse()
            content = reply.read()
        finally:
            connection.close()
        told = {k.lower(): v for k, v in reply.getheaders()}
        is_json = told.get("content-type") == "application/json"
        document = (json.loads(content) if is_json else content.decode()) if content else None
        return Answer(reply.status, document, told)

    async def ask(self, method: str, path: str, body: Any = None, headers: Any = None) -> Answer:
        """Return the answer, while the event loop goes on."""
        return await trio.to_thread.run_sync(self.send, method, path, body, headers)


def basic(user: str, password: str | None = None) -> dict[str, str]:
    """Return the header of a user, whose password is its name unless it is given."""
    pair = f"{user}:{user if password is None else password}"
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


async def serve_http(
    store: MemorySegmentStore, nursery: trio.Nursery, **settings: Any
) -> HttpClient:
    """Serve a controller, and return a client of its HTTP port."""
    [port] = free_ports(1)
    config = ControllerConfig(
        port=0,
        http_port=port,
        drain_seconds=0.1,
        request_poll_seconds=0.0,
        retention_period_seconds=0.0,
        **{"reply_seconds_max": 2.0, "retry_seconds_max": 2.0, **settings},
    )
    environment = Environment(random=Random(7), open_stream=store.open_stream)
    await nursery.start(partial(serve, config, environment=environment))
    return HttpClient(port)


async def send_to_application(
    application: Any, method: str, path: str, body: bytes
) -> tuple[int, bytes]:
    """Return the status and the body with which an application answers, without a server."""
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(errors="surrogatepass"),
        "query_string": query.encode(),
        "headers": [],
        "client": ("127.0.0.1", 1),
    }
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await application(scope, receive, send)
    return sent[0]["status"], b"".join(each.get("body", b"") for each in sent[1:])
