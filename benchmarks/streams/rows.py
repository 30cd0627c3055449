"""The rows of the benchmark: what each measures, its peers, and its targets.

1. A target is a ratio to one peer in the same run, or a limit that ours alone has to keep to.
2. A row runs the peers that its targets name, and those that it shows without a target; Pulsar,
   when it is named, in every row of a load or of a backlog in the cache.
3. A target may also be a ratio to another row of the same server.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from benchmarks.load import Load
from benchmarks.streams.drains import DRAINED, Drain

OURS = "ours"
DURABLE = "durable"
RAM = "ram"
KAFKA = "kafka"
KAFKA_FSYNC = "kafka-fsync"
CEILING = "ceiling"
PULSAR = "pulsar"
PULSAR_OFFLOAD = "pulsar-offload"
TABLE_PEERS = (DURABLE, RAM, KAFKA, KAFKA_FSYNC, CEILING)
"""The peers of the whole table."""
NAMED_PEERS = (PULSAR, PULSAR_OFFLOAD)
"""The peers that run only when they are named, and then in all rows that they can run."""
PEERS = (*TABLE_PEERS, *NAMED_PEERS)

CACHE_MB = 512 * 2**20 / 1e6
"""The default bound of our cache, and what may come on top of it under load."""
MEMORY_MB_MAX = CACHE_MB + 200

PUBLISH_P50 = "publish p50"
PUBLISH_P95 = "publish p95"
PUBLISH_P99 = "publish p99"
PUBLISHED = "published events"
SERVER_CPU = "server CPU"
READ_SHARE = "read of published"
DELIVERY_P99 = "end-to-end p99"
DELIVERY_CPU = "server CPU per delivered MB"
READ_DELAY = "end-to-end p95 - publish p95"
WRITTEN = "written per payload byte"
PEAK_RSS = "peak RSS"
IDLE_RSS = "idle RSS"
GROWTH = "RSS growth in the second half"
READY = "start to ready"
READY_AGAIN = "ready after kill -9"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table. ``reaches``: by peer and metric; ``limits``: by metric."""

    name: str
    work: str
    load: Load | None = None
    drain: Drain | None = None
    reaches: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)
    beside: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    """By other row and metric: what this row has to reach beside that one."""
    also: tuple[str, ...] = ()
    """Peers that are shown without a target."""
    seconds_min: float = 0
    """Measured at least so long, whatever the plan says."""
    rounds_max: int | None = None
    """In no more rounds than this, whatever the plan says."""
    client_heap: str | None = None
    """More than the plan gives the driver."""
    settings: str = ""
    """Text of our own server's configuration file; its defaults without one."""
    secure: bool = False
    """All servers of the row speak TLS and know a user."""

    @property
    def main_metric(self) -> str:
        """Return the one number that says most about this row."""
        if self.drain is not None:
            return DRAINED
        if self.load is None:
            return next(iter(self.limits))
        if not self.load.rate:
            return PUBLISHED
        return PUBLISH_P50 if self.reaches else READ_DELAY

    @property
    def peers(self) -> tuple[str, ...]:
        """Return the row's peers in the whole table, in the usual order."""
        return tuple(peer for peer in TABLE_PEERS if peer in self.reaches or peer in self.also)

    @property
    def suits_pulsar(self) -> bool:
        """Return whether Pulsar can run it."""
        is_drain = self.drain is not None and not self.drain.is_cold
        return (self.load is not None or is_drain) and not self.secure


def _paced(p50_and_p95: float, **more: float) -> dict[str, float]:
    return {PUBLISH_P50: p50_and_p95, PUBLISH_P95: p50_and_p95, **more}


def _cpu(bound: float) -> dict[str, float]:
    return {SERVER_CPU: bound}


SMALL_EVENT, LARGE_EVENT = 100, 10_240
DELAY = {READ_DELAY: 1.0}
READ = {READ_SHARE: 0.8}
START = "R2"
CRASH = "R2c"
ROW_OF_LIMIT = {
    READ_DELAY: "D6",
    READ_SHARE: "D5",
    PEAK_RSS: "R1",
    IDLE_RSS: "R1",
    GROWTH: "R1",
    WRITTEN: "R3",
}
"""Limits that are rows of their own, measured in the rows that have a load."""

MANY_SEGMENTS_HEAP = "4g"
"""A hundred clients hold buffers for every segment each."""


def _drain_row(
    name: str, drain: Drain, *, beside_kafka: float, beside_durable: float, cold_of: str = ""
) -> Row:
    size = "10 KB" if drain.event_size == LARGE_EVENT else f"{drain.event_size} B"
    plural = "s" if drain.segments > 1 else ""
    who = "one reader drains" if drain.consumers == 1 else f"{drain.consumers} readers drain"
    work = f"{who} {drain.mb / 1000:g} GB of {size} events, {drain.segments} segment{plural}"
    if cold_of:
        return Row(
            name=name,
            work=f"{work}, from tier 2 after a start",
            drain=drain,
            reaches={DURABLE: {DRAINED: beside_durable}},
            beside={cold_of: {DRAINED: 0.9}},
            rounds_max=1,
        )
    return Row(
        name=name,
        work=f"{work}, from the cache",
        drain=drain,
        reaches={DURABLE: {DRAINED: beside_durable}, KAFKA: {DRAINED: beside_kafka}},
        also=(CEILING,),
        rounds_max=1,
    )


def _drain_rows() -> Iterator[Row]:
    ones = {
        "D1": Drain(event_size=LARGE_EVENT, segments=1, mb=4_000),
        "D2": Drain(event_size=LARGE_EVENT, segments=16, mb=4_000),
        "D2-16": Drain(event_size=LARGE_EVENT, segments=16, mb=4_000, consumers=16),
        "D3": Drain(event_size=SMALL_EVENT, segments=1, mb=2_000),
        "D3-16": Drain(event_size=SMALL_EVENT, segments=16, mb=2_000),
    }
    for name, drain in ones.items():
        is_small = drain.event_size == SMALL_EVENT
        durable, kafka = (1.2, 1.0) if is_small else (1.3, 1.5)
        yield _drain_row(name, drain, beside_kafka=kafka, beside_durable=durable)
    for name in ("D1", "D2", "D3"):
        cold = replace(ones[name], is_cold=True)
        yield _drain_row(f"D4-{name}", cold, beside_kafka=0, beside_durable=1.5, cold_of=name)


DRAIN_ROWS = tuple(_drain_rows())

INTERVAL = "[segment_store]\njournal_interval_seconds_min = 0.00035\n"
"""Writes of the journal that are as far apart as the latency of L1 has room for."""

ROWS = (
    Row(
        name="L1",
        work="100 B, 1 segment, 10k events/s",
        load=Load(rate=10_000),
        reaches={
            DURABLE: {**_paced(0.25), **_cpu(1.0), READ_DELAY: 1.0},
            KAFKA_FSYNC: _paced(0.8),
        },
        limits=DELAY,
    ),
    Row(
        name="L2",
        work="100 B, 16 segments, 10k events/s",
        load=Load(rate=10_000, segments=16),
        reaches={DURABLE: {**_paced(0.25), **_cpu(0.5)}, KAFKA_FSYNC: _paced(0.8)},
        limits=DELAY,
    ),
    Row(
        name="L3",
        work="100 B, 1 segment, 100k events/s",
        load=Load(rate=100_000),
        reaches={DURABLE: {**_paced(0.5), **_cpu(1.0)}, RAM: _paced(1.0)},
    ),
    Row(
        name="L4",
        work="100 B, 16 segments, 100k events/s",
        load=Load(rate=100_000, segments=16),
        reaches={DURABLE: {**_paced(0.5), **_cpu(0.5)}, RAM: _paced(1.0)},
    ),
    Row(
        name="L5",
        work="10 KB, 1 segment, 5k events/s",
        load=Load(rate=5_000, event_size=LARGE_EVENT),
        reaches={DURABLE: _paced(0.3)},
    ),
    Row(
        name="T1",
        work="100 B, 1 segment, unthrottled",
        load=Load(rate=0),
        reaches={DURABLE: {PUBLISHED: 1.6}, RAM: {PUBLISHED: 1.0}, CEILING: {PUBLISHED: 0.9}},
        limits={WRITTEN: 2.1, **READ},
        rounds_max=1,
    ),
    Row(
        name="T2",
        work="100 B, 16 segments, unthrottled",
        load=Load(rate=0, segments=16),
        reaches={DURABLE: {PUBLISHED: 1.6}, RAM: {PUBLISHED: 1.0}, CEILING: {PUBLISHED: 0.9}},
        limits=READ,
        rounds_max=1,
    ),
    Row(
        name="T3",
        work="10 KB, 1 segment, unthrottled",
        load=Load(rate=0, event_size=LARGE_EVENT),
        reaches={
            DURABLE: {PUBLISHED: 3.0},
            KAFKA: {PUBLISHED: 1.5},
            KAFKA_FSYNC: {PUBLISHED: 3.0},
        },
        limits=READ,
        also=(CEILING,),
        rounds_max=1,
    ),
    Row(
        name="T4",
        work="10 KB, 16 segments, unthrottled",
        load=Load(rate=0, event_size=LARGE_EVENT, segments=16),
        reaches={
            DURABLE: {PUBLISHED: 2.0},
            KAFKA: {PUBLISHED: 1.2},
            KAFKA_FSYNC: {PUBLISHED: 3.0},
        },
        limits={WRITTEN: 2.1, PEAK_RSS: MEMORY_MB_MAX, **READ},
        also=(CEILING,),
        rounds_max=1,
    ),
    Row(
        name="E1",
        work="L1 with a read time-out of 1,000 ms (10 ms: L1; 16 segments: L2)",
        load=Load(rate=10_000, read_timeout_ms=1_000),
        reaches={DURABLE: {READ_DELAY: 1.0}},
        limits=DELAY,
        rounds_max=1,
    ),
    Row(
        name="P",
        work="100 B, 16 segments with keys, 10k events/s",
        load=Load(rate=10_000, segments=16, keys=1_000),
        reaches={KAFKA: {PUBLISH_P95: 1.0, PUBLISH_P99: 1.0}},
        also=(DURABLE,),
    ),
    *DRAIN_ROWS,
    Row(
        name="D7-1",
        work="one tail reader at 10k events/s of 100 B, 1 segment",
        load=Load(rate=10_000, own_groups=True),
        also=(KAFKA,),
        rounds_max=1,
        client_heap=MANY_SEGMENTS_HEAP,
    ),
    Row(
        name="D7",
        work="the same with 100 tail readers, each in a reader group of its own",
        load=Load(rate=10_000, consumers=100, own_groups=True),
        reaches={KAFKA: {DELIVERY_CPU: 1.0}},
        beside={"D7-1": {DELIVERY_P99: 2.0}},
        rounds_max=1,
        client_heap=MANY_SEGMENTS_HEAP,
    ),
    Row(
        name="R1",
        work="10 KB, 16 segments, 3k events/s, for ten minutes",
        load=Load(rate=3_000, event_size=LARGE_EVENT, segments=16),
        limits={PEAK_RSS: MEMORY_MB_MAX, GROWTH: 20.0},
        seconds_min=600,
        rounds_max=1,
    ),
    Row(
        name=START,
        work="start beside a waiting client, then idle (R1)",
        limits={READY: 1.0, IDLE_RSS: 100.0},
        also=(DURABLE, RAM),
        rounds_max=1,
    ),
    Row(
        name=CRASH,
        work="kill -9 with 1 GB that tier 2 does not have, and start again",
        limits={READY_AGAIN: 2.0},
        rounds_max=1,
    ),
)
"""The whole table: about three hours, as every server is warm before it is measured. The rows that
tell most of the tail are run twice."""

_INTERVAL_ROW = replace(
    ROWS[0],
    name="L1i",
    work="L1 with writes of the journal at least 0.35 ms apart",
    settings=INTERVAL,
)

_SECURE_ROWS = (
    Row(
        name="L1s",
        work="L1 over TLS 1.3, with a user and tokens",
        load=Load(rate=10_000),
        reaches={DURABLE: _paced(0.25)},
        beside={"L1": _paced(1.25)},
        secure=True,
    ),
    Row(
        name="T4s",
        work="T4 over TLS 1.3, with a user and tokens",
        load=Load(rate=0, event_size=LARGE_EVENT, segments=16),
        reaches={DURABLE: {PUBLISHED: 2.0}},
        beside={"T4": {PUBLISHED: 0.7}},
        secure=True,
    ),
)

EXTRA_ROWS = (
    _INTERVAL_ROW,
    *_SECURE_ROWS,
    *(
        Row(
            name=name,
            work=work,
            load=load,
            also=also,
            client_heap=MANY_SEGMENTS_HEAP if load.producers > 1 else None,
        )
        for name, work, load, also in (
            ("C1", "100 B, 1 segment, 30k events/s", Load(rate=30_000), (DURABLE, KAFKA_FSYNC)),
            ("C2", "100 B, 1 segment, 200k events/s", Load(rate=200_000), (DURABLE, KAFKA_FSYNC)),
            (
                "E2",
                "L2 with a read time-out of 1,000 ms",
                Load(rate=10_000, segments=16, read_timeout_ms=1_000),
                (DURABLE,),
            ),
            ("W4", "100 B, 4 segments, unthrottled", Load(rate=0, segments=4), (DURABLE,)),
            ("W64", "100 B, 64 segments, unthrottled", Load(rate=0, segments=64), (DURABLE,)),
            *(
                (
                    f"S2-{producers}",
                    f"100 B, 16 segments, {producers} writers, unthrottled",
                    Load(rate=0, segments=16, producers=producers, connection_pooling=True),
                    (DURABLE,),
                )
                for producers in (10, 100)
            ),
        )
    ),
)
"""Only when named: the journal's interval, TLS with users, more points of the plots, and many
writers (S2)."""

BY_NAME = {row.name: row for row in (*ROWS, *EXTRA_ROWS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The work of one run of the benchmark, and its size."""

    rows: tuple[str, ...] = tuple(row.name for row in ROWS)
    peers: tuple[str, ...] = TABLE_PEERS
    rounds: int = 2
    minutes_max: float | None = None
    """Turns of a second round that would end later than this are left out."""
    warmup_seconds: float = 45
    warmup_seconds_max: float | None = 120
    """None for a warm-up of one length, however steady the load is by then."""
    seconds: float = 20
    client_heap: str = "1g"
    rate_max: float | None = None
    unflushed_mb: float = 1_000
    drained_mb_max: float | None = None
    consumers_max: int | None = None
    fresh: bool = True
    """A server starts anew for every row; else once a round, and takes the rows one by one."""
    main_peer_only: bool = False
    """Each row runs beside the first of its peers alone."""

    def load(self, row: Row) -> Load:
        """Return the row's load at this plan's size."""
        assert row.load is not None, row.name
        seconds = max(self.seconds, row.seconds_min)
        load = replace(
            row.load,
            warmup_seconds=self.warmup_seconds,
            warmup_seconds_max=self.warmup_seconds_max,
            seconds=seconds,
        )
        if self.rate_max is not None and not 0 < load.rate <= self.rate_max:
            load = replace(load, rate=self.rate_max)
        return replace(load, consumers=min(load.consumers, self.consumers_max or load.consumers))

    def drain(self, row: Row) -> Drain:
        """Return the row's backlog at this plan's size."""
        assert row.drain is not None, row.name
        if self.drained_mb_max is None or row.drain.mb <= self.drained_mb_max:
            return row.drain
        return replace(row.drain, mb=self.drained_mb_max)

    def peers_of(self, row: Row) -> tuple[str, ...]:
        """Return the peers that run this row."""
        known = (*row.peers, *NAMED_PEERS) if row.suits_pulsar else row.peers
        peers = tuple(peer for peer in known if peer in self.peers)
        return peers[:1] if self.main_peer_only else peers

    def turns(self) -> Iterator[tuple[int, str, str]]:
        """Yield all runs in order: round, row, and the server that runs it.

        Who begins alternates with the rounds. Where servers are not fresh, each takes all its rows.
        """
        for index in range(self.rounds):
            pairs = [
                (name, server)
                for name in self.rows
                if index < (BY_NAME[name].rounds_max or self.rounds)
                for server in (OURS, *self.peers_of(BY_NAME[name]))[:: 1 if index % 2 == 0 else -1]
            ]
            if not self.fresh:
                order = [OURS, *self.peers]
                pairs.sort(key=lambda pair: order.index(pair[1]))
            for name, server in pairs:
                yield index, name, server


USUAL = Plan(minutes_max=240)
QUICK = Plan(
    rows=tuple(
        row.name for row in ROWS if row.name not in ("E1", "R1", "P") and row.name[0] != "D"
    ),
    rounds=1,
    warmup_seconds=2,
    warmup_seconds_max=None,
    seconds=2.5,
    peers=(DURABLE,),
    fresh=False,
    main_peer_only=True,
)
"""A line a row in less than five minutes; ratios are rough, and those to servers in Java flatter
ours, as they are cold."""
SMALL = Plan(
    rows=("L2", "D7-1", "D7", "D2", "D4-D2", START, CRASH),
    peers=(),
    rounds=1,
    warmup_seconds=0.5,
    warmup_seconds_max=None,
    seconds=1.5,
    rate_max=500,
    unflushed_mb=10,
    drained_mb_max=10,
    consumers_max=3,
)
"""The plan of the test suite: it takes seconds, not minutes, and its load is small."""
