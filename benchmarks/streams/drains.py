"""Draining a backlog: one run of one row on one server, and its numbers.

1. The backlog is written and acknowledged before anybody reads it, and the server is left alone
   until it has nothing to do: what is measured is reading.
2. The driver drains a shorter stream first, so that neither it nor the server is cold.
3. Where the row says so, the server is started again before it is drained, and the page cache
   forgets its files: all bytes come from tier 2.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from foreign_servers.peer import Peer, RunningPeer
from foreign_servers.process_tree import Meter

from benchmarks.comparison import Metric, Outcome
from benchmarks.history import forget_pages
from benchmarks.load import Backlog
from benchmarks.machine import busy_seconds

DRAINED = "drained events"
PHASE_SECONDS_MAX = 600.0
QUIET_SECONDS = 2.0
QUIET_SECONDS_MAX = 90.0
QUIET_CPU_SHARE_MAX = 0.1
"""Of a core, used by all processes of a server that has nothing left to do."""
WARM_SHARE = 4
"""The stream that is drained first has the fourth part of the events."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """A backlog of ``mb`` million bytes, with its consumer and the place it is read from."""

    event_size: int
    segments: int
    mb: float
    consumers: int = 1
    is_cold: bool = False
    """From tier 2, after a start, past caches; else from the cache."""

    @property
    def backlog(self) -> Backlog:
        """Return the backlog that is written and drained."""
        events = max(WARM_SHARE, int(self.mb * 1e6 / self.event_size))
        return Backlog(
            events=events,
            warm_events=events // WARM_SHARE,
            event_size=self.event_size,
            segments=self.segments,
            consumers=self.consumers,
        )

    @property
    def cache_bytes(self) -> int:
        """Return the size of a cache for both streams with their headers, and half as much
        again."""
        payload = self.mb * 1e6 * (1 + 1 / WARM_SHARE)
        return int(payload * (1 + 8 / self.event_size) * 1.5) + 256 * 2**20


def drain_outcome(peer: Peer, drain: Drain, directory: Path, *, client_heap: str) -> Outcome:
    """Write a backlog to a fresh server in ``directory``, and drain it."""
    directory.mkdir(parents=True)
    address = peer.reserve()
    backlog = drain.backlog
    try:
        server = peer.start(directory)
        written = backlog.run(
            address,
            writes=True,
            heap=client_heap,
            speaks_kafka=peer.speaks_kafka,
            seconds_max=PHASE_SECONDS_MAX,
        )
        remarks = wait_until_quiet(server)
        if drain.is_cold:
            peer.stop()
            os.sync()
            server = peer.start(directory)
            forget_pages(directory)
        busy_before, usage_before = busy_seconds(), server.processes.usage()
        with Meter(server.processes) as meter:
            drained = backlog.run(
                address,
                writes=False,
                heap=client_heap,
                speaks_kafka=peer.speaks_kafka,
                seconds_max=PHASE_SECONDS_MAX,
            )
        usage = server.processes.usage()
        cost = meter.cost(start_epoch=drained.start_epoch, end_epoch=drained.end_epoch)
    finally:
        peer.stop()
    elapsed = usage.epoch - usage_before.epoch
    used = usage.cpu_seconds - usage_before.cpu_seconds
    others = (
        busy_seconds()
        - busy_before
        - used
        - drained.client_cpu_seconds * (elapsed / drained.seconds)
    )
    megabytes = drained.events * drain.event_size / 1e6
    return Outcome(
        numbers={
            Metric(DRAINED, "events/s", "higher"): drained.events_per_second,
            Metric("drained bytes", "MB/s", "higher"): drained.mb_per_second,
            Metric("server CPU per MB", "ms", "lower"): cost.cpu_seconds / megabytes * 1e3,
            Metric("client CPU per MB", "ms", "lower"): drained.client_cpu_seconds
            / megabytes
            * 1e3,
            Metric("peak RSS", "MB", "lower"): cost.resident_bytes_peak / 1e6,
            Metric("written bytes before", "MB/s", "higher"): written.mb_per_second,
        },
        remarks=remarks,
        other_cpu_share=max(0.0, others) / (elapsed * (os.cpu_count() or 1)),
    )


def wait_until_quiet(server: RunningPeer) -> tuple[str, ...]:
    """Return when a server does next to nothing, with a remark if it never did."""
    deadline = time.monotonic() + QUIET_SECONDS_MAX
    while time.monotonic() < deadline:
        before = server.processes.usage()
        time.sleep(QUIET_SECONDS)
        after = server.processes.usage()
        used = after.cpu_seconds - before.cpu_seconds
        if used <= QUIET_CPU_SHARE_MAX * (after.epoch - before.epoch):
            return ()
    return (f"the server was still busy {QUIET_SECONDS_MAX:g} s after the backlog was written",)
