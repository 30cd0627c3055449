"""How fast is one server on one machine beside the original's, under the same load?

Run from the repository's root:
`python -m benchmarks.bench_first_light [--rows L1,T1] [--seconds 30] [--rounds 3] [--report]`.

1. One server runs at a time, freshly started in an empty directory for every row of every round;
   the servers take turns, and which goes first alternates with the rounds.
2. Server CPU, memory and written bytes are those of the measured seconds: what tier 2 still owes
   when they end is made up for by what it owed when they began.
3. A run that lost an event, or on which a client saw an error, has no numbers.
4. CPU used by anything else on the machine is measured too, and a run with much of it says so.
"""

import argparse
import os
import resource
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    compare,
    markdown_table,
    plain_table,
    write_json_if_asked,
)
from benchmarks.load import Load, LoadFailedError, LoadResult, run_load, startup_probe
from benchmarks.machine import Machine, busy_seconds, this_machine
from benchmarks.maven import MavenFailedError
from benchmarks.peers.api import Peer, PeerFailedError, running
from benchmarks.peers.original_standalone import OriginalStandalone
from benchmarks.peers.process_tree import Cost, Meter
from benchmarks.peers.segstore_standalone import SegstoreStandalone

REPORTS = Path(__file__).parent.parent / "docs" / "performance"
OTHER_CPU_SHARE_QUIET_MAX = 0.05
IDLE_SECONDS = 3.0


@dataclass(frozen=True, slots=True)
class Row:
    """A load with the ratios to the original in memory that ours has to reach, by metric."""

    name: str
    work: str
    load: Load
    reaches: Mapping[str, float] = field(default_factory=dict)


NO_SLOWER = {"publish p50": 1.0, "publish p95": 1.0}
LOAD_ROWS = (
    Row("L1", "100 B, 1 segment, 10k events/s", Load(rate=10_000)),
    Row("L2", "100 B, 16 segments, 10k events/s", Load(rate=10_000, segments=16)),
    Row("L3", "100 B, 1 segment, 100k events/s", Load(rate=100_000), NO_SLOWER),
    Row("L4", "100 B, 16 segments, 100k events/s", Load(rate=100_000, segments=16), NO_SLOWER),
    Row("L5", "10 KB, 1 segment, 5k events/s", Load(rate=5_000, event_size=10_240)),
    Row("T1", "100 B, 1 segment, unthrottled", Load(rate=0), {"published": 1.0}),
    Row("T2", "100 B, 16 segments, unthrottled", Load(rate=0, segments=16), {"published": 1.0}),
    Row("T3", "10 KB, 1 segment, unthrottled", Load(rate=0, event_size=10_240)),
    Row("T4", "10 KB, 16 segments, unthrottled", Load(rate=0, event_size=10_240, segments=16)),
    Row("E1", "L1 with a read time-out of 1 s", Load(rate=10_000, read_timeout_ms=1_000)),
)
START_ROW = "R"
ROW_NAMES = (*(row.name for row in LOAD_ROWS), START_ROW)
ROWS_DEFAULT = ("L1", "L2", "T1", "T2", "T3", START_ROW)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run of this benchmark does."""

    rows: tuple[str, ...] = ROWS_DEFAULT
    rounds: int = 3
    warmup_seconds: float = 10
    seconds: float = 15
    client_heap: str = "1g"
    rate_max: float | None = None

    def load(self, row: Row) -> Load:
        """The row's load at this plan's size."""
        load = replace(row.load, warmup_seconds=self.warmup_seconds, seconds=self.seconds)
        if self.rate_max is not None and not 0 < load.rate <= self.rate_max:
            load = replace(load, rate=self.rate_max)
        return load


USUAL = Plan()
SMALL = Plan(rows=("L2", START_ROW), rounds=1, warmup_seconds=0.5, seconds=1.5, rate_max=500)
"""What the test suite runs: seconds, not minutes, and a load that disturbs nobody."""


def load_outcome(peer: Peer, load: Load, *, directory: Path, client_heap: str) -> Outcome:
    """Run one load on a fresh server."""
    started, busy_before = time.monotonic(), busy_seconds()
    children_before = _children_cpu_seconds()
    with running(peer, directory) as server, Meter(server.processes) as meter:
        result = run_load(server.controller_uri, load, heap=client_heap)
        busy = busy_seconds() - busy_before
        client_cpu = _children_cpu_seconds() - children_before
        whole = server.processes.usage()
    elapsed = time.monotonic() - started
    others = max(0.0, busy - client_cpu - whole.cpu_seconds)
    window = meter.cost(start_epoch=result.start_epoch, end_epoch=result.end_epoch)
    return Outcome(
        numbers=load_numbers(result, window=window),
        failure=result.failure(),
        remarks=tuple(result.remarks()),
        other_cpu_share=others / (elapsed * (os.cpu_count() or 1)),
    )


def _children_cpu_seconds() -> float:
    """CPU seconds of children that ended: while a server runs, those of the load driver alone."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def load_numbers(result: LoadResult, *, window: Cost) -> dict[Metric, float | None]:
    """The quantities to compare: rates when unthrottled, latencies and CPU seconds when paced."""
    publish, end_to_end = result.publish, result.end_to_end
    events = publish.events or None
    numbers: dict[Metric, float | None] = {}
    if not result.load.rate:
        numbers[Metric("published", "events/s", "higher")] = publish.events_per_second
        numbers[Metric("published", "MB/s", "higher")] = publish.mb_per_second
        numbers[Metric("read", "events/s", "higher")] = end_to_end.events_per_second
    numbers |= {
        Metric("publish p50", "ms", "lower"): publish.latency_ms.p50,
        Metric("publish p95", "ms", "lower"): publish.latency_ms.p95,
        Metric("publish p99", "ms", "lower"): publish.latency_ms.p99,
        Metric("end-to-end p50", "ms", "lower"): end_to_end.latency_ms.p50,
        Metric("end-to-end p95", "ms", "lower"): end_to_end.latency_ms.p95,
        Metric("server CPU", "s", "lower"): window.cpu_seconds,
        Metric("server CPU per event", "us", "lower"): events and window.cpu_seconds / events * 1e6,
        Metric("peak RSS", "MB", "lower"): window.resident_bytes_peak / 1e6,
    }
    payload = publish.events * result.load.event_size
    written = Metric("written per payload byte", "", "lower")
    numbers[written] = window.written_bytes / payload if payload else None
    return numbers


def start_outcome(peer: Peer, *, directory: Path) -> Outcome:
    """Start a fresh server beside a client that waits for it."""
    directory.mkdir(parents=True)
    uri = peer.reserve()
    try:
        with startup_probe(uri) as probe:
            server = peer.start(directory)
            startup = probe.result()
        time.sleep(IDLE_SECONDS)
        idle_from = server.processes.usage()
        time.sleep(IDLE_SECONDS)
        idle = server.processes.usage()
    finally:
        peer.stop()
    return Outcome(
        numbers={
            Metric("start to port", "s", "lower"): startup.port_epoch - server.started_epoch,
            Metric("start to first ack", "s", "lower"): startup.first_ack_epoch
            - server.started_epoch,
            Metric("idle RSS", "MB", "lower"): idle.resident_bytes / 1e6,
            Metric("idle CPU", "% of a core", "lower"): (idle.cpu_seconds - idle_from.cpu_seconds)
            / (idle.epoch - idle_from.epoch)
            * 100,
        }
    )


def outcome(peer: Peer, name: str, plan: Plan, *, directory: Path) -> Outcome:
    """One run of one row; what goes wrong with a server is an outcome, not an error."""
    try:
        if name == START_ROW:
            return start_outcome(peer, directory=directory)
        row = next(row for row in LOAD_ROWS if row.name == name)
        return load_outcome(peer, plan.load(row), directory=directory, client_heap=plan.client_heap)
    except (PeerFailedError, LoadFailedError) as error:
        return Outcome(numbers={}, failure=str(error))
    finally:
        shutil.rmtree(directory, ignore_errors=True)
        # What the last server left in the page cache is not written at the cost of the next.
        os.sync()


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that was measured: by row, for ours and the peer, one outcome a round."""

    rows: tuple[ComparedRow, ...]
    ours: Mapping[str, Sequence[Outcome]]
    peer: Mapping[str, Sequence[Outcome]]

    def remarks(self) -> list[str]:
        """What failed and what disturbed, by row and server."""
        remarks = []
        for server, by_row in (("ours", self.ours), ("peer", self.peer)):
            for row, outcomes in by_row.items():
                for index, each in enumerate(outcomes, start=1):
                    where = f"{row}, {server}, round {index}"
                    if each.failure:
                        remarks.append(f"{where}: FAILED: {each.failure}")
                    remarks += [f"{where}: {remark}" for remark in each.remarks]
                    if (each.other_cpu_share or 0) > OTHER_CPU_SHARE_QUIET_MAX:
                        remarks.append(
                            f"{where}: others used {each.other_cpu_share:.0%} of the CPUs"
                        )
        return remarks

    @property
    def ours_failed(self) -> bool:
        """Whether any run of ours failed."""
        return any(each.failure for outcomes in self.ours.values() for each in outcomes)


def run(plan: Plan, *, ours: Peer | None, peer: Peer | None, directory: Path) -> Comparison:
    """Run all rounds, interleaved; a server left out has no outcomes."""
    for server in (ours, peer):
        if server is not None:
            server.prepare()
    found: dict[str, dict[str, list[Outcome]]] = {
        side: {name: [] for name in plan.rows} for side in ("ours", "peer")
    }
    for index in range(plan.rounds):
        for name in plan.rows:
            turns = (("ours", ours), ("peer", peer))
            for side, server in turns if index % 2 == 0 else turns[::-1]:
                if server is None:
                    continue
                print(f"round {index + 1}/{plan.rounds} {name} {server.name}", file=sys.stderr)
                data = directory / f"{index + 1}-{name}-{side}"
                found[side][name].append(outcome(server, name, plan, directory=data))
    reaches = {row.name: row.reaches for row in LOAD_ROWS}
    rows = [
        row
        for name in plan.rows
        for row in compare(
            name,
            ours=found["ours"][name],
            peer=found["peer"][name],
            reaches=reaches.get(name, {}),
        )
    ]
    return Comparison(tuple(rows), found["ours"], found["peer"])


def report(
    comparison: Comparison,
    plan: Plan,
    *,
    machine: Machine,
    servers: Sequence[Peer],
    command: str,
    moment: datetime,
) -> str:
    """The Markdown report of one run."""
    limit = "" if plan.rate_max is None else f", at most {plan.rate_max:g} events/s"
    work = "\n".join(f"| {r.name} | {r.work}{limit} |" for r in LOAD_ROWS if r.name in plan.rows)
    remarks = "\n".join(f"- {remark}" for remark in comparison.remarks()) or "- none"
    return f"""# First light, {moment:%d %B %Y}

{markdown_table(comparison.rows)}

Ratio: ours divided by the peer's, both the median of {plan.rounds} interleaved rounds. Each run:
a fresh server, a warm-up of {plan.warmup_seconds:g} s, {plan.seconds:g} s measured, one producer,
one consumer, no keys, read time-out 10 ms unless the row names another. Latency
counts from the actual send.

| row | work |
| --- | --- |
{work}
| R | start-up beside a waiting client, then idle |

Servers: {"; ".join(f"**{server.name}**: {server.description}" for server in servers)}.

Remarks:

{remarks}

Machine: {machine.cpu_count} x {machine.cpu_model}, {machine.memory_gib:.0f} GiB,
Linux {machine.kernel}, {machine.file_system}, {machine.java}, Python {machine.python},
commit {machine.commit}; client and server on the same machine, client heap {plan.client_heap}.

Measured {moment:%Y-%m-%d %H:%M} UTC by

```
{command}
```
"""


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; 1 when a run of ours failed."""
    options = _parser().parse_args(arguments)
    plan = SMALL
    if not options.small:
        plan = Plan(
            rows=options.rows,
            rounds=options.rounds,
            warmup_seconds=options.warmup,
            seconds=options.seconds,
            client_heap=options.client_heap,
        )
    ours = None if options.only == "peer" else SegstoreStandalone()
    peer = None
    if options.only != "ours":
        properties = dict(options.peer_property)
        peer = OriginalStandalone(heap=options.peer_heap, properties=properties)
    moment = datetime.now(UTC)
    directory = Path(tempfile.mkdtemp(prefix="first-light-", dir=options.directory))
    try:
        machine = this_machine(directory)
        comparison = run(plan, ours=ours, peer=peer, directory=directory)
    except (PeerFailedError, MavenFailedError) as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    print(plain_table(comparison.rows))
    for remark in comparison.remarks():
        print(remark)
    write_json_if_asked(comparison.rows)
    if options.report:
        command = " ".join(["python -m benchmarks.bench_first_light", *arguments])
        servers = [server for server in (ours, peer) if server is not None]
        text = report(
            comparison, plan, machine=machine, servers=servers, command=command, moment=moment
        )
        path = REPORTS / f"first-light-{moment:%Y-%m-%d-%H%M}.md"
        path.write_text(text)
        print(f"report: {path}")
    return int(comparison.ours_failed)


def _row_names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    unknown = [name for name in names if name not in ROW_NAMES]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown rows {unknown}; there are {ROW_NAMES}")
    return names


def _property(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise argparse.ArgumentTypeError(f"not NAME=VALUE: {text}")
    return name, value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_first_light")
    works = "; ".join(f"{row.name}: {row.work}" for row in LOAD_ROWS)
    parser.add_argument("--rows", type=_row_names, default=ROWS_DEFAULT, help=works)
    parser.add_argument("--rounds", type=int, default=USUAL.rounds)
    parser.add_argument("--warmup", type=float, default=USUAL.warmup_seconds, help="seconds")
    parser.add_argument("--seconds", type=float, default=USUAL.seconds, help="measured seconds")
    parser.add_argument("--client-heap", default=USUAL.client_heap, help="-Xmx of the driver")
    parser.add_argument("--peer-heap", default="4g", help="-Xmx of the original")
    parser.add_argument(
        "--peer-property",
        type=_property,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a property of the original, such as pravegaservice.cache.size.max=2147483648",
    )
    parser.add_argument("--only", choices=("ours", "peer"), help="leave the other server out")
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    parser.add_argument("--directory", help="where the servers keep their data (a temporary one)")
    parser.add_argument("--report", action="store_true", help=f"write a report under {REPORTS}")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
