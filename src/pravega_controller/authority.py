"""The address that a client is sent to: the host at which it reached this controller.

Owns: reading the host from a call's ``:authority``, and the choice of a host when it has none.
"""

from __future__ import annotations

import re
import socket
import urllib.parse

_HOST_PORT = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.%]+)\]|(?P<name>[A-Za-z0-9._-]+))(?::\d+)?")
WILDCARDS = frozenset({"", "0.0.0.0", "::", "[::]"})
"""Hosts that stand for all addresses of a machine, so that no client can connect to them."""


def is_local(host: str) -> bool:
    """Return whether a host name means only the caller's own machine, or no machine at all."""
    return host in WILDCARDS or host == "localhost" or host == "::1" or host.startswith("127.")


def dialled_host(authority: str) -> str | None:
    """Return the host in an authority, or None when it names no single host.

    Clients send the authority of their whole controller URI, which may be a list ``h1:p1,h2:p2``.
    """
    match = _HOST_PORT.fullmatch(authority)
    if match is None:
        return None
    host = match["v6"] or match["name"]
    return None if host in WILDCARDS else host


def local_host_towards(peer: str, listening: str) -> str:
    """Return a local address that the caller can reach: the listening one, or that of the route.

    ``peer`` is as gRPC gives it: ``ipv4:127.0.0.1:1234`` or ``ipv6:[::1]:1234``.
    """
    if listening not in WILDCARDS:
        return listening
    family, _, address = urllib.parse.unquote(peer).partition(":")
    host = address.rpartition(":")[0].strip("[]")
    kind = socket.AF_INET6 if family == "ipv6" else socket.AF_INET
    try:
        # Connecting a datagram socket sends nothing; it only asks the kernel for the route.
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):
        return socket.gethostname()
