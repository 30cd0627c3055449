"""What do transactions, streams and epochs cost the controller, beside the original's?

Run from the repository's root:
`python -m benchmarks.bench_controller [--rows commit-1,split] [--rounds 2] [--quick] [--report]`.

1. One server runs at a time. The original is its standalone server, which keeps everything in
   memory; ours syncs what it acknowledges.
2. The same official client asks both, in one process for all rows of a server, after the same
   warm-up.
3. A row that the original cannot be asked the same way has a limit: what open transactions cost in
   memory, a kill, a segment store that is stopped, and what has to be made thousands of times.
4. Each committed transaction is read, once, or the row has no numbers.
"""

import argparse
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from foreign_servers.maven import MavenFailedError

from benchmarks.comparison import plain_table, write_json_if_asked
from benchmarks.controller import report
from benchmarks.controller.rows import BY_NAME
from benchmarks.controller.run import run
from benchmarks.controller.sizes import QUICK, SMALL, USUAL
from benchmarks.finished_parts import keep_parts
from benchmarks.machine import this_machine
from benchmarks.measured import OURS
from benchmarks.streams import rows as streams_rows
from benchmarks.streams.report import REASONS
from benchmarks.streams.servers import servers


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; 1 when a row of ours failed."""
    options = _parser().parse_args(arguments)
    size = SMALL if options.small else QUICK if options.quick else USUAL
    if options.rounds is not None:
        size = replace(size, rounds=options.rounds)
    if options.warm is not None:
        size = replace(size, warm_seconds=options.warm)
    keys = [
        *([] if options.without_ours else [OURS]),
        *([] if options.without_peers else [streams_rows.RAM]),
    ]
    moment = datetime.now(UTC)
    directory = Path(tempfile.mkdtemp(prefix="bench-controller-", dir=options.directory))
    try:
        machine = this_machine(directory)
        finished = keep_parts("controller", (options.rows, size, keys), small=options.small)
        measured = run(
            options.rows, size, servers=servers(keys), directory=directory, finished=finished
        )
    except MavenFailedError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    compared = measured.compared()
    print(plain_table(compared))
    for remark in measured.remarks():
        print(remark)
    print(f"{measured.elapsed_seconds:.0f} s in all")
    write_json_if_asked(compared)
    if options.report:
        path = report.PERFORMANCE / report.TABLE
        command = " ".join(["python -m benchmarks.bench_controller", *arguments])
        reasons = (report.PERFORMANCE / REASONS).read_text()
        path.write_text(
            report.markdown(
                measured, machine=machine, command=command, moment=moment, reasons=reasons
            )
        )
        print(f"report: {path}")
    finished.end()
    return int(measured.ours_failed)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    if unknown := [name for name in names if name not in BY_NAME]:
        raise argparse.ArgumentTypeError(f"unknown rows {unknown}; there are {list(BY_NAME)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_controller")
    works = "; ".join(f"{row.name}: {row.work}" for row in BY_NAME.values())
    parser.add_argument("--rows", type=_names, default=tuple(BY_NAME), help=works)
    parser.add_argument("--rounds", type=int, help="of the rows beside the original")
    parser.add_argument("--warm", type=float, help="seconds of load before the first row")
    parser.add_argument("--quick", action="store_true", help="smaller sizes, a few minutes")
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    parser.add_argument("--without-ours", action="store_true", help="run the original alone")
    parser.add_argument("--without-peers", action="store_true", help="leave the original out")
    parser.add_argument("--directory", help="where the servers keep their data (a temporary one)")
    parser.add_argument(
        "--report", action="store_true", help=f"write docs/performance/{report.TABLE}"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
