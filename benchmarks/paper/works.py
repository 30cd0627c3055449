"""The works behind the figures, and the points that they measure.

1. A work has a fresh server, which it rehearses with its own load, and then measures all its points
   on it, one after the other, the unthrottled one last. A client is a new process for each point,
   with a warm-up of its own.
2. Several figures may show the points of one work: it is run once for all of them, with the series
   of all of them.
3. A point that fails has no numbers and costs the points after it nothing.
"""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Protocol

from foreign_servers.original_durable import OriginalDurable
from foreign_servers.peer import Peer, PeerFailedError, RunningPeer, running

from benchmarks.block_load import BlockLoadFailedError
from benchmarks.comparison import Metric, Outcome
from benchmarks.history import HOST
from benchmarks.load import Load, LoadFailedError
from benchmarks.machine import synced_bytes_per_second
from benchmarks.many_segments import REHEARSED, ManySegments
from benchmarks.paper.series import DRIVE, Series
from benchmarks.paper.sizes import Size
from benchmarks.peers.segstore_standalone import SegstoreStandalone
from benchmarks.streams.rows import PUBLISH_P95, PUBLISHED
from benchmarks.streams.run import removed
from benchmarks.streams.runs import load_outcome
from pravega_wire.errors import ProtocolError

BYTES = Metric("published bytes", "MB/s", "higher")
EVENTS = Metric(PUBLISHED, "events/s", "higher")
P95 = Metric(PUBLISH_P95, "ms", "lower")
END_TO_END_P95 = Metric("end-to-end p95", "ms", "lower")
START_SECONDS = 25.0
"""What a server takes to start, in plans of time."""
CLIENT_SECONDS = 6.0
"""What a client takes to start and to end, in plans of time."""
FAILURES = (PeerFailedError, LoadFailedError, BlockLoadFailedError, ProtocolError, OSError)


@dataclass(frozen=True, slots=True)
class Point:
    """A place on the x-axis of a panel; ``words`` tell it from the others of the panel."""

    panel: str
    x: float
    words: str

    @property
    def name(self) -> str:
        """Return the name of its row in the record."""
        return f"{self.panel}, {self.words}"


@dataclass(frozen=True, slots=True)
class Turn:
    """A series that does a work, in an empty directory of its own."""

    series: Series
    peer: Peer
    directory: Path
    size: Size


class Work(Protocol):
    """A load or a procedure that is measured from its start to its end on one server, for each
    series."""

    @property
    def key(self) -> str:
        """Return a word for files."""

    @property
    def points(self) -> Sequence[Point]:
        """Return all points, in the order of the measurements."""

    def server(self, series: Series, size: Size) -> Peer | None:
        """Make the server of a series; None where there is none here."""

    def expected_seconds(self, size: Size) -> float:
        """Return the time that one series will take, about."""

    def measure(self, turn: Turn) -> Iterator[tuple[Point, Outcome]]:
        """Yield the outcomes of the points."""

    def unmeasured(self, measured: Sequence[Point], size: Size) -> Sequence[Point]:
        """Return the points that have failed when the others were measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedWork:
    """The points of a work that is watched over time: ``whole`` has the numbers of all of it, each
    of the others those of a few seconds."""

    key: str
    whole: Point
    points: Sequence[Point]

    def unmeasured(self, measured: Sequence[Point], size: Size) -> Sequence[Point]:
        """See ``Work``."""
        return () if self.whole in measured else (self.whole,)


def spread(points: Sequence[Point], size: Size) -> list[Point]:
    """Return the points of a size: of each panel, as many as it has, the first and last ones."""
    found: list[Point] = []
    for panel in dict.fromkeys(point.panel for point in points):
        own = [point for point in points if point.panel == panel]
        if size.points_max is not None and len(own) > size.points_max:
            half = size.points_max // 2
            own = [*own[: size.points_max - half], *own[len(own) - half :]]
        found += own
    return found


def check_room(directory: Path, needed_bytes: float, size: Size) -> None:
    """Raise ``PeerFailedError`` if the disk has less free than a work needs."""
    free = shutil.disk_usage(directory).free
    if size.needs_disk and free < needed_bytes:
        raise PeerFailedError(
            f"it needs {needed_bytes / 1e9:.0f} GB of the disk, of which {free / 1e9:.0f} are free"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Loads:
    """Loads by the official clients, each a point of one panel."""

    key: str
    loads: Sequence[tuple[Point, Load]]
    rehearsed: int = 0
    """The number of the load that makes a fresh server warm."""
    has_many_clients: bool = False

    @property
    def points(self) -> Sequence[Point]:
        """See ``Work``."""
        return [point for point, _ in self.loads]

    def server(self, series: Series, size: Size) -> Peer | None:
        """See ``Work``."""
        return series.server()

    def expected_seconds(self, size: Size) -> float:
        """See ``Work``."""
        each = max(size.warmup_seconds, size.warmup_seconds_max or 0) + size.seconds
        rehearsal = START_SECONDS + size.rehearsal_seconds + CLIENT_SECONDS
        return rehearsal + len(spread(self.points, size)) * (each + CLIENT_SECONDS)

    def unmeasured(self, measured: Sequence[Point], size: Size) -> Sequence[Point]:
        """See ``Work``."""
        return [point for point in spread(self.points, size) if point not in measured]

    def measure(self, turn: Turn) -> Iterator[tuple[Point, Outcome]]:
        """See ``Work``."""
        with removed(turn.directory), running(turn.peer, turn.directory) as server:
            yield from self._on(turn, server)

    def _on(self, turn: Turn, server: RunningPeer) -> Iterator[tuple[Point, Outcome]]:
        size = turn.size
        chosen = spread(self.points, size)
        rehearsal = _sized(self.loads[self.rehearsed][1], turn)
        rehearsal = replace(
            rehearsal,
            warmup_seconds=size.rehearsal_seconds,
            warmup_seconds_max=size.rehearsal_seconds_max,
            warmup_window_seconds=5,
            seconds=1,
        )
        self._outcome(turn, server, rehearsal)
        for point, load in self.loads:
            if point in chosen:
                yield point, self._outcome(turn, server, _sized(load, turn))

    def _outcome(self, turn: Turn, server: RunningPeer, load: Load) -> Outcome:
        heap = turn.size.many_clients_heap if self.has_many_clients else turn.size.client_heap
        try:
            found = load_outcome(turn.peer, server, load, client_heap=heap)
        except LoadFailedError as error:
            return Outcome({}, failure=str(error))
        events = found.numbers[EVENTS]
        mb = None if events is None else events * load.event_size / 1e6
        return replace(found, numbers={**found.numbers, BYTES: mb})


def _sized(load: Load, turn: Turn) -> Load:
    """Return a load at the size of a turn, with the client's settings of its series."""
    size = turn.size
    rate = load.rate
    if size.rate_max is not None:
        rate = min(rate or size.rate_max, size.rate_max)
    segments = min(load.segments, size.segments_max)
    return replace(
        load,
        rate=rate,
        segments=segments,
        producers=min(load.producers, size.producers_max),
        consumers=min(load.consumers, segments),
        warmup_seconds=size.warmup_seconds,
        warmup_seconds_max=size.warmup_seconds_max,
        warmup_window_seconds=size.warmup_window_seconds,
        seconds=size.seconds,
        drain_seconds=size.drain_seconds,
        **turn.series.client,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """A steady rate from many writers into many segments; a panel for each number of writers.

    Servers of Pravega's protocol get it as blocks straight over the wire (see ``many_segments``),
    the others from their own clients.
    """

    key: str
    rate: float
    """Events a second."""
    event_bytes: int
    block_events: int
    loads: Sequence[tuple[Point, Load]]
    """The same as loads of the official clients."""

    @property
    def points(self) -> Sequence[Point]:
        """See ``Work``."""
        return [point for point, _ in self.loads]

    def server(self, series: Series, size: Size) -> Peer | None:
        """See ``Work``."""
        return series.server()

    def expected_seconds(self, size: Size) -> float:
        """See ``Work``."""
        return self._by_clients.expected_seconds(size)

    def unmeasured(self, measured: Sequence[Point], size: Size) -> Sequence[Point]:
        """See ``Work``."""
        return self._by_clients.unmeasured(measured, size)

    @property
    def _by_clients(self) -> Loads:
        return Loads(key=self.key, loads=self.loads, has_many_clients=True)

    def measure(self, turn: Turn) -> Iterator[tuple[Point, Outcome]]:
        """See ``Work``."""
        if not isinstance(turn.peer, SegstoreStandalone | OriginalDurable):
            yield from self._by_clients.measure(turn)
            return
        size = turn.size
        chosen = spread(self.points, size)
        rate = min(self.rate, size.rate_max or self.rate) / self.block_events
        with removed(turn.directory), running(turn.peer, turn.directory):
            load_of = partial(
                ManySegments,
                HOST,
                turn.peer.segment_store_port,
                block_bytes=self.event_bytes * self.block_events,
            )
            writers = min(self.loads[0][1].producers, size.producers_max)
            with load_of(segments=writers, writers=writers, stream=REHEARSED) as rehearsal:
                rehearsal.run(blocks_per_second=rate, seconds=size.rehearsal_seconds)
            for point, load in self.loads:
                if point in chosen:
                    yield point, self._blocks(load_of, load, rate, size)

    def _blocks(
        self, load_of: partial[ManySegments], load: Load, rate: float, size: Size
    ) -> Outcome:
        writers = min(load.producers, size.producers_max)
        segments = min(load.segments, size.segments_max)
        try:
            with load_of(
                segments=segments, writers=writers, stream=f"{load.producers}-{load.segments}-"
            ) as blocks:
                blocks.run(blocks_per_second=rate, seconds=size.warmup_seconds)
                found = blocks.run(blocks_per_second=rate, seconds=size.seconds)
        except (BlockLoadFailedError, ProtocolError) as error:
            return Outcome({}, failure=str(error))
        events = found.blocks * self.block_events / found.seconds
        mb = events * self.event_bytes / 1e6
        return Outcome({EVENTS: events, BYTES: mb, P95: found.percentile_ms(95)})


def outcomes_of(
    work: Work, series: Series, size: Size, directory: Path
) -> Iterator[tuple[Point, Outcome]]:
    """Yield the outcome of each point of a work on one series; nothing where it is not here."""
    if series.key == DRIVE:
        rate = synced_bytes_per_second(directory) / 1e6
        yield from ((each, Outcome({BYTES: rate})) for each in work.unmeasured((), size))
        return
    peer = work.server(series, size)
    if peer is None:
        return
    measured = []
    try:
        peer.prepare()
        turn = Turn(series, peer, directory / f"{work.key}-{series.key}", size)
        for point, outcome in work.measure(turn):
            measured.append(point)
            yield point, outcome
    # Nothing that one series meets may cost the numbers of all others.
    except Exception as error:
        if not isinstance(error, FAILURES):
            traceback.print_exc()
        for point in work.unmeasured(measured, size):
            yield point, Outcome({}, failure=str(error) or repr(error))
