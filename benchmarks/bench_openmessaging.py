"""The OpenMessaging Benchmark on ours, the original and Kafka, one after the other.

``python -m benchmarks.bench_openmessaging BUILT``, where BUILT is the directory of a built
benchmark: docs/openmessaging-benchmark.md says how it is built, and what its numbers hide. It is
run as it is, with its own class path and our driver and workload files.

1. Each server starts in an empty directory and has the machine for itself.
2. The benchmark warms it up for as long as the workload says.
3. A server or benchmark that fails is reported, and the others are measured.
"""

import argparse
import contextlib
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from foreign_servers.jvm import java_command
from foreign_servers.peer import Peer, PeerFailedError, running
from foreign_servers.tied_processes import tied

from benchmarks.comparison import Metric, Outcome, compare, plain_table, write_json_if_asked
from benchmarks.finished_parts import keep_parts
from benchmarks.streams.rows import DURABLE, KAFKA, KAFKA_FSYNC, OURS, RAM
from benchmarks.streams.servers import server

FILES = Path(__file__).parent / "openmessaging"
WORKLOAD = FILES / "workload-compare.yaml"
PRAVEGA_DRIVER = ("pravega", "tcp://localhost:9090")
KAFKA_DRIVER = ("kafka", "localhost:9092")
"""A driver file, and the address in it."""
PEERS = (DURABLE, KAFKA_FSYNC, KAFKA)
KNOWN = (*PEERS, RAM)
MAIN_CLASS = "io.openmessaging.benchmark.Benchmark"
CLIENT = ("-Xms1g", "-Xmx2g", "-XX:+UseG1GC")
RUN_SECONDS_MAX = 1800.0
POLL_SECONDS = 0.2
LOG_LINES = 20

REPORTED = {
    Metric("publish p50", "ms", "lower"): "aggregatedPublishLatency50pct",
    Metric("publish p95", "ms", "lower"): "aggregatedPublishLatency95pct",
    Metric("publish p99", "ms", "lower"): "aggregatedPublishLatency99pct",
    Metric("end to end p95", "ms", "lower"): "aggregatedEndToEndLatency95pct",
}
"""The figures to compare, each with its name in the benchmark's results."""
RATE = Metric("published", "events/s", "higher")
RATES = "publishRate"
"""The benchmark's name of a list: the rate of each period."""


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; 1 when a run of ours failed."""
    options = _parser().parse_args(arguments)
    try:
        class_path = find_class_path(options.built)
    except FileNotFoundError as error:
        print(error, file=sys.stderr)
        return 1
    directory = Path(tempfile.mkdtemp(prefix="bench-openmessaging-", dir=options.directory))
    finished = keep_parts("openmessaging", (options.workload.read_text(), options.peers))
    outcomes: dict[str, list[Outcome]] = defaultdict(list)

    def measure_all(number: int) -> Iterator[tuple[str, str, Outcome]]:
        for key in (OURS, *options.peers):
            place = directory / f"{number}-{key}"
            outcome = measure(server(key), class_path, options.workload, place)
            print(f"{key}: {outcome.failure or 'measured'}", file=sys.stderr)
            yield options.workload.stem, key, outcome

    try:
        for number in range(options.rounds):
            part = partial(measure_all, number)
            for _, key, outcome in finished.outcomes(f"round {number + 1}", part):
                outcomes[key].append(outcome)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    ours = outcomes[OURS]
    rows = [
        row
        for key in options.peers
        for row in compare(
            options.workload.stem, ours=ours, peer=outcomes[key], reaches={}, peer_name=key
        )
    ]
    print(plain_table(rows))
    write_json_if_asked(rows)
    finished.end()
    return int(any(outcome.failure for outcome in ours))


def find_class_path(built: Path) -> str:
    """Return the class path of a built benchmark, as its own ``bin/benchmark`` has it.

    Raises FileNotFoundError where there is none.
    """
    if (built / "lib").is_dir():
        return f"{built.resolve()}/lib/*"
    target = built / "benchmark-framework" / "target"
    if not (target / "classes").is_dir() or not (target / "classpath.txt").exists():
        raise FileNotFoundError(f"{built} holds no built benchmark: neither lib nor {target}")
    return f"{(target / 'classes').resolve()}:{(target / 'classpath.txt').read_text().strip()}"


def driver_file(peer: Peer, address: str) -> str:
    """Return the text of the driver file for a server, with its address."""
    name, place = KAFKA_DRIVER if peer.speaks_kafka else PRAVEGA_DRIVER
    text = (FILES / f"{name}.yaml").read_text()
    assert place in text, f"{name}.yaml names another address"
    return text.replace(place, address)


def measure(peer: Peer, class_path: str, workload: Path, directory: Path) -> Outcome:
    """Run the benchmark on a server that is started in this directory."""
    try:
        peer.prepare()
        with running(peer, directory / "server") as server:
            return run_benchmark(driver_file(peer, server.address), class_path, workload, directory)
    except PeerFailedError as error:
        return Outcome(numbers={}, failure=str(error))


def run_benchmark(driver: str, class_path: str, workload: Path, directory: Path) -> Outcome:
    """Run the benchmark with a driver file of this text, in an existing directory."""
    (directory / "driver.yaml").write_text(driver)
    report = directory / "report.json"
    command = java_command(
        MAIN_CLASS,
        "--drivers",
        str(directory / "driver.yaml"),
        "--output",
        str(report),
        str(workload.resolve()),
        class_path=class_path,
        options=CLIENT,
    )
    log = directory / "benchmark.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            tied(command),
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        found = wait_for_report(process, report)
    finally:
        process.kill()
        process.wait()
    if found is None:
        # The benchmark logs what went wrong, and ends with 0.
        lines = log.read_text(errors="replace").splitlines()
        return Outcome(numbers={}, failure="\n".join(lines[-LOG_LINES:]) or "no report in time")
    return read_report(found)


def wait_for_report(process: subprocess.Popen[bytes], path: Path) -> dict[str, object] | None:
    """Return the report once it is written; None if the benchmark ends without, or takes too long.

    With Kafka's driver the benchmark does not end after its report.
    """
    deadline = time.monotonic() + RUN_SECONDS_MAX
    while time.monotonic() < deadline:
        has_ended = process.poll() is not None
        # What is half written is no JSON yet.
        with contextlib.suppress(FileNotFoundError, json.JSONDecodeError):
            report: dict[str, object] = json.loads(path.read_text())
            return report
        if has_ended:
            return None
        time.sleep(POLL_SECONDS)
    return None


def read_report(report: dict[str, object]) -> Outcome:
    """Return what the benchmark reports: latencies over the whole time, and the mean rate."""
    numbers: dict[Metric, float | None] = {}
    for metric, name in REPORTED.items():
        value = report[name]
        assert isinstance(value, int | float), name
        numbers[metric] = float(value)
    rates = report[RATES]
    assert isinstance(rates, list), RATES
    numbers[RATE] = sum(rates) / len(rates) if rates else None
    return Outcome(numbers=numbers)


def _peers(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    unknown = [name for name in names if name not in KNOWN]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown peers {unknown}; there are {list(KNOWN)}")
    return names


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_openmessaging")
    parser.add_argument("built", type=Path, help="the directory of a built benchmark")
    parser.add_argument("--peers", type=_peers, default=PEERS, help=", ".join(KNOWN))
    parser.add_argument("--workload", type=Path, default=WORKLOAD)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--directory", help="where the servers keep their data (a temporary one)")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
