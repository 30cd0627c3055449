"""``segstore group``: list, describe, show, seek and delete reader groups; tell how they lag.

Owns: the arguments and the output of these verbs.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pravega_admin.commands.controllers import ControllerOption, choose_scopes, open_controller
from pravega_admin.options import OptionalScopeArgument, OutputOption, StreamName, parse_name
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import (
    OutputFormat,
    print_fields,
    print_parts,
    print_rows,
    report,
)
from segstore_client.addresses import DEFAULT_CONTROLLER
from segstore_client.errors import ConflictError, UsageError

if TYPE_CHECKING:
    from pravega_wire import controller_pb2 as pb
    from pravega_wire.reader_groups.lags import SegmentLag
    from segstore_client.controller.controller_client import ControllerClient

app = Verbs(help="List, inspect, move and delete reader groups.")

GroupArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="SCOPE/GROUP", help="A reader group's name, with its scope.")
]
WHAT = "reader group"
RETENTION = ("none", "manual", "checkpoints")
"""The event after which retention may delete data: none, a release by the user, or the group's
checkpoints."""


LAG_COLUMNS = ("group", "stream", "readers", "segments", "lag_bytes", "lag_seconds")


@app.command("list")
def list_(
    scope: OptionalScopeArgument = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the reader groups of a scope, or of all scopes."""
    with open_controller(controller) as client:
        names = [
            {"scope": each, "group": name}
            for each in choose_scopes(client, scope)
            for name in sorted(client.list_groups(each))
        ]
    print_rows(names, ("scope", "group"), output)


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
def show(
    group: GroupArgument,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show where each reader of a group is in each segment, and how far behind the end.

    POSITION is the one that a reader reported last, some seconds ago. RESUMES AT is where another
    reader would continue if this one vanished: the position of the last checkpoint, or of its
    begin. LAG SECONDS is computed from the times that the stream's writers record.
    """
    from segstore_client.cuts.group_lag import find_lags
    from segstore_client.cuts.group_state import find_state

    name = parse_name(group, WHAT)
    with open_controller(controller) as client:
        state = find_state(client, name.scope, name.stream)
        lags = find_lags(client, state)
    idle = [reader for reader in state.readers if not state.assigned[reader]]
    fields = {
        "scope": name.scope,
        "group": name.stream,
        "generation": state.generation,
        "updating": state.is_updating,
        "readers": state.readers,
        "readers_without_segment": idle,
        **_sum_lags(lags),
    }
    print_parts(fields, {"segments": [_lag_row(each) for each in lags]}, output)


@app.command()
def lag(
    group: Annotated[
        str | None,
        typer.Argument(
            metavar="[SCOPE[/GROUP]]", help="A reader group, or all of a scope; all without it."
        ),
    ] = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Tell how far reader groups lag behind their streams, in bytes and in time."""
    from segstore_client.cuts.group_lag import find_lags
    from segstore_client.cuts.group_state import find_state

    rows: list[dict[str, Any]] = []
    with open_controller(controller) as client:
        for name in _choose_groups(client, group):
            try:
                state = find_state(client, name.scope, name.stream)
            except ConflictError:
                if group is not None and "/" in group:
                    raise
                # Nobody reads with it yet.
                continue
            rows += _rows_of_streams(name, find_lags(client, state))
    print_rows(rows, LAG_COLUMNS, output)


@app.command()
def seek(
    group: GroupArgument,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            metavar="PLACE",
            help="head, tail, a time (2026-03-01T12:00:00Z, -15m), or a stream cut (0:4096,1:0, or"
            " as clients print it).",
        ),
    ],
    stream: Annotated[
        str | None,
        typer.Option(
            "--stream", metavar="SCOPE/STREAM", help="Only this stream; others stay as they are."
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only print where the group would be.")
    ] = False,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Let a reader group continue elsewhere, as resetReaderGroup of the Java client does.

    Readers that are online get a ReinitializationRequiredException, and continue there when they
    are made again. A time needs writers that record times.
    """
    from segstore_client.cuts.group_seek import seek_group

    name = parse_name(group, WHAT)
    with open_controller(controller) as client:
        cuts = _find_cuts(client, name, to, stream)
        generation = None if dry_run else seek_group(client, name.scope, name.stream, cuts)
    rows = [
        {"stream": each, "segment": segment, "offset": offset}
        for each, cut in sorted(cuts.items())
        for segment, offset in sorted(cut.items())
    ]
    if dry_run:
        print_rows(rows, ("stream", "segment", "offset"), output)
        return
    fields = {"group": str(name), "generation": generation, "positions": rows}
    places = (f"{row['stream']} at {row['segment']}:{row['offset']}" for row in rows)
    report(f"reader group {name} continues in {', '.join(places)}", fields, output)


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


def _choose_groups(client: ControllerClient, chosen: str | None) -> list[StreamName]:
    if chosen is not None and "/" in chosen:
        return [parse_name(chosen, WHAT)]
    return [
        StreamName(scope, name)
        for scope in choose_scopes(client, chosen)
        for name in sorted(client.list_groups(scope))
    ]


def _find_cuts(
    client: ControllerClient, name: StreamName, to: str, stream: str | None
) -> dict[str, dict[int, int]]:
    """Return the cut at which a group shall continue in each of its streams."""
    from pravega_wire.names import parse_segment_name, scoped_name
    from segstore_client.cuts.group_state import find_state
    from segstore_client.cuts.places import find_cut, parse_place

    place = parse_place("--to", to)
    state = find_state(client, name.scope, name.stream)
    settings = client.group_settings(name.scope, name.stream)
    streams = [
        scoped_name(each.streamInfo.scope, each.streamInfo.stream)
        for each in settings.startingStreamCuts
    ]
    chosen = stream or place.stream
    if chosen and chosen not in streams:
        raise UsageError(f"reader group {name} does not read {chosen}: it reads {_join(streams)}")
    if place.cut is not None and not chosen and len(streams) > 1:
        raise UsageError(f"say by --stream to which the cut belongs: {_join(streams)}")
    here: dict[str, dict[int, int]] = {each: {} for each in streams}
    for segment, offset in state.positions().items():
        parsed = parse_segment_name(segment)
        here[scoped_name(parsed.scope, parsed.stream)][parsed.segment_id] = offset
    cuts = {}
    for each in streams:
        scope, _, bare = each.partition("/")
        if chosen in ("", each):
            cuts[each] = find_cut(client, scope, bare, place)
        else:
            client.check_cut(scope, bare, here[each])
            cuts[each] = here[each]
    return cuts


def _join(names: Iterable[str]) -> str:
    return ", ".join(sorted(names))


def _lag_row(each: SegmentLag) -> dict[str, Any]:
    return {
        "reader": each.reader,
        "stream": each.stream,
        "segment": each.segment_id,
        "position": each.position,
        "resumes_at": each.resumes_at,
        "end": each.end,
        "lag_bytes": each.unread,
        "lag_seconds": None if each.lag_ms is None else each.lag_ms / 1000,
    }


def _sum_lags(lags: Iterable[SegmentLag]) -> dict[str, Any]:
    """Return the bytes of all segments, and the longest time; None if one is unknown."""
    found = list(lags)
    times = [each.lag_ms for each in found]
    known = [each for each in times if each is not None]
    return {
        "lag_bytes": sum(each.unread for each in found),
        "lag_seconds": max(known, default=0) / 1000 if len(known) == len(times) else None,
    }


def _rows_of_streams(name: StreamName, lags: Iterable[SegmentLag]) -> list[dict[str, Any]]:
    by_stream: dict[str, list[SegmentLag]] = {}
    for each in lags:
        by_stream.setdefault(each.stream, []).append(each)
    return [
        {
            "group": str(name),
            "stream": stream,
            "readers": len({each.reader for each in found if each.reader is not None}),
            "segments": len(found),
            **_sum_lags(found),
        }
        for stream, found in by_stream.items()
    ]
