"""How fast is the streaming cache beside the original's, and beside what one would use otherwise?

Run from the repository's root:
`python -m benchmarks.bench_cache [--rows s10,r10] [--rounds 3] [--large] [--report]`.

1. Every run is a process of its own: it warms up on a scratch cache (30,000 operations of each
   kind, which is when Java has compiled its code), then makes a cache and does all of the row's
   work several times. `fresh` is the first time, when the cache gets its memory; the others reuse
   it. A number is the best of these, as in the article that describes the cache, and of these the
   median of the rounds. In a round the caches take turns; who goes first alternates.
2. Both sides do the same operations, drawn before, with the same lengths, by the same generator.
   A sum over what was done and what was read has to agree, or the run has failed.
3. What is read is copied into a buffer that exists, on both sides.
4. The clock is the wall's; `CPU` is that of the thread that works. On a busy machine look at that.
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
from benchmarks.peers.cache.runs import ORIGINAL, Run, RunFailedError, is_missing, run
from benchmarks.peers.cache.workload import Workload

REPORTS = Path(__file__).parent.parent / "docs" / "performance"
MIB = 1024**2
ENTRY_OVERHEAD = 8192
"""Of an entry's blocks and their metadata, more than its length, at most."""

NAMES = {
    "dictionary": "Python dictionary of bytes",
    "rocksdb": "RocksDB (rocksdict)",
    ORIGINAL: "original streaming cache",
    "ours": "our streaming cache",
}


@dataclass(frozen=True, slots=True)
class Row:
    """A workload, with the ratios to the original that ours has to reach, by part of the work."""

    name: str
    workload: Workload
    reaches: dict[str, float] = field(default_factory=dict)

    @property
    def work(self) -> str:
        """Describe the work in words."""
        workload = self.workload
        size = f"{'below ' if workload.vary else ''}{workload.size / 1024:g} KiB"
        if not workload.random:
            return f"{workload.count:,} entries of {size}"
        limit = "" if workload.live_max > workload.count else f", <= {workload.live_max:,} entries"
        return f"{workload.count:,} random operations, {size}{limit}"

    @property
    def parts(self) -> tuple[str, ...]:
        """Return the parts that are measured one by one."""
        return ("random",) if self.workload.random else ("insert", "get", "delete")


def sequential(size: int, count: int) -> Workload:
    """Make a sequential workload with room for all entries and a little more."""
    capacity = count * (size + ENTRY_OVERHEAD) + 4 * MIB
    return Workload(size=size, count=count, capacity=capacity)


def random(size: int, count: int, *, vary: bool = False) -> Workload:
    """Make a random workload with room for a third of the entries.

    A fifth is in the cache at the end.
    """
    capacity = count // 3 * (size + ENTRY_OVERHEAD) + 4 * MIB
    return Workload(size=size, count=count, capacity=capacity, random=True, vary=vary)


SEQUENTIAL_REACHES = {"insert": 0.6, "get": 1.0, "delete": 0.8}
RANDOM_REACHES = {"random": 0.7}
ROWS = (
    Row("s10", sequential(10_240, 100_000), SEQUENTIAL_REACHES),
    Row("s100", sequential(102_400, 10_000), SEQUENTIAL_REACHES),
    Row("r10", random(10_240, 200_000), RANDOM_REACHES),
    Row("r100", random(102_400, 20_000), RANDOM_REACHES),
    Row("v10", random(10_240, 200_000, vary=True)),
)
LARGE_ROWS = (
    *(
        Row(f"s10-{gib}g", replace(sequential(10_240, gib * 85_000), passes=3))
        for gib in (1, 2, 4, 8)
    ),
    Row(
        "r10-10m",
        replace(random(10_240, 240_000), count=10_000_000, live_max=80_000, passes=1),
    ),
)
ROW_NAMES = tuple(row.name for row in (*ROWS, *LARGE_ROWS))
OTHERS_ROWS = ("s10", "r10", "r100")
"""The rows of the article's table."""


@dataclass(frozen=True, slots=True)
class Plan:
    """The amount of work of a run."""

    rows: tuple[Row, ...] = ROWS
    rounds: int = 3
    others: tuple[str, ...] = ("dictionary", "rocksdb")


SMALL = Plan(
    rows=tuple(
        replace(row, workload=replace(workload, warmup_count=20, warmup_passes=2, passes=2))
        for row, workload in [
            (ROWS[0], sequential(10_240, 200)),
            (ROWS[2], random(10_240, 300)),
            (ROWS[4], random(10_240, 300, vary=True)),
        ]
    ),
    rounds=1,
    others=("dictionary",),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """The measurements of a run, and the parts that were left out or failed."""

    rows: tuple[ComparedRow, ...]
    best: dict[tuple[str, str, str], float]
    """Of a store, row and part the best time of all rounds, in nanoseconds for one operation."""

    remarks: tuple[str, ...]
    failed: bool


def measure(plan: Plan, *, original: bool = True) -> Comparison:
    """Run all rounds of ours and, unless it is left out, of the original; run the others once."""
    found: dict[tuple[str, str], list[Outcome]] = {}
    best: dict[tuple[str, str, str], float] = {}
    remarks = [
        f"{NAMES[name]}: left out: {is_missing(name)}" for name in plan.others if is_missing(name)
    ]
    failed = False
    for index in range(plan.rounds):
        for row in plan.rows:
            turns = ["ours", ORIGINAL] if original else ["ours"]
            if index % 2:
                turns.reverse()
            if index == 0 and row.name in OTHERS_ROWS:
                turns += [name for name in plan.others if not is_missing(name)]
            digests = set()
            for store in turns:
                print(f"round {index + 1}/{plan.rounds} {row.name} {store}", file=sys.stderr)
                outcome = Outcome({}, failure=None)
                try:
                    done = run(store, row.workload)
                except RunFailedError as error:
                    outcome = Outcome({}, failure=str(error))
                    remarks.append(f"{row.name}, {NAMES[store]}, round {index + 1}: {error}")
                    failed = True
                else:
                    digests.add(done.digest)
                    outcome = Outcome(numbers(done, row))
                    for part in row.parts:
                        key = (store, row.name, part)
                        best[key] = min(done.reused(part), best.get(key, done.reused(part)))
                found.setdefault((store, row.name), []).append(outcome)
            if len(digests) > 1:
                remarks.append(f"{row.name}, round {index + 1}: the caches did different work")
                failed = True
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
    return Comparison(tuple(rows), best, tuple(remarks), failed)


def numbers(done: Run, row: Row) -> dict[Metric, float | None]:
    """Return nanoseconds for one operation.

    The reaches are for reused memory on the wall's clock.
    """
    return {
        Metric(f"{part}{what}", "ns", "lower"): value
        for part in row.parts
        for what, value in (
            ("", done.reused(part)),
            (" CPU", done.reused(part, "cpu_ns")),
            (" fresh", done.fresh(part)),
        )
    }


def article_table(comparison: Comparison, plan: Plan) -> list[tuple[str, ...]]:
    """Return milliseconds for all of the work, best of all passes, in the form of the article's
    table."""
    columns = [(row, part) for row in plan.rows if row.name in OTHERS_ROWS for part in row.parts]
    lines = [("cache", *(f"{row.name} {part} ms" for row, part in columns))]
    for store in (*plan.others, ORIGINAL, "ours"):
        times = [comparison.best.get((store, row.name, part)) for row, part in columns]
        if any(time is not None for time in times):
            cells = (
                "-" if time is None else f"{time * row.workload.count / 1e6:,.1f}"
                for time, (row, _) in zip(times, columns, strict=True)
            )
            lines.append((NAMES[store], *cells))
    return lines


def aligned(lines: Sequence[tuple[str, ...]]) -> str:
    """Align the first column to the left and the others to the right."""
    widths = [max(len(cell) for cell in column) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if number else cell.ljust(width)
            for number, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def as_markdown(lines: Sequence[tuple[str, ...]]) -> str:
    """Format a table as Markdown; the first line is the head."""
    return "\n".join(
        f"| {' | '.join(line)} |" for line in [lines[0], ("---",) * len(lines[0]), *lines[1:]]
    )


def report(
    comparison: Comparison, plan: Plan, *, machine: Machine, command: str, moment: datetime
) -> str:
    """Return the Markdown report of one run."""
    remarks = "\n".join(f"- {remark}" for remark in comparison.remarks) or "- none"
    return f"""# Streaming cache, {moment:%d %B %Y}

{markdown_table(comparison.rows)}

Each number is in nanoseconds for one operation: the best of several passes over the same work, and
of these the median of {plan.rounds} rounds. Every run is in a new process, warmed up.
`fresh` is the first pass, in which the cache gets its memory. Random: 60 % insertions, 40 %
deletions, one read after each.

The next table has milliseconds for all of the work, the best of all passes and rounds, in the form
of the article that describes the cache:

{as_markdown(article_table(comparison, plan))}

Original: 0.13.0 from Maven Central, class `DirectMemoryCache`, default JVM options.

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
    print()
    print(aligned(article_table(comparison, plan)))
    for remark in comparison.remarks:
        print(remark)
    write_json_if_asked(comparison.rows)
    if options.report:
        command = " ".join(["python -m benchmarks.bench_cache", *arguments])
        machine = this_machine(REPORTS)
        path = REPORTS / f"cache-{moment:%Y-%m-%d-%H%M}.md"
        path.write_text(report(comparison, plan, machine=machine, command=command, moment=moment))
        print(f"report: {path}")
    return int(comparison.failed)


def _plan(options: argparse.Namespace) -> Plan:
    rows = ROWS + LARGE_ROWS if options.large or options.rows else ROWS
    if options.rows:
        rows = tuple(row for row in rows if row.name in options.rows)
    others = () if options.only_ours or options.no_others else Plan().others
    return Plan(rows=rows, rounds=options.rounds, others=others)


def _row_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in ROW_NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown rows {unknown}; there are {ROW_NAMES}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_cache")
    works = "; ".join(f"{row.name}: {row.work}" for row in (*ROWS, *LARGE_ROWS))
    parser.add_argument("--rows", type=_row_names, help=works)
    parser.add_argument("--rounds", type=int, default=Plan().rounds)
    parser.add_argument("--large", action="store_true", help="also the rows that need 10 GiB")
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    parser.add_argument("--only-ours", action="store_true", help="leave all others out")
    parser.add_argument("--no-others", action="store_true", help="only ours and the original")
    parser.add_argument("--report", action="store_true", help=f"write a report under {REPORTS}")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
