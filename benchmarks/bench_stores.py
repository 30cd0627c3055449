"""What do several segment stores give on this machine, beside one?

Run from the repository's root: `python -m benchmarks.bench_stores [--stores 1,2] [--rounds 3]`.

1. One stream with eight segments, and a process for each of four writers, which sends blocks of one
   kilobyte to its two segments as fast as they are acknowledged, 100 outstanding for each.
2. The counts of stores take turns in each round, each on a new data directory; a number is the
   median of the rounds.
3. The writers have the same cores as the stores: where there are two, they leave the second store
   little. Read `CPU per block` for what more cores would give.
"""

import argparse
import multiprocessing
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from foreign_servers.peer import PeerFailedError, RunningPeer

from benchmarks.block_load import BlockSender
from benchmarks.peers.segstore_standalone import SegstoreStandalone
from pravega_wire import names
from pravega_wire.blocking import SegmentConnection
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.controller.stream_settings import Scaling, StreamSettings

SEGMENTS = 8
WRITERS = 4
BLOCK_BYTES = 1_000
OUTSTANDING_MAX = 100
BATCH = 500
ATTEMPTS_MAX = 5

Target = tuple[str, int, str]
"""The address of a segment's store, and the segment's name."""


@dataclass(frozen=True, slots=True)
class Run:
    """The result of one run."""

    blocks_per_second: float
    cpu_us_per_block: float
    """CPU of all processes of the store."""


def write(targets: Sequence[Target], blocks: int, number: int) -> None:
    """Send blocks to these segments in turns; for a process of its own."""
    senders = []
    for index, (host, port, segment) in enumerate(targets):
        connection = SegmentConnection(host, port)
        writer = f"writer-{number:04d}-{index:04d}".encode()
        senders.append(
            BlockSender(connection, data=bytes(BLOCK_BYTES), segment=segment, writer_id=writer)
        )
    for _ in range(blocks // BATCH // len(senders)):
        for sender in senders:
            sender.send_all(BATCH, outstanding_max=OUTSTANDING_MAX)


def measure(stores: int, blocks: int) -> Run:
    """Start a store with so many segment stores, and write ``blocks`` by each writer."""
    server = SegstoreStandalone(options=("--stores", str(stores)))
    server.prepare()
    with tempfile.TemporaryDirectory() as directory:
        address, running = start(server, Path(directory))
        try:
            targets = make_stream(address)
            share = SEGMENTS // WRITERS
            context = multiprocessing.get_context("spawn")
            writers = [
                context.Process(
                    target=write,
                    args=(targets[each * share : (each + 1) * share], blocks, each),
                )
                for each in range(WRITERS)
            ]
            cpu_before, began = running.processes.usage().cpu_seconds, time.perf_counter()
            for writer in writers:
                writer.start()
            for writer in writers:
                writer.join()
            seconds = time.perf_counter() - began
            cpu = running.processes.usage().cpu_seconds - cpu_before
            if any(writer.exitcode for writer in writers):
                raise RuntimeError("a writer failed")
        finally:
            server.stop()
    return Run(WRITERS * blocks / seconds, cpu / (WRITERS * blocks) * 1e6)


def start(server: SegstoreStandalone, directory: Path) -> tuple[str, RunningPeer]:
    """Start the server; the ports beside a free one, which further stores get, may be taken."""
    for attempt in range(ATTEMPTS_MAX):
        address = server.reserve()
        place = directory / str(attempt)
        place.mkdir()
        try:
            return address, server.start(place)
        except PeerFailedError:
            server.stop()
            if attempt == ATTEMPTS_MAX - 1:
                raise
    raise AssertionError


def make_stream(address: str) -> list[Target]:
    """Make the stream; where its segments are, those of one store beside each other."""
    with ControllerClient(address) as controller:
        controller.create_scope("bench")
        settings = StreamSettings(Scaling(segment_count_min=SEGMENTS))
        controller.create_stream("bench", "stores", settings)
        found = [
            (
                *controller.segment_address("bench", "stores", each.segment_id),
                names.segment_name("bench", "stores", each.segment_id),
            )
            for each in controller.current_segments("bench", "stores").ranges
        ]
    return sorted(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stores", default="1,2", help="counts of stores, with commas")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--blocks", type=int, default=50_000, help="of each writer")
    options = parser.parse_args(arguments)
    counts = [int(each) for each in options.stores.split(",")]
    runs: dict[int, list[Run]] = {each: [] for each in counts}
    for _ in range(options.rounds):
        for each in counts:
            runs[each].append(measure(each, options.blocks))
    print("stores   blocks/s   CPU per block, us")
    for each in counts:
        speed = statistics.median(run.blocks_per_second for run in runs[each])
        cpu = statistics.median(run.cpu_us_per_block for run in runs[each])
        print(f"{each:>6}   {speed:>8,.0f}   {cpu:>17.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
