"""``segstore top``: which streams are written to most now, live in the terminal.

Owns: the arguments of this verb, and the order and number of rows.

Invariants:
1. When stdout is no terminal, each measurement is printed as other data are. Held by
   ``test_top_shows_the_busiest_stream_first``.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pravega_admin.commands.controllers import ControllerOption, choose_scopes, open_controller
from pravega_admin.commands.streams import measure_streams, rate_rows
from pravega_admin.options import OptionalScopeArgument, OutputOption, StreamName
from pravega_admin.output.output import OutputFormat, print_rows
from segstore_client.addresses import DEFAULT_CONTROLLER

if TYPE_CHECKING:
    from segstore_client.controller.controller_client import ControllerClient

COLUMNS = (
    "scope",
    "stream",
    "segments",
    "bytes",
    "events",
    "bytes_per_second",
    "events_per_second",
)
INTERVAL_SECONDS = 2.0
ROWS = 20


def top(
    scope: OptionalScopeArgument = None,
    interval: Annotated[
        float, typer.Option("--interval", min=0.1, metavar="SECONDS", help="Time between looks.")
    ] = INTERVAL_SECONDS,
    rows: Annotated[int, typer.Option("--rows", min=1, help="Number of streams.")] = ROWS,
    count: Annotated[
        int | None, typer.Option("--count", "-n", min=1, help="End after this many looks.")
    ] = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Show which streams are written to most, until Ctrl-C.

    In a terminal the table is replaced at each look; otherwise each look is printed.
    """
    with open_controller(controller) as client:
        looks = itertools.islice(_look(client, scope, interval), count)
        if output is OutputFormat.TABLE and sys.stdout.isatty():
            _show_live(each[:rows] for each in looks)
            return
        for each in looks:
            print_rows(each[:rows], COLUMNS, output)
            sys.stdout.flush()


def _look(
    client: ControllerClient, scope: str | None, interval: float
) -> Iterator[list[dict[str, Any]]]:
    """Yield the streams with their rates, the busiest first."""
    earlier, began = measure_streams(client, _list(client, scope), shown=False), time.monotonic()
    while True:
        time.sleep(interval)
        sizes, now = measure_streams(client, _list(client, scope), shown=False), time.monotonic()
        found = rate_rows(sizes, earlier, now - began)
        yield sorted(found, key=lambda row: (-row["bytes_per_second"], row["scope"], row["stream"]))
        earlier, began = sizes, now


def _list(client: ControllerClient, scope: str | None) -> list[StreamName]:
    return [
        StreamName(each, name)
        for each in choose_scopes(client, scope)
        for name in client.list_streams(each)
        if not name.startswith("_")
    ]


def _show_live(looks: Iterator[list[dict[str, Any]]]) -> None:
    """Show a table that each look replaces."""
    from rich.live import Live
    from rich.table import Table

    from segstore_client.controller.stream_settings import format_size

    with Live(screen=False, auto_refresh=False) as live:
        for rows in looks:
            table = Table("STREAM", "SEGMENTS", "SIZE", "EVENTS", "WRITTEN/S", "EVENTS/S", box=None)
            for row in rows:
                events, rate = row["events"], row["events_per_second"]
                table.add_row(
                    f"{row['scope']}/{row['stream']}",
                    str(row["segments"]),
                    format_size(row["bytes"]),
                    "-" if events is None else str(events),
                    format_size(round(row["bytes_per_second"])),
                    "-" if rate is None else f"{rate:,.0f}",
                )
            live.update(table, refresh=True)
