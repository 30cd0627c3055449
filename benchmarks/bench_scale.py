"""How does a store carry many segments, long history and a restart with all of it?

Run from the repository's root: `python -m benchmarks.bench_scale [--rows S3,S4,S5] [--report]`.

1. Each row has a server of its own, as installed. Load goes over the wire without the official
   client, which has limits of its own: many writers of many streams (S1, S2) are rows of
   `bench_streams`.
2. S3: readers are a process of their own. The server is started anew before they read, so that its
   cache has nothing, and the page cache is told to forget tier 2. The peer is the disk, read past
   the page cache in the same sizes by the same number of threads.
3. The tail of S3 is from the sending of a block to when a parked read at another connection has it.
4. S4 kills all processes (SIGKILL) and counts until the store says that it is ready. It is started
   twice with few segments and with many, and nothing unflushed in both cases.
5. S5 is what the segment store's and the controller's memory grows by while segments are made, and
   what both use of a processor when nobody asks for anything.
"""

import argparse
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from selectors import EVENT_READ, DefaultSelector

from benchmarks.comparison import (
    ComparedRow,
    Metric,
    Outcome,
    compare,
    limited,
    markdown_table,
    plain_table,
    write_json_if_asked,
)
from benchmarks.machine import measured_on, this_machine
from benchmarks.peers.api import RunningPeer
from benchmarks.peers.segstore_standalone import SegstoreStandalone
from pravega_wire.blocking import SegmentConnection
from pravega_wire.codec import encode
from pravega_wire.commands import (
    AppendBlock,
    AppendBlockEnd,
    AppendSetup,
    CreateSegment,
    DataAppended,
    ReadSegment,
    SegmentCreated,
    SegmentRead,
    SetupAppend,
)

REPORTS = Path(__file__).parent.parent / "docs" / "performance"
HOST = "127.0.0.1"
MIB = 1 << 20
OUTSTANDING = 200
READ_BYTES = MIB
BLOCK_BYTES = 256 * 1024
TAIL_INTERVAL_SECONDS = 0.004
TAIL_BLOCK = bytes(1000)
ROW_NAMES = ("S3", "S4", "S5")


@dataclass(frozen=True, slots=True)
class Size:
    """How much of it."""

    history_bytes: int = 2 << 30
    readers: int = 16
    tail_seconds: float = 10.0
    few_segments: int = 100
    many_segments: int = 100_000
    idle_seconds: float = 10.0


SMALL = Size(
    history_bytes=8 * MIB,
    readers=2,
    tail_seconds=0.5,
    few_segments=10,
    many_segments=100,
    idle_seconds=0.5,
)


class ScaleFailedError(Exception):
    """The server answered with something else than what was asked for."""


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

    def forget_pages(self) -> list[Path]:
        """Have the page cache forget tier 2; returns its files."""
        files = [path for path in (self._directory / "data/storage").rglob("*") if path.is_file()]
        for path in files:
            descriptor = os.open(path, os.O_RDONLY)
            os.fdatasync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)
        return files

    def resident_bytes(self) -> int:
        """Of all processes."""
        assert self.running is not None
        return self.running.processes.usage().resident_bytes

    def cpu_seconds(self) -> float:
        """Of all processes, so far."""
        assert self.running is not None
        return self.running.processes.usage().cpu_seconds


@contextmanager
def stores() -> Iterator[Store]:
    """A store in a new directory, which is gone afterwards."""
    with tempfile.TemporaryDirectory() as directory:
        store = Store(Path(directory))
        try:
            yield store
        finally:
            store.kill()


def segment_name(number: int) -> str:
    """One segment of as many streams."""
    return f"scale/stream{number}/0.#epoch.0"


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


def expect(reply: object, kind: type) -> None:
    """Raises ``ScaleFailedError`` unless the reply is of that kind."""
    if not isinstance(reply, kind):
        raise ScaleFailedError(f"the server answered {reply}")


class Writer:
    """Appends blocks to one segment; not for several threads."""

    def __init__(self, connection: SegmentConnection, number: int) -> None:
        self._connection = connection
        self._writer_id = b"scale%011d" % number
        self._number = 0
        request_id = connection.next_request_id()
        setup = SetupAppend(request_id, self._writer_id, segment_name(number), "")
        expect(connection.call(setup), AppendSetup)

    def append(self, data: bytes) -> None:
        """Send a block and wait for its acknowledgement."""
        self._number += 1
        number = self._number
        block = encode(AppendBlock(self._writer_id, data))
        end = encode(AppendBlockEnd(self._writer_id, len(data), b"", 1, number, number))
        self._connection.send_bytes(block + end)
        acknowledged = 0
        while acknowledged < number:
            for reply in self._connection.receive_some():
                expect(reply, DataAppended)
                assert isinstance(reply, DataAppended)
                acknowledged = max(acknowledged, reply.event_number)


def write_history(store: Store, size: Size) -> None:
    """As many segments as there will be readers, written side by side."""
    each = size.history_bytes // size.readers

    def write(number: int) -> None:
        with SegmentConnection(HOST, store.port) as connection:
            create(connection, number, number + 1)
            writer = Writer(connection, number)
            block = bytes([65 + number % 26]) * BLOCK_BYTES
            for _ in range(max(1, each // BLOCK_BYTES)):
                writer.append(block)

    with ThreadPoolExecutor(size.readers) as pool:
        list(pool.map(write, range(size.readers)))


def disk_bytes_per_second(files: Sequence[Path], threads: int) -> float:
    """What the disk gives to that many readers, past the page cache."""

    def read(path: Path) -> int:
        total = 0
        buffer = mmap.mmap(-1, READ_BYTES)
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        except OSError:
            descriptor = os.open(path, os.O_RDONLY)  # this file system knows no other way
        while taken := os.preadv(descriptor, [buffer], total):
            total += taken
            if taken % 4096:
                break
        os.close(descriptor)
        return total

    begun = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        total = sum(pool.map(read, files))
    return total / (time.perf_counter() - begun)


def read_history(port: int, readers: int, length: int) -> dict[str, float]:
    """Read all segments from their beginnings at once; for a process of its own."""
    selector = DefaultSelector()
    connections = [SegmentConnection(HOST, port) for _ in range(readers)]
    offsets = [0] * readers

    def ask(number: int) -> None:
        connection = connections[number]
        wanted = min(READ_BYTES, length - offsets[number])
        request_id = connection.next_request_id()
        connection.send(ReadSegment(segment_name(number), offsets[number], wanted, "", request_id))

    begun = time.perf_counter()
    for number, connection in enumerate(connections):
        selector.register(connection, EVENT_READ, number)
        ask(number)
    while selector.get_map():
        for key, _ in selector.select():
            number = key.data
            for reply in connections[number].receive_some():
                expect(reply, SegmentRead)
                assert isinstance(reply, SegmentRead)
                if reply.data.strip(bytes([65 + number % 26])):
                    raise ScaleFailedError(f"{reply.segment} has other bytes than were written")
                offsets[number] += len(reply.data)
                if offsets[number] < length:
                    ask(number)
                else:
                    selector.unregister(connections[number])
    seconds = time.perf_counter() - begun
    for connection in connections:
        connection.close()
    return {"seconds": seconds, "bytes": float(sum(offsets))}


def tail_latencies(port: int, number: int, until: threading.Event) -> list[float]:
    """In ms, ascending: from sending a block to having read it at the tail, until the event."""
    found = []
    with SegmentConnection(HOST, port) as writing, SegmentConnection(HOST, port) as reading:
        create(writing, number, number + 1)
        writer = Writer(writing, number)
        offset = 0
        while not until.wait(TAIL_INTERVAL_SECONDS):
            request_id = reading.next_request_id()
            reading.send(ReadSegment(segment_name(number), offset, READ_BYTES, "", request_id))
            begun = time.perf_counter()
            writer.append(TAIL_BLOCK)
            reply = reading.receive()
            found.append((time.perf_counter() - begun) * 1000)
            expect(reply, SegmentRead)
            assert isinstance(reply, SegmentRead)
            offset += len(reply.data)
    return sorted(found)


def percentile(ascending: Sequence[float], percent: float) -> float:
    """The number that this percentage did not exceed."""
    return ascending[min(len(ascending) - 1, int(len(ascending) * percent / 100))]


def history(size: Size) -> list[ComparedRow]:
    """S3."""
    with stores() as store:
        store.start()
        write_history(store, size)
        store.stop()
        disk = disk_bytes_per_second(store.forget_pages(), size.readers)
        store.forget_pages()
        store.start()
        until = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            alone = pool.submit(tail_latencies, store.port, size.readers, until)
            time.sleep(size.tail_seconds)
            until.set()
            quiet = alone.result()
            until = threading.Event()
            beside = pool.submit(tail_latencies, store.port, size.readers + 1, until)
            length = max(1, size.history_bytes // size.readers // BLOCK_BYTES) * BLOCK_BYTES
            done = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "benchmarks.bench_scale",
                    "--read-history",
                    f"{store.port},{size.readers},{length}",
                ],
                stdout=subprocess.PIPE,
                check=False,
            )
            until.set()
            busy = beside.result()
        if done.returncode:
            raise ScaleFailedError(f"the readers of history ended with {done.returncode}")
    read = json.loads(done.stdout)
    throughput = Metric("history read", "MB/s", "higher")
    latency = Metric("tail p99", "ms", "lower")
    mb = f"{size.history_bytes / 1e6:,.0f} MB"
    return [
        *compare(
            f"S3: {size.readers} readers of {mb}",
            ours=[Outcome({throughput: read["bytes"] / read["seconds"] / 1e6})],
            peer=[Outcome({throughput: disk / 1e6})],
            reaches={throughput.name: 0.8},
            peer_name="disk",
        ),
        *compare(
            f"S3: tail beside {size.readers} readers of history",
            ours=[Outcome({latency: percentile(busy, 99)})],
            peer=[Outcome({latency: percentile(quiet, 99)})],
            reaches={latency.name: 2.0},
            peer_name="alone",
        ),
    ]


def restart_seconds(count: int) -> float:
    """How long a start takes with that many segments."""
    with stores() as store:
        store.start()
        with SegmentConnection(HOST, store.port) as connection:
            create(connection, 0, count)
        store.kill()
        return store.start()


def restarts(size: Size) -> list[ComparedRow]:
    """S4."""
    ready = Metric("kill -9 to ready", "s", "lower")
    return compare(
        f"S4: {size.many_segments:,} segments beside {size.few_segments:,}",
        ours=[Outcome({ready: restart_seconds(size.many_segments)})],
        peer=[Outcome({ready: restart_seconds(size.few_segments)})],
        reaches={ready.name: 1.5},
        peer_name="few",
    )


def idle(size: Size) -> list[ComparedRow]:
    """S5."""
    memory = Metric("memory of an idle segment", "B", "lower")
    processor = Metric("CPU of all idle segments", "% of a core", "lower")
    with stores() as store:
        store.start()
        with SegmentConnection(HOST, store.port) as connection:
            create(connection, 0, size.few_segments)
            before = store.resident_bytes()
            create(connection, size.few_segments, size.few_segments + size.many_segments)
            grown = store.resident_bytes() - before
        time.sleep(2.0 if size.idle_seconds > 1 else 0.0)
        used = store.cpu_seconds()
        time.sleep(size.idle_seconds)
        used = store.cpu_seconds() - used
    found = {memory: grown / size.many_segments, processor: used / size.idle_seconds * 100}
    return limited(
        f"S5: {size.many_segments:,} segments",
        ours=[Outcome(found)],
        limits={memory.name: 2048, processor.name: 2.0},
    )


WORK = {"S3": history, "S4": restarts, "S5": idle}


def measure(names: Sequence[str], size: Size) -> list[ComparedRow]:
    """The rows of that name."""
    rows = []
    for name in names:
        print(f"{name} ...", file=sys.stderr)
        rows += WORK[name](size)
    return rows


def main(arguments: Sequence[str]) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench_scale")
    parser.add_argument("--rows", default=",".join(ROW_NAMES), help="S3, S4, S5")
    parser.add_argument("--small", action="store_true", help="the size the test suite runs")
    parser.add_argument("--report", action="store_true", help=f"write a report under {REPORTS}")
    parser.add_argument("--read-history", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.read_history:
        print(json.dumps(read_history(*map(int, options.read_history.split(",")))))
        return 0
    names = options.rows.split(",")
    if unknown := [name for name in names if name not in WORK]:
        parser.error(f"unknown rows {unknown}; there are {ROW_NAMES}")
    moment = datetime.now(UTC)
    rows = measure(names, SMALL if options.small else Size())
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
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
