"""HTTP for WebHDFS: one request, one answer, no retries and no redirects of its own.

Owns: ``HttpRequests``, which sends requests, and ``PooledRequests``, which does so with urllib3.
Requests block: ``WebHdfs`` runs them in threads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple, Protocol, cast

import urllib3

from segstore.tiers.api import Buffer

CONNECT_SECONDS_MAX: Final = 3.0
READ_SECONDS_MAX: Final = 30.0
"""How long a server may be silent: a DataNode that replaces another one in a pipeline is so for
some seconds."""
SERVERS_MAX: Final = 256
"""To so many servers connections are kept."""


class HttpAnswer(NamedTuple):
    """What a server answered."""

    status: int
    location: str | None
    body: bytes


class HttpRequests(Protocol):
    """Sends requests."""

    def send(self, method: str, url: str, body: Sequence[Buffer] | None = None) -> HttpAnswer:
        """Send a request and return its whole answer; raises one of ``REQUEST_ERRORS``."""
        ...

    def close(self) -> None:
        """Close the connections. Blocks shortly."""
        ...


class PooledRequests:
    """Sends requests over connections that are kept, as long as servers keep them."""

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

    def send(self, method: str, url: str, body: Sequence[Buffer] | None = None) -> HttpAnswer:
        """Send a request and return its whole answer."""
        headers = {"Accept": "application/json, application/octet-stream"}
        if body is not None:
            headers["Content-Type"] = "application/octet-stream"
            headers["Content-Length"] = str(sum(map(len, body)))
        response = self._pool.request(
            method,
            url,
            body=cast("Iterable[bytes]", body) or None,
            headers=headers,
            redirect=False,
            preload_content=True,
        )
        return HttpAnswer(response.status, response.headers.get("Location"), response.data)

    def close(self) -> None:
        """Close the connections."""
        self._pool.clear()
