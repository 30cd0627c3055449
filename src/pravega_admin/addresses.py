"""Parses addresses as users write them: ``HOST:PORT``.

Owns: this syntax.
"""

from __future__ import annotations

from pravega_admin.quick_options import PORT_MAX
from pravega_blocking.errors import UsageError


def parse_host_port(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; ``UsageError`` for anything else."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= PORT_MAX:
        raise UsageError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def parse_host_ports(text: str) -> list[tuple[str, int]]:
    """Return each of ``HOST:PORT,...``; ``UsageError`` for anything else."""
    return [parse_host_port(each) for each in text.split(",")]
