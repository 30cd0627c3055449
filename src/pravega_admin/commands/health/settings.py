"""``segstore config``: what a server would have for settings.

Owns: the arguments and the output of this verb.
"""

from __future__ import annotations

from typing import Annotated, Any

import typer

from pravega_admin.options import OutputOption
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import OutputFormat, print_rows
from segstore_client.errors import UsageError

app = Verbs(help="Show settings of servers.")
PARSED_BY_OTHERS: dict[str, Any] = {"ignore_unknown_options": True, "allow_extra_args": True}
"""The options of a server are those of its own verb, which parses them."""


@app.command("print", context_settings=PARSED_BY_OTHERS)
def print_(
    context: typer.Context,
    server: Annotated[
        str,
        typer.Argument(
            metavar="SERVER [OPTION]...",
            help="standalone, server or controller, and the options of its start.",
        ),
    ],
    origin: Annotated[
        bool,
        typer.Option("--origin", help="Tell where each comes from: default, file, variable ..."),
    ] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Print only those that are no defaults.")
    ] = False,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print the settings that a server would start with; nothing is started, secrets are masked.

    Options, variables and the settings file (--config) count as in the start of the server:
    segstore config print server --config store.toml --port 12345 --origin
    """
    from pravega_admin.serving.origins import DEFAULT, TABLES_OF, find_settings

    if server not in TABLES_OF:
        raise UsageError(f"{server!r} is no server: say one of {', '.join(TABLES_OF)} first")
    root: Any = context.find_root().command
    parsed = root.commands[server].make_context(server, list(context.args))
    settings = find_settings(server, parsed)
    rows = [
        {"setting": each.name, "value": each.value, "origin": each.origin}
        for each in settings
        if not (changed and each.origin == DEFAULT)
    ]
    print_rows(rows, ("setting", "value", *(("origin",) if origin else ())), output)
