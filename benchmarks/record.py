"""The last measurement of each row of a benchmark, kept in a file of ``docs/performance``.

A whole table may take hours, so a run may measure a few of its rows. The report is made of the last
measurement of every row.

1. All servers of a row are from one run: ratios are never taken across runs.
2. A run replaces whatever was recorded of its rows, and leaves the other rows as they are.
3. Each row names the commit and the day of its run.
"""

from __future__ import annotations

import json
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from benchmarks.comparison import Metric, Outcome


@dataclass(frozen=True, slots=True)
class RecordedRow:
    """One row of one run: the outcomes of each server, one a round."""

    commit: str
    day: str
    outcomes: Mapping[str, Sequence[Outcome]]


def read_record(path: Path, names: Container[str]) -> dict[str, RecordedRow]:
    """Return the recorded rows that have one of these names; none where there is no file."""
    if not path.exists():
        return {}
    return {
        name: RecordedRow(
            row["commit"],
            row["day"],
            {
                server: [outcome_from(each) for each in outcomes]
                for server, outcomes in row["outcomes"].items()
            },
        )
        for name, row in json.loads(path.read_text()).items()
        if name in names
    }


def add_run(
    record: Mapping[str, RecordedRow],
    outcomes: Mapping[tuple[str, str], Sequence[Outcome]],
    *,
    commit: str,
    moment: datetime,
) -> dict[str, RecordedRow]:
    """Return the record with the rows of a run, by row and server, in place of earlier ones."""
    found = dict(record)
    for name in dict.fromkeys(row for row, _ in outcomes):
        by_server = {
            server: each for (row, server), each in outcomes.items() if row == name and each
        }
        found[name] = RecordedRow(commit, f"{moment:%Y-%m-%d}", by_server)
    return found


def write_record(path: Path, record: Mapping[str, RecordedRow]) -> None:
    """Write all rows, a line for each server of a row, so that differences can be read."""
    lines = []
    for name in sorted(record):
        row = record[name]
        head = f'"commit": {json.dumps(row.commit)}, "day": {json.dumps(row.day)}'
        each = ",\n".join(
            f"  {json.dumps(server)}: {json.dumps([outcome_to_document(one) for one in outcomes])}"
            for server, outcomes in row.outcomes.items()
        )
        lines.append(f' {json.dumps(name)}: {{{head}, "outcomes": {{\n{each}\n }}}}')
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def outcomes_of(
    record: Mapping[str, RecordedRow],
) -> dict[tuple[str, str], Sequence[Outcome]]:
    """Return all outcomes, by row and server."""
    return {
        (name, server): outcomes
        for name, row in record.items()
        for server, outcomes in row.outcomes.items()
    }


def outcome_to_document(outcome: Outcome) -> dict[str, Any]:
    """Return what JSON can hold of an outcome."""
    return {
        "numbers": [
            [metric.name, metric.unit, metric.better, value]
            for metric, value in outcome.numbers.items()
        ],
        "failure": outcome.failure,
        "remarks": list(outcome.remarks),
        "other_cpu_share": outcome.other_cpu_share,
    }


def outcome_from(document: Mapping[str, Any]) -> Outcome:
    """Return the outcome that ``outcome_to_document`` made this of."""
    return Outcome(
        {Metric(name, unit, better): value for name, unit, better, value in document["numbers"]},
        document["failure"],
        tuple(document["remarks"]),
        document["other_cpu_share"],
    )
