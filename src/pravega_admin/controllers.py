"""The controller that a command talks to: its option, and a client of it.

Owns: that option, which many commands share.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

if TYPE_CHECKING:
    from pravega_blocking.controller_client import ControllerClient

ControllerOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--controller",
        "-c",
        envvar="SEGSTORE_CONTROLLER",
        metavar="URI",
        help="Where the controller listens.",
    ),
]


def open_controller(address: str) -> ControllerClient:
    """Return a client of the controller at an address. Imports gRPC, which no help needs."""
    from pravega_blocking.controller_client import ControllerClient

    return ControllerClient(address)
