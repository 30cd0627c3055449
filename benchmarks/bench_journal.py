"""What does a durable append to the local journal cost, and how fast is a journal read again?

Run from the repository's root: `python -m benchmarks.bench_journal [--rounds 3] [--directory D]`.

1. The batches are written into files that were written before.
2. `latency`: one append at a time, from `append_nowait` to its completion in the event loop.
   `busy latency`: the same while another task keeps the event loop busy, 50 us of Python at a
   time, as a loaded server does. `throughput`: many appends outstanding.
3. CPU is that of the whole process, event loop and threads.
4. `recovery`: opening a journal that was just written and reading one container's log, out of the
   page cache, as after the kill of a process.
"""

import argparse
import os
import statistics
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import trio

from segstore.errors import DataLogError
from segstore.tiers.journal import ContainerLog, JournalSettings, open_journal

KIB, MIB = 1024, 1024 * 1024


@dataclass(frozen=True, slots=True)
class Size:
    """The amount of work to measure."""

    latency_appends: int
    throughput_bytes: int
    recovery_bytes: int
    file_bytes: int = 64 * MIB


USUAL = Size(latency_appends=2000, throughput_bytes=512 * MIB, recovery_bytes=512 * MIB)
SMALL = Size(
    latency_appends=20, throughput_bytes=4 * MIB, recovery_bytes=4 * MIB, file_bytes=4 * MIB
)


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement."""

    what: str
    p50_us: float | None = None
    p95_us: float | None = None
    cpu_us: float | None = None
    mb_per_second: float | None = None


async def append_one_by_one(log: ContainerLog, data: bytes, count: int) -> list[float]:
    """Return the latencies of `count` appends, in seconds."""
    return [await append(log, data) for _ in range(count)]


async def append(log: ContainerLog, data: bytes) -> float:
    """Return the latency of one append, in seconds."""
    ended = 0.0
    durable = trio.Event()

    def on_durable(error: DataLogError | None) -> None:
        nonlocal ended
        if error is not None:
            raise error
        ended = time.perf_counter()
        durable.set()

    started = time.perf_counter()
    log.append_nowait([data], on_durable)
    await durable.wait()
    return ended - started


async def append_many(log: ContainerLog, data: bytes, count: int, outstanding_max: int) -> None:
    """Append with many outstanding."""
    left, outstanding = count, 0
    done = trio.Event()

    def on_durable(error: DataLogError | None) -> None:
        nonlocal outstanding
        if error is not None:
            raise error
        outstanding -= 1
        fill()
        if not outstanding:
            done.set()

    def fill() -> None:
        nonlocal left, outstanding
        while left and outstanding < outstanding_max:
            left -= 1
            outstanding += 1
            log.append_nowait([data], on_durable)

    fill()
    await done.wait()


async def keep_busy(seconds: float) -> None:
    """Use the event loop as a loaded server does."""
    while True:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            pass
        await trio.lowlevel.checkpoint()


async def measure_latency(log: ContainerLog, length: int, count: int, *, busy: bool) -> list[float]:
    data = os.urandom(length)
    async with trio.open_nursery() as nursery:
        if busy:
            nursery.start_soon(keep_busy, 50e-6)
        cpu = time.process_time()
        latencies = await append_one_by_one(log, data, count)
        cpu = time.process_time() - cpu
        nursery.cancel_scope.cancel()
    latencies.sort()
    p50, p95 = latencies[count // 2], latencies[int(count * 0.95)]
    return [p50 * 1e6, p95 * 1e6, cpu / count * 1e6]


async def measure_appends(directory: Path, size: Size) -> list[Row]:
    """Measure all rows of appends, in an empty directory."""
    settings = JournalSettings(file_bytes=size.file_bytes)
    rows = []
    started = time.perf_counter()
    async with open_journal(directory, settings) as journal:
        rows.append(Row("first start", p50_us=(time.perf_counter() - started) * 1e6))
        log = await journal.open_log(0)
        # Write every file once and free it, so that what follows goes into recycled files.
        for _ in range(6 * size.file_bytes // (512 * KIB)):
            await append(log, bytes(512 * KIB))
            await log.truncate(log.append_nowait([b""], lambda _: None))
        await trio.sleep(0.5)
        for length in (150, 64 * KIB, 1000 * KIB):
            count = max(10, size.latency_appends // (1 if length < MIB // 2 else 8))
            for busy in (False, True):
                what = f"{'busy ' if busy else ''}latency {length} B"
                figures = await measure_latency(log, length, count, busy=busy)
                rows.append(Row(what, *figures))
            await log.truncate(log.append_nowait([b""], lambda _: None))
        for length, outstanding in ((150, 64), (64 * KIB, 16), (1000 * KIB, 4)):
            count = max(10, min(size.throughput_bytes // length, 100 * size.latency_appends))
            data = os.urandom(length)
            cpu, started = time.process_time(), time.perf_counter()
            await append_many(log, data, count, outstanding)
            seconds, cpu = time.perf_counter() - started, time.process_time() - cpu
            rows.append(
                Row(
                    f"throughput {length} B x {outstanding}",
                    cpu_us=cpu / count * 1e6,
                    mb_per_second=length * count / seconds / 1e6,
                )
            )
            await log.truncate(log.append_nowait([b""], lambda _: None))
        await log.aclose()
    return rows


async def measure_recovery(directory: Path, size: Size, length: int) -> Row:
    """Open and read a journal whose entries have one length."""
    settings = JournalSettings(file_bytes=size.file_bytes)
    count = size.recovery_bytes // length
    async with open_journal(directory, settings) as journal:
        log = await journal.open_log(0)
        await append_many(log, os.urandom(length), count, 256)
        await log.aclose()
    started = time.perf_counter()
    async with open_journal(directory, settings) as journal:
        log = await journal.open_log(0)
        found = 0
        async for _ in log.read():
            found += 1
        seconds = time.perf_counter() - started
    assert found == count
    return Row(f"recovery {length} B", mb_per_second=size.recovery_bytes / seconds / 1e6)


def run(size: Size, *, directory: Path) -> list[Row]:
    """Run one round."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        rows = trio.run(measure_appends, Path(place), size)
    for length in (500, 64 * KIB, 1000 * KIB):
        with tempfile.TemporaryDirectory(dir=directory) as place:
            rows.append(trio.run(measure_recovery, Path(place), size, length))
    return rows


def table(rounds: list[list[Row]]) -> str:
    """Return the medians over the rounds."""

    def median(values: list[float | None]) -> str:
        numbers = [value for value in values if value is not None]
        return f"{statistics.median(numbers):12.0f}" if numbers else " " * 12

    lines = [f"{'':28} {'p50 us':>12} {'p95 us':>12} {'CPU us':>12} {'MB/s':>12}"]
    for rows in sorted(zip(*rounds, strict=True), key=lambda rows: rows[0].what):
        columns = [
            median([row.p50_us for row in rows]),
            median([row.p95_us for row in rows]),
            median([row.cpu_us for row in rows]),
            median([row.mb_per_second for row in rows]),
        ]
        lines.append(f"{rows[0].what:28} {' '.join(columns)}")
    return "\n".join(lines)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    size = SMALL if arguments.small else USUAL
    rounds = [run(size, directory=arguments.directory) for _ in range(arguments.rounds)]
    print(table(rounds))


if __name__ == "__main__":
    main()
