"""Sends HTTP requests for WebHDFS: one request, one answer, without retries and redirects.

Owns: ``HttpRequests``, which sends requests, and ``PooledRequests``, which does so with urllib3.
Requests block: ``WebHdfs`` runs them in threads.

Python applies a time limit to all bytes that one call sends, and urllib3 sends under the limit for
connecting. So a new connection gets ``read_seconds_max`` as its limit at once, and a body is sent
in slices. The limit is then the time without progress, whatever the body's length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol, cast

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from segstore.tiers.api import Buffer

CONNECT_SECONDS_MAX: Final = 3.0
READ_SECONDS_MAX: Final = 30.0
"""Maximum time, in seconds, without progress of a request. A DataNode that replaces another one in
a pipeline needs some seconds."""
SLICE_BYTES: Final = 64 * 1024
"""Number of bytes of a body that must be sent within ``READ_SECONDS_MAX``."""
SERVERS_MAX: Final = 256
"""Maximum number of servers whose connections are kept."""


class HttpAnswer(NamedTuple):
    """The answer of a server."""

    status: int
    location: str | None
    body: bytes


class HttpRequests(Protocol):
    """Sends requests."""

    def send(self, method: str, url: str, body: Sequence[Buffer] | None = None) -> HttpAnswer:
        """Send a request and return its whole answer. Blocks. Raises one of ``REQUEST_ERRORS``."""
        ...

    def close(self) -> None:
        """Close the connections. Blocks shortly."""
        ...


class PooledRequests:
    """Sends requests over connections that stay open between requests."""

    def __init__(
        self,
        *,
        connections_max: int,
        ca_file: str | None = None,
        connect_seconds_max: float = CONNECT_SECONDS_MAX,
        read_seconds_max: float = READ_SECONDS_MAX,
    ) -> None:
        self._pool = urllib3.PoolManager(
            num_pools=SERVERS_MAX,
            maxsize=connections_max,
            retries=False,
            timeout=urllib3.Timeout(connect=connect_seconds_max, read=read_seconds_max),
            ca_certs=ca_file,
        )
        self._pool.pool_classes_by_scheme = _pool_classes(read_seconds_max)

    def send(self, method: str, url: str, body: Sequence[Buffer] | None = None) -> HttpAnswer:
        """Send a request and return its whole answer."""
        headers = {"Accept": "application/json, application/octet-stream"}
        if body is not None:
            headers["Content-Type"] = "application/octet-stream"
            headers["Content-Length"] = str(sum(map(len, body)))
        response = self._pool.request(
            method,
            url,
            body=cast("Iterable[bytes]", _slices(body)) if body else None,
            headers=headers,
            redirect=False,
            preload_content=True,
        )
        return HttpAnswer(response.status, response.headers.get("Location"), response.data)

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()


def _slices(body: Sequence[Buffer]) -> Iterator[memoryview]:
    for part in body:
        whole = memoryview(part)
        for start in range(0, len(whole), SLICE_BYTES):
            yield whole[start : start + SLICE_BYTES]


def _pool_classes(silent_seconds_max: float) -> dict[str, type[HTTPConnectionPool]]:
    """Return connection pools whose connections have this time limit, in seconds, as soon as they
    are connected."""

    class PlainConnection(HTTPConnection):
        def connect(self) -> None:
            super().connect()
            self.sock.settimeout(silent_seconds_max)

    class SecureConnection(HTTPSConnection):
        def connect(self) -> None:
            super().connect()
            self.sock.settimeout(silent_seconds_max)

    class PlainPool(HTTPConnectionPool):
        ConnectionCls = PlainConnection

    class SecurePool(HTTPSConnectionPool):
        ConnectionCls = SecureConnection

    return {"http": PlainPool, "https": SecurePool}
