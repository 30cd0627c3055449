"""The verbs of the ``segstore`` command.

Owns: the tree of verbs, and the report of a failure: one sentence on stderr and an exit code.

Invariants:
1. Importing this module imports neither gRPC nor trio nor any server: help is immediate.
2. Users see no traceback, unless they ask with ``--debug``.
"""

from __future__ import annotations

import os
import sys
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from pravega_admin import (
    bench_commands,
    cluster_commands,
    event_commands,
    group_commands,
    pipeline_commands,
    recover_command,
    scope_commands,
    scrub_command,
    serve_commands,
    stream_commands,
    table_commands,
    transaction_commands,
)
from pravega_admin.errors import EXIT_OK, report_error
from pravega_admin.original_defaults import ServerCommand
from pravega_blocking.errors import PravegaError

EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 not found, 4 exists already, 5 server"
    " unavailable, 6 not possible in this state, 7 timed out, 8 stored data are damaged, 78 a"
    " server cannot start as configured or with the data that it finds, 130 interrupted."
)


class _Verbs(TyperGroup):
    """The root of the verbs: turns every failure into a sentence and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        if ctx.params.get("debug"):
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except (PravegaError, KeyboardInterrupt) as error:
            raise typer.Exit(report_error(error)) from None
        except BrokenPipeError:
            # The reader of our output has closed it.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(EXIT_OK) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("typer", "click"):
                raise
            raise typer.Exit(report_error(error)) from None


app = typer.Typer(
    cls=_Verbs,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    epilog=EPILOG,
    help="Run and administer segstore, a stream store that speaks the Pravega protocol.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(scope_commands.app, name="scope")
app.add_typer(stream_commands.app, name="stream")
app.add_typer(table_commands.app, name="table")
app.add_typer(group_commands.app, name="group")
app.add_typer(transaction_commands.app, name="transaction")
app.add_typer(cluster_commands.app, name="cluster")
app.add_typer(cluster_commands.check_app, name="check")
app.add_typer(bench_commands.app, name="bench")
app.add_typer(pipeline_commands.app, name="pipeline")
app.command()(event_commands.write)
app.command()(event_commands.read)
for verb in (serve_commands.standalone, serve_commands.server, serve_commands.controller):
    app.command(cls=ServerCommand)(verb)
app.command()(recover_command.recover)
app.command()(scrub_command.scrub)


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback when the command fails.")
    ] = False,
) -> None:
    """Run before each command; the text of ``--help`` comes from the application."""


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as version_of

    print(version_of("segstore"))
