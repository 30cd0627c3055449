"""What do tables cost that are larger than what is kept of them in memory?

Run from the repository's root: `python -m benchmarks.bench_tables [--keys 1000000] [--rounds 3]
[--beside SRC]`, where SRC is the `src` of another version, with its extensions built.

1. Every run is a process of its own: a container on a journal and files, both in a new directory,
   and one table in it. The two versions take turns.
2. Keys are random, values have 100 bytes. `put` writes every key once, ten in an update and 64
   updates at a time; `overwrite` does it again for a tenth of them; `get` reads random keys, one
   in a request and 16 at a time; `insert` is a conditional update of an absent key, 16 at a time;
   `iterate` reads all entries in pages of 1,000.
3. `open` is from the end of the container's recovery to the first answer, after an orderly stop.
   `memory` is the process's resident memory, `grown` how much of it came with the table.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from random import Random
from time import perf_counter

import structlog
import trio

from benchmarks.comparison import Metric, Outcome, compare, plain_table, write_json_if_asked

MIB = 1024**2
VALUE = bytes(100)
TABLE = "scope/_tables/bench"
CACHE_BYTES = 256 * MIB
RATES = ("put", "overwrite", "get", "insert", "iterate")
METRICS = {
    **{name: Metric(name, "keys/s", "higher") for name in RATES},
    "open": Metric("open", "s", "lower"),
    "memory": Metric("memory", "MiB", "lower"),
    "grown": Metric("grown", "MiB", "lower"),
}
LAYOUTS = {"hash": 0, "fixed": 16}


def resident_mib() -> float:
    """Return the process's resident memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / MIB


async def together(limit: int, calls: list[Callable[[], Awaitable[object]]]) -> None:
    """Make all calls, so many at a time."""
    queue = iter(calls)

    async def work() -> None:
        for call in queue:
            await call()

    async with trio.open_nursery() as nursery:
        for _ in range(limit):
            nursery.start_soon(work)


async def measure(directory: Path, *, key_length: int, key_count: int) -> dict[str, float]:
    """Do one run with the version of the store that this process imports."""
    from pravega_wire.commands import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
    from segstore.process.assembly import open_containers
    from segstore.process.config import SegmentStoreConfig
    from segstore.tables.settings import TableSettings
    from segstore.tables.table_segments import TableSegments

    random = Random(1)
    keys = [random.randbytes(16) for _ in range(key_count)]
    found: dict[str, float] = {}
    config = SegmentStoreConfig(
        data_dir=directory, container_count=1, cache_bytes_max=CACHE_BYTES, drain_seconds=600
    )

    def entry(key: bytes, version: int = NO_VERSION) -> TableEntry:
        return TableEntry(TableKey(key, version), VALUE)

    async def timed(name: str, count: int, run: Callable[[], Awaitable[None]]) -> None:
        started = perf_counter()
        await run()
        found[name] = count / (perf_counter() - started)

    async def fill(tables: TableSegments) -> None:
        parts = [keys[start : start + 10] for start in range(0, key_count, 10)]
        await together(
            64, [partial(tables.update, TABLE, [entry(key) for key in part]) for part in parts]
        )

    async def overwrite(tables: TableSegments) -> None:
        some = random.sample(keys, key_count // 10)
        parts = [some[start : start + 10] for start in range(0, len(some), 10)]
        await together(
            64, [partial(tables.update, TABLE, [entry(key) for key in part]) for part in parts]
        )

    async def get(tables: TableSegments, count: int) -> None:
        await together(
            16, [partial(tables.read, TABLE, [random.choice(keys)]) for _ in range(count)]
        )

    async def insert(tables: TableSegments, count: int) -> None:
        new = [entry(random.randbytes(16), NOT_EXISTS) for _ in range(count)]
        await together(16, [partial(tables.update, TABLE, [each]) for each in new])

    async def iterate(tables: TableSegments) -> None:
        token, from_key, count = b"", b"", 0
        while True:
            page = await tables.iterate_entries(
                TABLE, count_max=1000, continuation_token=token, from_key=from_key
            )
            if not page.entries:
                break
            count += len(page.entries)
            token = page.continuation_token
            if key_length:
                last = int.from_bytes(page.entries[-1].key.key, "big")
                from_key = (last + 1).to_bytes(key_length, "big")
        assert count >= key_count

    async with open_containers(config) as open_container:
        async with open_container(0) as container, trio.open_nursery() as nursery:
            tables = TableSegments(container, TableSettings())
            nursery.start_soon(tables.run)
            await tables.create(TABLE, key_length=key_length)
            before = resident_mib()
            await timed("put", key_count, lambda: fill(tables))
            await timed("overwrite", key_count // 10, lambda: overwrite(tables))
            await timed("get", key_count // 20, lambda: get(tables, key_count // 20))
            await timed("insert", key_count // 50, lambda: insert(tables, key_count // 50))
            await timed("iterate", key_count, lambda: iterate(tables))
            found["memory"] = resident_mib()
            found["grown"] = found["memory"] - before
            nursery.cancel_scope.cancel()
        async with open_container(0) as container:
            started = perf_counter()
            tables = TableSegments(container, TableSettings())
            [first] = await tables.read(TABLE, [keys[0]])
            assert first.value == VALUE
            found["open"] = perf_counter() - started
    return found


def run_process(source: str | None, layout: str, key_count: int) -> Outcome:
    """Do one run in a process of its own; ``source`` is the `src` of another version."""
    environment = dict(os.environ)
    if source is not None:
        environment["PYTHONPATH"] = source
    command = [sys.executable, "-m", "benchmarks.bench_tables", "--worker", layout]
    done = subprocess.run(
        [*command, "--keys", str(key_count)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        return Outcome({}, failure=done.stderr[-2000:])
    numbers = json.loads(done.stdout.splitlines()[-1])
    return Outcome({metric: numbers.get(name) for name, metric in METRICS.items()})


def work(layout: str, key_count: int) -> None:
    """Do the other process's work: measure, and print the numbers."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    with tempfile.TemporaryDirectory() as directory:
        found = trio.run(
            partial(measure, Path(directory), key_length=LAYOUTS[layout], key_count=key_count)
        )
    sys.stdout.write(json.dumps(found) + "\n")


def main(arguments: list[str] | None = None) -> None:
    """Measure as asked, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=list(LAYOUTS))
    parser.add_argument("--beside", metavar="SRC")
    parser.add_argument("--worker", choices=list(LAYOUTS), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.worker:
        work(options.worker, options.keys)
        return
    rows = []
    for layout in options.layouts:
        ours: list[Outcome] = []
        peer: list[Outcome] = []
        for _ in range(options.rounds):
            ours.append(run_process(None, layout, options.keys))
            if options.beside:
                peer.append(run_process(options.beside, layout, options.keys))
        for outcome in (*ours, *peer):
            if outcome.failure:
                sys.exit(outcome.failure)
        rows += compare(f"{layout}, {options.keys:,} keys", ours=ours, peer=peer, reaches={})
    sys.stdout.write(plain_table(rows) + "\n")
    write_json_if_asked(rows)


if __name__ == "__main__":
    main()
