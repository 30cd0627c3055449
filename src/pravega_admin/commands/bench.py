"""``segstore bench``: measures this machine's store, in this process.

Owns: the arguments and the output of these verbs.
"""

from __future__ import annotations

import enum
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pravega_admin.errors import AdminError
from pravega_admin.options import OutputOption
from pravega_admin.output.help_pages import Verbs
from pravega_admin.output.log_options import LogFormat, LogLevel
from pravega_admin.output.output import OutputFormat, print_rows, progress

if TYPE_CHECKING:
    from pravega_admin.inspection.self_tester import SelfTestResult, Workload

MIB = 1024 * 1024
PERCENTS = (50, 90, 95, 99, 99.9)

app = Verbs(help="Measure the store on this machine.")


class WorkloadName(enum.StrEnum):
    """Small appends, larger ones, or first the one and then the other."""

    LATENCY = "latency"
    THROUGHPUT = "throughput"
    BOTH = "both"


class LogKind(enum.StrEnum):
    """Kinds of tier 1: in memory, or in a journal on disk that is synced before any completion."""

    MEMORY = "memory"
    JOURNAL = "journal"


def _changed(name: str, words: str) -> Any:
    return typer.Option(name, min=1, help=words, show_default="the workload's")


@app.command("self")
def self_(
    workload: Annotated[
        WorkloadName, typer.Option("--workload", "-w", help="What to append.")
    ] = WorkloadName.BOTH,
    log: Annotated[LogKind, typer.Option("--log", help="Where tier 1 is.")] = LogKind.MEMORY,
    appends: Annotated[
        int | None, _changed("--appends", "Appends of all producers together.")
    ] = None,
    append_bytes: Annotated[int | None, _changed("--append-bytes", "Length of an append.")] = None,
    producers: Annotated[int | None, _changed("--producers", "Producers at the same time.")] = None,
    batch: Annotated[
        int | None, _changed("--batch", "Appends that a producer sends at once.")
    ] = None,
    segments: Annotated[
        int | None, _changed("--segments", "Segments that are appended to.")
    ] = None,
    containers: Annotated[int | None, _changed("--containers", "Containers of the store.")] = None,
    cache_mib: Annotated[
        int, typer.Option("--cache-mib", min=8, help="Memory for segments' bytes.")
    ] = 512,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", help="An empty place for the journal.", show_default="temporary"
        ),
    ] = None,
    output: OutputOption = OutputFormat.TABLE,
) -> None:
    """Append to a store in this process, without a network, and print what it took.

    Two workloads: small appends for latency, larger ones for throughput, each by many producers
    that send batches. The store is the real one; only tier 2 drops the data.
    """
    from pravega_admin.inspection.self_tester import LATENCY, THROUGHPUT
    from pravega_admin.output.logs import configure_logs

    configure_logs("self-test", level=LogLevel.WARNING, format=LogFormat.AUTO)
    given = {
        "append_count": appends,
        "append_bytes": append_bytes,
        "producer_count": producers,
        "batch_count": batch,
        "segment_count": segments,
        "container_count": containers,
    }
    changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    chosen = [w for w in (LATENCY, THROUGHPUT) if workload in (w.name, WorkloadName.BOTH)]
    rows = []
    for each in chosen:
        with _directory(data_dir) as directory:
            rows.append(
                _row(
                    _run(
                        replace(each, **changes),
                        directory=directory / each.name,
                        durable=log is LogKind.JOURNAL,
                        cache_bytes_max=cache_mib * MIB,
                    )
                )
            )
    print_rows(rows, list(rows[0]), output)


def _run(
    workload: Workload, *, directory: Path, durable: bool, cache_bytes_max: int
) -> SelfTestResult:
    from pravega_admin.inspection.self_tester import run_self_test
    from segstore.errors import SegmentStoreError, leaf_errors

    with progress(workload.name, total=workload.append_count, in_bytes=False) as advance:
        try:
            return run_self_test(
                workload,
                data_dir=directory,
                durable=durable,
                cache_bytes_max=cache_bytes_max,
                on_progress=advance,
            )
        except (SegmentStoreError, BaseExceptionGroup) as failure:
            for error in leaf_errors(failure):
                if isinstance(error, SegmentStoreError):
                    raise AdminError(f"the self-test failed: {error}") from failure
            raise


def _row(result: SelfTestResult) -> dict[str, Any]:
    workload = result.workload
    percentiles = {f"p{percent:g}_ms": result.percentile_ms(percent) for percent in PERCENTS}
    numbers = {
        "mb_per_second": result.mb_per_second,
        "appends_per_second": round(result.appends_per_second),
        "average_ms": result.average_ms,
        **percentiles,
        "cpu_us_per_append": result.cpu_seconds / len(result.latencies_ms) * 1e6,
        "seconds": result.seconds,
    }
    rounded = {name: round(value, 2) for name, value in numbers.items()}
    return {"workload": workload.name, "bytes": workload.append_bytes, **rounded}


@contextmanager
def _directory(given: Path | None) -> Iterator[Path]:
    """Yield the directory that the user named, or a temporary one that is deleted at the end."""
    if given is not None:
        yield given
        return
    directory = Path(tempfile.mkdtemp(prefix="segstore-self-test-"))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)
