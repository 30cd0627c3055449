"""``segstore table``: create, list, describe and delete key-value tables, and their entries.

Owns: the arguments and the output of these verbs.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pravega_admin.commands.controllers import ControllerOption, choose_scopes, open_controller
from pravega_admin.options import OptionalScopeArgument, OutputOption, parse_name
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import OutputFormat, print_fields, print_rows, report
from pravega_wire.key_text import decode_key_text, encode_key_text
from segstore_client.addresses import DEFAULT_CONTROLLER
from segstore_client.errors import NotFoundError, UsageError

if TYPE_CHECKING:
    from segstore_client.blocking.table import BlockingTable
    from segstore_client.steps.table_steps import Entry

app = Verbs(help="Create, inspect and delete key-value tables, and their entries.")

TableArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SCOPE/TABLE", help="A key-value table's name, with its scope.")
]
KeyArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="KEY", help="A primary key: a text, or hex: and digits.")
]
SecondaryOption: TypeAlias = Annotated[
    str, typer.Option("--secondary", metavar="KEY", help="The secondary key, in the same way.")
]
VersionOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--if-version", metavar="N", help="Only if the entry has this version."),
]
PatienceOption: TypeAlias = Annotated[
    float, typer.Option("--patience", min=0, help="Seconds to retry while servers are away.")
]
WHAT = "key-value table"
PATIENCE_SECONDS = 60.0
STANDARD_INPUT = "-"
COLUMNS = ("key", "secondary_key", "version", "value")


@app.command()
def create(
    table: TableArgument,
    partitions: Annotated[
        int, typer.Option("--partitions", min=1, help="Into how many segments keys are spread.")
    ] = 1,
    primary_key_bytes: Annotated[
        int, typer.Option("--primary-key-bytes", min=1, help="How long primary keys are.")
    ] = 16,
    secondary_key_bytes: Annotated[
        int, typer.Option("--secondary-key-bytes", min=0, help="How long secondary keys are.")
    ] = 0,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a key-value table. All keys of a table have the same length."""
    name = parse_name(table, WHAT)
    with open_controller(controller) as client:
        client.create_table(
            name.scope,
            name.stream,
            partitions=partitions,
            primary_key=primary_key_bytes,
            secondary_key=secondary_key_bytes,
        )
    report(f"key-value table {name} created", {"table": str(name), "created": True}, output)


@app.command("list")
def list_(
    scope: OptionalScopeArgument = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the key-value tables of a scope, or of all scopes."""
    with open_controller(controller) as client:
        rows = [
            {"scope": each, "table": name}
            for each in choose_scopes(client, scope)
            for name in sorted(client.list_tables(each))
        ]
    print_rows(rows, ("scope", "table"), output)


@app.command()
def describe(
    table: TableArgument,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print how a key-value table was made."""
    name = parse_name(table, WHAT)
    with open_controller(controller) as client:
        found = client.table_settings(name.scope, name.stream)
    print_fields({"scope": name.scope, "table": name.stream, **asdict(found)}, output)


@app.command()
def delete(
    table: TableArgument,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a key-value table with everything in it."""
    name = parse_name(table, WHAT)
    with open_controller(controller) as client:
        client.table_settings(name.scope, name.stream)
        client.delete_table(name.scope, name.stream)
    report(f"key-value table {name} deleted", {"table": str(name), "deleted": True}, output)


@app.command()
def get(
    table: TableArgument,
    key: KeyArgument,
    secondary: SecondaryOption = "",
    patience: PatienceOption = PATIENCE_SECONDS,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print the value of a key: its bytes as they are, or with -o json a text or hex."""
    with _open(table, controller, patience) as opened:
        entry = opened.get(_key_of(opened, key, secondary))
    if entry is None:
        raise NotFoundError(f"key-value table {table} has no entry of this key")
    if output is OutputFormat.TABLE:
        sys.stdout.buffer.write(entry.value + b"\n")
        sys.stdout.buffer.flush()
    else:
        print_fields(_row(opened, entry), output)


@app.command()
def put(
    table: TableArgument,
    key: KeyArgument,
    value: Annotated[
        str,
        typer.Argument(metavar="VALUE", help="A text, or hex: and digits; - is the input."),
    ],
    secondary: SecondaryOption = "",
    if_absent: Annotated[
        bool, typer.Option("--if-absent", help="Only if there is no entry of the key.")
    ] = False,
    if_version: VersionOption = None,
    patience: PatienceOption = PATIENCE_SECONDS,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Set the value of a key."""
    from segstore_client.steps.table_steps import ABSENT, ANY_VERSION

    if if_absent and if_version is not None:
        raise UsageError("the condition is either --if-absent or --if-version, not both")
    condition = ABSENT if if_absent else ANY_VERSION if if_version is None else if_version
    data = sys.stdin.buffer.read() if value == STANDARD_INPUT else _bytes_of(value)
    with _open(table, controller, patience) as opened:
        whole = _key_of(opened, key, secondary)
        version = opened.put(whole, data, version=condition)
    fields = {"table": table, "key": key, "version": version, "bytes": len(data)}
    report(f"{key} of {table} is set, version {version}", fields, output)


@app.command()
def remove(
    table: TableArgument,
    key: KeyArgument,
    secondary: SecondaryOption = "",
    if_version: VersionOption = None,
    patience: PatienceOption = PATIENCE_SECONDS,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Remove the entry of a key, if there is one."""
    from segstore_client.steps.table_steps import ANY_VERSION

    condition = ANY_VERSION if if_version is None else if_version
    with _open(table, controller, patience) as opened:
        opened.remove(_key_of(opened, key, secondary), version=condition)
    fields = {"table": table, "key": key, "removed": True}
    report(f"{table} has no entry of {key} now", fields, output)


@app.command()
def entries(
    table: TableArgument,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after this many entries.")
    ] = None,
    patience: PatienceOption = PATIENCE_SECONDS,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print the entries of a table, those of each partition in the order of their keys."""
    with _open(table, controller, patience) as opened:
        # However many entries a table has, a page of them is in memory.
        print_rows(
            (_row(opened, each) for each in islice(opened.entries(), count)), COLUMNS, output
        )


@contextmanager
def _open(table: str, controller: str, patience: float) -> Iterator[BlockingTable]:
    from segstore_client.blocking.table import BlockingTable

    name = parse_name(table, WHAT)
    with open_controller(controller) as client:
        yield BlockingTable(client, name.scope, name.stream, patience=patience)


def _key_of(table: BlockingTable, primary: str, secondary: str) -> bytes:
    """Return the bytes of a whole key. Raises ``UsageError`` if a part of it does not fit."""
    settings = table.settings
    parts = []
    for text, length, what in (
        (primary, settings.primary_key_bytes, "primary"),
        (secondary, settings.secondary_key_bytes, "secondary"),
    ):
        data = _bytes_of(text)
        if len(data) > length:
            raise UsageError(f"{what} keys have {length} bytes, and {text!r} has {len(data)}")
        parts.append(data.ljust(length, b"\0"))
    return b"".join(parts)


def _bytes_of(text: str) -> bytes:
    try:
        return decode_key_text(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _row(table: BlockingTable, entry: Entry) -> dict[str, Any]:
    length = table.settings.primary_key_bytes
    primary, secondary = entry.key[:length], entry.key[length:]
    return {
        "key": encode_key_text(primary.rstrip(b"\0")),
        "secondary_key": encode_key_text(secondary.rstrip(b"\0")),
        "version": entry.version,
        "value": encode_key_text(entry.value),
    }
