"""How fast is the B+Tree of attributes beside the original's, and how much storage does it keep?

Run from the repository's root:
`python -m benchmarks.bench_btree [--rows s10,r10] [--rounds 3] [--large] [--report]`.

1. Every run is a process of its own, warmed up with the same workload at a small size. In a round
   the trees take turns; who goes first alternates. A number is the median of the rounds.
2. Pages are kept in memory on both sides, from where the tree lets them be truncated on; every page
   that is needed is cached. What is timed is the calls of the tree alone.
3. The workloads are those of the article that describes the tree: keys of 16 bytes, values of 8;
   inserted in sorted order, or all updated in random order after a bulk load.
4. `retained` is what storage holds in the end: from the truncation offset to the end.
5. The rows of `--large` have no peer: they show how the tree grows. Its pages are in a file then,
   and each lookup begins with no page in memory.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from foreign_servers.maven import MavenFailedError

from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    compare,
    markdown_table,
    plain_table,
    write_json_if_asked,
)
from benchmarks.machine import Machine, measured_on, this_machine
from benchmarks.peers.btree.runs import ORIGINAL, RunFailedError, Workload, run

REPORTS = Path(__file__).parent.parent / "docs" / "performance"
KEYS = 1_000_000


@dataclass(frozen=True, slots=True)
class Row:
    """A workload, with the ratios to the original that ours has to reach, by metric."""

    name: str
    workload: Workload
    reaches: dict[str, float] = field(default_factory=dict)

    @property
    def work(self) -> str:
        """Describe the work in words."""
        keys = f"{self.workload.keys:,} keys"
        batches = f"batches of {self.workload.batch_size:,}"
        return {
            "sorted": f"{keys} inserted in order, {batches}",
            "random": f"{keys} updated in random order, {batches}",
            "get": f"lookups among {keys}",
            "grow": f"{keys} inserted in order into a file",
        }[self.workload.kind]


UPDATE_REACHES = {"time": 0.33, "retained": 1.0}
ROWS = (
    *(
        Row(f"{kind[0]}{size}", Workload(kind, KEYS, size), UPDATE_REACHES)
        for kind in ("sorted", "random")
        for size in (10, 100, 1000)
    ),
    Row("get", Workload("get", KEYS, 200_000), {"time": 1.0}),
)
LARGE_ROWS = (
    Row("g10m", Workload("grow", 10_000_000)),
    Row("g100m", Workload("grow", 100_000_000)),
)
ROW_NAMES = tuple(row.name for row in (*ROWS, *LARGE_ROWS))


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work of a run."""

    rows: tuple[Row, ...] = ROWS
    rounds: int = 3


SMALL = Plan(
    rows=(
        *(replace(row, workload=replace(row.workload, keys=3000)) for row in ROWS[:6:2]),
        Row("get", Workload("get", 3000, 1000), {"time": 1.0}),
        Row("g20k", Workload("grow", 20_000)),
    ),
    rounds=1,
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The measurements of a run, and whether a part of it failed."""

    rows: tuple[ComparedRow, ...]
    remarks: tuple[str, ...]

    @property
    def failed(self) -> bool:
        """Return whether a run failed."""
        return bool(self.remarks)


def numbers(row: Row, found: dict[str, float]) -> dict[Metric, float | None]:
    """Return the metrics of a run."""
    workload = row.workload
    if workload.kind == "grow":
        return {
            Metric("time of an insertion", "us", "lower"): found["seconds"] / workload.keys * 1e6,
            Metric("reads of a cold lookup", "", "lower"): found["reads_per_lookup"],
            Metric("bytes of a key", "", "lower"): found["bytes_per_key"],
            Metric("live bytes of a key", "", "lower"): found["live_bytes_per_key"],
            Metric("levels", "", "lower"): found["levels"],
        }
    if workload.kind == "get":
        each = 1e6 / workload.batch_size
        return {
            Metric("time", "us", "lower"): found["seconds"] * each,
            Metric("CPU", "us", "lower"): found["cpu_seconds"] * each,
        }
    return {
        Metric("time", "s", "lower"): found["seconds"],
        Metric("CPU", "s", "lower"): found["cpu_seconds"],
        Metric("retained", "MB", "lower"): found["retained_bytes"] / 1e6,
        Metric("written", "MB", "lower"): found["written_bytes"] / 1e6,
    }


def measure(plan: Plan, *, original: bool = True) -> Comparison:
    """Run all rounds of our tree and, unless it is left out, of the original."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    remarks = []
    for index in range(plan.rounds):
        for row in plan.rows:
            turns = ["ours"]
            if original and row.workload.kind != "grow":
                turns.append(ORIGINAL)
            if index % 2:
                turns.reverse()
            for tree in turns:
                print(f"round {index + 1}/{plan.rounds} {row.name} {tree}", file=sys.stderr)
                try:
                    outcome = Outcome(numbers(row, run(tree, row.workload)))
                except RunFailedError as error:
                    outcome = Outcome({}, failure=str(error))
                    remarks.append(f"{row.name}, round {index + 1}: {error}")
                found.setdefault((tree, row.name), []).append(outcome)
    rows = [
        compared
        for row in plan.rows
        for compared in compare(
            f"{row.name}: {row.work}",
            ours=found[("ours", row.name)],
            peer=found.get((ORIGINAL, row.name), []),
            reaches=row.reaches,
        )
    ]
    return Comparison(tuple(rows), tuple(remarks))


def report(
    comparison: Comparison, plan: Plan, *, machine: Machine, command: str, moment: datetime
) -> str:
    """Return the Markdown report of one run."""
    remarks = "\n".join(f"- {remark}" for remark in comparison.remarks) or "- none"
    return f"""# B+Tree of attributes, {moment:%d %B %Y}

{markdown_table(comparison.rows)}

Each number is the median of {plan.rounds} rounds; every run is in a new process, warmed up.
Pages are in memory on both sides; keys have 16 bytes, values 8. Time is by the wall clock, CPU is
that of the working thread; retained bytes are those from the truncation offset to the end.

Original: 0.13.0 from Maven Central, class `BTreeIndex`, pages of 32,767 bytes, default JVM options.

Remarks:

{remarks}

{measured_on(machine, moment, command)}"""


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; 1 when a run failed."""
    options = _parser().parse_args(arguments)
    plan = SMALL if options.small else _plan(options)
    moment = datetime.now(UTC)
    try:
        comparison = measure(plan, original=not options.only_ours)
    except MavenFailedError as error:
        print(error, file=sys.stderr)
        return 1
    print(plain_table(comparison.rows))
    for remark in comparison.remarks:
        print(remark)
    write_json_if_asked(comparison.rows)
    if options.report:
        command = " ".join(["python -m benchmarks.bench_btree", *arguments])
        machine = this_machine(REPORTS)
        path = REPORTS / f"btree-{moment:%Y-%m-%d-%H%M}.md"
        path.write_text(report(comparison, plan, machine=machine, command=command, moment=moment))
        print(f"report: {path}")
    return int(comparison.failed)


def _plan(options: argparse.Namespace) -> Plan:
    rows = ROWS + LARGE_ROWS if options.large or options.rows else ROWS
    if options.rows:
        rows = tuple(row for row in rows if row.name in options.rows)
    return Plan(rows=rows, rounds=options.rounds)


def _row_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in ROW_NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown rows {unknown}; there are {ROW_NAMES}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_btree")
    works = "; ".join(f"{row.name}: {row.work}" for row in (*ROWS, *LARGE_ROWS))
    parser.add_argument("--rows", type=_row_names, help=works)
    parser.add_argument("--rounds", type=int, default=Plan().rounds)
    parser.add_argument("--large", action="store_true", help="also the rows that take minutes")
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    parser.add_argument("--only-ours", action="store_true", help="leave the original out")
    parser.add_argument("--report", action="store_true", help=f"write a report under {REPORTS}")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
