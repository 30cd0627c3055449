"""Parses the address of a controller as users write it.

Owns: the form of a controller's address and its default. Imports no gRPC, so that a command line
can name the default without it.
"""

from __future__ import annotations

from pravega_blocking.errors import UsageError

DEFAULT_CONTROLLER = "tcp://localhost:9090"


def parse_controller_address(text: str) -> str:
    """Return ``host:port`` of an address such as ``tcp://host:port``.

    Raises ``UsageError`` for anything else.
    """
    scheme, delimiter, authority = text.partition("://")
    if not delimiter:
        scheme, authority = "tcp", text
    if scheme in ("tls", "ssl", "pravegas"):
        raise UsageError(f"this client does not speak TLS yet, so it cannot use {text}")
    host, _, port = authority.rpartition(":")
    if scheme not in ("tcp", "pravega") or not host or not port.isdecimal():
        raise UsageError(f"{text!r} is not a controller address such as {DEFAULT_CONTROLLER}")
    return authority
