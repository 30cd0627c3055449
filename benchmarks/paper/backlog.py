"""A backlog that is written at a steady rate, and read while its writers go on.

1. Readers are held until the backlog is acknowledged (see the driver's ``--backlog``); what is
   measured begins when they are released, and ends when they are within a second of the writers.
2. The caches of ours and of the original have the same size, which is a small part of the backlog.
3. Spark reads the same backlog from tier 2 as soon as all of it is there; its writers have stopped.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass

from foreign_servers.peer import Peer, RunningPeer, running

from benchmarks.bench_scale import CACHE_BYTES
from benchmarks.comparison import Metric, Outcome
from benchmarks.history import wait_until_stored
from benchmarks.load import Load, LoadResult, run_load
from benchmarks.paper.series import SPARK_OURS, Series
from benchmarks.paper.sizes import Size
from benchmarks.paper.works import (
    CLIENT_SECONDS,
    START_SECONDS,
    Point,
    Turn,
    WatchedWork,
    check_room,
)
from benchmarks.streams.rows import DURABLE, LARGE_EVENT, OURS
from benchmarks.streams.run import removed
from benchmarks.streams.servers import cached_server

READ = Metric("read", "MB/s", "higher")
WRITTEN = Metric("written", "MB/s", "higher")
HISTORY = Metric("history read", "MB/s", "higher")
PEAK = Metric("history read, best second", "MB/s", "higher")
CAUGHT_UP = Metric("caught up after", "s", "lower")
WRITERS_P99_ALONE = Metric("writers' p99 before readers", "ms", "lower")
WRITERS_P99 = Metric("writers' p99 beside readers", "ms", "lower")
WRITERS_TIMES = Metric("writers' p99 beside readers / before", "", "lower")
STEP_SECONDS = 5
STREAM, SCOPE = "backlog", "benchmarks"
SEGMENTS = 16
COPIES = 3
"""A server keeps what is written in a log and in tier 2, and something is written meanwhile."""
STORED_SECONDS_MAX = 300.0
WARM_ROWS = 1_000
"""What Spark reads first: its workers are processes that have to start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held(WatchedWork):
    """The work: readers are held, then released."""

    def server(self, series: Series, size: Size) -> Peer | None:
        """See ``Work``."""
        is_pravega = (series.server_key or series.key) in (OURS, DURABLE)
        if is_pravega and series.key != SPARK_OURS:
            return cached_server(series.key, CACHE_BYTES)
        return series.server()

    def expected_seconds(self, size: Size) -> float:
        """See ``Work``."""
        writing = size.backlog_mb / size.backlog_mb_per_second
        fixed = START_SECONDS + CLIENT_SECONDS + size.rehearsal_seconds
        return fixed + writing + size.reading_seconds_max / 3

    def measure(self, turn: Turn) -> Iterator[tuple[Point, Outcome]]:
        """See ``Work``."""
        check_room(turn.directory.parent, COPIES * turn.size.backlog_mb * 1e6, turn.size)
        with removed(turn.directory), running(turn.peer, turn.directory) as server:
            if turn.series.key == SPARK_OURS:
                yield self.whole, _read_by_spark(turn, server)
                return
            result = _run(turn, server, _load(turn.size, consumers=SEGMENTS))
            yield from self._over_time(result)
            yield self.whole, _whole(result)

    def _over_time(self, result: LoadResult) -> Iterator[tuple[Point, Outcome]]:
        """Yield means of a few seconds each, from the release of the readers on."""
        read, written = result.end_to_end.per_second, result.publish.per_second
        mb = result.load.event_size / 1e6
        for number, point in enumerate(self.points[1:]):
            part = slice(number * STEP_SECONDS, (number + 1) * STEP_SECONDS)
            if not read[part]:
                break
            seconds = len(read[part])
            yield (
                point,
                Outcome(
                    {
                        READ: sum(read[part]) * mb / seconds,
                        WRITTEN: sum(written[part]) * mb / seconds,
                    }
                ),
            )


def points_of(panel: str, seconds: int) -> tuple[Point, tuple[Point, ...]]:
    """Return the point of the whole work, and all of them: it and one for each step of time."""
    whole = Point(panel, 0, "the whole")
    steps = range(STEP_SECONDS, seconds + 1, STEP_SECONDS)
    return whole, (whole, *(Point(panel, each, f"{each} s") for each in steps))


def _load(size: Size, *, consumers: int) -> Load:
    events = int(size.backlog_mb * 1e6 / LARGE_EVENT)
    rate = size.backlog_mb_per_second * 1e6 / LARGE_EVENT
    return Load(
        rate=rate,
        event_size=LARGE_EVENT,
        segments=SEGMENTS,
        consumers=consumers,
        keys=10_000,
        warmup_seconds=size.warmup_seconds,
        backlog=events if consumers else 0,
        seconds=size.reading_seconds_max if consumers else events / rate,
        drain_seconds=size.drain_seconds,
        kept_stream=STREAM,
    )


def _run(turn: Turn, server: RunningPeer, load: Load) -> LoadResult:
    """Run a load. Raises ``LoadFailedError``."""
    return run_load(
        server.address,
        load,
        heap=turn.size.client_heap,
        speaks_kafka=turn.peer.speaks_kafka,
        access=server.access,
    )


def _whole(result: LoadResult) -> Outcome:
    read = result.end_to_end
    alone, beside = result.alone, result.publish.latency_ms
    seconds = result.end_epoch - result.start_epoch
    mb = result.load.event_size / 1e6
    has_caught_up = seconds < result.load.seconds
    numbers: dict[Metric, float | None] = {
        HISTORY: read.mb_per_second,
        PEAK: max(read.per_second, default=0) * mb,
        CAUGHT_UP: seconds if has_caught_up else None,
        WRITERS_P99: beside.p99,
    }
    if alone is not None and alone.p99 and beside.p99:
        numbers |= {WRITERS_P99_ALONE: alone.p99, WRITERS_TIMES: beside.p99 / alone.p99}
    late = () if has_caught_up else (f"its readers were behind after {seconds:.0f} s",)
    return Outcome(numbers, result.failure(), (*result.remarks(), *late))


def _read_by_spark(turn: Turn, server: RunningPeer) -> Outcome:
    """Read the backlog as a batch of Spark that makes every row."""
    from benchmarks.bench_spark import make_all_rows, spark_session

    result = _run(turn, server, _load(turn.size, consumers=0))
    if failure := result.failure():
        return Outcome({}, failure=failure)
    payload = result.totals["acknowledged"] * LARGE_EVENT
    tier_two = turn.directory / "data" / "storage"
    wait_until_stored(tier_two, bytes_min=payload, seconds_max=STORED_SECONDS_MAX)
    place = turn.directory / "spark"
    place.mkdir()
    given = {"controller": server.address, "scope": SCOPE, "stream": STREAM, "read_path": "direct"}
    with spark_session(place) as spark:
        frame = spark.read.format("pravega").options(**given).load()
        make_all_rows(frame.limit(WARM_ROWS))
        begun = time.monotonic()
        make_all_rows(frame)
        return Outcome({HISTORY: payload / (time.monotonic() - begun) / 1e6})
