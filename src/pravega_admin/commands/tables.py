"""``segstore table``: create, list, describe and delete key-value tables.

Owns: the arguments and the output of these verbs.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, TypeAlias

import typer

from pravega_admin.commands.controllers import ControllerOption, open_controller
from pravega_admin.options import OutputOption, ScopeArgument, parse_name
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import OutputFormat, print_fields, print_rows, report
from pravega_blocking.addresses import DEFAULT_CONTROLLER

app = Verbs(help="Create, inspect and delete key-value tables.")

TableArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SCOPE/TABLE", help="A key-value table's name, with its scope.")
]
WHAT = "key-value table"


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
    scope: ScopeArgument,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the key-value tables of a scope."""
    with open_controller(controller) as client:
        names = sorted(client.list_tables(scope))
    print_rows([{"scope": scope, "table": name} for name in names], ("scope", "table"), output)


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
