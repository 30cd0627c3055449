"""A segment store that loads itself: measures appends without a network and without clients.

Owns: the self-test's workloads, its producers, and its measurements.

The store is the real one: containers, durable log, read index, cache and storage writer. Only tier
2 is replaced by one that drops users' data, and tier 1 may be a list in memory. A producer sends a
batch of appends, and the next batch when all of them are durable. An append that fails ends the
self-test with its error.

Invariants:
1. Every append is counted once, and its latency is the time from its submission to its completion.
   Held by ``test_every_append_is_counted_and_timed``.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import trio

from pravega_wire.names import container_of
from segstore.api import SegmentContainer
from segstore.errors import SegmentStoreError
from segstore.model.attributes import EVENT_COUNT, AttributeUpdate, AttributeUpdateType
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.tiers.api import DurableDataLogFactory
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from segstore.tiers.noop import NoOpChunkStorage

STREAM = "self-test/events"


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """The data to append. ``append_count`` is the count of all producers together."""

    name: str
    append_bytes: int
    append_count: int
    producer_count: int = 100
    batch_count: int = 100
    """Appends that a producer sends at once."""
    segment_count: int = 4
    container_count: int = 1


LATENCY = Workload(name="latency", append_bytes=100, append_count=2_000_000)
THROUGHPUT = Workload(name="throughput", append_bytes=10_000, append_count=1_000_000)


@dataclass(frozen=True, slots=True)
class SelfTestResult:
    """Megabytes are of 10^6 payload bytes; latencies are milliseconds."""

    workload: Workload
    seconds: float
    cpu_seconds: float
    latencies_ms: array[float]
    """The time of every append, in ascending order."""

    @property
    def appends_per_second(self) -> float:
        """Return how many appends became durable per second."""
        return len(self.latencies_ms) / self.seconds

    @property
    def mb_per_second(self) -> float:
        """Return how many megabytes of payload became durable per second."""
        return self.appends_per_second * self.workload.append_bytes / 1e6

    @property
    def average_ms(self) -> float:
        """Return the mean latency, in milliseconds."""
        return sum(self.latencies_ms) / len(self.latencies_ms)

    def percentile_ms(self, percent: float) -> float:
        """Return the latency that this percentage of all appends did not exceed."""
        count = len(self.latencies_ms)
        return self.latencies_ms[min(count - 1, int(count * percent / 100))]


def run_self_test(
    workload: Workload,
    *,
    data_dir: Path,
    durable: bool,
    cache_bytes_max: int,
    on_progress: Callable[[int], None] = lambda _: None,
) -> SelfTestResult:
    """Run one workload. ``durable``: tier 1 is a local journal, synced before an append completes.

    ``data_dir`` is made, and not removed. ``on_progress`` gets the number of appends since its last
    call. Raises ``SegmentStoreError`` when an append fails.
    """
    config = SegmentStoreConfig(
        data_dir=data_dir,
        container_count=workload.container_count,
        cache_bytes_max=cache_bytes_max,
    )
    data_logs = None if durable else MemoryDataLogFactory()
    return trio.run(_run, workload, config, data_logs, on_progress)


async def _run(
    workload: Workload,
    config: SegmentStoreConfig,
    data_logs: DurableDataLogFactory | None,
    on_progress: Callable[[int], None],
) -> SelfTestResult:
    chunk_storage = NoOpChunkStorage(MemoryChunkStorage())
    async with (
        open_containers(config, data_logs=data_logs, chunk_storage=chunk_storage) as open_container,
        AsyncExitStack() as stack,
    ):
        containers = [
            await stack.enter_async_context(open_container(number))
            for number in range(workload.container_count)
        ]
        load = _Load(workload, containers, on_progress)
        await load.create_segments()
        started, cpu_started = time.perf_counter(), time.process_time()
        async with trio.open_nursery() as nursery:
            for number in range(workload.producer_count):
                nursery.start_soon(load.produce, number)
        seconds = time.perf_counter() - started
        cpu_seconds = time.process_time() - cpu_started
    latencies = array("d", sorted(load.latencies_ms))
    return SelfTestResult(workload, seconds, cpu_seconds, latencies)


class _Load:
    """The segments of a self-test and the producers that append to them."""

    def __init__(
        self,
        workload: Workload,
        containers: list[SegmentContainer],
        on_progress: Callable[[int], None],
    ) -> None:
        self._workload = workload
        self._segments = [
            (name, containers[container_of(name, len(containers))])
            for name in (f"{STREAM}/{n}.#epoch.0" for n in range(workload.segment_count))
        ]
        self._on_progress = on_progress
        self._left = workload.append_count
        self.latencies_ms = array("d")

    async def create_segments(self) -> None:
        """Create the segments, one after the other."""
        for name, container in self._segments:
            await container.create_segment(name)

    async def produce(self, number: int) -> None:
        """Append batches to each segment in turn until enough was appended."""
        writer_id = number.to_bytes(16, "big")
        data = os.urandom(self._workload.append_bytes)
        appended, turn = 0, number
        while self._left > 0:
            count = min(self._workload.batch_count, self._left)
            self._left -= count
            name, container = self._segments[turn % len(self._segments)]
            await _Batch(container, name, writer_id, self.latencies_ms).append(
                data, count, first_event=appended
            )
            appended += count
            turn += 1
            self._on_progress(count)


class _Batch:
    """Appends that were sent at once."""

    def __init__(
        self, container: SegmentContainer, name: str, writer_id: bytes, latencies_ms: array[float]
    ) -> None:
        self._container = container
        self._name = name
        self._writer_id = writer_id
        self._latencies_ms = latencies_ms
        self._submitted: list[float] = []
        self._completed = 0
        self._error: SegmentStoreError | None = None
        self._done = trio.Event()

    async def append(self, data: bytes, count: int, *, first_event: int) -> None:
        """Append ``data`` many times, as a client's writer does, and wait until all is durable."""
        replace, accumulate = AttributeUpdateType.REPLACE, AttributeUpdateType.ACCUMULATE
        for number in range(first_event, first_event + count):
            self._submitted.append(time.perf_counter())
            self._container.append_nowait(
                self._name,
                data,
                attribute_updates=(
                    AttributeUpdate(self._writer_id, replace, number),
                    AttributeUpdate(EVENT_COUNT, accumulate, 1),
                ),
                on_complete=self._complete,
            )
        await self._done.wait()
        if self._error is not None:
            raise self._error

    def _complete(self, error: SegmentStoreError | None, length: int) -> None:
        """Check and count a completion; those of one segment must come in order."""
        elapsed = time.perf_counter() - self._submitted[self._completed]
        self._latencies_ms.append(elapsed * 1000)
        self._completed += 1
        self._error = self._error or error
        if self._completed == len(self._submitted):
            self._done.set()
