"""The report of a run: Markdown, plots, and the ratios that later runs are compared with.

1. A report shows the last measurement of every row, with its commit and its day. It names the
   machine, the command of the last run, and what disturbed.
2. Landed ratios are those of runs of record; a quick run is compared with a quick one if there is
   one.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from statistics import median

from benchmarks.comparison import (
    LIMIT,
    ComparedRow,
    Metric,
    markdown_table,
    number,
    table_cells,
)
from benchmarks.load import Load
from benchmarks.machine import Machine
from benchmarks.plots import Curve, Plot, svg
from benchmarks.record import RecordedRow, outcomes_of
from benchmarks.streams import rows
from benchmarks.streams.rows import BY_NAME, OURS, PEERS, Plan
from benchmarks.streams.run import Measured
from benchmarks.streams.servers import servers

PERFORMANCE = Path(__file__).parent.parent.parent / "docs" / "performance"
WHOLE, QUICK = "whole", "quick"
LANDED = PERFORMANCE / "landed.json"
TABLE = "streams.md"
RECORD = "streams.json"
REASONS = "misses.md"
COLD = (
    "Every peer is cold, as a server in Java is in its first minute, so these ratios are too good"
    " for ours: compare them only with landed ratios of a quick run."
)
NAME_LENGTH_MAX, LINE_LENGTH = 60, 72


def targets(compared: Sequence[ComparedRow]) -> list[ComparedRow]:
    """Return the compared rows that have a ratio to reach."""
    return [row for row in compared if row.reach is not None]


def combine(record: Mapping[str, RecordedRow], measured: Measured) -> Measured:
    """Return all that is recorded, as if one run had measured it with this run's plan."""
    keys = {server for row in record.values() for server in row.outcomes}
    peers = tuple(peer for peer in PEERS if peer in keys)
    names = tuple(name for name in BY_NAME if name in record)
    return replace(
        measured,
        plan=replace(measured.plan, rows=names, peers=peers),
        servers=servers([key for key in (OURS, *peers) if key in keys]),
        outcomes=outcomes_of(record),
    )


def figures(measured: Measured) -> str:
    """Return all numbers, a column for each server, as a Markdown table."""
    keys = [key for key in (OURS, *rows.PEERS) if key in measured.servers]
    head = ["row", "metric", *(measured.servers[key].name for key in keys)]
    lines = [head, ["---"] * len(head)]
    for name in measured.plan.rows:
        by_server = {key: medians(measured, name, key) for key in keys}
        metrics = dict.fromkeys(metric for found in by_server.values() for metric in found)
        for metric in metrics:
            unit = f" ({metric.unit})" if metric.unit else ""
            numbers = [number(by_server[key].get(metric)) for key in keys]
            lines.append([name, f"{metric.name}{unit}", *numbers])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def medians(measured: Measured, row: str, server: str) -> dict[Metric, float]:
    """Return each number of one server on one row, as the median of its rounds."""
    rounds: dict[Metric, list[float]] = {}
    for outcome in measured.of(row, server):
        for metric, value in outcome.numbers.items() if outcome.failure is None else ():
            if value is not None:
                rounds.setdefault(metric, []).append(value)
    return {metric: median(values) for metric, values in rounds.items()}


def markdown(
    record: Mapping[str, RecordedRow],
    last_run: Measured,
    *,
    machine: Machine,
    command: str,
    moment: datetime,
    plots: Sequence[str],
    reasons: str,
) -> str:
    """Return the report of all recorded rows. ``reasons`` is the text of ``misses.md``."""
    measured = combine(record, last_run)
    plan = measured.plan
    limit = "" if plan.rate_max is None else f", at most {plan.rate_max:g} events/s"
    work = "\n".join(
        f"| {name} | {BY_NAME[name].work}{limit} | {record[name].day} | {record[name].commit} |"
        for name in plan.rows
    )
    servers = "\n".join(f"- **{s.name}**: {s.description}" for s in measured.servers.values())
    remarks = "\n".join(f"- {remark}" for remark in measured.remarks()) or "- none"
    pictures = "\n".join(f"![{name.removesuffix('.svg')}]({name})" for name in plots)
    compared = measured.compared()
    warm = f"a warm-up of {plan.warmup_seconds:g} s"
    if plan.warmup_seconds_max is not None:
        warm += (
            " at least, then until the median latencies of\nthree windows of 5 s differ by less"
            f" than 5 %, {plan.warmup_seconds_max:g} s at most"
        )
    missed = "\n".join(missing(compared, reasons)) or "Nothing."
    return f"""# Streams, {moment:%d %B %Y}

## Targets

{markdown_table(targets(compared))}

The ratio is ours divided by the peer's (or by the limit), both the median of the row's interleaved
rounds. All servers of a row were measured in one run; rows may be of different runs. Each run has a
fresh server, {warm},
{plan.seconds:g} s measured, one producer, one consumer, no keys, and a read time-out of 10 ms
unless the row names another. Latency counts from the actual send. A row of draining first writes
its backlog, waits until the server has nothing to do, and drains a fourth as much before it counts.

| row | work | measured | commit |
| --- | --- | --- | --- |
{work}

## Missed targets

{missed}

## Figures

{figures(measured)}

{pictures}

Servers:

{servers}

Remarks:

{remarks}

Machine: {machine.cpu_count} x {machine.cpu_model}, {machine.memory_gib:.0f} GiB,
Linux {machine.kernel}, {machine.file_system}, {machine.java}, Python {machine.python};
client and server on the same machine, client heap {plan.client_heap}.

The last run: rows {", ".join(last_run.plan.rows)}, {moment:%Y-%m-%d %H:%M} UTC, in
{measured.elapsed_seconds / 60:.0f} minutes, by

```
{command}
```
"""


def missing(compared: Sequence[ComparedRow], reasons: str, *, table: str = "") -> list[str]:
    """Return a line for each row that misses, with a link to its reason.

    The headings of the reasons begin with the rows that they are about: ``L1, L2: ...``. Where
    another table has rows of the same names, ``table`` stands before each: ``cluster L1: ...``.
    """
    anchors = {}
    for line in reasons.splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
            anchor = "".join(c for c in heading.lower() if c.isalnum() or c in " -_")
            for name in heading.partition(":")[0].split(","):
                anchors[name.strip()] = anchor.replace(" ", "-")
    lines = []
    for row in compared:
        if row.holds is False:
            cells = table_cells(row)
            place = anchors.get(f"{table} {row.row.split()[0]}".strip())
            why = f"[why]({REASONS}#{place})" if place else "not explained yet"
            lines.append(f"- {row.row}, {cells[1]}: {cells[4]}, to reach {cells[5]}: {why}")
    return lines


@dataclass(frozen=True, slots=True)
class Landed:
    """Ratios of a run of record, by the names of their rows."""

    kind: str
    commit: str
    date: str
    ratios: Mapping[str, float]


def kind_of(plan: Plan) -> str:
    """Return the kind of runs that this one may be compared with."""
    return WHOLE if plan.fresh else QUICK


def read_landed(path: Path, kind: str) -> Landed | None:
    """Read the last landed ratios of this kind, else those of whole runs, else return None."""
    if not path.exists():
        return None
    document = json.loads(path.read_text())
    chosen = kind if kind in document else WHOLE
    return Landed(kind=chosen, **document[chosen]) if chosen in document else None


def write_landed(path: Path, measured: Measured, *, commit: str, moment: datetime) -> None:
    """Write the ratios of a run as landed; those of rows that it did not run stay as they were."""
    document = json.loads(path.read_text()) if path.exists() else {}
    kind = kind_of(measured.plan)
    before = document.get(kind, {}).get("ratios", {})
    today = {row.name: round(row.ratio, 4) for row in measured.compared() if row.ratio is not None}
    document[kind] = {
        "commit": commit,
        "date": f"{moment:%Y-%m-%d}",
        "ratios": {**before, **today},
    }
    path.write_text(json.dumps(document, indent=1, sort_keys=True) + "\n")


def quick_lines(measured: Measured, landed: Landed | None) -> list[str]:
    """Return a line for each row: today's ratio beside the landed one."""
    lines = [f"{'row':{LINE_LENGTH}} {'ours':>9} {'peer':>9} {'landed':>8} {'today':>8}"]
    for row in measured.compared():
        about = BY_NAME.get(row.row)
        if about is None:
            continue  # a limit that was measured in another row
        limited = row.peer_name == LIMIT
        if row.metric.name != about.main_metric or limited is not (about.load is None):
            continue
        before = landed.ratios.get(row.name) if landed else None
        name = f"{row.row} {row.metric.name}: {about.work}"[:NAME_LENGTH_MAX]
        failed = not row.ours_rounds or not (limited or row.peer_rounds)
        today = "FAILED" if failed else number(row.ratio)
        lines.append(
            f"{f'{name} / {row.peer_name}':{LINE_LENGTH}} {number(row.ours):>9}"
            f" {number(row.peer):>9} {number(before):>8} {today:>8}"
        )
    if landed:
        lines.append(f"landed: {landed.date}, commit {landed.commit}, a {landed.kind} run")
    return lines


def plots_of(measured: Measured) -> dict[str, str]:
    """Draw the plots that this run has points for; return them as SVG by file name."""
    found = {}
    for segments in (1, 16):
        plot = latency_over_rate(measured, segments=segments)
        if plot.curves:
            found[f"latency-{segments}-segments.svg"] = svg(plot)
    for size, words in ((rows.SMALL_EVENT, "100-bytes"), (rows.LARGE_EVENT, "10-kilobytes")):
        plot = throughput_over_segments(measured, event_size=size)
        if plot.curves:
            found[f"throughput-{words}.svg"] = svg(plot)
    return found


def latency_over_rate(measured: Measured, *, segments: int) -> Plot:
    """Publish p95 over the events published a second, 100 B, from the paced to the unthrottled."""
    points = _points(
        measured,
        lambda load: load.segments == segments and load.event_size == rows.SMALL_EVENT,
        lambda load, numbers: (
            _value(numbers, rows.PUBLISHED) or 0,
            _value(numbers, rows.PUBLISH_P95),
        ),
    )
    words = "1 segment" if segments == 1 else f"{segments} segments"
    return Plot(
        title=f"Publish latency, 100 B, {words}",
        x_label="events/s",
        y_label="publish p95, ms",
        curves=points,
    )


def throughput_over_segments(measured: Measured, *, event_size: int) -> Plot:
    """Plot the MB published a second over the number of segments, unthrottled."""
    points = _points(
        measured,
        lambda load: not load.rate and load.event_size == event_size,
        lambda load, numbers: (load.segments, _value(numbers, "published bytes")),
    )
    return Plot(
        title=f"Throughput, events of {event_size:,} B",
        x_label="segments",
        y_label="MB/s published",
        curves=points,
    )


def _points(
    measured: Measured,
    belongs: Callable[[Load], bool],
    point: Callable[[Load, Mapping[Metric, float]], tuple[float, float | None]],
) -> tuple[Curve, ...]:
    """Return a curve for each server that has points."""
    curves = []
    for key, server in measured.servers.items():
        found = []
        for name in measured.plan.rows:
            load = BY_NAME[name].load
            if (
                load is None
                or BY_NAME[name].settings
                or load != Load(rate=load.rate, event_size=load.event_size, segments=load.segments)
            ):
                continue  # it differs in more than what the curves are over
            x, y = point(load, medians(measured, name, key)) if belongs(load) else (0, None)
            if y is not None and x > 0:
                found.append((x, y))
        if found:
            curves.append(Curve(server.name, tuple(sorted(found))))
    return tuple(curves)


def _value(numbers: Mapping[Metric, float], name: str) -> float | None:
    return next((value for metric, value in numbers.items() if metric.name == name), None)
