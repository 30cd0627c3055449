"""``segstore group``: list, describe and delete reader groups.

Owns: the arguments and the output of these verbs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pravega_admin.commands.controllers import ControllerOption, open_controller
from pravega_admin.options import OutputOption, ScopeArgument, parse_name
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import OutputFormat, print_fields, print_rows, report
from pravega_blocking.addresses import DEFAULT_CONTROLLER

if TYPE_CHECKING:
    from pravega_wire import controller_pb2 as pb

app = Verbs(help="List, inspect and delete reader groups.")

GroupArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SCOPE/GROUP", help="A reader group's name, with its scope.")
]
WHAT = "reader group"
RETENTION = ("none", "manual", "checkpoints")
"""The event after which retention may delete data: none, a release by the user, or the group's
checkpoints."""


@app.command("list")
def list_(
    scope: ScopeArgument,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the reader groups of a scope."""
    with open_controller(controller) as client:
        names = sorted(client.list_groups(scope))
    print_rows([{"scope": scope, "group": name} for name in names], ("scope", "group"), output)


@app.command()
def describe(
    group: GroupArgument,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print a reader group's configuration."""
    name = parse_name(group, WHAT)
    with open_controller(controller) as client:
        found = client.group_settings(name.scope, name.stream)
    fields = {
        "scope": name.scope,
        "group": name.stream,
        "id": found.readerGroupId,
        "generation": found.generation,
        "retention": RETENTION[found.retentionType],
        "refresh_ms": found.groupRefreshTimeMillis,
        "checkpoint_interval_ms": found.automaticCheckpointIntervalMillis,
        "outstanding_checkpoints_max": found.maxOutstandingCheckpointRequest,
        "from": _cuts(found.startingStreamCuts),
        "to": _cuts(found.endingStreamCuts),
    }
    print_fields(fields, output)


@app.command()
def delete(
    group: GroupArgument,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a reader group: its readers end, and retention waits for it no more."""
    name = parse_name(group, WHAT)
    with open_controller(controller) as client:
        client.delete_group(name.scope, name.stream)
    report(f"reader group {name} deleted", {"group": str(name), "deleted": True}, output)


def _cuts(cuts: Iterable[pb.StreamCut]) -> list[Any]:
    """Return streams with their cuts as texts; a cut without segments bounds nothing."""
    texts = []
    for cut in cuts:
        offsets = ", ".join(f"{segment}:{offset}" for segment, offset in sorted(cut.cut.items()))
        stream = f"{cut.streamInfo.scope}/{cut.streamInfo.stream}"
        texts.append(f"{stream} at {offsets}" if offsets else f"{stream} unbounded")
    return texts
