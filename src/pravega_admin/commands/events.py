"""``segstore write`` and ``segstore read``: events from stdin, events to stdout.

Owns: the conversion of lines to events with routing keys, and of events to lines.
"""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from pravega_admin.commands.controllers import ControllerOption, open_controller
from pravega_admin.errors import AdminError
from pravega_admin.options import OutputOption, StreamArgument, parse_stream_name
from pravega_admin.output.interrupts import PoliteInterrupt
from pravega_admin.output.output import OutputFormat, print_document, print_message, progress
from segstore_client.addresses import DEFAULT_CONTROLLER
from segstore_client.errors import NotFoundError, PravegaError, TimedOutError, UsageError
from segstore_client.positions import Position

if TYPE_CHECKING:
    from pravega_wire.sessions.read_cursor import ReadEvent
    from segstore_client.blocking.event_reader import BlockingEventReader
    from segstore_client.blocking.event_writer import BlockingEventWriter

PATIENCE_SECONDS = 60.0
PROGRESS_STEP_BYTES = 64 * 1024

KeyOf = Callable[[bytes], str | None]


def write(
    stream: StreamArgument,
    file: Annotated[
        Path | None,
        typer.Argument(metavar="FILE", help="Where to read lines; standard input if missing."),
    ] = None,
    key: Annotated[
        str | None, typer.Option("--key", "-k", help="The routing key of every event.")
    ] = None,
    key_field: Annotated[
        int | None,
        typer.Option(
            "--key-field", min=1, metavar="N", help="Take the routing key from the line's field N."
        ),
    ] = None,
    delimiter: Annotated[
        str,
        typer.Option(
            "--delimiter", "-d", show_default="a tab", help="What separates the fields of a line."
        ),
    ] = "\t",
    patience: Annotated[
        float,
        typer.Option(
            "--patience", min=0, help="Seconds to retry while servers are away or wait for room."
        ),
    ] = PATIENCE_SECONDS,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write each line as an event, and end when all are stored."""
    from segstore_client.blocking.event_writer import BlockingEventWriter

    name = parse_stream_name(stream)
    key_of = _key_function(key, key_field, delimiter)
    with ExitStack() as stack:
        source = _open_source(file, stack)
        client = stack.enter_context(open_controller(controller))
        # Somebody waits at a terminal: a controller that is away is named at once.
        client.current_segments(name.scope, name.stream)
        writer = BlockingEventWriter(
            client, name.scope, name.stream, patience=patience, on_delay=print_delay
        )
        started = time.monotonic()
        try:
            with PoliteInterrupt() as interrupt, writer:
                event_count, byte_count = _write_lines(writer, source, key_of, interrupt)
                if interrupt.count:
                    raise KeyboardInterrupt
        except (PravegaError, KeyboardInterrupt):
            print_message(_describe_stored(writer))
            raise
        seconds = time.monotonic() - started
    if output is not OutputFormat.TABLE:
        fields = {"stream": str(name), "events": event_count, "bytes": byte_count}
        print_document({**fields, "seconds": round(seconds, 3)}, output)
    else:
        print_message(
            f"{event_count} {'event' if event_count == 1 else 'events'} ({byte_count} bytes)"
            f" stored in {name} in {seconds:.2f} s"
        )


def read(
    stream: StreamArgument,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="PLACE",
            help="Where to begin: head, tail, a time (2026-03-01T12:00:00Z, -15m) or a stream cut"
            " (0:4096,1:0, or as clients print it).",
        ),
    ] = Position.HEAD.value,
    end: Annotated[
        str | None,
        typer.Option("--to", metavar="PLACE", help="Where to end: a place as that of --from."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Wait for more events at the tail.")
    ] = False,
    count: Annotated[
        int | None,
        typer.Option("--count", "-n", min=1, help="End after this many events; wait for them."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0, help="End when no event has come for this many seconds."),
    ] = None,
    patience: Annotated[
        float, typer.Option("--patience", min=0, help="Seconds to retry while servers are away.")
    ] = PATIENCE_SECONDS,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Print each event as a line; ends at the tail unless told to wait.

    With -o json each line is an object with the event, its segment and its offset; an event that
    is not UTF-8 is given as event_base64. With --count, running out of --timeout exits with 7.
    """
    from segstore_client.blocking.event_reader import BlockingEventReader
    from segstore_client.cuts.bounds import find_bounds
    from segstore_client.cuts.places import parse_place

    name = parse_stream_name(stream)
    begin = parse_place("--from", start)
    last = None if end is None else parse_place("--to", end)
    if last is not None and follow:
        raise UsageError("--follow has no end: say either --follow or --to")
    waits = follow or count is not None or timeout is not None or begin.end is Position.TAIL
    with ExitStack() as stack:
        client = stack.enter_context(open_controller(controller))
        # Somebody waits at a terminal: a store that stands still is named at once.
        bounds = find_bounds(
            client,
            name.scope,
            name.stream,
            start=begin,
            end=Position.TAIL if last is None and not waits else last,
        )
        reader = stack.enter_context(
            BlockingEventReader(client, name.scope, name.stream, bounds=bounds, patience=patience)
        )
        seen = _print_events(reader, count, timeout, output)
    if count is None or seen == count:
        return
    if reader.is_finished:
        raise AdminError(f"stream {name} ended after {seen} of {count} events")
    raise TimedOutError(f"{seen} of {count} events came before {timeout:g} s without one")


def print_delay(sentence: str) -> None:
    """Print the reason for which a store waits."""
    print_message(f"waiting: {sentence}")


def _describe_stored(writer: BlockingEventWriter) -> str:
    """Return a text with the number of stored events, or with its bounds."""
    least, most = writer.acknowledged_events, writer.sent_events
    if least == most:
        return f"{least} {'event was' if least == 1 else 'events were'} stored"
    return f"at least {least}, at most {most} events were stored"


def _write_lines(
    writer: BlockingEventWriter, source: BinaryIO, key_of: KeyOf, interrupt: PoliteInterrupt
) -> tuple[int, int]:
    """Write every line of the source, or those before a Ctrl-C; return the numbers of events and
    bytes."""
    from pravega_admin.output.lines import LineTooLongError, iterate_lines
    from pravega_wire.sessions.append_session import EVENT_BYTES_MAX

    event_count = byte_count = shown_bytes = 0
    total = size_of(source)
    is_typed = source.isatty()
    if is_typed:
        print_message("each line is an event; Ctrl-D ends")
    try:
        with progress("writing", total=total, in_bytes=True, shown=not is_typed) as advance:
            lines = iterate_lines(
                source,
                bytes_max=EVENT_BYTES_MAX,
                on_pause=writer.send,
                waiting=interrupt.waiting,
            )
            try:
                for line in lines:
                    writer.submit(line, key=key_of(line))
                    event_count += 1
                    byte_count += len(line)
                    position = byte_count + event_count
                    if position - shown_bytes >= PROGRESS_STEP_BYTES:
                        advance(position - shown_bytes)
                        shown_bytes = position
            except KeyboardInterrupt:
                if interrupt.count > 1:
                    raise
                print_message("storing what was read; press Ctrl-C again to give up")
            writer.flush()
    except LineTooLongError as error:
        raise UsageError(
            f"line {error.line_number} is longer than the {EVENT_BYTES_MAX} bytes of an event"
        ) from error
    return event_count, byte_count


def _print_events(
    reader: BlockingEventReader, count: int | None, timeout: float | None, output: OutputFormat
) -> int:
    """Print events until there are enough, or no more; return their number."""
    render = _RENDERS[output]
    stdout = sys.stdout.buffer
    if output is OutputFormat.CSV:
        stdout.write(b"segment,offset,event,event_base64\n")
    seen = 0
    shown = count is not None and not sys.stdout.isatty()
    with progress("reading", total=count, in_bytes=False, shown=shown) as advance:
        while count is None or seen < count:
            if not reader.has_event:
                stdout.flush()
            event = reader.next_event(timeout=timeout)
            if event is None:
                break
            stdout.write(render(event))
            seen += 1
            advance(1)
    stdout.flush()
    return seen


def _event_as_line(event: ReadEvent) -> bytes:
    return event.data + b"\n"


def _event_as_json(event: ReadEvent) -> bytes:
    return json.dumps(_event_fields(event), ensure_ascii=False).encode() + b"\n"


def _event_as_yaml(event: ReadEvent) -> bytes:
    """Return an item of a list, so that all events are one document."""
    from pravega_admin.output.yaml_text import write_yaml

    return write_yaml([_event_fields(event)]).encode()


def _event_as_csv(event: ReadEvent) -> bytes:
    import csv
    import io

    fields = _event_fields(event)
    line = io.StringIO()
    names = ("segment", "offset", "event", "event_base64")
    csv.writer(line, lineterminator="\n").writerow([fields.get(name) for name in names])
    return line.getvalue().encode()


def _event_fields(event: ReadEvent) -> dict[str, object]:
    fields: dict[str, object] = {"segment": event.segment_id, "offset": event.offset}
    try:
        fields["event"] = event.data.decode()
    except UnicodeDecodeError:
        fields["event_base64"] = base64.b64encode(event.data).decode()
    return fields


_RENDERS = {
    OutputFormat.TABLE: _event_as_line,
    OutputFormat.JSON: _event_as_json,
    OutputFormat.YAML: _event_as_yaml,
    OutputFormat.CSV: _event_as_csv,
}


def _key_function(key: str | None, key_field: int | None, delimiter: str) -> KeyOf:
    """Return the function that gives each line its routing key."""
    if key is not None and key_field is not None:
        raise UsageError("the routing key is either --key or --key-field, not both")
    if key_field is None:
        return lambda line: key
    if not delimiter:
        raise UsageError("--delimiter must not be empty")
    separator = delimiter.encode()

    def field_of(line: bytes) -> str:
        fields = line.split(separator, key_field)
        if len(fields) < key_field:
            raise UsageError(f"a line has {len(fields)} fields, none is number {key_field}")
        return fields[key_field - 1].decode(errors="surrogateescape")

    return field_of


def _open_source(file: Path | None, stack: ExitStack) -> BinaryIO:
    if file is None or str(file) == "-":
        return sys.stdin.buffer
    try:
        return stack.enter_context(file.open("rb"))
    except FileNotFoundError as error:
        raise NotFoundError(f"there is no file {file}") from error
    except OSError as error:
        raise AdminError(f"{file} cannot be read: {error.strerror}") from error


def size_of(source: BinaryIO) -> int | None:
    """Return the length of the source in bytes; None for a pipe or a terminal."""
    try:
        return os.fstat(source.fileno()).st_size or None
    except OSError:
        return None
