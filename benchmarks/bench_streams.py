"""How fast is one server on one machine beside the original and beside Kafka, under the same load?

Run from the repository's root:
`python -m benchmarks.bench_streams [--rows L1,T1] [--peers durable,ram] [--rounds 2] [--report]`.

1. One server runs at a time, freshly started in an empty directory for every row of every round;
   ours and the peers take turns, and who goes first alternates with the rounds. Only the quick
   run starts a server once for all its rows.
2. Which peers a row runs beside is what its targets say (`streams/rows.py`).
3. A run that lost an event, or on which a client saw an error, has no numbers.
4. CPU used by anything else on the machine is measured too, and a run with much of it says so.
5. Nothing is measured cold: a load runs for 45 s at least, and then until the median latencies of
   three windows of 5 s differ by less than 5 %, for 120 s at most. Only the quick run has no time
   for that.
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
from foreign_servers.peer import PeerFailedError

from benchmarks.comparison import plain_table, write_json_if_asked
from benchmarks.finished_parts import keep_parts
from benchmarks.machine import this_machine
from benchmarks.other_load import spinning
from benchmarks.record import add_run, read_record, write_record
from benchmarks.streams import report
from benchmarks.streams.rows import BY_NAME, OURS, PEERS, QUICK, SMALL, USUAL, Plan
from benchmarks.streams.run import LOGS, Measured, run
from benchmarks.streams.servers import servers


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; 1 when a run of ours failed."""
    options = _parser().parse_args(arguments)
    plan = plan_of(options)
    moment = datetime.now(UTC)
    directory = Path(tempfile.mkdtemp(prefix="bench-streams-", dir=options.directory))
    try:
        machine = this_machine(directory)
        needed = {peer for name in plan.rows for peer in plan.peers_of(BY_NAME[name])}
        chosen = servers([OURS, *(peer for peer in plan.peers if peer in needed)])
        if options.without_ours:
            del chosen[OURS]
        finished = keep_parts(
            "streams", (plan, list(chosen), options.spinning), small=options.small
        )
        with spinning(options.spinning):
            measured = run(plan, servers=chosen, directory=directory, finished=finished)
    except (PeerFailedError, MavenFailedError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    _print(measured)
    write_json_if_asked(measured.compared())
    command = " ".join(["python -m benchmarks.bench_streams", *arguments])
    if options.report:
        path = report.PERFORMANCE / report.RECORD
        before = read_record(path, BY_NAME)
        recorded = add_run(before, measured.outcomes, commit=machine.commit, moment=moment)
        write_record(path, recorded)
        plots = report.plots_of(report.combine(recorded, measured))
        for name, text in plots.items():
            (report.PERFORMANCE / name).write_text(text)
        path = report.PERFORMANCE / report.TABLE
        path.write_text(
            report.markdown(
                recorded,
                measured,
                machine=machine,
                command=command,
                moment=moment,
                plots=list(plots),
                reasons=(report.PERFORMANCE / report.REASONS).read_text(),
            )
        )
        print(f"report: {path}")
    if options.land:
        report.write_landed(report.LANDED, measured, commit=machine.commit, moment=moment)
        print(f"landed: {report.LANDED}")
    finished.end()
    return int(measured.ours_failed)


def plan_of(options: argparse.Namespace) -> Plan:
    """Return the plan that the options ask for."""
    plan = SMALL if options.small else QUICK if options.quick else USUAL
    given = {
        "rows": options.rows,
        "peers": options.peers,
        "rounds": options.rounds,
        "warmup_seconds": options.warmup,
        "seconds": options.seconds,
        "client_heap": options.client_heap,
    }
    if options.warmup_max is not None:
        given["warmup_seconds_max"] = options.warmup_max
    elif options.warmup is not None:
        plan = replace(plan, warmup_seconds_max=None)
    return replace(plan, **{name: value for name, value in given.items() if value is not None})


def _print(measured: Measured) -> None:
    if measured.plan.fresh:
        print(plain_table(report.targets(measured.compared())))
        print(report.figures(measured))
    else:
        landed = report.read_landed(report.LANDED, report.kind_of(measured.plan))
        print("\n".join(report.quick_lines(measured, landed)))
        print(report.COLD)
    for remark in measured.remarks():
        print(remark)
    print(f"{measured.elapsed_seconds:.0f} s in all; the servers' logs: {LOGS}")


def _names(known: Sequence[str], what: str, text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown {what} {unknown}; there are {list(known)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_streams")
    works = "; ".join(f"{row.name}: {row.work}" for row in BY_NAME.values())
    parser.add_argument(
        "--rows", type=lambda text: _names(tuple(BY_NAME), "rows", text), help=works
    )
    parser.add_argument(
        "--peers", type=lambda text: _names(PEERS, "peers", text), help=", ".join(PEERS)
    )
    parser.add_argument("--rounds", type=int)
    parser.add_argument(
        "--warmup", type=float, help="seconds of warm-up, no more unless there is --warmup-max"
    )
    parser.add_argument(
        "--warmup-max", type=float, help="go on warming up until it is steady, up to these seconds"
    )
    parser.add_argument("--seconds", type=float, help="measured seconds")
    parser.add_argument("--client-heap", help="-Xmx of the driver")
    parser.add_argument("--without-ours", action="store_true", help="run the peers alone")
    parser.add_argument(
        "--spinning", type=int, default=0, help="processes that never rest, beside all runs"
    )
    parser.add_argument("--quick", action="store_true", help="a line a row in five minutes")
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    parser.add_argument("--directory", help="where the servers keep their data (a temporary one)")
    parser.add_argument(
        "--report",
        action="store_true",
        help=f"record these rows in docs/performance, and make {report.TABLE} of all recorded ones",
    )
    parser.add_argument("--land", action="store_true", help="keep the ratios for later quick runs")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
