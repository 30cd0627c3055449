"""Parses the addresses of servers and controllers that users write.

Owns: these forms, and the default address of a controller. This module does not import gRPC, which
is slow to import: the command line reads the default address at each start.

    HOST:PORT                 a server; HOST:PORT,... for several servers
    tcp://HOST:PORT,...       controllers, each of which answers all calls
    pravega://HOST:PORT,...   the same here; official clients ask these for further controllers
    tls://HOST:PORT,...       controllers that are asked by TLS, as the segment stores then are;
                              ssl:// and pravegas:// are the same

Where a server of any kind is meant, HOST:PORT may have one of these schemes, too.

The scheme and the port of a controller may be missing. A path after the last port is ignored, as
official clients ignore it.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from segstore_client.errors import UsageError

PORT_MAX = 65535
CONTROLLER_PORT = 9090
DEFAULT_CONTROLLER = f"tcp://localhost:{CONTROLLER_PORT}"

_SCHEMES = ("tcp", "pravega")
_TLS_SCHEMES = ("tls", "ssl", "pravegas")

Address: TypeAlias = tuple[str, int]
"""The host and the port of a segment store."""


class ControllerAddress(NamedTuple):
    """The ``host:port`` of each controller, and whether they, and segment stores, speak TLS."""

    controllers: tuple[str, ...]
    tls: bool = False


def parse_host_port(text: str) -> tuple[str, int]:
    """Return host and port of ``HOST:PORT``; ``UsageError`` for anything else."""
    host, _, port = text.rpartition(":")
    is_number = port.isascii() and port.isdecimal()
    if not host or host.endswith(":") or not is_number or not 0 < int(port) <= PORT_MAX:
        raise UsageError(f"{text!r} is not HOST:PORT")
    return host.strip("[]"), int(port)


def parse_host_ports(text: str) -> list[tuple[str, int]]:
    """Return each of ``HOST:PORT,...``; ``UsageError`` for anything else."""
    return [parse_host_port(each) for each in text.split(",")]


def parse_server_address(text: str) -> tuple[str, bool | None]:
    """Return ``HOST:PORT,...`` and whether its scheme asks for TLS; None without a scheme.

    Raises ``UsageError`` for an unknown scheme.
    """
    scheme, delimiter, rest = text.partition("://")
    if not delimiter:
        return text, None
    if scheme not in _SCHEMES + _TLS_SCHEMES:
        raise UsageError(f"{scheme!r} is no scheme of a server: say tls:// or tcp://")
    return rest, scheme in _TLS_SCHEMES


def format_host_port(host: str, port: int) -> str:
    """Return ``HOST:PORT``, with brackets around a host that has colons."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def parse_controller_address(text: str) -> ControllerAddress:
    """Return the controllers in an address such as ``tcp://host:port,host:port``.

    Raises ``UsageError`` for anything else.
    """
    scheme, delimiter, rest = text.strip().partition("://")
    if not delimiter:
        scheme, rest = "tcp", scheme
    authority = rest.partition("/")[0]
    try:
        if scheme not in _SCHEMES + _TLS_SCHEMES:
            raise UsageError(f"{scheme!r} is no scheme of a controller")
        controllers = tuple(_parse_controller(each.strip()) for each in authority.split(","))
        return ControllerAddress(controllers, scheme in _TLS_SCHEMES)
    except UsageError as error:
        raise UsageError(
            f"{text!r} is not a controller address such as {DEFAULT_CONTROLLER}, or"
            " tcp://HOST:PORT,HOST:PORT for several"
        ) from error


def _parse_controller(text: str) -> str:
    has_port = ":" in text.rpartition("]")[2]
    host, port = parse_host_port(text if has_port or not text else f"{text}:{CONTROLLER_PORT}")
    return format_host_port(host, port)
