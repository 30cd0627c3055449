"""Prints the output of commands: data on stdout in one of four forms, the rest on stderr.

Owns: the forms of data, and the progress bar.

Stdout has only data, so its reader can be another program. JSON is one document, or one line per
event. YAML has the same values. CSV has a line of names, then a line for each row; of a thing with
parts it has only the parts, and a value that is no text or number is JSON.

Rows are printed as they come, however many there are: a table takes the widths of its columns from
the first ``WIDTH_ROWS``. When rows end with an error, so does the output
in their midst: JSON is then no document, and its reader finds out.

Invariants:
1. A message goes to stderr, unless JSON was asked for: then stdout has one JSON document. Held by
   ``test_what_was_done_is_a_note_unless_json_was_asked_for``.
2. When stderr is not a terminal, no progress is shown. Held by
   ``test_progress_is_silent_without_a_terminal``.
3. When rows come one by one, what is printed of them does not wait for their end. Held by
   ``test_rows_are_printed_while_others_are_still_to_come``.
4. When rows end with an error before the first one, nothing is printed. Held by
   ``test_an_error_before_the_first_row_leaves_the_output_empty``.
"""

from __future__ import annotations

import enum
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, TypeAlias

Row: TypeAlias = Mapping[str, Any]
WIDTH_ROWS = 500
"""Number of rows that decide how wide the columns of a table are, when rows come one by one."""


class OutputFormat(enum.StrEnum):
    """The format in which data are printed."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"


def print_rows(rows: Iterable[Row], columns: Sequence[str], output: OutputFormat) -> None:
    """Print rows that all have these columns, as they come; nothing if the first is an error."""
    later = iter(rows)
    first = list(islice(later, 1))
    picked = ({column: row[column] for column in columns} for row in chain(first, later))
    if output is OutputFormat.CSV:
        _print_csv(picked, columns)
    elif output is OutputFormat.TABLE:
        _print_table(picked, columns, len(rows) if isinstance(rows, Sequence) else WIDTH_ROWS)
    elif not first:
        print_document([], output)
    elif output is OutputFormat.YAML:
        for row in picked:
            print_document([row], output)
    else:
        _print_json_rows(picked)


def _print_table(rows: Iterator[Row], columns: Sequence[str], width_rows: int) -> None:
    """Print rows in columns that are as wide as the first ``width_rows`` rows need."""
    cells = ([_cell(row[column]) for column in columns] for row in rows)
    first = list(islice(cells, width_rows))
    headings = [column.replace("_", " ").upper() for column in columns]
    widths = [max(map(len, column)) for column in zip(headings, *first, strict=True)]
    for line in chain((headings,), first, cells):
        padded = [cell.ljust(width) for cell, width in zip(line, widths, strict=True)]
        print("  ".join(padded).rstrip())


def _print_json_rows(rows: Iterator[Row]) -> None:
    """Print rows, one at least, as ``print_json`` prints a list of them."""
    opening = "[\n"
    for row in rows:
        # Line ends within texts are escaped.
        print(opening, "  ", _json_text(row).replace("\n", "\n  "), sep="", end="")
        opening = ",\n"
    print("\n]")


def print_fields(fields: Row, output: OutputFormat) -> None:
    """Print one thing's properties."""
    if output is not OutputFormat.TABLE:
        print_document(fields, output)
        return
    width = max(map(len, fields))
    for name, value in fields.items():
        print(f"{name.replace('_', ' ').ljust(width)}  {_cell(value)}".rstrip())


def print_parts(fields: Row, parts: Mapping[str, Sequence[Row]], output: OutputFormat) -> None:
    """Print one thing's properties, then the rows of its parts; the rows of a part are alike."""
    if output is OutputFormat.CSV:
        for rows in parts.values():
            print_document(rows, output)
        return
    if output is not OutputFormat.TABLE:
        print_document({**fields, **parts}, output)
        return
    print_fields(fields, output)
    for rows in parts.values():
        if rows:
            print()
            print_rows(rows, list(rows[0]), output)


def print_document(document: Any, output: OutputFormat) -> None:
    """Print a document as JSON or YAML; as CSV if that is asked for, with a line for each row."""
    if output is OutputFormat.YAML:
        from pravega_admin.output.yaml_text import write_yaml

        print(write_yaml(document), end="")
    elif output is OutputFormat.CSV:
        rows = [document] if isinstance(document, Mapping) else document
        _print_csv(rows, list(dict.fromkeys(name for row in rows for name in row)))
    else:
        print_json(document)


def _print_csv(rows: Iterable[Row], columns: Sequence[str]) -> None:
    import csv

    writer = csv.writer(sys.stdout, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow([_csv_cell(row.get(column)) for column in columns])


def _csv_cell(value: Any) -> Any:
    if value is None or isinstance(value, str) or type(value) in (int, float):
        return value
    return json.dumps(value, ensure_ascii=False)


def print_json(document: Any) -> None:
    """Print one JSON document."""
    print(_json_text(document))


def _json_text(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False)


def print_message(text: str) -> None:
    """Print a message that is not data, on stderr."""
    print(text, file=sys.stderr, flush=True)


def report(sentence: str, fields: Row, output: OutputFormat) -> None:
    """Print the result of an action: as data if the user asked for it, else as a message."""
    if output is not OutputFormat.TABLE:
        print_document(fields, output)
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
    from rich.progress import DownloadColumn, MofNCompleteColumn, TransferSpeedColumn

    amount = [DownloadColumn(), TransferSpeedColumn()] if in_bytes else [MofNCompleteColumn()]
    with _open_bar(*amount) as bar:
        task = bar.add_task(label, total=total)
        yield lambda count: bar.advance(task, count)


@dataclass(frozen=True, slots=True)
class JobState:
    """The state of a job, as far as it is known."""

    label: str
    amount: str = ""
    done: float = 0.0
    total: float | None = None


@contextmanager
def job_progress(label: str) -> Iterator[Callable[[JobState], None]]:
    """Show one bar for all of a job on stderr, and yield a function that changes what it shows.

    The bar moves to and fro while it is not known how much there is to do. Nothing is shown unless
    stderr is a terminal.
    """
    if not sys.stderr.isatty():
        yield lambda state: None
        return
    from rich.progress import TextColumn

    with _open_bar(TextColumn("{task.fields[amount]}")) as bar:
        task = bar.add_task(label, total=None, amount="")

        def show(state: JobState) -> None:
            # The job's total may have become smaller or unknown.
            done = max(bar.tasks[0].completed, state.done) if state.total else 0.0
            bar.update(
                task,
                description=state.label,
                amount=state.amount,
                total=state.total,
                completed=min(done, state.total or 0.0),
            )

        yield show


def _open_bar(*amount: Any) -> Any:
    """Return a progress bar on stderr, with the columns ``amount`` after it."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = [TextColumn("{task.description}"), BarColumn(), *amount, TimeElapsedColumn()]
    console = Console(stderr=True)
    # Data keeps going to stdout: rich would send it along with the bar.
    return Progress(*columns, console=console, transient=True, redirect_stdout=False)


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
