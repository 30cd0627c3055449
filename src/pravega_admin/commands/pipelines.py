"""``segstore pipeline``: the data pipeline's jobs, which run on Spark.

Owns: their options, the display while they run, and their summaries. The jobs themselves are in
``pravega_spark.jobs``.

Spark is imported only when a job runs. ``--dry-run`` starts no job and writes nothing.

Invariants:
1. When Java or the controller is missing, the command ends with one sentence before Spark is
   started. Held by ``test_a_missing_controller_is_told_before_spark_is_started``.
"""

from __future__ import annotations

import importlib.util
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import typer

from pravega_admin.commands.controllers import ControllerOption, open_controller
from pravega_admin.errors import AdminError, ConfigurationError
from pravega_admin.logins import find_variables
from pravega_admin.options import OutputOption, StreamArgument, StreamName, parse_stream_name
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.output import (
    JobState,
    OutputFormat,
    Row,
    job_progress,
    print_message,
    print_rows,
    report,
)
from pravega_admin.serving.store_settings import process_began
from segstore_client.addresses import DEFAULT_CONTROLLER
from segstore_client.errors import UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from pravega_spark.jobs.queries import Progress

app = Verbs(help="Move data between streams, files and Parquet on Spark.")

MasterOption: TypeAlias = Annotated[
    str,
    typer.Option(
        "--master", envvar="SEGSTORE_SPARK_MASTER", metavar="URL", help="Where Spark runs."
    ),
]
ConfOption: TypeAlias = Annotated[
    list[str] | None,
    typer.Option("--conf", metavar="NAME=VALUE", help="A setting of Spark; may be repeated."),
]
DryRunOption: TypeAlias = Annotated[
    bool, typer.Option("--dry-run", help="Say what would be done, and do nothing.")
]
FollowOption: TypeAlias = Annotated[
    bool, typer.Option("--follow", help="Go on with what comes, until Ctrl-C.")
]
SegmentsOption: TypeAlias = Annotated[
    int, typer.Option("--segments", min=1, help="Segments of a stream that does not exist yet.")
]
KeyOption: TypeAlias = Annotated[
    str, typer.Option("--key", metavar="SQL", help="An SQL expression that is the routing key.")
]
LOCAL = "local[*]"
LOOK_SECONDS = 0.5
"""Interval, in seconds, at which the progress is read from Spark."""


@app.command()
def ingest(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE", help="A directory of text files, or kafka://HOST:PORT,.../TOPIC."
        ),
    ],
    stream: StreamArgument,
    key: KeyOption = "",
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="DIRECTORY",
            help="Remembers what was written; by default named after SOURCE and STREAM.",
        ),
    ] = None,
    segments: SegmentsOption = 1,
    follow: FollowOption = False,
    dry_run: DryRunOption = False,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write lines of text files, or records of a Kafka topic, to a stream, each exactly once.

    The key is an expression over the line, such as "split(value, ',')[0]", or over the record's
    columns key, value, topic, partition, offset and timestamp; without it its own key counts.
    """
    name = parse_stream_name(stream)
    topic = _parse_kafka(source)
    where = source.rstrip("/") if topic is None else topic.checkpoint_name
    place = checkpoint or f"{where}.ingested-to/{name.scope}/{name.stream}"
    plan = {"from": source, "to": str(name), "key": key or None, "checkpoint": place}
    if _is_dry(dry_run, "ingest", plan, output):
        return
    needs_kafka = topic is not None
    total, batch_bytes = (None, 0) if needs_kafka or follow else _size_files(source, place)
    with _session(
        "segstore ingest", master, conf, controller=controller, needs_kafka=needs_kafka
    ) as job:
        query = _start_ingest(
            job.spark,
            source if topic is None else topic,
            controller=controller,
            scope=name.scope,
            stream=name.stream,
            checkpoint=place,
            key=key,
            segments=segments,
            follow=follow,
        )
        unit = "lines" if topic is None else "records"
        _follow(job, query, f"{source} -> {name}", unit, output, total, batch_bytes)


@app.command()
def archive(
    stream: StreamArgument,
    target: Annotated[str, typer.Argument(metavar="DIRECTORY", help="Where Parquet files go.")],
    columns: Annotated[
        str,
        typer.Option(metavar="DDL", help='Columns of JSON events: "user string, price double".'),
    ] = "",
    partition_by: Annotated[
        list[str] | None,
        typer.Option(metavar="COLUMN", help="A column to partition by; may be repeated."),
    ] = None,
    max_bytes_per_trigger: Annotated[
        int, typer.Option(min=0, metavar="BYTES", help="Most bytes of a batch; 0 is no limit.")
    ] = 0,
    follow: FollowOption = False,
    dry_run: DryRunOption = False,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Archive a stream to Parquet, each event exactly once; a further run adds what is new."""
    name = parse_stream_name(stream)
    if partition_by and not columns:
        raise UsageError("--partition-by names columns of --columns, and there are none")
    plan = {"from": str(name), "to": target, "columns": columns or None}
    if _is_dry(dry_run, "archive", plan, output):
        return
    with _session("segstore archive", master, conf, controller=controller) as job:
        from pravega_spark.jobs.archive import archive as start

        total = None if follow else _size_stream(controller, name)
        query = start(
            job.spark,
            controller=controller,
            scope=name.scope,
            stream=name.stream,
            output=target,
            columns=columns,
            partition_by=partition_by or (),
            follow=follow,
            max_bytes_per_trigger=max_bytes_per_trigger,
        )
        batch_bytes = max_bytes_per_trigger or total or 0
        _follow(job, query, f"{name} -> {target}", "events", output, total, batch_bytes)


@app.command()
def replay(
    source: Annotated[str, typer.Argument(metavar="DIRECTORY", help="An archive in Parquet.")],
    stream: StreamArgument,
    key: KeyOption = "",
    again: Annotated[
        str, typer.Option("--again", metavar="NAME", help="Write the same archive once more.")
    ] = "",
    segments: SegmentsOption = 1,
    dry_run: DryRunOption = False,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Write an archive to a stream, once: a second run adds nothing, unless it has another --again.

    An archive that has grown since is refused. The key is an expression over the archive's columns.
    Events of a key keep their order.
    """
    name = parse_stream_name(stream)
    plan = {"from": source, "to": str(name), "key": key or None}
    if _is_dry(dry_run, "replay", plan, output):
        return
    with (
        _session("segstore replay", master, conf, controller=controller) as job,
        _sentences(),
    ):
        from pravega_spark.jobs.replay import replay as run

        with job.shown(f"{source} -> {name}", "events"):
            count = run(
                job.spark,
                controller=controller,
                scope=name.scope,
                stream=name.stream,
                source=source,
                again=again,
                key=key,
                segments=segments,
            )
        report(f"{count} events of {source} are in {name}", {"events": count}, output)


@app.command()
def compact(
    source: Annotated[str, typer.Argument(metavar="DIRECTORY", help="An archive in Parquet.")],
    target: Annotated[str, typer.Argument(metavar="DIRECTORY", help="Where the copy goes.")],
    file_bytes: Annotated[
        int, typer.Option(min=1, metavar="BYTES", help="Length of the files.")
    ] = 256 * 1024 * 1024,
    dry_run: DryRunOption = False,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Copy an archive of many small files into one of few large ones."""
    plan = {"from": source, "to": target, "file_bytes": file_bytes}
    if _is_dry(dry_run, "compact", plan, output):
        return
    with _session("segstore compact", master, conf) as job, _sentences():
        from pravega_spark.jobs.compact import compact as run

        with job.shown(f"{source} -> {target}", "events"):
            before, after = run(job.spark, source=source, output=target, file_bytes=file_bytes)
        fields = {"files_before": before, "files_after": after}
        report(f"{before} files of {source} became {after} in {target}", fields, output)


@app.command()
def stats(
    stream: StreamArgument,
    key: KeyOption = "",
    dry_run: DryRunOption = False,
    master: MasterOption = LOCAL,
    conf: ConfOption = None,
    controller: ControllerOption = DEFAULT_CONTROLLER,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Count the events, bytes and keys of each segment of a stream.

    The key is an expression over the event, such as "left(cast(event as string), 3)".
    """
    name = parse_stream_name(stream)
    if _is_dry(dry_run, "stats", {"from": str(name), "key": key or None}, output):
        return
    with _session("segstore stats", master, conf, controller=controller) as job, _sentences():
        from pravega_spark.jobs.stats import stats as run

        total = _size_stream(controller, name)
        with job.shown(f"reading {name}", "events", total):
            found = run(
                job.spark, controller=controller, scope=name.scope, stream=name.stream, key=key
            )
            rows: list[Row] = [row.asDict() for row in found.collect()]
        columns = ["segment_id", "epoch", "events", "bytes", "longest_event"]
        columns += ["first_offset", "last_offset", *(["keys"] if key else [])]
        print_rows(rows, columns, output)


# ---- Parts of the verbs --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _KafkaSource:
    """A Kafka topic and the servers to ask for it, as ``host:port,host:port``."""

    servers: str
    topic: str

    @property
    def checkpoint_name(self) -> str:
        """Return a file name for the topic and its servers, whatever the order of these.

        A topic of the same name elsewhere has other offsets. Hadoop's paths have no colons.
        """
        servers = "+".join(sorted(self.servers.split(",")))
        return f"{self.topic}@{servers.replace(':', '-')}"


def _parse_kafka(source: str) -> _KafkaSource | None:
    """Return the topic that ``kafka://HOST:PORT,.../TOPIC`` names; None for a directory."""
    scheme, delimiter, rest = source.partition("://")
    if not delimiter or scheme != "kafka":
        return None
    servers, _, topic = rest.partition("/")
    are_servers = all(
        host and port.isdecimal()
        for host, _, port in (each.rpartition(":") for each in servers.split(","))
    )
    if not are_servers or not topic or "/" in topic:
        raise UsageError(f"{source!r} is not the name of a topic: write kafka://HOST:PORT/TOPIC")
    return _KafkaSource(servers, topic)


def _start_ingest(spark: SparkSession, source: str | _KafkaSource, **options: Any) -> Any:
    """Start the job for a directory or for a topic."""
    from pravega_spark.jobs.ingest import ingest
    from pravega_spark.jobs.ingest_kafka import ingest_kafka

    with _sentences():
        if isinstance(source, _KafkaSource):
            return ingest_kafka(spark, servers=source.servers, topic=source.topic, **options)
        return ingest(spark, source=source, **options)


def _is_dry(dry_run: bool, job: str, plan: Mapping[str, Any], output: OutputFormat) -> bool:
    """Return whether the user asked only what a job would do, and print that."""
    if dry_run:
        told = ", ".join(f"{name} {value}" for name, value in plan.items() if value is not None)
        report(f"would {job}: {told}", {"job": job, **plan}, output)
    return dry_run


@dataclass(frozen=True, slots=True)
class _Job:
    """A session of Spark for one job, and the bar that shows the job."""

    spark: SparkSession
    show: Callable[[JobState], None]
    began: float
    """Start of the command, by the monotonic clock."""

    @property
    def seconds(self) -> float:
        """Return the time that the command has taken."""
        return time.monotonic() - self.began

    @contextmanager
    def shown(self, label: str, unit: str, total: int | None = None) -> Iterator[None]:
        """Show inside the block what Spark does, of ``total`` bytes if that is known."""
        ended = threading.Event()

        def watch() -> None:
            from pravega_spark.jobs.watch import look_at_stages

            while not ended.wait(LOOK_SECONDS):
                running = look_at_stages(self.spark)
                self.show(_describe(label, unit, running.rows, running.share, total))

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            yield
        finally:
            ended.set()
            watcher.join()


@contextmanager
def _session(
    name: str,
    master: str,
    conf: list[str] | None,
    *,
    controller: str | None = None,
    needs_kafka: bool = False,
) -> Iterator[_Job]:
    """Yield a session for a job; look for everything that it needs before Spark is started."""
    if importlib.util.find_spec("pyspark") is None or importlib.util.find_spec("pyarrow") is None:
        raise ConfigurationError(
            "the data pipeline needs PySpark, which is not installed: pip install 'segstore[spark]'"
        )
    settings = {}
    for each in conf or ():
        key, equals, value = each.partition("=")
        if not equals:
            raise UsageError(f"--conf is NAME=VALUE, not {each!r}")
        settings[key] = value
    from pravega_spark.jobs.java import find_java_problem
    from pravega_spark.jobs.session import KAFKA_SETTINGS, needs_java, open_session

    if needs_java(master) and (problem := find_java_problem(os.environ)):
        raise ConfigurationError(problem)
    if controller is not None:
        with open_controller(controller) as client:
            next(iter(client.list_scopes()), None)
        # The data source reads these variables; options of Spark would be shown in its plans.
        os.environ.update(find_variables())
    if needs_kafka:
        settings = {**KAFKA_SETTINGS, **settings}
    # The bridge to Java logs there, with a traceback, each call that an interrupt has ended.
    logging.getLogger().addHandler(logging.NullHandler())
    with ExitStack() as stack:
        show = stack.enter_context(job_progress("starting Spark"))
        # Spark's processes write warnings and their own progress bar.
        messages = stack.enter_context(tempfile.TemporaryFile())
        with _sentences():
            session = open_session(name, master=master, settings=settings, messages=messages)
            spark = stack.enter_context(session)
        yield _Job(spark, show, process_began())


@contextmanager
def _sentences() -> Iterator[None]:
    """Replace errors of Spark, which fill pages, by the one sentence with their reason."""
    from pyspark.errors import PySparkException

    from pravega_spark.jobs.queries import cause_of

    try:
        yield
    except PySparkException as error:
        raise AdminError(cause_of(error)) from error


def _follow(
    job: _Job,
    query: Any,
    label: str,
    unit: str,
    output: OutputFormat,
    total: int | None,
    batch_bytes: int,
) -> None:
    """Wait for the end of a query, and print what it did.

    It reads ``total`` bytes, if that is known, and ``batch_bytes`` of them at once.
    """
    from pravega_spark.jobs.queries import run_query
    from pravega_spark.jobs.watch import look_at_stages

    def show(progress: Progress) -> None:
        running = look_at_stages(job.spark)
        rows = progress.rows + running.rows
        share = progress.share_of(total, batch_bytes, running.share) if total else 0.0
        job.show(_describe(label, unit, rows, share, total))

    with _sentences():
        done = run_query(query, show)
    fields = {unit: done.rows, "batches": done.batches, "seconds": round(job.seconds, 3)}
    report(f"{label}: {done.rows} {unit} in {job.seconds:.1f} s", fields, output)
    if not done.rows:
        print_message(f"there was nothing new in {label.split(' -> ', maxsplit=1)[0]}")


def _size_stream(controller: str, name: StreamName) -> int:
    """Return the bytes of a stream, with the headers of events."""
    from pravega_spark.options import EARLIEST, Options
    from pravega_spark.reading.stream_view import StreamView

    given = {"controller": controller, "scope": name.scope, "stream": name.stream}
    with _sentences(), StreamView(Options.parse(given)) as view:
        return sum(
            piece.end - piece.start
            for piece in view.batch_slices(view.start(EARLIEST), view.tail())
        )


def _size_files(source: str, checkpoint: str) -> tuple[int | None, int]:
    """Return the bytes of files to read, and of a batch of them; None where that is not known."""
    from pravega_spark.jobs.ingest import FILES_PER_TRIGGER

    if not Path(source).is_dir() or Path(checkpoint).exists():
        return None, 0
    sizes = [each.stat().st_size for each in Path(source).iterdir() if each.is_file()]
    total = sum(sizes)
    return total, total * FILES_PER_TRIGGER // max(FILES_PER_TRIGGER, len(sizes))


def _describe(label: str, unit: str, rows: int, share: float, total: int | None) -> JobState:
    """Return what the bar shows of a job that has read this many rows."""
    amount = f"{rows:,} {unit}"
    if total is not None:
        from segstore_client.controller.stream_settings import format_size

        amount = f"{amount} of {format_size(total)}"
    return JobState(label, amount, share if total else 0.0, 1.0 if total else None)
