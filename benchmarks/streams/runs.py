"""One run of one row on one server, and its numbers.

1. Server CPU, memory and written bytes are those of the measured seconds: what tier 2 still owes
   when they end is made up for by what it owed when they began.
2. CPU used by anything else on the machine is measured too.
3. A run that lost an event, or on which a client saw an error, has no numbers.
"""

import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from foreign_servers.peer import Peer, PeerFailedError, RunningPeer
from foreign_servers.process_tree import Cost, Meter

from benchmarks.comparison import Metric, Outcome
from benchmarks.load import Load, LoadResult, run_load, startup_probe
from benchmarks.machine import busy_seconds
from benchmarks.peers.segstore_standalone import HELD, AssembledStore, SegstoreStandalone
from benchmarks.streams import rows
from benchmarks.streams.rows import LARGE_EVENT
from pravega_wire.event_framing import frame_event

IDLE_SECONDS = 3.0
LONG_SECONDS = 60.0
"""From here on, memory shows whether it stays."""
UNFLUSHED_BYTES_PER_SECOND = 80e6
CONNECTING_SECONDS = 2.0
"""A client's first event may be this late; it catches up then."""
CRASHED_STREAM = "unflushed"
CRASH_SETTINGS = "[segment_store]\ncache_bytes_max = 2147483648\n"
"""More than what is recovered: nobody may wait for tier 2."""


def load_outcome(peer: Peer, server: RunningPeer, load: Load, *, client_heap: str) -> Outcome:
    """Run one load on a started server."""
    started, busy_before = time.monotonic(), busy_seconds()
    children_before, server_before = _children_cpu_seconds(), server.processes.usage()
    with Meter(server.processes) as meter:
        result = run_load(
            server.address,
            load,
            heap=client_heap,
            speaks_kafka=peer.speaks_kafka,
            access=server.access,
        )
    busy = busy_seconds() - busy_before
    client_cpu = _children_cpu_seconds() - children_before
    server_cpu = server.processes.usage().cpu_seconds - server_before.cpu_seconds
    elapsed = time.monotonic() - started
    others = max(0.0, busy - client_cpu - server_cpu)
    window = meter.cost(start_epoch=result.start_epoch, end_epoch=result.end_epoch)
    numbers = load_numbers(result, window=window)
    if load.seconds >= LONG_SECONDS:
        middle = (result.start_epoch + result.end_epoch) / 2
        grown = meter.resident_growth_bytes(start_epoch=middle, end_epoch=result.end_epoch)
        numbers[Metric(rows.GROWTH, "MB", "lower")] = grown / 1e6
    numbers[Metric("PSS after the load", "MB", "lower")] = (
        server.processes.proportional_bytes() / 1e6
    )
    return Outcome(
        numbers=numbers,
        failure=result.failure(),
        remarks=tuple(result.remarks()),
        other_cpu_share=others / (elapsed * (os.cpu_count() or 1)),
    )


def _children_cpu_seconds() -> float:
    """Return the CPU seconds of ended children: while a server runs, these are the load driver's
    alone."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def load_numbers(result: LoadResult, *, window: Cost) -> dict[Metric, float | None]:
    """Return the quantities to compare.

    Those about throughput only when the load is unthrottled.
    """
    publish, end_to_end = result.publish, result.end_to_end
    events = publish.events or None
    numbers: dict[Metric, float | None] = {
        Metric(rows.PUBLISHED, "events/s", "higher"): publish.events_per_second
    }
    if not result.load.rate:
        numbers[Metric("published bytes", "MB/s", "higher")] = publish.mb_per_second
        numbers[Metric("read events", "events/s", "higher")] = end_to_end.events_per_second
        share = end_to_end.events / publish.events if publish.events else None
        numbers[Metric(rows.READ_SHARE, "", "higher")] = share
    latency = publish.latency_ms
    numbers |= {
        Metric(rows.PUBLISH_P50, "ms", "lower"): latency.p50,
        Metric(rows.PUBLISH_P95, "ms", "lower"): latency.p95,
        Metric(rows.PUBLISH_P99, "ms", "lower"): latency.p99,
        Metric("end-to-end p50", "ms", "lower"): end_to_end.latency_ms.p50,
        Metric("end-to-end p95", "ms", "lower"): end_to_end.latency_ms.p95,
        Metric(rows.DELIVERY_P99, "ms", "lower"): end_to_end.latency_ms.p99,
    }
    if result.load.rate and end_to_end.latency_ms.p95 is not None and latency.p95 is not None:
        delay = end_to_end.latency_ms.p95 - latency.p95
        numbers[Metric(rows.READ_DELAY, "ms", "lower")] = delay
    if result.load.own_groups:
        delivered_mb = end_to_end.events * result.load.event_size / 1e6
        cost = window.cpu_seconds / delivered_mb * 1e3 if delivered_mb else None
        numbers[Metric(rows.DELIVERY_CPU, "ms", "lower")] = cost
    payload = publish.events * result.load.event_size
    return numbers | {
        Metric("warm-up", "s", "lower"): result.warm_up.seconds,
        Metric(rows.SERVER_CPU, "s", "lower"): window.cpu_seconds,
        Metric("server CPU per event", "us", "lower"): events and window.cpu_seconds / events * 1e6,
        Metric(rows.PEAK_RSS, "MB", "lower"): window.resident_bytes_peak / 1e6,
        Metric(rows.WRITTEN, "", "lower"): window.written_bytes / payload if payload else None,
    }


def start_outcome(peer: Peer, *, directory: Path) -> Outcome:
    """Start a fresh server beside a client that waits for it, then leave it alone."""
    directory.mkdir(parents=True)
    address = peer.reserve()
    try:
        with startup_probe(address) as probe:
            server = peer.start(directory)
            ready_epoch = time.time()
            startup = probe.result()
        time.sleep(IDLE_SECONDS)
        idle_from = server.processes.usage()
        time.sleep(IDLE_SECONDS)
        idle = server.processes.usage()
        proportional = server.processes.proportional_bytes()
    finally:
        peer.stop()
    started = server.started_epoch
    busy_share = (idle.cpu_seconds - idle_from.cpu_seconds) / (idle.epoch - idle_from.epoch)
    return Outcome(
        numbers={
            Metric("start to port", "s", "lower"): startup.port_epoch - started,
            Metric(rows.READY, "s", "lower"): ready_epoch - started,
            Metric("start to first ack", "s", "lower"): startup.first_ack_epoch - started,
            Metric(rows.IDLE_RSS, "MB", "lower"): idle.resident_bytes / 1e6,
            Metric("idle PSS", "MB", "lower"): proportional / 1e6,
            Metric("idle CPU", "% of a core", "lower"): busy_share * 100,
        }
    )


def crash_outcome(*, directory: Path, unflushed_mb: float, client_heap: str) -> Outcome:
    """Fill the journal while tier 2 takes nothing, kill everything, start as usual."""
    directory.mkdir(parents=True)
    filled = AssembledStore(HELD)
    filled.reserve()
    events = _fill(filled, directory, unflushed_mb=unflushed_mb, client_heap=client_heap)
    settings = directory / "settings.toml"
    settings.write_text(CRASH_SETTINGS)
    again = SegstoreStandalone(options=("--config", str(settings)))
    # At its place, as a server that is started again: a controller elsewhere may be another one.
    address = again.reserve(filled.ports)
    os.sync()
    try:
        with startup_probe(address) as probe:
            server = again.start(directory)
            ready_epoch = time.time()
            startup = probe.result()
        check_recovered(server.address, CRASHED_STREAM, events)
    finally:
        again.stop()
    started = server.started_epoch
    return Outcome(
        numbers={
            Metric(rows.READY_AGAIN, "s", "lower"): ready_epoch - started,
            Metric("first ack after kill -9", "s", "lower"): startup.first_ack_epoch - started,
            Metric("unflushed when killed", "MB", "higher"): events * LARGE_EVENT / 1e6,
        }
    )


def _fill(filled: AssembledStore, directory: Path, *, unflushed_mb: float, client_heap: str) -> int:
    """Append until about that much is in the journal alone, then kill; returns the events."""
    seconds = max(1.0, unflushed_mb * 1e6 / UNFLUSHED_BYTES_PER_SECOND)
    load = Load(
        rate=unflushed_mb * 1e6 / LARGE_EVENT / (CONNECTING_SECONDS + seconds),
        event_size=LARGE_EVENT,
        segments=16,
        consumers=0,
        warmup_seconds=CONNECTING_SECONDS,
        seconds=seconds,
        kept_stream=CRASHED_STREAM,
    )
    try:
        server = filled.start(directory)
        result = run_load(server.address, load, heap=client_heap)
    finally:
        filled.stop()
    if failure := result.failure():
        raise PeerFailedError(f"filling the journal failed: {failure}")
    return result.totals["acknowledged"]


def check_recovered(address: str, stream: str, events: int) -> None:
    """Check by the lengths of the segments that all acknowledged events of a stream are there.

    Raises ``PeerFailedError``. Each event is as long as ``LARGE_EVENT``.
    """
    segstore = str(Path(sys.executable).parent / "segstore")
    command = [segstore, "stream", "describe", f"benchmarks/{stream}", "-o", "json"]
    done = subprocess.run(
        [*command, "--controller", address], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise PeerFailedError(f"the stream cannot be looked at: {done.stderr.strip()}")
    length = sum(segment["length"] for segment in json.loads(done.stdout)["segments"])
    expected = events * len(frame_event(bytes(LARGE_EVENT)))
    if length < expected:
        raise PeerFailedError(f"{expected - length} acknowledged bytes are lost")
