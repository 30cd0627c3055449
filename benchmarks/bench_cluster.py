"""How fast is a cluster, and how soon does it serve again, beside the original's?

Run from the repository's root:
`python -m benchmarks.bench_cluster [--rows L1,kill] [--rounds 1] [--report]`.

1. One cluster runs at a time, freshly started: ZooKeeper and bookies are the same programs with the
   same settings for both, the rest is ours or the original's, 0.13.0.
2. Nothing is measured cold: see `cluster/works.py`.
3. A run that lost an event, or on which a client saw an error, has no numbers.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.cluster import report
from benchmarks.cluster.rows import BY_NAME
from benchmarks.cluster.run import run
from benchmarks.cluster.servers import PEERS
from benchmarks.cluster.sizes import SMALL, USUAL, Size
from benchmarks.comparison import plain_table, write_json_if_asked
from benchmarks.finished_parts import keep_parts
from benchmarks.machine import this_machine
from benchmarks.measured import OURS
from benchmarks.record import add_run, read_record, write_record
from benchmarks.streams.report import PERFORMANCE, REASONS, targets


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; 1 when a row of ours failed."""
    options = _parser().parse_args(arguments)
    moment = datetime.now(UTC)
    keys = [
        *([] if options.without_ours else [OURS]),
        *([] if options.without_peers else PEERS),
    ]
    directory = Path(tempfile.mkdtemp(prefix="bench-cluster-", dir=options.directory))
    try:
        machine = this_machine(directory)
        size = size_of(options)
        finished = keep_parts("cluster", (options.rows, size, keys), small=options.small)
        measured = run(options.rows, size, keys=keys, directory=directory, finished=finished)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    compared = measured.compared()
    print(plain_table(compared if options.all else targets(compared)))
    print("\n".join([*measured.remarks(), f"{measured.elapsed_seconds:.0f} s in all"]))
    write_json_if_asked(compared)
    if options.report:
        path = PERFORMANCE / report.RECORD
        before = read_record(path, BY_NAME)
        recorded = add_run(before, measured.outcomes, commit=machine.commit, moment=moment)
        write_record(path, recorded)
        text = report.markdown(
            recorded,
            measured,
            machine=machine,
            command=" ".join(["python -m benchmarks.bench_cluster", *arguments]),
            moment=moment,
            reasons=(PERFORMANCE / REASONS).read_text(),
        )
        (PERFORMANCE / report.TABLE).write_text(text)
    finished.end()
    return int(measured.ours_failed)


def size_of(options: argparse.Namespace) -> Size:
    """Return the size that the options ask for."""
    size = SMALL if options.small else USUAL
    if options.warmup is not None:
        size = replace(size, warmup_seconds=options.warmup, warmup_seconds_max=None)
    given = {"rounds": options.rounds, "seconds": options.seconds}
    return replace(size, **{name: value for name, value in given.items() if value is not None})


def _names(text: str) -> tuple[str, ...]:
    names = tuple(filter(None, text.split(",")))
    if unknown := set(names) - set(BY_NAME):
        raise argparse.ArgumentTypeError(f"unknown rows {unknown}; there are {list(BY_NAME)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_cluster")
    works = "; ".join(f"{row.name}: {row.work}" for row in BY_NAME.values())
    parser.add_argument("--rows", type=_names, default=tuple(BY_NAME), help=works)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--warmup", type=float, help="seconds of load before one is measured")
    parser.add_argument("--seconds", type=float, help="measured seconds of a load")
    parser.add_argument("--without-ours", action="store_true", help="run the original alone")
    parser.add_argument("--without-peers", action="store_true", help="run ours alone")
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    parser.add_argument("--all", action="store_true", help="print figures without a target, too")
    parser.add_argument("--directory", help="where the servers keep their data (a temporary one)")
    parser.add_argument(
        "--report",
        action="store_true",
        help=f"record these rows in docs/performance, and make {report.TABLE} of all recorded ones",
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
