"""What does a cluster far larger than this machine ask of its map, its metadata, its controllers?

Run from the repository's root:
`python -m benchmarks.bench_sizes [--stores 1000] [--containers 50000] [--streams 10000000]`.

1. No host runs: what is measured is the product's own code on maps and records of that size. The
   balancer decides who has which container, the map is encoded as it is written to ZooKeeper.
2. A rack has 25 stores, which fail in one moment.
3. Bytes of metadata are counted by a real controller on tables in memory, for a sample of streams
   with two segments each, and multiplied.
4. Times are of one process on this machine, which may be busy: read them as orders of magnitude.
"""

import argparse
import json
import logging
import sys
import time
import tracemalloc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from random import Random
from typing import TypeVar

import structlog
import trio

from pravega_cluster.balance import balance_containers
from pravega_cluster.records import ContainerMap, Host, decode_map, encode_map
from pravega_controller.config import ControllerConfig
from pravega_controller.controller import Environment, open_controller
from pravega_controller.metadata.streams.known import CACHED_STREAMS_MAX
from pravega_controller.rules.streams import fixed_configuration
from pravega_controller.store_client.placement import MapPlacement
from pravega_controller.testing.memory_segment_store import MemorySegmentStore

ZOOKEEPER_NODE_BYTES_MAX = 1024 * 1024
"""Maximum bytes of one node in ZooKeeper's servers by default (``jute.maxbuffer``)."""
SAMPLE_STREAMS = 2_000
SEGMENTS = 2
STORES_PER_RACK = 25

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Figure:
    """One number, with what it is about."""

    about: str
    value: float
    unit: str


@dataclass(frozen=True, slots=True)
class Size:
    """The size of a cluster for a calculation."""

    stores: int
    containers: int
    streams: int


def hosts_of(size: Size) -> list[Host]:
    """Make the segment stores; those of one rack follow each other."""
    return [Host(f"10.{each // 250}.{each % 250}.1", 12345) for each in range(size.stores)]


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """Run the work; return its result and the seconds it took."""
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def count_moves(before: ContainerMap, after: ContainerMap) -> int:
    """Count the containers that are on another host than before."""
    return sum(len(mine - before.get(host, frozenset())) for host, mine in after.items())


def measure_balancing(size: Size) -> list[Figure]:
    """Measure the leader's computing time and the moved containers, as stores come and go."""
    hosts = hosts_of(size)
    rack = hosts[:STORES_PER_RACK]
    steps: list[tuple[str, Sequence[Host]]] = [
        ("all stores start", hosts),
        ("one store fails", hosts[:-1]),
        ("it comes back", hosts),
        (f"a rack of {len(rack)} fails", hosts[len(rack) :]),
        ("the rack comes back", hosts),
    ]
    figures: list[Figure] = []
    current: Mapping[Host, frozenset[int]] = {}
    for what, living in steps:
        wanted, seconds = timed(
            lambda living=living, current=current: balance_containers(  # type: ignore[misc]
                current, set(living), size.containers
            )
        )
        moved = count_moves(current, wanted)
        gained = max(len(mine - current.get(host, frozenset())) for host, mine in wanted.items())
        figures += [
            Figure(f"{what}: balancing", seconds, "s"),
            Figure(f"{what}: containers that move", moved, ""),
            Figure(f"{what}: most that one store gets", gained, ""),
        ]
        current = wanted
    return figures


def measure_map(size: Size) -> list[Figure]:
    """Measure the size of the map in ZooKeeper, and the work of the processes that follow it."""
    containers = balance_containers({}, set(hosts_of(size)), size.containers)
    data, encoding = timed(lambda: encode_map(containers))
    decoded, decoding = timed(lambda: decode_map(data))
    assert decoded == containers
    tracemalloc.start()
    placement = MapPlacement(size.containers)
    placement.update(decoded)
    memory, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    names = [f"scope/stream-{each}/0.#epoch.0" for each in range(10_000)]
    _, asking = timed(lambda: [placement.store_of(each) for each in names])
    return [
        Figure("map in ZooKeeper", len(data), "B"),
        Figure(
            "share of what ZooKeeper takes for a node", len(data) / ZOOKEEPER_NODE_BYTES_MAX, ""
        ),
        Figure("sent when it changes, to all stores", len(data) * size.stores, "B"),
        Figure("encoding it", encoding, "s"),
        Figure("decoding it", decoding, "s"),
        Figure("memory of a controller for it", memory, "B"),
        Figure("finding a segment's store", asking / len(names) * 1e6, "us"),
    ]


async def measure_metadata(size: Size, sample: int = SAMPLE_STREAMS) -> list[Figure]:
    """Measure the bytes of tables that streams have, and the memory of a controller for them."""
    store = MemorySegmentStore()
    clock = count(1_000_000)
    config = ControllerConfig(
        container_count=size.containers, request_poll_seconds=0, retention_period_seconds=0,
        watermark_period_seconds=0, history_period_seconds=0,
    )  # fmt: skip
    environment = Environment(
        now_ms=lambda: next(clock), random=Random(7), open_stream=store.open_stream
    )
    configuration = fixed_configuration(SEGMENTS)
    async with trio.open_nursery() as nursery:
        await nursery.start(store.run)
        async with open_controller(config, environment) as controller:
            await controller.scopes.create("scope")
            before, seconds = table_bytes(store), time.perf_counter()
            for each in range(sample):
                await controller.streams.create("scope", f"stream-{each:08d}", configuration)
            seconds = time.perf_counter() - seconds
        each_bytes = (table_bytes(store) - before) / sample
        async with open_controller(config, environment) as controller:
            cached = min(sample, CACHED_STREAMS_MAX)
            tracemalloc.start()
            for each in range(cached):
                await controller.streams.active_segments("scope", f"stream-{each:08d}")
            cached_bytes = tracemalloc.get_traced_memory()[0] / cached
            tracemalloc.stop()
        nursery.cancel_scope.cancel()
    return [
        Figure("metadata of a stream", each_bytes, "B"),
        Figure("metadata of all streams", each_bytes * size.streams, "B"),
        Figure("memory of a controller for a stream in use", cached_bytes, "B"),
        Figure("memory for as many as it keeps", cached_bytes * CACHED_STREAMS_MAX, "B"),
        Figure("metadata in each container", each_bytes * size.streams / size.containers, "B"),
        Figure("streams a controller makes, without a network", sample / seconds, "1/s"),
        Figure("segments in each container", SEGMENTS * size.streams / size.containers, ""),
    ]


def table_bytes(store: MemorySegmentStore) -> int:
    """Sum the bytes of all keys and values in tables."""
    return sum(
        len(key) + len(value)
        for table in store.tables.values()
        for key, (value, _) in table.entries.items()
    )


def measure(size: Size, sample: int = SAMPLE_STREAMS) -> list[Figure]:
    """Measure all figures of a size."""
    return [
        *measure_balancing(size),
        *measure_map(size),
        *trio.run(measure_metadata, size, sample),
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, and print a table or, with ``--json``, rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--stores", type=int, default=1_000)
    parser.add_argument("--containers", type=int, default=50_000)
    parser.add_argument("--streams", type=int, default=10_000_000)
    parser.add_argument("--sample", type=int, default=SAMPLE_STREAMS, help="streams to make")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    size = Size(options.stores, options.containers, options.streams)
    logged_before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    try:
        figures = measure(size, options.sample)
    finally:
        structlog.configure(**logged_before)
    if options.json:
        print(json.dumps([asdict(each) for each in figures]))
        return 0
    width = max(len(each.about) for each in figures)
    for each in figures:
        print(f"{each.about:{width}}  {each.value:>16,.4g} {each.unit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
