"""The report of a run: a page with the targets, those that were missed and why, and all figures."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime

from benchmarks.cluster.rows import BY_NAME
from benchmarks.cluster.servers import make_cluster
from benchmarks.cluster.sizes import Size
from benchmarks.comparison import markdown_table
from benchmarks.machine import Machine, measured_on
from benchmarks.measured import Measured
from benchmarks.record import RecordedRow, outcomes_of
from benchmarks.streams.report import missing, targets

TABLE = "cluster.md"
RECORD = "cluster.json"


def combine(record: Mapping[str, RecordedRow], measured: Measured[Size]) -> Measured[Size]:
    """Return all that is recorded, as if one run had measured it."""
    rows = {name: row for name, row in BY_NAME.items() if name in record}
    return replace(measured, rows=rows, outcomes=outcomes_of(record))


def markdown(
    record: Mapping[str, RecordedRow],
    last_run: Measured[Size],
    *,
    machine: Machine,
    command: str,
    moment: datetime,
    reasons: str,
) -> str:
    """Return the report of all recorded rows. ``reasons`` is the text of ``misses.md``."""
    measured = combine(record, last_run)
    size, compared = measured.size, measured.compared()
    work = "\n".join(
        f"| {name} | {row.work} | {record[name].day} | {record[name].commit} |"
        for name, row in measured.rows.items()
    )
    set_ups = dict.fromkeys(BY_NAME[name].set_up for name in measured.rows)
    servers = "\n".join(
        f"- {each.name}: {make_cluster(key, each).description}"
        for each in set_ups
        for key in measured.servers
    )
    remarks = "\n".join(f"- {remark}" for remark in measured.remarks()) or "- none"
    missed = "\n".join(missing(compared, reasons, table="cluster")) or "Nothing."
    return f"""# Clusters, {moment:%d %B %Y}

## Targets

{markdown_table(targets(compared))}

The ratio is ours divided by the original's or by the limit, both the median of {size.rounds}
interleaved rounds. All servers of a row were measured in one run; rows may be of different runs.
All processes of a cluster, and its clients, share this machine.

| row | work | measured | commit |
| --- | --- | --- | --- |
{work}

- Loads warm up for {size.warmup_seconds:g} s at least, and are measured for {size.seconds:g} s.
- The client whose gaps are measured is the official one for Java: {size.watched_writers} writers,
  {size.watched_rate:g} events/s, {size.warmup_seconds:g} s of writing before. A gap is the time
  for which an event was overdue when it was acknowledged. The part of a gap after all
  containers are served is the client's: it keeps a segment's address, and asks again after 31 or
  51 s unless the store at the old address tells it sooner.
- A container is served when the store that the map in ZooKeeper names answers for a segment in it.
- The store that opens a log of {size.unflushed_mb / 1000:g} GB has opened one of
  {size.warm_log_mb:g} MB of the same container {size.warm_openings} times before. The time begins
  when the map in ZooKeeper is written.

## Missed targets

{missed}

## Other figures

{markdown_table([row for row in compared if row.reach is None])}

Servers:

{servers}

Remarks:

{remarks}

The last run: rows {", ".join(last_run.rows)}, in {last_run.elapsed_seconds / 60:.0f} minutes.
{measured_on(machine, moment, command)}
"""
