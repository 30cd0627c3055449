"""How long does a segment store need until it serves again after `kill -9`, and for what?

Run from the repository's root: `python -m benchmarks.bench_recovery [--unflushed-mb 1000]`.

1. A process fills the journal while tier 2 takes nothing of the segments' bytes, and kills itself.
   Another opens the same directory as the server does, with a tier 2 that works.
2. `imports`, `journal` (opening and checking it) and `containers` (replay) are the stages until
   all containers serve, each in wall time and CPU time of the process; `flush` goes on beside
   service.
3. All appends are found again: the lengths of segments, and samples of their bytes, are checked.
4. What is in the page cache is dropped by the journal itself before it reads.
"""

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

BEGAN, BEGAN_CPU = time.perf_counter(), time.process_time()

import trio  # noqa: E402

from benchmarks.peers.assembled_store import HeldChunkStorage  # noqa: E402
from pravega_wire.names import container_of  # noqa: E402
from segstore.api import SegmentContainer  # noqa: E402
from segstore.errors import SegmentStoreError  # noqa: E402
from segstore.ownership.data_directory import DataDirectory  # noqa: E402
from segstore.process.assembly import open_containers  # noqa: E402
from segstore.process.config import MIB, SegmentStoreConfig  # noqa: E402
from segstore.process.registry import OpenContainer  # noqa: E402

OUTSTANDING_BYTES = 16 * MIB
SEGMENT_COUNT = 16
FLUSHED_SECONDS_MAX = 120.0


@dataclass(frozen=True, slots=True)
class Size:
    """The content of the journal when the process is killed."""

    unflushed_bytes: int
    append_bytes: int


SMALL = Size(unflushed_bytes=8 * MIB, append_bytes=64 * 1024)


@dataclass(frozen=True, slots=True)
class Recovery:
    """One start after a kill; times in seconds."""

    imports: float
    imports_cpu: float
    journal: float
    journal_cpu: float
    containers: float
    containers_cpu: float
    resident_mb: float
    flush: float
    flush_cpu: float
    found_bytes: int


def segment_name(number: int) -> str:
    """Return the name of one of the segments."""
    return f"bench/recovery/{number}.#epoch.0"


def pattern(number: int, place: int, length: int) -> bytes:
    """Return the bytes of one append."""
    return (b"%08d-%012d." % (number, place)) * (length // 22) + b"x" * (length % 22)


@asynccontextmanager
async def opened(
    open_container: OpenContainer, count: int
) -> AsyncIterator[list[SegmentContainer]]:
    """Open all containers at once."""
    containers: dict[int, SegmentContainer] = {}
    stop = trio.Event()

    async def keep(number: int, *, task_status: trio.TaskStatus[None]) -> None:
        async with open_container(number) as container:
            containers[number] = container
            task_status.started()
            await stop.wait()

    async with trio.open_nursery() as nursery:
        async with trio.open_nursery() as starting:
            for number in range(count):
                starting.start_soon(nursery.start, keep, number)
        yield [containers[number] for number in range(count)]
        stop.set()


async def fill(directory: Path, size: Size) -> None:
    """Append until the journal alone has that much, then die."""
    config = SegmentStoreConfig(data_dir=directory, cache_bytes_max=4096 * MIB)
    made = DataDirectory.open(directory, container_count=config.container_count)
    made.storage_path.mkdir(parents=True, exist_ok=True)
    held = HeldChunkStorage(made.storage_path)
    async with (
        open_containers(config, chunk_storage=held) as open_container,
        opened(open_container, config.container_count) as containers,
    ):
        limit = trio.CapacityLimiter(max(1, OUTSTANDING_BYTES // size.append_bytes))

        async def append(number: int, place: int) -> None:
            name = segment_name(number)
            container = containers[container_of(name, len(containers))]
            try:
                await container.append(name, pattern(number, place, size.append_bytes))
            finally:
                limit.release_on_behalf_of((number, place))

        async with trio.open_nursery() as nursery:
            for number in range(SEGMENT_COUNT):
                name = segment_name(number)
                await containers[container_of(name, len(containers))].create_segment(name)
            for turn in range(size.unflushed_bytes // size.append_bytes):
                number, place = turn % SEGMENT_COUNT, turn // SEGMENT_COUNT
                await limit.acquire_on_behalf_of((number, place))
                nursery.start_soon(append, number, place)
        os.kill(os.getpid(), signal.SIGKILL)


async def recover(directory: Path, size: Size) -> Recovery:
    """Open everything again."""
    imports, imports_cpu = time.perf_counter() - BEGAN, time.process_time() - BEGAN_CPU
    config = SegmentStoreConfig(data_dir=directory)
    started, started_cpu = time.perf_counter(), time.process_time()
    async with open_containers(config) as open_container:
        journal, journal_cpu = time.perf_counter() - started, time.process_time() - started_cpu
        async with opened(open_container, config.container_count) as containers:
            ready, ready_cpu = time.perf_counter() - started, time.process_time() - started_cpu
            resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
            found = await check(containers, size)
            await flushed(containers)
            done, done_cpu = time.perf_counter() - started, time.process_time() - started_cpu
            await check(containers, size)
    return Recovery(
        imports,
        imports_cpu,
        journal,
        journal_cpu,
        ready - journal,
        ready_cpu - journal_cpu,
        resident,
        done - ready,
        done_cpu - ready_cpu,
        found,
    )


async def check(containers: list[SegmentContainer], size: Size) -> int:
    """Return the number of stored bytes.

    Raises ``AssertionError`` where they are not the appended ones.
    """
    total = 0
    for number in range(SEGMENT_COUNT):
        name = segment_name(number)
        container = containers[container_of(name, len(containers))]
        length = container.segment_info(name).length
        total += length
        count = length // size.append_bytes
        for place in {0, count // 2, count - 1}:
            wanted = pattern(number, place, size.append_bytes)
            found = b""
            while len(found) < len(wanted):
                read = await container.read(
                    name,
                    offset=place * size.append_bytes + len(found),
                    length_max=len(wanted) - len(found),
                )
                found += read.data
            assert found == wanted, f"{name}: append {place} is not what it was"
    return total


async def flushed(containers: list[SegmentContainer]) -> None:
    """Wait until tier 2 has everything."""
    with trio.fail_after(FLUSHED_SECONDS_MAX):
        for number in range(SEGMENT_COUNT):
            name = segment_name(number)
            container = containers[container_of(name, len(containers))]
            info = container.segment_info(name)
            while info.storage_length < info.length:
                await trio.sleep(0.02)
                info = container.segment_info(name)


def run(size: Size, *, directory: Path) -> Recovery:
    """Fill, kill, and start again."""
    with tempfile.TemporaryDirectory(dir=directory) as place:
        command = [sys.executable, "-m", "benchmarks.bench_recovery", "--step"]
        arguments = [place, str(size.unflushed_bytes), str(size.append_bytes)]
        filled = subprocess.run([*command, "fill", *arguments], check=False)
        if filled.returncode != -signal.SIGKILL:
            raise SegmentStoreError(f"filling ended with {filled.returncode}")
        recovered = subprocess.run(
            [*command, "recover", *arguments], check=True, stdout=subprocess.PIPE
        )
    return Recovery(**json.loads(recovered.stdout.splitlines()[-1]))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--unflushed-mb", type=float, default=1000)
    parser.add_argument("--append-bytes", type=int, default=64 * 1024)
    parser.add_argument("--directory", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--small", action="store_true")
    parser.add_argument("--step", nargs=4, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.step is not None:
        step, place, unflushed_bytes, append_bytes = arguments.step
        size = Size(int(unflushed_bytes), int(append_bytes))
        if step == "fill":
            trio.run(fill, Path(place), size)
        print(json.dumps(asdict(trio.run(recover, Path(place), size))))
        return
    size = Size(int(arguments.unflushed_mb * 1e6), arguments.append_bytes)
    found = run(SMALL if arguments.small else size, directory=arguments.directory)
    for name, number in asdict(found).items():
        print(f"{name:16} {number:14.3f}")


if __name__ == "__main__":
    main()
