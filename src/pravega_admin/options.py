"""The options and arguments that many commands share, and the conversion of their texts into
values.

Owns: their names, their help texts and their environment variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, TypeAlias

import typer

from pravega_admin.output.output import OutputFormat
from pravega_blocking.errors import UsageError

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

ScopeArgument: TypeAlias = Annotated[str, typer.Argument(metavar="SCOPE", help="A scope's name.")]

OptionalScopeArgument: TypeAlias = Annotated[
    str | None, typer.Argument(metavar="[SCOPE]", help="A scope's name; all scopes without it.")
]

IfNotExistsOption: TypeAlias = Annotated[
    bool, typer.Option("--if-not-exists", help="Succeed when it exists already.")
]

StreamArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SCOPE/STREAM", help="A stream's name, with its scope.")
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
