"""The works of a cluster: one function per row does the row's work and returns its numbers.

1. Where tier 2 takes nothing, that is checked: a container that flushed has less to recover.
2. A client that saw an error, or lost an event, makes the run a failure.
3. What is warm: a load warms up as in the rows of ``bench_streams``; the client whose gaps are
   measured writes for as long before anything is done to the cluster; and the store that opens a
   log has opened shorter ones of the same container.
"""

import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from foreign_servers.cluster import HOST, ClusterPeer
from foreign_servers.peer import PeerFailedError, RunningPeer

from benchmarks.block_load import BlockSender, event_block
from benchmarks.cluster.containers import Containers
from benchmarks.cluster.sizes import Size
from benchmarks.comparison import Metric, Outcome
from benchmarks.load import Load, LoadResult, run_load
from benchmarks.streams.rows import BY_NAME, LARGE_EVENT
from benchmarks.streams.runs import check_recovered, load_outcome
from pravega_cluster.records import Host
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import GetStreamSegmentInfo, StreamSegmentInfo

FILLED_STREAM = "unflushed"
DRAIN_SECONDS_MAX = 60.0
"""Maximum time after a load until all is acknowledged, in seconds: three bookies on one disk write
everything six times, and the disk may stand still for seconds."""
WATCHED_SEGMENTS = 16
CONNECTING_SECONDS = 8.0
"""A client's process writes its first event within this time."""
BACK_SECONDS = 3.0
"""The client has to be back for so long before the watch ends."""
HAND_OVER_SECONDS_MAX = 30.0
FLUSHED_SHARE_MAX = 0.05
STORES_OWN = "_system"
"""The folder of tier 2 in which stores, ours and the original, keep files of their own."""
LOG_SEGMENT = "cluster/log/0.#epoch.0"
LOG_BLOCK_BYTES = 64 * 1024
LOG_OUTSTANDING_MAX = 64

SERVED = Metric("all containers served again", "s", "lower")
GAP = Metric("client's longest gap", "s", "lower")
GAP_OF_CLIENT = Metric("of it after all containers were served", "s", "lower")
HANDED_OVER = Metric("store told to end has ended", "s", "lower")
OPENED = Metric("container served again", "s", "lower")


@dataclass(frozen=True, slots=True)
class Session:
    """A running cluster in its directory, and the size of the work on it."""

    peer: ClusterPeer
    server: RunningPeer
    directory: Path
    size: Size

    def load(self, name: str) -> Outcome:
        """Run the load of a row of ``bench_streams``."""
        size = self.size
        usual = BY_NAME[name].load
        assert usual is not None
        rate = (
            usual.rate if size.rate_max is None else min(usual.rate or size.rate_max, size.rate_max)
        )
        load = replace(
            usual,
            rate=rate,
            warmup_seconds=size.warmup_seconds,
            warmup_seconds_max=size.warmup_seconds_max,
            seconds=size.seconds,
            drain_seconds=DRAIN_SECONDS_MAX,
        )
        return load_outcome(self.peer, self.server, load, client_heap=size.client_heap)

    def kill(self, *, starts_again: bool) -> Outcome:
        """Kill the store with the most containers, under a client, with much that is unflushed."""
        peer, size = self.peer, self.size
        stores = range(peer.shape.stores)
        with Containers(peer.zookeeper, peer.shape.containers) as containers:
            containers.wait_shared(len(stores))
            with self._watched_client(size.kill_seconds) as client:
                warm = time.monotonic() + size.warmup_seconds + CONNECTING_SECONDS
                filled = self._fill()
                time.sleep(max(0.0, warm - time.monotonic()))
                victim = max(stores, key=lambda each: len(containers.of(peer.store_port(each))))
                lost = containers.of(peer.store_port(victim))
                self._check_unflushed()
                killed = time.time()
                peer.store(victim).kill()
                if starts_again:
                    peer.start_store(self.directory, victim)
                served = containers.wait_served(lost) - killed
                result = client.result()
            check_recovered(self.server.address, FILLED_STREAM, filled)
        gap = _longest_gap(result, since=killed)
        return Outcome(
            {SERVED: served, GAP: gap, GAP_OF_CLIENT: max(0.0, gap - served)},
            failure=result.failure(),
            remarks=tuple(result.remarks()),
        )

    def move(self) -> Outcome:
        """Tell a store to end, then start it again: containers leave it, and come back."""
        peer, size = self.peer, self.size
        with Containers(peer.zookeeper, peer.shape.containers) as containers:
            containers.wait_shared(peer.shape.stores)
            with self._watched_client(size.move_seconds) as client:
                time.sleep(size.warmup_seconds + CONNECTING_SECONDS)
                told = time.time()
                store = peer.store(peer.shape.stores - 1)
                store.send(signal.SIGTERM)
                store.wait_for_end(seconds_max=HAND_OVER_SECONDS_MAX)
                handed_over = time.time() - told
                peer.start_store(self.directory, peer.shape.stores - 1)
                containers.wait_shared(peer.shape.stores)
                result = client.result()
        return Outcome(
            {GAP: _longest_gap(result, since=told), HANDED_OVER: handed_over},
            failure=result.failure(),
            remarks=tuple(result.remarks()),
        )

    def open(self) -> Outcome:
        """Kill the owner of a container, and give that with its log to another store."""
        peer, size = self.peer, self.size
        one, other = (Host(HOST, peer.store_port(number)) for number in (0, 1))
        with Containers(peer.zookeeper, peer.shape.containers) as containers:
            containers.give_all_to(one)
            containers.wait_served({0})
            length = _write_log(one, size.warm_log_mb, b"warms stores up.")
            for host in [other, one] * size.warm_openings:
                containers.give_all_to(host)
                containers.wait_served({0})
            length += _write_log(one, size.unflushed_mb - size.warm_log_mb, b"makes it longer.")
            self._check_unflushed()
            peer.store(0).kill()
            began = time.time()
            containers.give_all_to(other)
            opened = containers.wait_served({0}) - began
        _check_length(other, length)
        return Outcome({OPENED: opened})

    @contextmanager
    def _watched_client(self, seconds: float) -> Iterator[Future[LoadResult]]:
        """Run the client whose gaps are measured; the block has to end after it has."""
        size = self.size
        load = Load(
            rate=size.watched_rate,
            segments=WATCHED_SEGMENTS,
            producers=size.watched_writers,
            consumers=0,
            warmup_seconds=size.warmup_seconds,
            seconds=seconds,
            latency_from="intended",
        )
        with ThreadPoolExecutor(1) as thread:
            yield thread.submit(run_load, self.server.address, load, heap=size.client_heap)

    def _fill(self) -> int:
        """Append what shall be unflushed; returns the events."""
        size = self.size
        load = Load(
            rate=size.fill_mb_per_second * 1e6 / LARGE_EVENT,
            event_size=LARGE_EVENT,
            segments=WATCHED_SEGMENTS,
            consumers=0,
            warmup_seconds=0,
            seconds=size.unflushed_mb / size.fill_mb_per_second,
            drain_seconds=size.fill_seconds_max,
            kept_stream=FILLED_STREAM,
        )
        result = run_load(self.server.address, load, heap=size.client_heap)
        if failure := result.failure():
            raise PeerFailedError(f"filling the logs failed: {failure}")
        return result.totals["acknowledged"]

    def _check_unflushed(self) -> None:
        """Raise ``PeerFailedError`` if tier 2 has much of what was written; a store's own files,
        among them a reserve for a full tier 2, are not part of that."""
        tier_2 = self.directory / "tier2"
        files = (
            each
            for each in tier_2.rglob("*")
            if each.is_file() and STORES_OWN not in each.relative_to(tier_2).parts
        )
        flushed = sum(each.stat().st_size for each in files)
        if flushed > FLUSHED_SHARE_MAX * self.size.unflushed_mb * 1e6:
            raise PeerFailedError(f"tier 2 has {flushed / 1e6:.0f} MB of what was written")


def _longest_gap(result: LoadResult, *, since: float) -> float:
    """Return the longest time in seconds that an event was overdue. Raises ``PeerFailedError``."""
    if not result.start_epoch < since < result.end_epoch:
        raise PeerFailedError("the client was not watched when it happened")
    longest = result.publish.latency_ms.max
    if longest is None or not all(result.publish.per_second[-int(BACK_SECONDS) :]):
        raise PeerFailedError("the client was not back when the watch ended")
    return longest / 1e3


def _write_log(host: Host, mb: float, writer_id: bytes) -> int:
    """Append so much to one segment of a store; returns the bytes."""
    count = int(mb * 1e6 / LOG_BLOCK_BYTES)
    with SegmentConnection(*host.address) as connection:
        sender = BlockSender(
            connection,
            data=event_block(LOG_BLOCK_BYTES),
            segment=LOG_SEGMENT,
            writer_id=writer_id,
        )
        sender.send_all(count, outstanding_max=LOG_OUTSTANDING_MAX)
    return count * LOG_BLOCK_BYTES


def _check_length(host: Host, length: int) -> None:
    """Raise ``PeerFailedError`` unless everything that was acknowledged is there."""
    with SegmentConnection(*host.address) as connection:
        found = connection.call(GetStreamSegmentInfo(1, LOG_SEGMENT, ""))
    if not isinstance(found, StreamSegmentInfo) or found.write_offset != length:
        raise PeerFailedError(f"instead of {length} bytes there are: {found}")
