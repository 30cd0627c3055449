"""Ours beside a peer: medians over rounds, ratios, a table, JSON rows and a Markdown report.

1. A number is the median of its rounds; a ratio is ours divided by the peer's, of these medians.
2. A ratio exists only when both ran without a failure in at least one round and the peer's
   number is not zero.
3. A limit is a peer whose number is given.
4. `reach` bounds the ratio: from above where lower is better, from below where higher is better.
"""

import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

Better = Literal["lower", "higher"]
LIMIT = "limit"


@dataclass(frozen=True, slots=True)
class Metric:
    """A measured quantity. `unit` may be empty."""

    name: str
    unit: str
    better: Better


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of one row on one server: its numbers, or why there are none."""

    numbers: Mapping[Metric, float | None]
    failure: str | None = None
    remarks: tuple[str, ...] = ()
    other_cpu_share: float | None = None


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """One line of the table."""

    row: str
    metric: Metric
    ours: float | None
    peer: float | None
    ours_rounds: tuple[float, ...]
    peer_rounds: tuple[float, ...]
    reach: float | None
    peer_name: str = ""
    """The name of the peer if there are several; ``LIMIT`` for a number that is a limit."""

    @property
    def name(self) -> str:
        """Return the row with its metric, unit and direction, and the peer where there are
        several."""
        unit = f"{self.metric.unit}, " if self.metric.unit else ""
        beside = f" / {self.peer_name}" if self.peer_name else ""
        return f"{self.row} {self.metric.name}{beside} ({unit}{self.metric.better} is better)"

    @property
    def ratio(self) -> float | None:
        """Return ours divided by the peer's."""
        if self.ours is None or not self.peer:
            return None
        return self.ours / self.peer

    @property
    def holds(self) -> bool | None:
        """Return whether the ratio keeps to its reach.

        None without a reach or anything to compare.
        """
        ratio = self.ratio
        if self.reach is None:
            return None
        if ratio is None:
            # A peer that failed proves nothing; that ours failed does.
            return False if self.ours is None else None
        return ratio <= self.reach if self.metric.better == "lower" else ratio >= self.reach


def compare(
    row: str,
    *,
    ours: Sequence[Outcome],
    peer: Sequence[Outcome],
    reaches: Mapping[str, float],
    peer_name: str = "",
) -> list[ComparedRow]:
    """Return one compared row for each metric, in the order in which the outcomes name them.

    A server without outcomes was left out, and then there is nothing to reach.
    """
    metrics = dict.fromkeys(metric for outcome in [*ours, *peer] for metric in outcome.numbers)
    compared = []
    for metric in metrics:
        ours_rounds, peer_rounds = _rounds(ours, metric), _rounds(peer, metric)
        compared.append(
            ComparedRow(
                row=row,
                metric=metric,
                ours=statistics.median(ours_rounds) if ours_rounds else None,
                peer=statistics.median(peer_rounds) if peer_rounds else None,
                ours_rounds=ours_rounds,
                peer_rounds=peer_rounds,
                reach=reaches.get(metric.name) if ours and peer else None,
                peer_name=peer_name,
            )
        )
    return compared


def limited(row: str, *, ours: Sequence[Outcome], limits: Mapping[str, float]) -> list[ComparedRow]:
    """Compare ours with numbers that it has to keep to: the limit stands in the peer's place."""
    return [
        replace(each, peer=limits[each.metric.name], reach=1.0, peer_name=LIMIT)
        for each in compare(row, ours=ours, peer=(), reaches={})
        if each.metric.name in limits
    ]


def _rounds(outcomes: Sequence[Outcome], metric: Metric) -> tuple[float, ...]:
    found = (o.numbers.get(metric) for o in outcomes if o.failure is None)
    return tuple(number for number in found if number is not None)


def write_json(rows: Sequence[ComparedRow], path: Path) -> None:
    """Write `[{name, ours, peer, ratio, reach, holds}, ...]`; absent numbers are null."""
    document = [
        {
            "name": row.name,
            "ours": row.ours,
            "peer": row.peer,
            "ratio": row.ratio,
            "reach": row.reach,
            "holds": row.holds,
        }
        for row in rows
    ]
    path.write_text(json.dumps(document, indent=1) + "\n")


def write_json_if_asked(rows: Sequence[ComparedRow]) -> None:
    """Write the rows to the path in the environment variable JSON, if there is one."""
    path = os.environ.get("JSON")
    if path:
        write_json(rows, Path(path))


TABLE_HEAD = ("row", "metric", "ours", "peer", "ratio", "reach", "holds", "rounds (ours / peer)")


def table_cells(row: ComparedRow) -> tuple[str, ...]:
    """Return one line of the table, as text."""
    unit = f" ({row.metric.unit})" if row.metric.unit else ""
    relation = "<=" if row.metric.better == "lower" else ">="
    holds = {True: "yes", False: "NO", None: ""}[row.holds]
    return (
        row.row,
        f"{row.metric.name}{unit}{f' / {row.peer_name}' if row.peer_name else ''}",
        number(row.ours),
        number(row.peer),
        number(row.ratio),
        f"{relation} {row.reach:g}" if row.reach is not None else "",
        holds,
        f"{_spread(row.ours_rounds)} / {_spread(row.peer_rounds)}",
    )


def number(value: float | None) -> str:
    """Format a number with three significant digits or as a whole number.

    A dash stands for nothing.
    """
    if value is None:
        return "-"
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def _spread(rounds: tuple[float, ...]) -> str:
    if not rounds:
        return "-"
    low, high = number(min(rounds)), number(max(rounds))
    return low if low == high else f"{low}..{high}"


def report_progress(row: str, what: str, seconds: float) -> None:
    """Print one line of progress for the user who waits."""
    print(f"{row}: {what} in {seconds:.0f} s", file=sys.stderr, flush=True)


def plain_table(rows: Sequence[ComparedRow]) -> str:
    """Format the rows in aligned columns."""
    lines = [TABLE_HEAD, *(table_cells(row) for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(TABLE_HEAD))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in (0, 1, 7) else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def markdown_table(rows: Sequence[ComparedRow]) -> str:
    """Format the rows as a Markdown table."""
    lines = [TABLE_HEAD, ("---",) * len(TABLE_HEAD), *(table_cells(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
