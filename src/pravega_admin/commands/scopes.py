"""``segstore scope``: create, list, delete.

Owns: the arguments and the output of these verbs.
"""

from __future__ import annotations

from typing import Annotated

import typer

from pravega_admin.commands.controllers import ControllerOption, open_controller
from pravega_admin.options import IfNotExistsOption, OutputOption, ScopeArgument
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import OutputFormat, print_rows, report
from segstore_client.addresses import DEFAULT_CONTROLLER
from segstore_client.errors import AlreadyExistsError

app = Verbs(help="Create, list and delete scopes.")


@app.command()
def create(
    scope: ScopeArgument,
    if_not_exists: IfNotExistsOption = False,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a scope."""
    created = True
    with open_controller(controller) as client:
        try:
            client.create_scope(scope)
        except AlreadyExistsError:
            if not if_not_exists:
                raise
            created = False
    sentence = f"scope {scope} " + ("created" if created else "exists already")
    report(sentence, {"scope": scope, "created": created}, output)


@app.command("list")
def list_(
    system: Annotated[
        bool, typer.Option("--system", help="List the scopes of the system too.")
    ] = False,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the scopes."""
    with open_controller(controller) as client:
        scopes = sorted(name for name in client.list_scopes() if system or name[:1] != "_")
    print_rows([{"scope": name} for name in scopes], ["scope"], output)


@app.command()
def delete(
    scope: ScopeArgument,
    recursive: Annotated[
        bool, typer.Option("--recursive", help="Delete the streams and all else in it first.")
    ] = False,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a scope that is empty."""
    with open_controller(controller) as client:
        client.delete_scope(scope, recursive=recursive)
    report(f"scope {scope} deleted", {"scope": scope, "deleted": True}, output)
