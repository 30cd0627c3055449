"""``segstore stream``: create, list, describe, update, seal, truncate, delete, scale.

Owns: the arguments and the output of these verbs.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pravega_admin.commands.controllers import ControllerOption, choose_scopes, open_controller
from pravega_admin.options import (
    IfNotExistsOption,
    OptionalScopeArgument,
    OutputOption,
    StreamArgument,
    StreamName,
    parse_stream_name,
)
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import (
    OutputFormat,
    print_parts,
    print_rows,
    progress,
    report,
)
from segstore_client.addresses import DEFAULT_CONTROLLER
from segstore_client.errors import AlreadyExistsError, NotFoundError, UsageError

if TYPE_CHECKING:
    from segstore_client.blocking.stream_sizes import StreamSize
    from segstore_client.controller.controller_client import ControllerClient
    from segstore_client.controller.stream_settings import Retention, Scaling, StreamSettings

app = Verbs(help="Create, inspect, change and delete streams.")

SCALE_SECONDS = 120.0

SegmentsOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--segments", "-s", min=1, help="Number of segments; the least when scaling."),
]
EventRateOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--scale-by-events", min=1, help="Scale to this many events/s per segment."),
]
KbyteRateOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--scale-by-kbytes", min=1, help="Scale to this many kB/s per segment."),
]
ScaleFactorOption: TypeAlias = Annotated[
    int | None,
    typer.Option("--scale-factor", min=2, help="Into how many a hot segment is split."),
]
RetentionTimeOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--retention-time", metavar="DURATION", help="Keep at least this, such as 7d."),
]
RetentionSizeOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--retention-size", metavar="SIZE", help="Keep at least this, such as 10GB."),
]
RetentionMaxOption: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--retention-max",
        metavar="LIMIT",
        help="Keep at most this, even if a subscriber has not read it: a duration or a size.",
    ),
]
TagOption: TypeAlias = Annotated[
    list[str] | None, typer.Option("--tag", "-t", help="A tag; repeat it for more.")
]
RolloverOption: TypeAlias = Annotated[
    str | None,
    typer.Option("--rollover-size", metavar="SIZE", help="Largest chunk in long-term storage."),
]


@app.command()
def create(
    stream: StreamArgument,
    segments: SegmentsOption = None,
    scale_by_events: EventRateOption = None,
    scale_by_kbytes: KbyteRateOption = None,
    scale_factor: ScaleFactorOption = None,
    retention_time: RetentionTimeOption = None,
    retention_size: RetentionSizeOption = None,
    retention_max: RetentionMaxOption = None,
    tag: TagOption = None,
    rollover_size: RolloverOption = None,
    if_not_exists: IfNotExistsOption = False,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Create a stream; its scope must exist. Without options it has one segment for ever."""
    from segstore_client.controller.stream_settings import StreamSettings

    name = parse_stream_name(stream)
    settings = StreamSettings()
    settings = replace(
        settings,
        scaling=_scaling(
            settings.scaling, segments, scale_by_events, scale_by_kbytes, scale_factor
        ),
        retention=_retention(settings.retention, retention_time, retention_size, retention_max),
        tags=tuple(tag or ()),
        rollover_size_bytes=_rollover(settings, rollover_size),
    )
    created = True
    with open_controller(controller) as client:
        try:
            client.create_stream(name.scope, name.stream, settings)
        except AlreadyExistsError:
            if not if_not_exists:
                raise
            created = False
    sentence = f"stream {name} " + ("created" if created else "exists already")
    report(sentence, {"stream": str(name), "created": created}, output)


@app.command()
def update(
    stream: StreamArgument,
    segments: SegmentsOption = None,
    scale_by_events: EventRateOption = None,
    scale_by_kbytes: KbyteRateOption = None,
    scale_factor: ScaleFactorOption = None,
    retention_time: RetentionTimeOption = None,
    retention_size: RetentionSizeOption = None,
    retention_max: RetentionMaxOption = None,
    no_retention: Annotated[
        bool, typer.Option("--no-retention", help="Keep everything for ever.")
    ] = False,
    fixed: Annotated[bool, typer.Option("--fixed", help="Do not scale by load any more.")] = False,
    tag: TagOption = None,
    untag: Annotated[
        list[str] | None, typer.Option("--untag", help="A tag to take away; repeat it for more.")
    ] = None,
    rollover_size: RolloverOption = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change a stream's policies and tags; a setting without an option stays as it is."""
    from segstore_client.controller.stream_settings import Retention, ScalingKind

    name = parse_stream_name(stream)
    with open_controller(controller) as client:
        old = client.stream_settings(name.scope, name.stream)
        scaling, retention = old.scaling, old.retention
        if fixed:
            scaling = replace(scaling, type=ScalingKind.FIXED, target_rate=0, scale_factor=0)
        if no_retention:
            retention = Retention()
        tags = [item for item in (*old.tags, *(tag or ())) if item not in (untag or ())]
        new = replace(
            old,
            scaling=_scaling(scaling, segments, scale_by_events, scale_by_kbytes, scale_factor),
            retention=_retention(retention, retention_time, retention_size, retention_max),
            tags=tuple(dict.fromkeys(tags)),
            rollover_size_bytes=_rollover(old, rollover_size),
        )
        if new != old:
            client.update_stream(name.scope, name.stream, new)
    changed = new != old
    sentence = f"stream {name} " + ("updated" if changed else "is like that already")
    report(sentence, {"stream": str(name), "updated": changed}, output)


@app.command("list")
def list_(
    scope: OptionalScopeArgument = None,
    tag: Annotated[str | None, typer.Option("--tag", "-t", help="Only streams with it.")] = None,
    internal: Annotated[
        bool, typer.Option("--internal", help="List the streams of the system too.")
    ] = False,
    long: Annotated[
        bool, typer.Option("--long", "-l", help="Show segments, bytes and events.")
    ] = False,
    rates: Annotated[
        float | None,
        typer.Option(
            "--rates", min=0.1, metavar="SECONDS", help="Measure for this time what is written."
        ),
    ] = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """List the streams of a scope, or of all scopes.

    BYTES and EVENTS are from the head to the tail, without reading them. Events are unknown when a
    truncation ends within a segment.
    """
    with open_controller(controller) as client:
        names = [
            StreamName(each, name)
            for each in choose_scopes(client, scope)
            for name in sorted(client.list_streams(each, tag=tag))
            if internal or not name.startswith("_")
        ]
        columns = ["scope", "stream"]
        rows: list[dict[str, Any]] = [
            {"scope": each.scope, "stream": each.stream} for each in names
        ]
        if long or rates is not None:
            columns += ["segments", "bytes", "events"]
            columns += [] if rates is None else ["bytes_per_second", "events_per_second"]
            rows = _size_rows(client, names, rates)
    print_rows(rows, columns, output)


@app.command()
def describe(
    stream: StreamArgument,
    epochs: Annotated[
        int, typer.Option("--epochs", min=0, metavar="COUNT", help="Show the last epochs, too.")
    ] = 0,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show a stream's policies and segments, and how many there were before."""
    name = parse_stream_name(stream)
    with open_controller(controller) as client:
        settings = client.stream_settings(name.scope, name.stream)
        head = dict(client.head_segments(name.scope, name.stream).offsets)
        segments = _segment_rows(client, name)
        earlier = _epoch_rows(client, name, segments, epochs)
    fields = {
        "scope": name.scope,
        "stream": name.stream,
        "sealed": not segments,
        # An epoch has at least one segment that it created.
        "epoch": max((row["epoch"] for row in segments), default=None),
        **_settings_fields(settings),
        "head": {str(segment): offset for segment, offset in sorted(head.items())},
    }
    if output is OutputFormat.TABLE:
        fields["head"] = [f"{segment}:{offset}" for segment, offset in sorted(head.items())]
    print_parts(fields, {"segments": segments, **({"epochs": earlier} if epochs else {})}, output)


@app.command()
def seal(
    stream: StreamArgument,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Seal a stream: it then accepts no more events. This cannot be undone."""
    name = parse_stream_name(stream)
    with open_controller(controller) as client:
        client.seal_stream(name.scope, name.stream)
    report(f"stream {name} sealed", {"stream": str(name), "sealed": True}, output)


@app.command()
def truncate(
    stream: StreamArgument,
    tail: Annotated[bool, typer.Option("--tail", help="Drop everything there is now.")] = False,
    cut: Annotated[
        str | None,
        typer.Option(
            "--cut", metavar="ID:OFFSET,...", help="Drop everything before this stream cut."
        ),
    ] = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Truncate a stream: delete its oldest events."""
    from segstore_client.cuts.segment_info import tail_offsets

    name = parse_stream_name(stream)
    if tail == (cut is not None):
        raise UsageError("say where to truncate: either --tail or --cut")
    offsets = _parse_cut(cut) if cut is not None else {}
    with open_controller(controller) as client:
        if tail:
            offsets = tail_offsets(client, name.scope, name.stream)
        client.truncate_stream(name.scope, name.stream, offsets)
        if -1 in offsets.values():
            offsets = dict(client.head_segments(name.scope, name.stream).offsets)
    text = ",".join(f"{segment}:{offset}" for segment, offset in sorted(offsets.items()))
    fields = {"stream": str(name), "head": {str(key): offsets[key] for key in sorted(offsets)}}
    report(f"stream {name} now begins at {text}", fields, output)


@app.command()
def delete(
    stream: StreamArgument,
    seal_first: Annotated[bool, typer.Option("--seal", help="Seal it first.")] = False,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="Succeed when it does not exist.")
    ] = False,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Delete a sealed stream and all its data."""
    name = parse_stream_name(stream)
    deleted = True
    with open_controller(controller) as client:
        try:
            if seal_first:
                client.seal_stream(name.scope, name.stream)
            client.delete_stream(name.scope, name.stream)
        except NotFoundError:
            if not if_exists:
                raise
            deleted = False
    sentence = f"stream {name} " + ("deleted" if deleted else "does not exist")
    report(sentence, {"stream": str(name), "deleted": deleted}, output)


@app.command()
def scale(
    stream: StreamArgument,
    segments: Annotated[
        int | None,
        typer.Option("--segments", "-s", min=1, help="Replace all by this many of equal width."),
    ] = None,
    split: Annotated[
        int | None, typer.Option("--split", metavar="ID", help="Split this segment.")
    ] = None,
    into: Annotated[int, typer.Option("--into", min=2, help="Into how many to split.")] = 2,
    merge: Annotated[
        str | None,
        typer.Option("--merge", metavar="ID,ID", help="Merge these neighbouring segments."),
    ] = None,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0, help="Seconds to wait for it.")
    ] = SCALE_SECONDS,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Change a stream's segments, and wait until that is done."""
    from segstore_client.controller.scaling import plan_merge, plan_replacement, plan_split

    name = parse_stream_name(stream)
    if sum(choice is not None for choice in (segments, split, merge)) != 1:
        raise UsageError("say how to scale: one of --segments, --split and --merge")
    merged = [_parse_int(text) for text in merge.split(",")] if merge is not None else []
    with open_controller(controller) as client:
        current = client.current_segments(name.scope, name.stream).ranges
        if segments is not None:
            plan = plan_replacement(current, segments)
        elif split is not None:
            plan = plan_split(current, split, into)
        else:
            plan = plan_merge(current, merged)
        client.scale_stream(
            name.scope, name.stream, sealed=plan.sealed, ranges=plan.ranges, timeout=timeout
        )
        rows = _segment_rows(client, name)
    report(
        f"stream {name} now has {len(rows)} segments",
        {"stream": str(name), "sealed": list(plan.sealed), "segments": rows},
        output,
    )


def _size_rows(
    client: ControllerClient, names: list[StreamName], seconds: float | None
) -> list[dict[str, Any]]:
    """Return a row with the size of each stream; with rates if they are measured for this long."""
    began = time.monotonic()
    sizes = measure_streams(client, names)
    if seconds is None:
        return [_size_row(name, size) for name, size in sizes.items()]
    time.sleep(max(0.0, began + seconds - time.monotonic()))
    passed = time.monotonic() - began
    return rate_rows(measure_streams(client, names), sizes, passed)


def measure_streams(
    client: ControllerClient, names: list[StreamName], *, shown: bool = True
) -> dict[StreamName, StreamSize]:
    """Return the size of each stream, without those that have been deleted meanwhile."""
    from segstore_client.blocking.stream_sizes import measure_stream

    sizes = {}
    with progress("measuring", total=len(names), in_bytes=False, shown=shown) as advance:
        for name in names:
            with suppress(NotFoundError):
                sizes[name] = measure_stream(client, name.scope, name.stream)
            advance(1)
    return sizes


def rate_rows(
    sizes: Mapping[StreamName, StreamSize], earlier: Mapping[StreamName, StreamSize], passed: float
) -> list[dict[str, Any]]:
    """Return a row with size and rates of each stream, from two measurements."""
    rows = []
    for name, size in sizes.items():
        grown_bytes, grown_events = size.growth_since(earlier.get(name, size))
        rates = {
            "bytes_per_second": grown_bytes / passed,
            "events_per_second": None if grown_events is None else grown_events / passed,
        }
        rows.append({**_size_row(name, size), **rates})
    return rows


def _size_row(name: StreamName, size: StreamSize) -> dict[str, Any]:
    return {
        "scope": name.scope,
        "stream": name.stream,
        "segments": size.active,
        "bytes": size.stored_bytes,
        "events": size.events,
    }


def _segment_rows(client: ControllerClient, name: StreamName) -> list[dict[str, Any]]:
    """Return a row for each segment that accepts events now, in key order."""
    from pravega_wire.names import segment_epoch, segment_number
    from segstore_client.cuts.segment_info import segment_infos

    current = client.current_segments(name.scope, name.stream)
    identifiers = [item.segment_id for item in current.ranges]
    infos = segment_infos(client, name.scope, name.stream, identifiers)
    rows = []
    for item in current.ranges:
        info = infos.get(item.segment_id)
        rows.append(
            {
                "id": item.segment_id,
                "number": segment_number(item.segment_id),
                "epoch": segment_epoch(item.segment_id),
                "low_key": item.low,
                "high_key": item.high,
                "start_offset": info.start_offset if info else None,
                "length": info.write_offset if info else None,
            }
        )
    return rows


def _epoch_rows(
    client: ControllerClient, name: StreamName, segments: list[dict[str, Any]], count: int
) -> list[dict[str, Any]]:
    """Return the last epochs up to the active one, with the count of segments of each."""
    if not segments or not count:
        return []
    last = max(row["epoch"] for row in segments)
    rows = []
    for epoch in range(max(0, last + 1 - count), last + 1):
        try:
            ranges = client.epoch_segments(name.scope, name.stream, epoch)
        except NotFoundError:
            # The records of epochs long before the head may have been deleted.
            continue
        rows.append({"epoch": epoch, "segments": len(ranges)})
    return rows


def _settings_fields(settings: StreamSettings) -> dict[str, Any]:
    from segstore_client.controller.stream_settings import RetentionKind, ScalingKind

    scaling, retention = settings.scaling, settings.retention
    fields: dict[str, Any] = {
        "scaling": scaling.type.value,
        "segments_min": scaling.segment_count_min,
    }
    if scaling.type is not ScalingKind.FIXED:
        fields["target_rate"] = scaling.target_rate
        fields["scale_factor"] = scaling.scale_factor
    fields["retention"] = retention.type.value
    if retention.type is not RetentionKind.NONE:
        unit = "ms" if retention.type is RetentionKind.TIME else "bytes"
        fields[f"retention_min_{unit}"] = retention.minimum
        if retention.maximum:
            fields[f"retention_max_{unit}"] = retention.maximum
    fields["tags"] = list(settings.tags)
    fields["rollover_size_bytes"] = settings.rollover_size_bytes
    return fields


def _scaling(
    old: Scaling,
    segments: int | None,
    event_rate: int | None,
    kbyte_rate: int | None,
    factor: int | None,
) -> Scaling:
    """Return the old policy, changed by the options."""
    from segstore_client.controller.stream_settings import ScalingKind

    if event_rate is not None and kbyte_rate is not None:
        raise UsageError("a stream scales by events or by kbytes, not by both")
    new = old if segments is None else replace(old, segment_count_min=segments)
    if event_rate is not None:
        new = replace(new, type=ScalingKind.EVENT_RATE, target_rate=event_rate)
    if kbyte_rate is not None:
        new = replace(new, type=ScalingKind.KBYTE_RATE, target_rate=kbyte_rate)
    if new.type is ScalingKind.FIXED:
        if factor is not None:
            raise UsageError("--scale-factor needs --scale-by-events or --scale-by-kbytes")
        return new
    return replace(new, scale_factor=factor or new.scale_factor or 2)


def _retention(
    old: Retention, time: str | None, size: str | None, maximum: str | None
) -> Retention:
    """Return the old policy, changed by the options."""
    from segstore_client.controller.stream_settings import (
        Retention,
        RetentionKind,
        parse_duration_ms,
        parse_size_bytes,
    )

    if time is not None and size is not None:
        raise UsageError("a stream keeps data by time or by size, not by both")
    new = old
    if time is not None:
        new = Retention(RetentionKind.TIME, parse_duration_ms(time))
    if size is not None:
        new = Retention(RetentionKind.SIZE, parse_size_bytes(size))
    if maximum is None:
        return new
    if new.type is RetentionKind.NONE:
        raise UsageError("--retention-max needs --retention-time or --retention-size")
    parse = parse_duration_ms if new.type is RetentionKind.TIME else parse_size_bytes
    if parse(maximum) < new.minimum:
        raise UsageError("--retention-max is less than the minimum")
    return replace(new, maximum=parse(maximum))


def _rollover(old: StreamSettings, text: str | None) -> int:
    from segstore_client.controller.stream_settings import parse_size_bytes

    return old.rollover_size_bytes if text is None else parse_size_bytes(text)


def _parse_cut(text: str) -> dict[int, int]:
    """Return the offset of each segment id in ``id:offset,id:offset``."""
    cut = {}
    for part in text.split(","):
        segment, delimiter, offset = part.partition(":")
        if not delimiter:
            raise UsageError(f"{part!r} is not a segment's id and an offset, such as 0:4096")
        # Clients print -1 for the end of a sealed segment.
        cut[_parse_int(segment)] = -1 if offset == "-1" else _parse_int(offset)
    return cut


def _parse_int(text: str) -> int:
    if not text.strip().isdecimal():
        raise UsageError(f"{text!r} is not a number")
    return int(text)
