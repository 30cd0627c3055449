"""What does the evaluation of the paper about Pravega show with this store in Pravega's place?

Run from the repository's root: `python -m benchmarks.bench_paper [--figure 8] [--again]`, or
`make bench-paper`: figures 5 to 13 in three hours at most.

1. One server runs at a time, freshly started for each work, and rehearsed: nothing is measured
   cold. Series take turns, and who begins alternates with the rounds.
2. Figures that show the same loads share one measurement of them (`paper/figures.py`).
3. A run that lost an event, or on which a client saw an error, has no numbers.
4. What is measured is recorded at once, work by work, and the page is written anew. A work that is
   recorded with all series is not run again; one that was interrupted goes on after its rounds.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.finished_parts import FinishedParts, keep_parts
from benchmarks.machine import measured_on, synced_bytes_per_second, this_machine
from benchmarks.paper import report
from benchmarks.paper.figures import BY_NUMBER, FIGURES, POINTS, Figure
from benchmarks.paper.run import Done, is_recorded, run, works_of
from benchmarks.paper.series import Series
from benchmarks.paper.sizes import SMALL, USUAL, Size
from benchmarks.paper.works import Work
from benchmarks.record import RecordedRow, add_run, read_record, write_record
from benchmarks.streams.report import PERFORMANCE
from benchmarks.streams.rows import OURS


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; 1 when a point of ours failed."""
    parser = _parser()
    options = parser.parse_args(arguments)
    if options.small and options.page is None:
        parser.error("--small needs --page: its numbers say nothing")
    size = size_of(options)
    target = PERFORMANCE if options.page is None else Path(options.page)
    record = read_record(target / report.RECORD, POINTS)
    works = [
        work for work in works_of(options.figure) if options.again or not is_recorded(work, record)
    ]
    if not works:
        print("all of it is measured; --again measures it again")
    directory = Path(tempfile.mkdtemp(prefix="bench-paper-", dir=options.directory))
    failed = False
    try:
        machine = this_machine(directory)
        moment = datetime.now(UTC)
        command = " ".join(["python -m benchmarks.bench_paper", *arguments])
        where = (
            f"The drive took {synced_bytes_per_second(directory) / 1e6:.0f} MB/s in synced writes"
            f" of 1 MiB, beside some 800 in the paper.\n\n{measured_on(machine, moment, command)}"
        )

        def finished(work: Work, series: Sequence[Series]) -> FinishedParts:
            keys = [each.key for each in series]
            return keep_parts(f"paper-{work.key}", (size, keys), small=options.small)

        for done in run(works, size, directory=directory, finished=finished):
            record = add_run(record, done.outcomes, commit=machine.commit, moment=moment)
            write(target, record, where)
            failed = failed or _tell(done)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    return int(failed)


def write(target: Path, record: dict[str, RecordedRow], where: str) -> None:
    """Write the record, the page and its pictures into a directory."""
    write_record(target / report.RECORD, record)
    for figure in FIGURES:
        for name, text in report.pictures_of(figure, record).items():
            (target / name).write_text(text)
    (target / report.PAGE).write_text(report.page(record, where=where))


def _tell(done: Done) -> bool:
    """Print what was found; return whether ours failed at a point."""
    for figure in FIGURES:
        if done.work in figure.works:
            print(f"figure {figure.number}: {figure.question} Scale: {figure.scale}.")
            print(report.number_table(figure, done.outcomes))
            print(report.verdict_table(list(report.verdicts(figure, done.outcomes))))
    return any(
        outcome.failure
        for (_, key), outcomes in done.outcomes.items()
        for outcome in outcomes
        if key == OURS
    )


def size_of(options: argparse.Namespace) -> Size:
    """Return the size that the options ask for."""
    size = SMALL if options.small else USUAL
    given = {
        "rounds": options.rounds,
        "minutes_max": options.minutes,
        "seconds": options.seconds,
        "backlog_mb": None if options.backlog_gb is None else options.backlog_gb * 1_000,
    }
    return replace(size, **{name: value for name, value in given.items() if value is not None})


def _figures(text: str) -> tuple[Figure, ...]:
    numbers = [number for number in text.split(",") if number]
    if unknown := [number for number in numbers if number not in map(str, BY_NUMBER)]:
        raise argparse.ArgumentTypeError(f"unknown figures {unknown}; there are {list(BY_NUMBER)}")
    return tuple(BY_NUMBER[int(number)] for number in numbers)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_paper")
    questions = "; ".join(f"{figure.number}: {figure.question}" for figure in FIGURES)
    parser.add_argument("--figure", type=_figures, default=FIGURES, help=f"as 5,8. {questions}")
    parser.add_argument("--again", action="store_true", help="measure also what is recorded")
    parser.add_argument("--rounds", type=int, help="at most, as there is time")
    parser.add_argument("--minutes", type=float, help="no further round that would end later")
    parser.add_argument("--seconds", type=float, help="measured seconds of a load")
    parser.add_argument("--backlog-gb", type=float, help="figure 12: another length of the backlog")
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    parser.add_argument("--directory", help="where the servers keep their data (a temporary one)")
    parser.add_argument("--page", help=f"the directory of {report.PAGE} and {report.RECORD}")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
