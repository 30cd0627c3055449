"""Remembers the DataNodes that did not answer lately.

Owns: ``LostDataNodes``. A NameNode learns only after minutes that a DataNode has died. Until then
it names it for requests whose bytes the DataNode has, or whose client is on the same machine. So a
request that needs a DataNode lists those to exclude. They are excluded by IPv4 address: a host name
excludes no DataNode, and makes some versions fail; an IPv6 address is parsed as a port.

Invariants:
1. When a DataNode does not answer, the next request excludes it. Held by
   ``test_a_datanode_that_is_dead_is_not_named_again``.
2. When ``LOST_SECONDS`` have passed, the DataNode is not excluded any more. Held by
   ``test_a_lost_datanode_is_named_again_after_a_while``.
3. When the NameNode cannot serve a request without an excluded DataNode, no DataNode is excluded
   any more. Held by ``test_no_datanode_is_excluded_where_the_namenode_cannot_do_without``.
"""

from __future__ import annotations

from socket import AF_INET, SOCK_STREAM
from typing import Final
from urllib.parse import urlsplit

import trio

LOST_SECONDS: Final = 60.0
EXCLUDED_MAX: Final = 16
"""Maximum number of DataNodes that are excluded at the same time, because servers limit the length
of a query."""


class LostDataNodes:
    """The addresses of the DataNodes that did not answer lately. All requests share them."""

    def __init__(self) -> None:
        self._lost: dict[str, tuple[str, float]] = {}
        """By host name: the address, and the time at which its exclusion ends."""

    def excluded(self) -> str:
        """Return the excluded addresses, separated by commas as WebHDFS expects them; empty if
        there are none."""
        now = trio.current_time()
        self._lost = {host: each for host, each in self._lost.items() if each[1] > now}
        return ",".join(sorted({address for address, _ in self._lost.values()}))

    async def add(self, url: str) -> None:
        """Exclude the server of a URL for ``LOST_SECONDS``."""
        host = urlsplit(url).hostname or ""
        try:
            found = await trio.socket.getaddrinfo(host, None, AF_INET, SOCK_STREAM)
        except (OSError, UnicodeError):
            return  # Without an address it cannot be excluded.
        self._lost.pop(host, None)
        self._lost[host] = str(found[0][4][0]), trio.current_time() + LOST_SECONDS
        if len(self._lost) > EXCLUDED_MAX:
            del self._lost[next(iter(self._lost))]

    def remove(self, url: str) -> None:
        """Stop excluding the server of a URL, which has answered."""
        self._lost.pop(urlsplit(url).hostname or "", None)

    def clear(self) -> None:
        """Stop excluding all servers."""
        self._lost.clear()
