"""How fast does Spark read and write streams, beside its own source and sink for Kafka?

Run from the repository's root: `python -m benchmarks.bench_spark [--mib 256] [--rounds 3]`, or
`make bench-spark`, which takes four minutes on a quiet machine with 2 cores. Full sizes, 5 GiB and
10 million events, are `make bench-spark ARGS="--mib 5120 --events 10000000 --rounds 1"`: nine
minutes and 20 GB of disk. It needs Java 17 and Maven, which gets Kafka and Spark's source for it.

1. One Spark, `local[2]`, reads segstore and a Kafka broker in turns on the same machine. Both
   run all the time, with the same number of events of the same length in as many parts.
2. A read goes to Spark's `noop` sink: every column of every row is made and dropped.
3. The ceiling is a data source that hands on record batches which it has ready: what remains is
   Spark and its Python workers.
4. A latency is the time from a producer's send to the end of the `foreachBatch` that got the event;
   producer and Spark share a clock.
"""

import argparse
import os
import shutil
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from foreign_servers.maven import resolve_class_path

from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    compare,
    markdown_table,
    plain_table,
    report_progress,
    write_json_if_asked,
)
from benchmarks.finished_parts import FinishedParts, keep_parts
from benchmarks.load import Load, LoadFailedError, run_load
from benchmarks.machine import measured_on, this_machine
from benchmarks.spark.ceiling import ReadyBatches
from benchmarks.spark.stores import SCOPE, Events, Kafka, Ours, made_events

ROOT = Path(__file__).parent.parent
JARS = Path(__file__).parent / "peers" / "spark_kafka" / "pom.xml"
REPORT = ROOT / "docs" / "performance" / "spark.md"
MIB = 1024 * 1024
ROWS_PER_SECOND = Metric("rows/s", "", "higher")
P50 = Metric("latency p50", "ms", "lower")
P95 = Metric("latency p95", "ms", "lower")
SERVER_CPU = Metric("segment store CPU", "s", "lower")
WIRE = "our wire path"
CEILING = "ceiling"
KAFKA = "Kafka source"
EVENT_RATE = 10_000
STORED_SECONDS_MAX = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amounts of everything."""

    mib: int = 256
    """Payload of each batch read; of 100 B events a quarter, since rows are what takes time."""
    parts: int = 4
    rounds: int = 3
    stream_events: int = 3_000_000
    """Of queries and the archive: with fewer, what Spark takes to start one is most of it."""
    sink_events: int = 750_000
    latency_seconds: float = 30.0
    warmup_seconds: float = 10.0


SMALL = Size(
    mib=2, parts=2, rounds=1, stream_events=5_000, sink_events=5_000, latency_seconds=6.0,
    warmup_seconds=3.0,
)  # fmt: skip


class Bench:
    """The servers, the session and the measurements."""

    def __init__(self, size: Size, spark: Any, ours: Ours, kafka: Kafka, directory: Path) -> None:
        self._size = size
        self._spark = spark
        self._ours = ours
        self._kafka = kafka
        self._directory = directory
        self._number = 0

    def run(self, row: str) -> list[ComparedRow]:
        """Measure one row."""
        started = time.monotonic()
        found: list[ComparedRow] = {
            "read-100B": lambda: self._batch_reads(row, 100, self._size.mib * MIB // 4),
            "read-1KB": lambda: self._batch_reads(row, 1024, self._size.mib * MIB),
            "available-now": lambda: self._available_now(row),
            "latency": lambda: self._latency(row),
            "sink": lambda: self._sink(row),
            "archive": lambda: self._archive(row),
        }[row]()
        report_progress(row, "measured", time.monotonic() - started)
        print(plain_table(found), file=sys.stderr, flush=True)
        return found

    # ---- Batches ---------------------------------------------------------------------------------

    def _batch_reads(self, row: str, event_bytes: int, payload: int) -> list[ComparedRow]:
        size, spark, ours, kafka = self._size, self._spark, self._ours, self._kafka
        events = Events(self._name("read"), payload // event_bytes, event_bytes, size.parts)
        ours.fill(events)
        kafka.fill(spark, events)
        self._wait_stored(events)

        def wire() -> None:
            make_all_rows(ours.read(spark, events.name, read_path="wire"))

        def direct() -> None:
            make_all_rows(ours.read(spark, events.name, read_path="direct"))

        def theirs() -> None:
            make_all_rows(kafka.read(spark, events.name))

        def ceiling() -> None:
            make_all_rows(_ready_batches(spark, events))

        counted = ours.read(spark, events.name, read_path="direct").count()
        assert counted == kafka.read(spark, events.name).count() == events.count, counted
        rounds = self._rounds(events.count, [wire, direct, theirs, ceiling])
        by_wire, by_direct, by_kafka, by_ceiling = rounds
        compared = [
            *compare(row, ours=by_wire, peer=by_kafka, reaches={"rows/s": 1.0}, peer_name=KAFKA),
            *compare(
                row, ours=by_wire, peer=by_ceiling, reaches={"rows/s": 0.8}, peer_name=CEILING
            ),
            *compare(
                f"{row} direct",
                ours=by_direct,
                peer=by_kafka,
                reaches={"rows/s": 2.0},
                peer_name=KAFKA,
            ),
            *compare(
                f"{row} direct",
                ours=by_direct,
                peer=by_wire,
                reaches={"rows/s": 3.0},
                peer_name=WIRE,
            ),
            *compare(
                f"{row} direct",
                ours=by_direct,
                peer=by_ceiling,
                reaches={"rows/s": 0.8},
                peer_name=CEILING,
            ),
        ]
        return [each for each in compared if each.metric != SERVER_CPU or each.peer_name == WIRE]

    def _rounds(self, count: int, jobs: Sequence[Callable[[], None]]) -> list[list[Outcome]]:
        """Run jobs over ``count`` rows in turns; the first turn warms up."""
        outcomes: list[list[Outcome]] = [[] for _ in jobs]
        for number in range(self._size.rounds + 1):
            for job, found in zip(jobs, outcomes, strict=True):
                before = self._ours.running.processes.usage().cpu_seconds
                started = time.monotonic()
                job()
                seconds = time.monotonic() - started
                used = self._ours.running.processes.usage().cpu_seconds - before
                if number:
                    found.append(Outcome({ROWS_PER_SECOND: count / seconds, SERVER_CPU: used}))
        return outcomes

    def _wait_stored(self, events: Events) -> None:
        """Wait until tier 2 has nearly all, so that the direct path reads what it is about."""
        from pyspark.sql.types import StructType

        from pravega_spark import PravegaDataSource

        options = {
            "controller": self._ours.address,
            "scope": SCOPE,
            "stream": events.name,
            "read_path": "direct",
        }
        reader = PravegaDataSource(options).reader(StructType())
        deadline = time.monotonic() + STORED_SECONDS_MAX
        while True:
            partitions: Any = reader.partitions()
            parts: list[Any] = [part for each in partitions for part in each.parts]
            total = sum(each.piece.end - each.piece.start for each in parts)
            stored = sum(each.plan.end - each.plan.start for each in parts if each.plan)
            if stored == total:
                return
            assert time.monotonic() < deadline, f"tier 2 has {stored} of {total} bytes"
            time.sleep(0.5)

    # ---- Queries ---------------------------------------------------------------------------------

    def _available_now(self, row: str) -> list[ComparedRow]:
        size, spark = self._size, self._spark
        events = Events(self._name("available"), size.stream_events, 100, size.parts)
        self._ours.fill(events)
        self._kafka.fill(spark, events)

        def run(frame: Any) -> None:
            query = (
                frame.writeStream.format("noop")
                .option("checkpointLocation", str(self._directory / self._name("checkpoint")))
                .trigger(availableNow=True)
                .start()
            )
            query.awaitTermination()

        by_ours, by_kafka = self._rounds(
            events.count,
            [
                lambda: run(self._ours.follow(spark, events.name)),
                lambda: run(self._kafka.follow(spark, events.name)),
            ],
        )
        found = compare(row, ours=by_ours, peer=by_kafka, reaches={"rows/s": 1.0}, peer_name=KAFKA)
        return [each for each in found if each.metric == ROWS_PER_SECOND]

    def _latency(self, row: str) -> list[ComparedRow]:
        outcomes: dict[str, list[Outcome]] = {"ours": [], "kafka": []}
        for _ in range(max(1, self._size.rounds // 2)):
            for key, found in outcomes.items():
                found.append(self._latency_of(key))
        return compare(
            row,
            ours=outcomes["ours"],
            peer=outcomes["kafka"],
            reaches={P50.name: 1.0, P95.name: 1.0},
            peer_name=KAFKA,
        )

    def _latency_of(self, key: str) -> Outcome:
        """Follow a stream while a producer writes it at a steady rate."""
        size, name = self._size, self._name("latency")
        load = Load(
            rate=EVENT_RATE,
            segments=size.parts,
            consumers=0,
            warmup_seconds=size.warmup_seconds,
            seconds=size.latency_seconds,
            drain_seconds=1,
            kept_stream=name,
        )
        is_ours = key == "ours"
        address = self._ours.address if is_ours else self._kafka.address
        failures: list[LoadFailedError] = []

        def produce() -> None:
            try:
                run_load(address, load, speaks_kafka=not is_ours)
            except LoadFailedError as error:
                failures.append(error)

        producer = threading.Thread(target=produce)
        producer.start()
        try:
            frame = self._appeared(name, is_ours, producer)
            latencies = [] if frame is None else self._followed(frame, producer)
        finally:
            producer.join()
        if failures:
            return Outcome({}, failure=str(failures[0]))
        return Outcome({P50: _percentile(latencies, 0.5), P95: _percentile(latencies, 0.95)})

    def _appeared(self, name: str, is_ours: bool, producer: threading.Thread) -> Any:
        """Return the frame of a stream as soon as the producer has made it, or None when the
        producer has ended before."""
        spark = self._spark
        while True:
            try:
                if is_ours:
                    self._ours.read(spark, name, read_path="wire").rdd.getNumPartitions()
                    return self._ours.follow(spark, name).selectExpr("event as value")
                self._kafka.read(spark, name).rdd.getNumPartitions()
                return self._kafka.follow(spark, name).select("value")
            except Exception:
                if not producer.is_alive():
                    return None
                time.sleep(0.2)

    def _followed(self, frame: Any, producer: threading.Thread) -> list[float]:
        """Return the latencies, in milliseconds, of all events after the warm-up."""
        begins = time.monotonic() + self._size.warmup_seconds
        latencies: list[float] = []

        def take(batch: Any, number: int) -> None:
            sent = batch.selectExpr("substring(value, 1, 8) as sent").toArrow()
            now = time.monotonic_ns()
            if now / 1e9 < begins:
                return
            for each in sent.column("sent").to_pylist():
                latencies.append((now - struct.unpack(">q", each)[0]) / 1e6)

        query = (
            frame.writeStream.foreachBatch(take)
            .option("checkpointLocation", str(self._directory / self._name("checkpoint")))
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            producer.join()
            # A slow machine may not have taken one event after the warm-up by now, and the events
            # that wait longest must not be left out.
            query.processAllAvailable()
        finally:
            query.stop()
        return latencies

    # ---- Writes ----------------------------------------------------------------------------------

    def _sink(self, row: str) -> list[ComparedRow]:
        size, spark = self._size, self._spark
        frame = made_events(spark, size.sink_events, 100)

        def to_ours() -> None:
            name = self._name("sink")
            self._ours.create(name, size.parts)
            self._ours.write(frame, name)

        def to_kafka() -> None:
            name = self._name("sink")
            self._kafka.create(spark, name, size.parts)
            self._kafka.write(frame, name)

        by_ours, by_kafka = self._rounds(size.sink_events, [to_ours, to_kafka])
        found = compare(
            f"{row}, exactly once",
            ours=by_ours,
            peer=by_kafka,
            reaches={"rows/s": 0.7},
            peer_name="Kafka sink, at least once",
        )
        return [each for each in found if each.metric == ROWS_PER_SECOND]

    def _archive(self, row: str) -> list[ComparedRow]:
        size, spark = self._size, self._spark
        events = Events(self._name("archive"), size.stream_events, 100, size.parts)
        self._ours.fill(events)
        self._wait_stored(events)
        stored = str(self._directory / "archive-source")
        self._ours.read(spark, events.name).write.parquet(stored)

        def write(frame: Any) -> None:
            target = self._directory / self._name("parquet")
            frame.write.parquet(str(target))
            shutil.rmtree(target)

        by_ours, by_parquet, by_ceiling = self._rounds(
            events.count,
            [
                lambda: write(self._ours.read(spark, events.name)),
                lambda: write(spark.read.parquet(stored)),
                lambda: write(_ready_batches(spark, events)),
            ],
        )
        found = [
            each
            for peer, name in ((by_parquet, "from Parquet"), (by_ceiling, CEILING))
            for each in compare(
                row, ours=by_ours, peer=peer, reaches={"rows/s": 0.8}, peer_name=name
            )
        ]
        return [each for each in found if each.metric == ROWS_PER_SECOND]

    def _name(self, kind: str) -> str:
        self._number += 1
        return f"{kind}-{self._number}"


ROWS = ("read-100B", "read-1KB", "available-now", "latency", "sink", "archive")


def run(
    size: Size, rows: Sequence[str], directory: Path, finished: FinishedParts
) -> list[ComparedRow]:
    """Measure rows with servers of their own in an empty directory, but for those that are
    ``finished``."""
    (directory / "ours").mkdir()
    (directory / "kafka").mkdir()
    ours = Ours(directory / "ours")
    try:
        kafka = Kafka(directory / "kafka")
        try:
            with spark_session(directory) as spark:
                bench = Bench(size, spark, ours, kafka, directory)
                found = [finished.compared(row, partial(bench.run, row)) for row in rows]
                return [each for of_row in found for each in of_row]
        finally:
            kafka.stop()
    finally:
        ours.stop()


@contextmanager
def spark_session(directory: Path) -> Iterator[Any]:
    """Run a Spark with both data sources and with Kafka's classes.

    A process has one JVM: each of its sessions has the classes of the first one.
    """
    from pyspark.sql import SparkSession

    from pravega_spark import PravegaDataSource

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYTHONPATH"] = f"{ROOT}:{os.environ.get('PYTHONPATH', '')}"
    spark = (
        SparkSession.builder.master("local[2]")
        .appName("bench-spark")
        .config("spark.jars", resolve_class_path(JARS).replace(":", ","))
        .config("spark.ui.enabled", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "2g")
        # A query that is stopped within `foreachBatch` has its error, a long one, matched against a
        # regular expression that recurses for each character: a thread's usual 1 MiB is too little.
        .config("spark.driver.extraJavaOptions", "-Xss16m")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .getOrCreate()
    )
    try:
        spark.sparkContext.setLogLevel("ERROR")
        spark.dataSource.register(PravegaDataSource)
        spark.dataSource.register(ReadyBatches)
        yield spark
    finally:
        spark.stop()


def _ready_batches(spark: Any, events: Events) -> Any:
    """Return a frame of as many events, which need not be fetched."""
    given = {"events": events.count, "event_bytes": events.event_bytes, "partitions": events.parts}
    source = spark.read.format("ready_batches")
    return source.options(**{key: str(value) for key, value in given.items()}).load()


def make_all_rows(frame: Any) -> None:
    """Make every row of a frame."""
    frame.write.format("noop").mode("overwrite").save()


def _percentile(numbers: Sequence[float], share: float) -> float | None:
    if len(numbers) < 2:
        return None
    return statistics.quantiles(numbers, n=100, method="inclusive")[round(share * 100) - 1]


def main() -> int:
    """Measure, and print the table."""
    usual = Size()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mib", type=int, default=usual.mib, help="payload of each batch read")
    parser.add_argument("--parts", type=int, default=usual.parts, help="segments and partitions")
    parser.add_argument("--rounds", type=int, default=usual.rounds)
    parser.add_argument("--events", type=int, default=usual.stream_events, help="of queries")
    parser.add_argument("--seconds", type=float, default=usual.latency_seconds, help="of latency")
    parser.add_argument("--rows", default=",".join(ROWS), help="of " + ", ".join(ROWS))
    parser.add_argument("--small", action="store_true", help="what the test suite runs")
    parser.add_argument(
        "--report",
        action="store_true",
        help=f"write docs/performance/{REPORT.name}, and print rows for summary.md there",
    )
    parser.add_argument("--directory", type=Path, help="an empty directory for the servers' data")
    given = parser.parse_args()
    size = SMALL if given.small else Size(
        mib=given.mib,
        parts=given.parts,
        rounds=given.rounds,
        stream_events=given.events,
        sink_events=given.events // 4,
        latency_seconds=given.seconds,
    )  # fmt: skip
    with tempfile.TemporaryDirectory(dir=given.directory) as directory:
        rows = given.rows.split(",")
        finished = keep_parts("spark", (rows, size), small=given.small)
        found = run(size, rows, Path(directory), finished)
        machine = this_machine(Path(directory))
    print(plain_table(found))
    write_json_if_asked(found)
    if given.report:
        command = f"python -m benchmarks.bench_spark {' '.join(sys.argv[1:])}"
        moment = datetime.now(UTC)
        REPORT.write_text(report(found, size, measured_on(machine, moment, command)))
        print(f"report: {REPORT}")
        print("for docs/performance/summary.md:")
        print(readme_table(found, moment))
    finished.end()
    return 0


def readme_table(found: Sequence[ComparedRow], moment: datetime) -> str:
    """Return a table of the ratios, a line a row, with the day."""
    lines = [
        f"| Spark, {moment.day} {moment:%B %Y} | beside | ratio | wanted |",
        "| --- | --- | --- | --- |",
    ]
    for row in found:
        # CPU time has steps of 10 ms: little data may cost none, and then there is no ratio.
        has_failed = row.ours is None or row.peer is None
        ratio = "failed" if has_failed else "-" if row.ratio is None else f"{row.ratio:.2f}"
        sign = "≤" if row.metric.better == "lower" else "≥"
        wanted = "" if row.reach is None else f"{sign} {row.reach:g}"
        lines.append(f"| {row.row}: {row.metric.name} | {row.peer_name} | {ratio} | {wanted} |")
    return "\n".join(lines)


def report(found: Sequence[ComparedRow], size: Size, where: str) -> str:
    """Return the page of a run."""
    return f"""# Spark

Spark 4.3, `local[2]`, reads and writes segstore with the data source `pravega`, and Kafka 3.9.0
with Spark's own source and sink, in turns on one machine. Each number is the median of
{size.rounds} rounds after a warm-up round; a ratio is ours divided by the peer's. The batch reads
have {size.mib} MiB of 1 KiB events, or {size.mib // 4} MiB of 100 B events, in {size.parts}
segments or partitions; queries and the archive have {size.stream_events:,} events of 100 B, the
sinks {size.sink_events:,}; latencies are those of {size.latency_seconds:g} s at {EVENT_RATE:,}
events/s. The *ceiling* is a data source that returns record batches which it has
prepared.

{markdown_table(found)}

{where}"""


if __name__ == "__main__":
    sys.exit(main())
