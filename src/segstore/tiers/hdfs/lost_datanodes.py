"""The DataNodes that did not answer lately.

Owns: ``LostDataNodes``, which remembers them.

How it works: a NameNode does not know for minutes that a DataNode has died, and names it for each
request whose bytes it has, or whose client is on the same machine. So a request that needs a
DataNode says which ones it does not want.

Invariants:
1. A DataNode is excluded by its IPv4 address. A NameNode looks what is excluded up by address: a
   host name excludes no DataNode, and some versions fail on it; an IPv6 address is taken for a
   port.
2. No exclusion outlasts ``LOST_SECONDS``, and none a NameNode that cannot do without.
"""

from __future__ import annotations

from socket import AF_INET, SOCK_STREAM
from typing import Final
from urllib.parse import urlsplit

import trio

LOST_SECONDS: Final = 60.0
EXCLUDED_MAX: Final = 16
"""Maximum number of DataNodes that are excluded at once: a query has a length that servers accept.
"""


class LostDataNodes:
    """The addresses of the DataNodes that did not answer lately. All requests share them."""

    def __init__(self) -> None:
        self._lost: dict[str, tuple[str, float]] = {}
        """By host name: the address, and until when it is excluded."""

    def excluded(self) -> str:
        """Return the addresses not to be named now, as WebHDFS takes them; empty if none are."""
        now = trio.current_time()
        self._lost = {host: each for host, each in self._lost.items() if each[1] > now}
        return ",".join(sorted({address for address, _ in self._lost.values()}))

    async def add(self, url: str) -> None:
        """Exclude the server of a URL for a while."""
        host = urlsplit(url).hostname or ""
        try:
            found = await trio.socket.getaddrinfo(host, None, AF_INET, SOCK_STREAM)
        except (OSError, UnicodeError):
            return  # A NameNode could not tell either whom this means.
        self._lost.pop(host, None)
        self._lost[host] = str(found[0][4][0]), trio.current_time() + LOST_SECONDS
        if len(self._lost) > EXCLUDED_MAX:
            del self._lost[next(iter(self._lost))]

    def remove(self, url: str) -> None:
        """Exclude the server of a URL no longer: it has answered."""
        self._lost.pop(urlsplit(url).hostname or "", None)

    def clear(self) -> None:
        """Exclude no DataNode."""
        self._lost.clear()
