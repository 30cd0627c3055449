"""How fast does our Python client write and read events, beside the official clients, and Kafka's?

Run from the repository's root, on a machine that runs nothing else: `python -m
benchmarks.bench_python [--rows read-100B,read-10KB] [--rounds 3] [--without java,kafka]`. It takes
four minutes, and needs the official client `pravega`, of Python up to 3.11, for Java's row Java 17
and Maven, and for Kafka's these and `confluent-kafka`.

1. One `segstore standalone` serves all clients, in turns, with streams of one segment. What is read
   was written before, by append blocks, and is in the store's cache for everybody, which is larger
   than usual for that.
2. Each client is a process of its own, and does a smaller work of the same kind first: warm.
3. Every event comes to the loop of the program, where its bytes are counted. Each reader is the
   only one of a new reader group.
4. Kafka's client writes to a broker of its own, which syncs nothing, as Kafka does by default; ours
   waits until its events are on disk.
5. `CPU` is that of the client's process alone. Java's is told nowhere: its compiler is in it.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    compare,
    plain_table,
    report_progress,
    write_json_if_asked,
)
from benchmarks.load import Backlog, LoadFailedError
from benchmarks.measured import list_remarks
from benchmarks.peers.segstore_standalone import with_benchmarks
from benchmarks.python_clients.works import Taken
from benchmarks.spark.stores import SCOPE, Events, Kafka, Ours
from segstore_client.controller.controller_client import ControllerClient

RATE = Metric("events", "events/s", "higher")
CPU = Metric("CPU per event", "µs", "lower")
OURS, OFFICIAL, JAVA, KAFKA = "ours", "official", "java", "kafka"
SECONDS_MAX = 600.0
SETTINGS = "[segment_store]\ncache_bytes_max = 4294967296\n"
JAVA_STREAM, JAVA_WARM_STREAM = "backlog", "warm-up"
"""What the driver of the Java client reads."""


@dataclass(frozen=True, slots=True)
class Row:
    """A work, and how much faster than each peer it is to be."""

    work: str
    events: int
    event_bytes: int
    reaches: dict[str, float]
    peer_work: str = ""
    """What the peers do instead, who have no such work."""

    @property
    def writes(self) -> bool:
        """Return whether each client writes to a stream of its own."""
        return self.work.startswith("write")


ROWS = {
    "write-100B": Row("write", 5_000, 100, {OFFICIAL: 1.0}),
    "write-keys-100B": Row("write-keys", 400_000, 100, {KAFKA: 0.5}),
    "read-100B": Row("read", 3_000_000, 100, {OFFICIAL: 2.0}),
    "read-100B-batches": Row("read-batches", 3_000_000, 100, {OFFICIAL: 2.0}, "read"),
    "read-10KB": Row("read", 100_000, 10_000, {OFFICIAL: 2.0, JAVA: 0.8}),
}
SMALL_SHARE = 500
WARM_SHARE = 4
"""The work before has the fourth part of the events."""


class Bench:
    """Clients in turns beside one store, and one broker of Kafka if that is a peer."""

    def __init__(self, ours: Ours, kafka: Kafka | None, *, share: int, java: bool) -> None:
        self._addresses = {OURS: ours.address, OFFICIAL: ours.address}
        if kafka is not None:
            self._addresses[KAFKA] = kafka.address
        self._ours = ours
        self._share = share
        self._java = java
        self._number = 0

    def run(self, name: str, rounds: int) -> tuple[list[ComparedRow], list[str]]:
        """Measure a row; return it beside each peer, and what went wrong."""
        row = ROWS[name]
        there = {*self._addresses, *([JAVA] if self._java else [])}
        peers = [each for each in row.reaches if each in there]
        outcomes: dict[str, list[Outcome]] = {each: [] for each in (OURS, *peers)}
        count = row.events // self._share
        stream = name
        if not row.writes:
            self._fill(stream, row, count)
        for _ in range(rounds):
            for client, found in outcomes.items():
                if row.writes:
                    stream = self._make_empty(name)
                found.append(self._measure(client, row, stream, count))
        compared = [
            each
            for peer in peers
            for each in compare(
                name,
                ours=outcomes[OURS],
                peer=outcomes[peer],
                reaches={RATE.name: row.reaches[peer]},
                peer_name=peer,
            )
            if each.metric is RATE or peer != JAVA
        ]
        return compared, list_remarks({(name, key): found for key, found in outcomes.items()})

    def _fill(self, stream: str, row: Row, count: int) -> None:
        names = {stream: count, f"{stream}-warm": count // WARM_SHARE}
        if JAVA in row.reaches and self._java:
            names |= {JAVA_STREAM: count, JAVA_WARM_STREAM: count // WARM_SHARE}
        for name, events in names.items():
            self._ours.fill(Events(name, events, row.event_bytes, 1))

    def _make_empty(self, name: str) -> str:
        self._number += 1
        stream = f"{name}-{self._number}"
        for each in (stream, f"{stream}-warm"):
            self._ours.create(each, 1)
        return stream

    def _measure(self, client: str, row: Row, stream: str, count: int) -> Outcome:
        try:
            taken = (
                self._drain_with_java(row, count)
                if client == JAVA
                else self._run_python(client, row, stream, count)
            )
        except (LoadFailedError, subprocess.CalledProcessError) as error:
            said = getattr(error, "stderr", None) or str(error)
            return Outcome({}, failure=said.strip().splitlines()[-1])
        report_progress(f"{stream}, {client}", f"{count:,} events", taken.seconds)
        return Outcome({RATE: count / taken.seconds, CPU: taken.cpu_seconds / count * 1e6})

    def _run_python(self, client: str, row: Row, stream: str, count: int) -> Taken:
        work = row.work if client == OURS else row.peer_work or row.work
        numbers = count // WARM_SHARE, count, row.event_bytes
        done = subprocess.run(
            [
                *with_benchmarks(f"benchmarks.python_clients.{client}"),
                *(self._addresses[client], work, stream, *map(str, numbers)),
            ],
            capture_output=True,
            text=True,
            check=True,
            timeout=SECONDS_MAX,
            env=os.environ,
        )
        return Taken(**json.loads(done.stdout))

    def _drain_with_java(self, row: Row, count: int) -> Taken:
        drained = Backlog(
            events=count,
            warm_events=count // WARM_SHARE,
            event_size=row.event_bytes,
            segments=1,
        ).run(
            self._ours.address,
            writes=False,
            heap="1g",
            speaks_kafka=False,
            seconds_max=SECONDS_MAX,
        )
        # The next round's reader has the same name, in a group of the same name.
        with ControllerClient(self._ours.address) as client:
            for group in client.list_groups(SCOPE):
                client.delete_group(SCOPE, group)
        return Taken(drained.seconds, drained.client_cpu_seconds)


def run(
    rows: Sequence[str],
    directory: Path,
    *,
    rounds: int,
    share: int = 1,
    without: Collection[str] = (),
) -> tuple[list[ComparedRow], list[str]]:
    """Measure rows beside servers of its own in an empty directory, without some of the peers.

    Each work has the given share of its events: 2 is half of them.
    """
    with ExitStack() as stack:
        ours = Ours(make_directory(directory, OURS), SETTINGS)
        stack.callback(ours.stop)
        kafka = None
        if KAFKA not in without and any(KAFKA in ROWS[row].reaches for row in rows):
            kafka = Kafka(make_directory(directory, KAFKA))
            stack.callback(kafka.stop)
        bench = Bench(ours, kafka, share=share, java=JAVA not in without)
        found = [bench.run(row, rounds) for row in rows]
    compared = [each for rows_of, _ in found for each in rows_of]
    return compared, [each for _, remarks in found for each in remarks]


def make_directory(directory: Path, name: str) -> Path:
    """Make a directory in another one."""
    made = directory / name
    made.mkdir()
    return made


def main(arguments: Sequence[str]) -> int:
    """Run from the command line; 1 when something failed."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.bench_python", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--rows", default=",".join(ROWS), help="of " + ", ".join(ROWS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--without", default="", help="peers: java, kafka")
    parser.add_argument("--small", action="store_true", help="what the test suite runs")
    parser.add_argument("--directory", type=Path, help="an empty directory for the store's data")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.directory) as directory:
        found, remarks = run(
            options.rows.split(","),
            Path(directory),
            rounds=1 if options.small else options.rounds,
            share=SMALL_SHARE if options.small else 1,
            without=options.without.split(","),
        )
    print(plain_table(found))
    for remark in remarks:
        print(remark)
    write_json_if_asked(found)
    return int(bool(remarks))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
