"""The options and arguments that many commands share, and the conversion of their texts into
values.

Owns: their names, their help texts and their environment variables, and the names of scopes and
streams that a shell completes.

Invariants:
1. When no controller answers a shell that completes, nothing is completed, and nothing is said.
   Held by ``test_names_are_completed``.
"""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from pravega_admin.logins import CONTROLLER_VARIABLE, find_access
from pravega_admin.output.output import OutputFormat
from segstore_client.errors import UsageError


def complete_scope(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the scopes that begin like this."""
    return _ask_names(ctx, None, incomplete)


def complete_stream(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the streams that begin like this, or the scopes as long as there is no slash."""
    scope, delimiter, _ = incomplete.partition("/")
    return _ask_names(ctx, scope if delimiter else None, incomplete, end="/")


def _ask_names(
    ctx: typer.Context, scope: str | None, incomplete: str, *, end: str = ""
) -> list[str]:
    """Return names from the controller; none if it does not answer, whatever the reason."""
    from segstore_client.addresses import DEFAULT_CONTROLLER
    from segstore_client.controller.controller_client import ControllerClient

    try:
        # Nobody can be asked for a password in the middle of a line.
        sys.stdin = io.StringIO()
        address = ctx.params.get("controller") or os.environ.get(CONTROLLER_VARIABLE)
        with ControllerClient(
            address or DEFAULT_CONTROLLER, patience=0.0, access=find_access()
        ) as client:
            if scope is None:
                names = [f"{each}{end}" for each in client.list_scopes() if each[0] != "_"]
            else:
                found = client.list_streams(scope)
                names = [f"{scope}/{each}" for each in found if each[0] != "_"]
    except Exception:
        # A shell would print the error into the line that the user types.
        return []
    return sorted(each for each in names if each.startswith(incomplete))


OutputOption: TypeAlias = Annotated[
    OutputFormat,
    typer.Option(
        "--output",
        "-o",
        envvar="SEGSTORE_OUTPUT",
        # The list of the choices would leave no room for the help of others.
        metavar="FORM",
        help="How data is printed: table, json, yaml or csv.",
    ),
]

LedgersOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--bookkeeper-ledgers",
        metavar="PATH",
        help="Where in ZooKeeper the bookies are; by default below the cluster's name.",
    ),
]

ScopeArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SCOPE", help="A scope's name.", autocompletion=complete_scope)
]

OptionalScopeArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[SCOPE]",
        help="A scope's name; all scopes without it.",
        autocompletion=complete_scope,
    ),
]

IfNotExistsOption: TypeAlias = Annotated[
    bool, typer.Option("--if-not-exists", help="Succeed when it exists already.")
]

OptionalStreamArgument: TypeAlias = Annotated[
    str | None,
    typer.Argument(
        metavar="[SCOPE/STREAM]",
        help="A stream's name, with its scope; all streams without it.",
        autocompletion=complete_stream,
    ),
]

StreamArgument: TypeAlias = Annotated[
    str,
    typer.Argument(
        metavar="SCOPE/STREAM",
        help="A stream's name, with its scope.",
        autocompletion=complete_stream,
    ),
]


@dataclass(frozen=True, slots=True)
class StreamName:
    """A stream's name, with its scope."""

    scope: str
    stream: str

    def __str__(self) -> str:
        return f"{self.scope}/{self.stream}"


def parse_stream_name(text: str) -> StreamName:
    """Return the two parts of ``scope/stream``; raise ``UsageError`` for anything else."""
    return parse_name(text, "stream")


def parse_name(text: str, what: str) -> StreamName:
    """Return the scope and the name in it; ``what`` is the kind of thing, for the error."""
    scope, delimiter, name = text.partition("/")
    if not (scope and delimiter and name) or "/" in name:
        form = f"SCOPE/{what.rpartition(' ')[2].upper()}"
        raise UsageError(f"{text!r} is not the name of a {what}: write {form}")
    return StreamName(scope, name)
