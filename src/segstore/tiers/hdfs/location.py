"""The location of a store's chunks in HDFS, as users write it.

Owns: ``HdfsLocation``. Imports no HTTP library, so that a wrong URL is reported at once.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from segstore.tiers.vendor import LocationError

DEFAULT_PORTS: Final = {"webhdfs": 9870, "swebhdfs": 9871}
"""The HTTP and the HTTPS port of a NameNode by the schemes that Hadoop has for WebHDFS."""
PATH_BYTES_MAX: Final = 1000
_HOST = re.compile(r"([A-Za-z0-9][A-Za-z0-9._-]*|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?")
_PATH = re.compile(r"(/[A-Za-z0-9_=+@-][A-Za-z0-9._=+@-]*)+")


class HdfsLocationError(LocationError):
    """The text is not a location in HDFS; the message says why."""


@dataclass(frozen=True, slots=True)
class HdfsLocation:
    """A directory, and the NameNodes that serve it: one, or all of a pair with failover."""

    scheme: str
    namenodes: tuple[str, ...]
    """Host and port of each NameNode."""
    path: str
    """Path that begins with a slash and does not end with one."""

    @classmethod
    def parse(cls, text: str) -> HdfsLocation:
        """Read ``webhdfs://HOST:PORT,HOST:PORT/PATH``; ``HdfsLocationError`` when it is not that.

        With ``swebhdfs`` NameNodes and DataNodes are reached over TLS.
        """
        scheme, separator, rest = text.partition("://")
        if scheme not in DEFAULT_PORTS or not separator:
            raise HdfsLocationError(f"{text!r} is not webhdfs://HOST:PORT/PATH")
        hosts, slash, path = rest.partition("/")
        path = (slash + path).rstrip("/")
        if not _PATH.fullmatch(path) or len(path) > PATH_BYTES_MAX:
            raise HdfsLocationError(
                f"{text!r}: the path names a directory below the root of HDFS, by letters, digits"
                " and . _ - = + @, with single / between"
            )
        namenodes = tuple(_with_port(text, host, scheme) for host in hosts.split(","))
        return cls(scheme, namenodes, path)

    @property
    def addresses(self) -> list[str]:
        """Return the URLs of the NameNodes."""
        http = "https" if self.scheme == "swebhdfs" else "http"
        return [f"{http}://{namenode}" for namenode in self.namenodes]

    def __str__(self) -> str:
        return f"{self.scheme}://{','.join(self.namenodes)}{self.path}"


def _with_port(text: str, host: str, scheme: str) -> str:
    match = _HOST.fullmatch(host)
    port = int(match[2] or DEFAULT_PORTS[scheme]) if match is not None else 0
    if match is None or not 0 < port < 1 << 16:
        raise HdfsLocationError(
            f"{text!r}: {host!r} is not HOST:PORT of a NameNode's HTTP server"
            " (dfs.namenode.http-address)"
        )
    return f"{match[1]}:{port}"
