"""Prints the output of commands: data on stdout as a table or as JSON, the rest on stderr.

Owns: the two forms of data, and the progress bar.

Invariants:
1. Stdout has data only, so that it can be piped. JSON is one document, or one line per event.
2. Output is decorated only for a person: progress needs a terminal on stderr.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]


class OutputFormat(enum.StrEnum):
    """The format in which data are printed."""

    TABLE = "table"
    JSON = "json"


def print_rows(rows: Sequence[Row], columns: Sequence[str], output: OutputFormat) -> None:
    """Print rows that all have these columns."""
    if output is OutputFormat.JSON:
        print_json([{column: row[column] for column in columns} for row in rows])
        return
    cells = [[_cell(row[column]) for column in columns] for row in rows]
    headings = [column.replace("_", " ").upper() for column in columns]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for line in (headings, *cells):
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(padded).rstrip())


def print_fields(fields: Row, output: OutputFormat) -> None:
    """Print one thing's properties."""
    if output is OutputFormat.JSON:
        print_json(fields)
        return
    width = max(map(len, fields))
    for name, value in fields.items():
        print(f"{name.replace('_', ' ').ljust(width)}  {_cell(value)}".rstrip())


def print_json(document: Any) -> None:
    """Print one JSON document."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def print_message(text: str) -> None:
    """Print a message that is not data, on stderr."""
    print(text, file=sys.stderr, flush=True)


def report(sentence: str, fields: Row, output: OutputFormat) -> None:
    """Print the result of an action: as JSON if the user asked for it, else as a message."""
    if output is OutputFormat.JSON:
        print_json(fields)
    else:
        print_message(sentence)


@contextmanager
def progress(
    label: str, *, total: int | None, in_bytes: bool, shown: bool = True
) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on stderr, and yield a function that advances it.

    Nothing is shown unless stderr is a terminal.
    """
    if not shown or not sys.stderr.isatty():
        yield lambda count: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        MofNCompleteColumn,
        Progress,
        ProgressColumn,
        TextColumn,
        TimeElapsedColumn,
        TransferSpeedColumn,
    )

    amount: list[ProgressColumn] = (
        [DownloadColumn(), TransferSpeedColumn()] if in_bytes else [MofNCompleteColumn()]
    )
    columns = [TextColumn("{task.description}"), BarColumn(), *amount, TimeElapsedColumn()]
    console = Console(stderr=True)
    # Data keeps going to stdout: rich would send it along with the bar.
    with Progress(*columns, console=console, transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def status_line(text: str) -> Iterator[Callable[[str], None]]:
    """Show a line about the present action on stderr, and yield a function that replaces its text.

    Nothing is shown unless stderr is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda text: None
        return
    from rich.console import Console

    with Console(stderr=True).status(text) as status:
        yield status.update


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return ", ".join(map(_cell, value)) or "-"
    if isinstance(value, float):
        return f"{value:.6g}"
    return str(value)
