"""The report of a run: a page with the targets, those that were missed and why, and all figures."""

from datetime import datetime
from pathlib import Path

from benchmarks.comparison import markdown_table
from benchmarks.controller.sizes import Size
from benchmarks.machine import Machine, measured_on
from benchmarks.measured import Measured
from benchmarks.streams.report import missing, targets

PERFORMANCE = Path(__file__).parent.parent.parent / "docs" / "performance"
TABLE = "controller.md"


def markdown(
    measured: Measured[Size], *, machine: Machine, command: str, moment: datetime, reasons: str
) -> str:
    """Return the report of one run. ``reasons`` is the text of ``misses.md``."""
    size, compared = measured.size, measured.compared()
    work = "\n".join(f"| {name} | {row.work} |" for name, row in measured.rows.items())
    servers = "\n".join(f"- **{s.name}**: {s.description}" for s in measured.servers.values())
    remarks = "\n".join(f"- {remark}" for remark in measured.remarks()) or "- none"
    missed = "\n".join(missing(compared, reasons)) or "Nothing."
    figures = [row for row in compared if row.reach is None]
    return f"""# The controller, {moment:%d %B %Y}

## Targets

{markdown_table(targets(compared))}

The ratio is ours divided by the peer's or by the limit, both the median of {size.rounds}
interleaved rounds; rows with their own stores run once. Every server is warmed up for
{size.warm_seconds:g} s before its rows, with the transactions of {size.writers} writers. The client
is the official one for Java, in one process for all rows of a server.

| row | work |
| --- | --- |
{work}

## Missed targets

{missed}

## Other figures

{markdown_table(figures)}

Servers:

{servers}

Remarks:

{remarks}

{measured_on(machine, moment, command)}
It took {measured.elapsed_seconds / 60:.0f} minutes.
"""
