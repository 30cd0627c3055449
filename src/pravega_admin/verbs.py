"""The verbs of the ``segstore`` command.

Owns: the tree of verbs, and the report of a failure: one sentence on stderr and an exit code.

A command imports the module of its own verb alone, so a store starts soon after its options are
read.

Invariants:
1. The list of verbs is shown without an import of gRPC, trio, a server or a verb. Held by
   ``test_help_imports_neither_grpc_nor_trio_nor_servers``.
2. A failure is one sentence on stderr. Held by
   ``test_wrong_usage_is_one_sentence_and_exit_code_2``. With ``--debug`` it has a traceback. Held
   by ``test_debug_shows_where_it_failed``.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Mapping
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from pravega_admin.errors import EXIT_CODES, OutputError, report_error
from pravega_admin.output.help_pages import Verb, VerbGroup, Verbs
from pravega_admin.serving.original_defaults import SERVERS, ServerCommand
from segstore_client.errors import PravegaError

EPILOG = f"Exit codes: {', '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES.items())}."
PLACES = {
    "scope": "scopes.app",
    "stream": "streams.app",
    "table": "tables.app",
    "group": "groups.app",
    "transaction": "transactions.app",
    "user": "security.users.app",
    "cluster": "cluster.app",
    "check": "cluster.check_app",
    "certificate": "security.certificates.app",
    "bench": "bench.app",
    "pipeline": "pipelines.app",
    "write": "events.write",
    "read": "events.read",
    "export": "exports.export",
    "import": "exports.import_",
    "standalone": "servers.standalone",
    "server": "servers.server",
    "controller": "servers.controller",
    "token": "security.tokens.app",
    "recover": "recover.recover",
    "scrub": "scrub.scrub",
    "doctor": "health.doctor.doctor",
    "profile": "security.profiles.app",
    "config": "health.settings.app",
    "top": "health.top.top",
    "generate": "generate.app",
}
"""The places of verbs and of groups of verbs, below ``pravega_admin.commands``."""
HELP = {
    "scope": "Create, list and delete scopes.",
    "stream": "Create, inspect, change and delete streams.",
    "table": "Create, inspect and delete key-value tables, and their entries.",
    "group": "List, inspect, move and delete reader groups.",
    "transaction": "List, inspect and end transactions; txn for short.",
    "user": "Add, list and remove users, and change their passwords and rights.",
    "cluster": "See what a cluster is made of, and wait for it.",
    "check": "Ask one server whether it serves.",
    "certificate": "Make certificates for TLS, and see what they say.",
    "bench": "Measure the store on this machine.",
    "pipeline": "Move data between streams, files and Parquet on Spark.",
    "write": "Write each line as an event, and end when all are stored.",
    "read": "Print each event as a line; ends at the tail unless told to wait.",
    "export": "Export a stream to a file, with all that segstore import needs.",
    "import": "Import an export, each event once: make a stream like the exported one.",
    "standalone": "Run a whole store on this machine: a controller and a segment store, or several"
    " of each.",
    "server": "Run one segment store in this process.",
    "controller": "Run one controller in this process.",
    "token": "Create, rotate and show the keys that sign delegation tokens.",
    "recover": "Repair a stopped store after it lost a journal or a part of tier 2, and keep what"
    " is left.",
    "scrub": "Read all history of a store and check it, while the store runs or not.",
    "doctor": "Tell what is wrong with this machine and its servers, and how to mend it.",
    "profile": "List, show, change and delete profiles of this user.",
    "config": "Show settings of servers.",
    "top": "Show which streams are written to most, until Ctrl-C.",
    "generate": "Print files for Grafana and Prometheus.",
}
"""The first sentence of each verb's own help. To read it there, all verbs would be imported."""
ALIASES = {"txn": "transaction"}
"""Short words for verbs."""
SETTING_TABLES = {
    "server": "segment_store",
    "controller": "controller",
    "standalone": "controller",
    "recover": "segment_store",
}
"""For each verb with options that are settings: the table of a settings file that has them."""


class _LazyVerbs(UserDict[str, Any]):
    """Verbs by name, in the order of help. Those in ``PLACES`` are imported when they are used."""

    def __init__(self, others: Mapping[str, Any]) -> None:
        super().__init__({**dict.fromkeys(PLACES), **others})

    def __getitem__(self, name: str) -> Any:
        if self.data[name] is None:
            self.data[name] = _build_verb(name, PLACES[name])
        return self.data[name]


def _build_verb(name: str, place: str) -> Any:
    module, _, attribute = place.rpartition(".")
    verb = getattr(import_module(f"pravega_admin.commands.{module}"), attribute)
    if name in SETTING_TABLES:
        from pravega_admin.serving.setting_options import with_settings

        verb = with_settings(verb, SETTING_TABLES[name])
    parent = typer.Typer()
    if isinstance(verb, typer.Typer):
        parent.add_typer(verb, name=name)
    else:
        parent.command(name, cls=ServerCommand if name in SERVERS else Verb)(verb)
    return typer.main.get_group(parent).commands[name]


class _Root(VerbGroup):
    """The root of the verbs: turns every failure into a sentence and an exit code."""

    def __init__(self, *, commands: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(**settings)
        self.commands = _LazyVerbs(commands)
        self._lists = False

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the verb of a name, or of the short word for it."""
        if self._lists and cmd_name in HELP:
            return TyperCommand(cmd_name, help=HELP[cmd_name])
        return super().get_command(ctx, ALIASES.get(cmd_name, cmd_name))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all verbs, of which none is imported."""
        return list(self.commands)

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """Print the help, for which no module of a verb is imported."""
        self._lists = True
        try:
            super().format_help(ctx, formatter)
        finally:
            self._lists = False

    def invoke(self, ctx: Any) -> Any:
        if ctx.params.get("debug"):
            return super().invoke(ctx)
        try:
            return super().invoke(ctx)
        except OutputError:
            # ``run_command`` reports it, because output can also fail in help or at the end.
            raise
        except (PravegaError, KeyboardInterrupt) as error:
            raise typer.Exit(report_error(error)) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            if type(error).__module__.partition(".")[0] in ("typer", "click"):
                raise
            raise typer.Exit(report_error(error)) from None


app = Verbs(
    cls=_Root,
    pretty_exceptions_enable=False,
    epilog=EPILOG,
    help="Run and administer segstore, a stream store that speaks the Pravega protocol.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def root(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show a traceback when the command fails.")
    ] = False,
    _: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Run before each command; the text of ``--help`` comes from the application."""


@app.command()
def version() -> None:
    """Print the version."""
    from importlib.metadata import version as version_of

    print(version_of("segstore"))
