"""A stream that is split under its load, in a cluster of three segment stores.

1. The load is five times the target of a segment, from one segment on. Both clusters have the same
   ZooKeeper, bookies and times of scaling, which are the defaults.
2. The load of a store is what the segments that it serves have grown by.
3. All events are read again at the end: each key's have to be there in their order.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from statistics import median

from foreign_servers.cluster import ClusterPeer
from foreign_servers.peer import Peer, running

from benchmarks.cluster.servers import MOVE_SET_UP, make_cluster
from benchmarks.comparison import Metric, Outcome
from benchmarks.demo_scaling import (
    KEYS,
    NUMBER,
    SCOPE,
    STREAM,
    Second,
    make_settings,
    measure,
    wait_until_it_answers,
)
from benchmarks.measured import OURS
from benchmarks.paper.series import Series
from benchmarks.paper.sizes import Size
from benchmarks.paper.works import START_SECONDS, Point, Turn, WatchedWork, check_room
from benchmarks.peers.segstore_cluster import SegstoreCluster
from benchmarks.streams.rows import LARGE_EVENT
from benchmarks.streams.run import removed
from pravega_wire.blocking import SegmentConnection
from pravega_wire.commands import GetStreamSegmentInfo, StreamSegmentInfo
from pravega_wire.names import segment_name
from segstore_client.blocking.event_reader import BlockingEventReader
from segstore_client.controller.controller_client import ControllerClient
from segstore_client.errors import PravegaError
from segstore_client.positions import Position

TIMES_OF_TARGET = 5
STEP_SECONDS = 5.0
P50 = Metric("write p50", "ms", "lower")
SEGMENTS = Metric("segments", "", "higher")
STORE_LOADS = tuple(Metric(f"load of store {number}", "MB/s", "higher") for number in (1, 2, 3))
P50_BEFORE = Metric("p50 with one segment", "ms", "lower")
P50_AFTER = Metric("p50 within two minutes of the first split", "ms", "lower")
P50_TIMES = Metric("p50 within two minutes of the first split / before", "", "lower")
SPLIT = Metric("first split after", "s", "lower")
IN_ORDER = Metric("keys in order", "share", "higher")
COLD_SHARE = 0.2
"""The part of the time with one segment that does not count, as everything is cold."""
WATCHED_SECONDS = 120.0
SMOOTH_SECONDS = 10
"""A latency over time is the median of so many seconds."""
COPIES = 5
"""Three bookies, tier 2, and journals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(WatchedWork):
    """The work: a stream is split under its load."""

    def server(self, series: Series, size: Size) -> Peer | None:
        """See ``Work``."""
        copies = size.bookies
        replicas = (copies, copies, copies // 2 + 1)
        shape = replace(MOVE_SET_UP.shape, bookies=copies, replicas=replicas)
        settings = "" if size.scaling_faster == 1 else make_settings(size.scaling_faster)
        if series.key == OURS:
            return SegstoreCluster(shape, settings=settings)
        return make_cluster(series.key, replace(MOVE_SET_UP, shape=shape))

    def expected_seconds(self, size: Size) -> float:
        """See ``Work``."""
        return START_SECONDS + size.scaling_seconds + 60

    def measure(self, turn: Turn) -> Iterator[tuple[Point, Outcome]]:
        """See ``Work``."""
        size, peer = turn.size, turn.peer
        assert isinstance(peer, ClusterPeer)
        written = size.scaling_rate * size.scaling_seconds * LARGE_EVENT
        check_room(turn.directory.parent, COPIES * written, size)
        with removed(turn.directory), running(peer, turn.directory) as server:
            wait_until_it_answers(server.address)
            with StoreLoads(server.address, peer) as loads:
                load = measure(
                    server.address,
                    ((size.scaling_seconds, size.scaling_rate),),
                    target_rate=int(size.scaling_rate / TIMES_OF_TARGET),
                    event_bytes=LARGE_EVENT,
                )
                seconds = list(load)
            yield from self._over_time(seconds, loads)
            yield self.whole, _whole(seconds, _read_again(server.address))

    def _over_time(
        self, seconds: Sequence[Second], loads: StoreLoads
    ) -> Iterator[tuple[Point, Outcome]]:
        """Yield what a few seconds each had, at their ends."""
        for point in self.points[1:]:
            part = [each for each in seconds if point.x - STEP_SECONDS < each.at <= point.x]
            if not part:
                continue
            by_store = loads.between(point.x - STEP_SECONDS, point.x)
            numbers: dict[Metric, float | None] = {
                P50: median(each.p50_ms for each in part),
                SEGMENTS: float(part[-1].segments),
                **dict(zip(STORE_LOADS, by_store, strict=False)),
            }
            yield point, Outcome(numbers)


@dataclass(slots=True)
class StoreLoads:
    """What each store of a cluster has taken, looked at beside the load by a thread of its own."""

    address: str
    peer: ClusterPeer
    _samples: list[tuple[float, tuple[int, ...]]] = field(default_factory=list)
    _lengths: dict[int, int] = field(default_factory=dict)
    _current: set[int] = field(default_factory=set)
    _ended: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None

    def __enter__(self) -> StoreLoads:
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        assert self._thread is not None
        self._thread.join()

    def between(self, start: float, end: float) -> list[float | None]:
        """Return the MB/s of each store in some seconds of the load, or None if it is unknown."""
        part = [each for each in self._samples if start - STEP_SECONDS <= each[0] <= end]
        if len(part) < 2:
            return [None] * self.peer.shape.stores
        (begun, first), (ended, last) = part[0], part[-1]
        return [
            (after - before) / (ended - begun) / 1e6
            for before, after in zip(first, last, strict=True)
        ]

    def _run(self) -> None:
        totals = [0] * self.peer.shape.stores
        ports = [self.peer.store_port(number) for number in range(len(totals))]
        begun = None
        with ControllerClient(self.address) as client:
            while not self._ended.wait(STEP_SECONDS / 2 if begun is not None else 0.1):
                # There is no stream at first, and a segment may move or end while it is looked at.
                with suppress(PravegaError, OSError):
                    for port, grown in self._growths(client):
                        totals[ports.index(port)] += grown
                    begun = begun or time.monotonic()
                    self._samples.append((time.monotonic() - begun, tuple(totals)))

    def _growths(self, client: ControllerClient) -> Iterator[tuple[int, int]]:
        """Yield the port of each segment's store, and what the segment has grown by."""
        current = {each.segment_id for each in client.current_segments(SCOPE, STREAM).ranges}
        for segment in sorted(current | self._current):
            host, port = client.segment_address(SCOPE, STREAM, segment)
            with SegmentConnection(host, port) as connection:
                asked = GetStreamSegmentInfo(1, segment_name(SCOPE, STREAM, segment), "")
                found = connection.call(asked)
            if isinstance(found, StreamSegmentInfo):
                before = self._lengths.get(segment, 0)
                self._lengths[segment] = found.write_offset
                yield port, found.write_offset - before
        self._current = current


def _read_again(address: str) -> float:
    """Return the share of the keys whose events come back in their order, all of them."""
    last = dict.fromkeys(range(KEYS), -1)
    wrong = set()
    with (
        ControllerClient(address) as client,
        BlockingEventReader(client, SCOPE, STREAM, end=Position.TAIL) as reader,
    ):
        for event in reader:
            (number,) = NUMBER.unpack_from(event.data)
            key = number % KEYS
            expected = key if last[key] < 0 else last[key] + KEYS
            if number != expected:
                wrong.add(key)
            last[key] = number
    return 1 - len(wrong) / KEYS


def _whole(seconds: Sequence[Second], in_order: float) -> Outcome:
    split = next((each.at for each in seconds if each.segments > 1), None)
    if split is None:
        return Outcome({IN_ORDER: in_order}, remarks=("the stream was not split",))
    before = [each.p50_ms for each in seconds if COLD_SHARE * split <= each.at < split]
    after = [each.p50_ms for each in seconds if split <= each.at <= split + WATCHED_SECONDS]
    smooth = [
        median(after[start : start + SMOOTH_SECONDS])
        for start in range(max(1, len(after) - SMOOTH_SECONDS + 1))
    ]
    numbers: dict[Metric, float | None] = {IN_ORDER: in_order, SPLIT: split}
    if before and smooth:
        numbers |= {
            P50_BEFORE: median(before),
            P50_AFTER: min(smooth),
            P50_TIMES: min(smooth) / median(before),
        }
    return Outcome(numbers)
