"""How does a store carry many segments, long history and a restart with all of it?

Run from the repository's root: `python -m benchmarks.bench_scale [--rows S1,S3] [--report]`.
All of it takes a quarter of an hour.

1. Each row has a server of its own, as installed. S2's writers are rows of `bench_streams`, with
   the official client, whose own limits they show too; the load of all others, S2's connections
   among them, goes straight over the wire.
2. S3: readers are a process of their own. The server is started anew before they read, so that its
   cache has nothing, and the page cache is told to forget tier 2. The peers are the disk, read past
   the page cache in the same sizes by the same number of threads, before and after; and the
   original, durable, with a cache as large as ours, of a history that is four times as long. The
   disk has no readers to serve, who use the same processors: the least server of the same files
   says what the machine gives them.
3. The tail of S3 is from the sending of a block to when a parked read at another connection has it.
4. S4 kills all processes (SIGKILL) and counts until the store says that it is ready. It is started
   twice with few segments and with many, and nothing unflushed in both cases; and once with much
   that tier 2 does not have, which is a row of `bench_streams` too.
5. S5 is what the segment store's and the controller's memory grows by while segments are made, and
   what both use of a processor when nobody asks for anything.
"""

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from foreign_servers.original_durable import OriginalDurable
from foreign_servers.peer import PeerFailedError, RunningPeer, running

from benchmarks.block_load import BlockLoadFailedError, expect, percentile
from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    compare,
    limited,
    markdown_table,
    plain_table,
    report_progress,
    write_json_if_asked,
)
from benchmarks.finished_parts import FinishedParts, keep_parts
from benchmarks.history import (
    HOST,
    MIB,
    disk_bytes_per_second,
    forget_pages,
    length_of,
    readers_of_history,
    segment_name,
    tail_latencies,
    wait_until_stored,
    write_history,
)
from benchmarks.least_server import serving
from benchmarks.machine import measured_on, this_machine
from benchmarks.many_segments import BLOCK_P95, BLOCKS, load_on
from benchmarks.many_streams import beside_lesser, ready_after_crash, run_rows
from benchmarks.peers.segstore_standalone import SegstoreStandalone
from benchmarks.streams import rows as streams_rows
from benchmarks.streams.rows import CRASH, DURABLE, PUBLISHED, Plan
from pravega_wire.blocking import SegmentConnection
from pravega_wire.codec import encode
from pravega_wire.commands import CreateSegment, SegmentCreated
from pravega_wire.errors import ProtocolError

REPORTS = Path(__file__).parent.parent / "docs" / "performance"
OUTSTANDING = 200
CACHE_BYTES = 512 * MIB
"""Our default."""
STORED_SECONDS_MAX = 60.0
NEVER_REACHED_PER_SECOND = 100_000
"""Blocks of one sender."""
THROUGHPUT = Metric("history read", "MB/s", "higher")
TAIL = Metric("tail p99", "ms", "lower")
ROW_NAMES = ("S1", "S2", "S3", "S4", "S5")


USUAL_PLAN = Plan(peers=(DURABLE,), rounds=1)


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of work of a run."""

    history_bytes: int = 10 << 30
    peer_history_bytes: int = 2 << 30
    """The original takes minutes to write more, and seconds to show how fast it reads."""
    readers: int = 16
    tail_seconds: float = 10.0
    few_segments: int = 100
    many_segments: int = 100_000
    idle_seconds: float = 10.0
    segment_counts: tuple[int, ...] = (16, 500, 5_000)
    writers: int = 100
    block_bytes: int = 10_000
    blocks_per_second: float = 5_000
    rehearsal_seconds: float = 45.0
    """As long as the least warm-up of the table of streams."""
    segment_seconds: float = 10.0
    segments_are_new_seconds: float = 15.0
    settled_seconds: float = 5.0
    """So that nothing is unflushed when a server is killed that nobody used in the meantime."""
    writer_rows: tuple[str, ...] = ("T2", "S2-10", "S2-100")
    connection_counts: tuple[int, ...] = (10, 100, 1_000)
    connection_blocks: int = 100_000
    connection_rehearsal_blocks: int = 500_000
    """About 50 s for the original, which acknowledges 10,000 a second."""
    connection_block_bytes: int = 1_000
    plan: Plan = USUAL_PLAN
    directory: str | None = None
    """The directory for the data of the servers; temporary by default."""


SMALL = Size(
    history_bytes=8 * MIB,
    peer_history_bytes=0,
    readers=2,
    tail_seconds=0.5,
    few_segments=10,
    many_segments=100,
    idle_seconds=0.5,
    segment_counts=(2, 8),
    writers=4,
    blocks_per_second=100,
    rehearsal_seconds=0.5,
    segment_seconds=0.5,
    segments_are_new_seconds=0.5,
    settled_seconds=0.0,
    writer_rows=("T2", "S2-10"),
    connection_counts=(2, 4),
    connection_blocks=100,
    connection_rehearsal_blocks=100,
    plan=streams_rows.SMALL,
)


class Store:
    """One data directory, and the server on it when it runs."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._peer = SegstoreStandalone()
        self.running: RunningPeer | None = None
        self.port = 0

    def start(self) -> float:
        """Start the server; returns the seconds until it said that it is ready."""
        self._peer.prepare()
        self._peer.reserve()
        begun = time.perf_counter()
        self.running = self._peer.start(self._directory)
        self.port = self._peer.segment_store_port
        return time.perf_counter() - begun

    def stop(self) -> None:
        """End it in order."""
        self._peer.stop()
        self.running = None

    def kill(self) -> None:
        """End it at once."""
        self._peer.kill()
        self.running = None

    @property
    def tier_two(self) -> Path:
        """Return the directory of its chunks."""
        return self._directory / "data/storage"

    def resident_bytes(self) -> int:
        """Return the resident memory of all processes."""
        assert self.running is not None
        return self.running.processes.usage().resident_bytes

    def cpu_seconds(self) -> float:
        """Return the CPU seconds of all processes so far."""
        assert self.running is not None
        return self.running.processes.usage().cpu_seconds


@contextmanager
def stores(size: Size) -> Iterator[Store]:
    """Make a store in a new directory, which is removed afterwards."""
    with tempfile.TemporaryDirectory(dir=size.directory) as directory:
        store = Store(Path(directory))
        try:
            yield store
        finally:
            store.kill()


def create(connection: SegmentConnection, first: int, end: int) -> None:
    """Make segments, many requests under way at a time."""
    for start in range(first, end, OUTSTANDING):
        numbers = range(start, min(end, start + OUTSTANDING))
        request_id = connection.next_request_id
        connection.send_bytes(
            b"".join(
                encode(CreateSegment(request_id(), segment_name(n), 0, 0, "")) for n in numbers
            )
        )
        created = 0
        while created < len(numbers):
            for reply in connection.receive_some():
                expect(reply, SegmentCreated)
                created += 1


def segments(size: Size) -> list[ComparedRow]:
    """Measure the rows of S1."""
    ours = [_many_segments(SegstoreStandalone(), count, size) for count in size.segment_counts]
    rows = []
    for count, outcome in zip(size.segment_counts, ours, strict=True):
        rate = size.blocks_per_second * size.block_bytes / 1e6
        title = f"S1: {count:,} segments, {size.writers} writers, {rate:g} MB/s"
        if outcome is not ours[0]:
            lesser = f"{size.segment_counts[0]} segments"
            rows += compare(
                title,
                ours=[outcome],
                peer=[ours[0]],
                reaches={BLOCK_P95.name: 2.0},
                peer_name=lesser,
            )
        if DURABLE in size.plan.peers:
            peer = _many_segments(OriginalDurable(), count, size)
            rows += compare(title, ours=[outcome], peer=[peer], reaches={}, peer_name=DURABLE)
    return rows


def _many_segments(peer: SegstoreStandalone | OriginalDurable, count: int, size: Size) -> Outcome:
    """Measure S1 on a server with this number of segments."""
    return load_on(
        peer,
        title=f"S1: {count} segments",
        segments=count,
        writers=size.writers,
        block_bytes=size.block_bytes,
        blocks_per_second=size.blocks_per_second,
        rehearsal_seconds=size.rehearsal_seconds,
        warmup_seconds=size.segments_are_new_seconds,
        seconds=size.segment_seconds,
        directory=size.directory,
    )


def _many_connections(
    peer: SegstoreStandalone | OriginalDurable, count: int, size: Size
) -> Outcome:
    """Measure S2 on a server: this many connections send blocks as fast as these are
    acknowledged."""
    return load_on(
        peer,
        title=f"S2: {count} connections",
        segments=16,
        writers=count,
        block_bytes=size.connection_block_bytes,
        blocks_per_second=NEVER_REACHED_PER_SECOND,
        rehearsal_seconds=size.connection_rehearsal_blocks / NEVER_REACHED_PER_SECOND,
        warmup_seconds=size.connection_blocks / NEVER_REACHED_PER_SECOND / 2,
        seconds=size.connection_blocks / NEVER_REACHED_PER_SECOND,
        directory=size.directory,
    )


def writers(size: Size) -> list[ComparedRow]:
    """Measure the rows of S2."""
    *single, lesser, greater = size.writer_rows
    measured = run_rows(replace(size.plan, rows=size.writer_rows), directory=size.directory)
    rows = [
        row
        for first, others in (*((each, ()) for each in single), (lesser, (greater,)))
        for row in beside_lesser(
            "S2", measured, lesser=first, greater=others, metric=PUBLISHED, reach=1.0
        )
    ]
    counts = size.connection_counts
    ours = [_many_connections(SegstoreStandalone(), count, size) for count in counts]
    for count, outcome in zip(counts, ours, strict=True):
        title = f"S2: {count:,} connections, {size.connection_block_bytes:,} B blocks"
        compared = []
        if outcome is not ours[0]:
            compared = compare(
                title,
                ours=[outcome],
                peer=[ours[0]],
                reaches={BLOCKS.name: 1.0},
                peer_name=f"{counts[0]} connections",
            )
        if DURABLE in size.plan.peers:
            peer = _many_connections(OriginalDurable(), count, size)
            compared += compare(title, ours=[outcome], peer=[peer], reaches={}, peer_name=DURABLE)
        rows += [each for each in compared if each.metric == BLOCKS]
    return rows


def history(size: Size) -> list[ComparedRow]:
    """Measure the rows of S3."""
    readers, length = size.readers, length_of(size.history_bytes, size.readers)
    with stores(size) as store:
        store.start()
        report_progress("S3", "written", write_history(store.port, readers=readers, length=length))
        wait_until_stored(
            store.tier_two, bytes_min=readers * length, seconds_max=STORED_SECONDS_MAX
        )
        store.stop()
        disk = [read_disk(store.tier_two, readers)]
        forget_pages(store.tier_two)
        store.start()
        until = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            alone = pool.submit(tail_latencies, store.port, readers, until)
            time.sleep(size.tail_seconds)
            until.set()
            quiet = alone.result()
            until = threading.Event()
            beside = pool.submit(tail_latencies, store.port, readers + 1, until)
            read = readers_of_history(store.port, readers=readers, length=length)
            until.set()
            busy = beside.result()
        store.stop()
        disk.append(read_disk(store.tier_two, readers))
        with serving(store.tier_two) as port:
            least = readers_of_history(port, readers=readers, length=length)
    ours = Outcome({THROUGHPUT: read["bytes"] / read["seconds"] / 1e6})
    compared = [
        *compare(
            f"S3: {readers} readers of {read['bytes'] / 1e6:,.0f} MB",
            ours=[ours],
            peer=[Outcome({THROUGHPUT: bytes_per_second / 1e6}) for bytes_per_second in disk],
            reaches={THROUGHPUT.name: 0.8},
            peer_name="disk",
        ),
        *compare(
            f"S3: {readers} readers of {read['bytes'] / 1e6:,.0f} MB",
            ours=[ours],
            peer=[Outcome({THROUGHPUT: least["bytes"] / least["seconds"] / 1e6})],
            reaches={THROUGHPUT.name: 0.8},
            peer_name="least server",
        ),
        *compare(
            f"S3: tail beside {readers} readers of history",
            ours=[Outcome({TAIL: percentile(busy, 99)})],
            peer=[Outcome({TAIL: percentile(quiet, 99)})],
            reaches={TAIL.name: 2.0},
            peer_name="alone",
        ),
    ]
    if size.peer_history_bytes:
        peer = original_history(size)
        compared += compare(
            f"S3: {readers} readers, the original's of {size.peer_history_bytes / 1e6:,.0f} MB",
            ours=[ours],
            peer=[peer],
            reaches={THROUGHPUT.name: 3.0},
            peer_name="durable",
        )
    return compared


def read_disk(directory: Path, threads: int) -> float:
    """Return the rate at which the disk delivers the chunks there, in bytes a second."""
    return disk_bytes_per_second(forget_pages(directory), threads=threads)


def original_history(size: Size) -> Outcome:
    """Measure the original with a cache of the size of ours, and a history that is longer."""
    original = OriginalDurable(properties={"pravegaservice.cache.size.max": str(CACHE_BYTES)})
    readers, length = size.readers, length_of(size.peer_history_bytes, size.readers)
    try:
        original.prepare()
        with (
            tempfile.TemporaryDirectory(dir=size.directory) as directory,
            running(original, Path(directory) / "original"),
        ):
            port = original.segment_store_port
            seconds = write_history(port, readers=readers, length=length)
            report_progress("S3", "written by the original", seconds)
            tier_two = Path(directory) / "original" / "tier2"
            wait_until_stored(tier_two, bytes_min=readers * length, seconds_max=STORED_SECONDS_MAX)
            forget_pages(tier_two)
            read = readers_of_history(port, readers=readers, length=length)
    except (PeerFailedError, BlockLoadFailedError, ProtocolError) as error:
        return Outcome({}, failure=str(error))
    return Outcome({THROUGHPUT: read["bytes"] / read["seconds"] / 1e6})


def restart_seconds(count: int, size: Size) -> float:
    """Measure how long a start takes with this number of segments."""
    with stores(size) as store:
        store.start()
        with SegmentConnection(HOST, store.port) as connection:
            create(connection, 0, count)
        time.sleep(size.settled_seconds)
        store.kill()
        return store.start()


def restarts(size: Size) -> list[ComparedRow]:
    """Measure the rows of S4."""
    ready = Metric("kill -9 to ready", "s", "lower")
    compared = compare(
        f"S4: {size.many_segments:,} segments beside {size.few_segments:,}",
        ours=[Outcome({ready: restart_seconds(size.many_segments, size)})],
        peer=[Outcome({ready: restart_seconds(size.few_segments, size)})],
        reaches={ready.name: 1.5},
        peer_name="few",
    )
    crashed = run_rows(replace(size.plan, rows=(CRASH,)), directory=size.directory)
    return [*compared, *ready_after_crash("S4", crashed)]


def idle(size: Size) -> list[ComparedRow]:
    """Measure the rows of S5."""
    memory = Metric("memory of an idle segment", "B", "lower")
    processor = Metric("CPU of all idle segments", "% of a core", "lower")
    with stores(size) as store:
        store.start()
        with SegmentConnection(HOST, store.port) as connection:
            create(connection, 0, size.few_segments)
            before = store.resident_bytes()
            create(connection, size.few_segments, size.few_segments + size.many_segments)
            grown = store.resident_bytes() - before
        time.sleep(size.settled_seconds)  # until it has written what it does when it becomes quiet
        used = store.cpu_seconds()
        time.sleep(size.idle_seconds)
        used = store.cpu_seconds() - used
    found = {memory: grown / size.many_segments, processor: used / size.idle_seconds * 100}
    return limited(
        f"S5: {size.many_segments:,} segments",
        ours=[Outcome(found)],
        limits={memory.name: 2048, processor.name: 2.0},
    )


WORK = {"S1": segments, "S2": writers, "S3": history, "S4": restarts, "S5": idle}


def measure(names: Sequence[str], size: Size, finished: FinishedParts) -> list[ComparedRow]:
    """Measure the rows of that name, but for those that are finished."""
    rows = []
    for name in names:
        begun = time.perf_counter()
        rows += finished.compared(name, partial(WORK[name], size))
        report_progress(name, "all of it", time.perf_counter() - begun)
    return rows


def main(arguments: Sequence[str]) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_scale")
    parser.add_argument("--rows", default=",".join(ROW_NAMES), help="some of them")
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    parser.add_argument("--report", action="store_true", help=f"write a report under {REPORTS}")
    parser.add_argument("--history-gb", type=float, help="S3: another length of the history")
    parser.add_argument("--without-peers", action="store_true", help="leave the original out")
    parser.add_argument("--directory", help="where the servers keep their data (a temporary one)")
    options = parser.parse_args(arguments)
    names = options.rows.split(",")
    if unknown := [name for name in names if name not in WORK]:
        parser.error(f"unknown rows {unknown}; there are {ROW_NAMES}")
    size = replace(SMALL if options.small else Size(), directory=options.directory)
    if options.history_gb:
        size = replace(size, history_bytes=int(options.history_gb * (1 << 30)))
    if options.without_peers:
        size = replace(size, peer_history_bytes=0, plan=replace(size.plan, peers=()))
    moment = datetime.now(UTC)
    finished = keep_parts("scale", (names, size), small=options.small)
    rows = measure(names, size, finished)
    print(plain_table(rows))
    write_json_if_asked(rows)
    if options.report:
        command = " ".join(["python -m benchmarks.bench_scale", *arguments])
        path = REPORTS / "scale.md"
        machine = this_machine(REPORTS)
        path.write_text(
            f"# Many segments and history, {moment:%d %B %Y}\n\n{markdown_table(rows)}\n\n"
            f"{measured_on(machine, moment, command)}"
        )
        print(f"report: {path}")
    finished.end()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
