"""The controller that a command talks to: its option, and a client of it.

Owns: that option, which many commands share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from pravega_admin.logins import CONTROLLER_VARIABLE, choose_controller, find_access

if TYPE_CHECKING:
    from segstore_client.controller.controller_client import ControllerClient

ControllerOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--controller",
        "-c",
        envvar=CONTROLLER_VARIABLE,
        metavar="URI",
        help="Where the controllers listen: tcp://HOST:PORT,..., or tls:// for TLS.",
        callback=choose_controller,
    ),
]


def open_controller(address: str) -> ControllerClient:
    """Return a client of the controller at an address. Imports gRPC, which no help needs."""
    from segstore_client.controller.controller_client import ControllerClient

    return ControllerClient(address, access=find_access())


def choose_scopes(client: ControllerClient, scope: str | None) -> list[str]:
    """Return the scope, or the names of all scopes that are not the system's, in order."""
    if scope is not None:
        return [scope]
    return sorted(each for each in client.list_scopes() if not each.startswith("_"))
