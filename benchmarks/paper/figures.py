"""The figures, each declared once: question, what the paper saw, points, series and targets.

A series or a point that is added to a figure here is measured, drawn, compared and reported.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.comparison import Metric
from benchmarks.load import Load
from benchmarks.paper import backlog, scaling
from benchmarks.paper import series as keys
from benchmarks.paper.backlog import Held
from benchmarks.paper.scaling import Split
from benchmarks.paper.works import BYTES, END_TO_END_P95, EVENTS, P95, Loads, Parallel, Point, Work
from benchmarks.streams.rows import (
    CEILING,
    DURABLE,
    KAFKA,
    KAFKA_FSYNC,
    LARGE_EVENT,
    OURS,
    PULSAR,
    PULSAR_OFFLOAD,
    SMALL_EVENT,
)

KEYS = 10_000
"""The routing keys of all loads with keys, each in turn: their hashes spread them at random."""
MAXIMUM = "maximum"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A ratio that ours has to reach at some points: to a peer's number, to ours at another point,
    or to a limit."""

    metric: Metric
    at: Sequence[Point]
    reach: float
    lowest_of: tuple[str, ...] = ()
    """Keys of series: the lowest of their numbers is the peer's."""
    beside: Mapping[Point, Point] | None = None
    """The other point by each point."""
    limit: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """A picture with a curve for each series of each panel, over logarithmic axes."""

    title: str
    panels: Mapping[str, str]
    """The suffix of the names of series in the legend, by panel; "" for a panel that is alone."""
    x_label: str
    x: Metric | None
    """None for the points' own places."""
    y: Metric


@dataclass(frozen=True, slots=True)
class Strip:
    """A part of a timeline: a curve for each series and metric."""

    y_label: str
    metrics: tuple[Metric, ...]
    has_steps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """A picture over linear time, with strips below each other."""

    title: str
    panel: str
    strips: tuple[Strip, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A figure of the paper."""

    number: int
    question: str
    paper: str
    """What the paper saw."""
    scale: str
    """The relation of the rates here to those of the paper."""
    works: tuple[Work, ...]
    series: tuple[str, ...]
    pictures: tuple[Curves | Timeline, ...]
    shown: tuple[Metric, ...]
    """The columns of its table."""
    shown_points: tuple[Point, ...] | None = None
    """The lines of its table; by default all points."""
    targets: tuple[Target, ...]
    differs: str
    """What differs from the paper, and why."""

    @property
    def points(self) -> list[Point]:
        """Return all points of its works, in their order."""
        return [point for work in self.works for point in work.points]


# ---- Works ---------------------------------------------------------------------------------------


def at_rates(key: str, panel: str, load: Load, rates: Sequence[float]) -> Loads:
    """Make a work of one load at several rates, and at last without a limit.

    Each segment has a reader of its own, unless the load has none.
    """
    load = replace(load, consumers=load.consumers and load.segments)
    paced = [(Point(panel, rate, f"{rate:,} events/s"), replace(load, rate=rate)) for rate in rates]
    unthrottled = (Point(panel, 0, MAXIMUM), replace(load, rate=0))
    return Loads(key=key, loads=(*paced, unthrottled), rehearsed=1)


SMALL_RATES = (1_000, 10_000, 100_000)
LARGE_RATES = (1_000, 5_000)
SMALL = Load(event_size=SMALL_EVENT, keys=KEYS)
LARGE = Load(event_size=LARGE_EVENT, keys=KEYS, consumers=0)
"""It has no readers: a tier 2 that drops its data cannot serve readers that fall behind."""
SMALL_1 = at_rates("small-1", "100 B, 1 segment", SMALL, SMALL_RATES)
SMALL_16 = at_rates("small-16", "100 B, 16 segments", replace(SMALL, segments=16), SMALL_RATES)
KEYLESS_16 = at_rates(
    "keyless-16",
    "100 B, 16 segments, no keys",
    replace(SMALL, segments=16, keys=0),
    SMALL_RATES,
)
LARGE_1 = at_rates("large-1", "10 KB, 1 segment", LARGE, LARGE_RATES)
LARGE_16 = at_rates("large-16", "10 KB, 16 segments", replace(LARGE, segments=16), LARGE_RATES)

KILOBYTE = 1_000
PARALLEL_RATE = 50_000.0
PARALLEL_WRITERS = (10, 50, 100)
PARALLEL_SEGMENTS = (10, 500, 5_000)


def _parallel_loads() -> Iterator[tuple[Point, Load]]:
    for writers in PARALLEL_WRITERS:
        for segments in PARALLEL_SEGMENTS:
            yield (
                Point(f"1 KB, {writers} writers", segments, f"{segments:,} segments"),
                Load(
                    rate=PARALLEL_RATE,
                    event_size=KILOBYTE,
                    segments=segments,
                    producers=writers,
                    consumers=0,
                    keys=KEYS,
                    connection_pooling=True,
                ),
            )


PARALLEL = Parallel(
    key="parallel",
    rate=PARALLEL_RATE,
    event_bytes=KILOBYTE,
    block_events=10,
    loads=tuple(_parallel_loads()),
)
WIDEST = "1 KB, 10 writers, unthrottled"
UNTHROTTLED = Loads(
    key="unthrottled",
    loads=tuple(
        (
            Point(WIDEST, segments, f"{segments} segments"),
            Load(
                rate=0,
                event_size=KILOBYTE,
                segments=segments,
                producers=10,
                consumers=0,
                keys=KEYS,
                connection_pooling=True,
            ),
        )
        for segments in (10, 500)
    ),
    has_many_clients=True,
)
_whole, _points = backlog.points_of("10 KB, 16 segments, a backlog", 240)
HELD = Held(key="backlog", whole=_whole, points=_points)
_whole, _points = backlog.points_of("10 KB, from one segment on", 420)
SPLIT = Split(key="scaling", whole=_whole, points=_points)


# ---- Figures -------------------------------------------------------------------------------------


def _paced(work: Loads) -> list[Point]:
    return [point for point in work.points if point.words != MAXIMUM]


def _last(work: Loads) -> list[Point]:
    return [point for point in work.points if point.words == MAXIMUM]


def _over_rate(title: str, work: Work, x: Metric, y: Metric) -> Curves:
    panel = work.points[0].panel
    return Curves(title=f"{title}: {panel}", panels={panel: ""}, x_label=x.unit, x=x, y=y)


FIGURES = (
    Figure(
        number=5,
        question="What does durability cost a writer?",
        paper=(
            "With one segment a writer whose events were synced reached 73 % more events/s than"
            " Kafka's without a sync; with 16 segments both passed a million. Syncs made Kafka"
            " much slower to acknowledge, and gained Pravega little when they were left out."
        ),
        scale="the same rates, up to what the machine takes",
        works=(SMALL_1, SMALL_16),
        series=(
            OURS,
            keys.UNSYNCED_OURS,
            DURABLE,
            keys.UNSYNCED_ORIGINAL,
            KAFKA,
            KAFKA_FSYNC,
        ),
        pictures=tuple(_over_rate("Durability", work, EVENTS, P95) for work in (SMALL_1, SMALL_16)),
        shown=(EVENTS, P95),
        targets=(
            Target(metric=EVENTS, at=_last(SMALL_1), reach=1.5, lowest_of=(DURABLE,)),
            Target(metric=EVENTS, at=_last(SMALL_1), reach=1.0, lowest_of=(KAFKA,)),
            Target(
                metric=P95,
                at=[*_paced(SMALL_1), *_paced(SMALL_16)],
                reach=1.0,
                lowest_of=(KAFKA_FSYNC,),
            ),
        ),
        differs=(
            "Writers, readers (one for each segment) and one server share two processors and one"
            " drive, where the paper had nine machines: maxima are those of the processors."
        ),
    ),
    Figure(
        number=6,
        question="Who needs settings for batches?",
        paper=(
            "Pulsar's producer was either quick, without batches, or had throughput, with them."
            " Pravega's writer was quicker than Pulsar with batches below 10,000 events/s, and"
            " reached more than Pulsar without. Batches of 1 MB and 10 ms made Kafka slower with"
            " random keys; without keys it reached six times as much."
        ),
        scale="the same rates, up to what the machine takes",
        works=(SMALL_16,),
        series=(OURS, PULSAR, keys.SINGLE_PULSAR, KAFKA, keys.LARGE_BATCH_KAFKA),
        pictures=(_over_rate("Batches", SMALL_16, EVENTS, P95),),
        shown=(EVENTS, P95),
        targets=(
            Target(
                metric=P95,
                at=_paced(SMALL_16)[:2],
                reach=1.0,
                lowest_of=(keys.SINGLE_PULSAR,),
            ),
            Target(metric=EVENTS, at=_last(SMALL_16), reach=1.0, lowest_of=(PULSAR,)),
        ),
        differs=(
            "Client and server are on one machine, where a round trip takes a tenth of a"
            " millisecond: there is less for a batch to gain."
        ),
    ),
    Figure(
        number=7,
        question="How fast are large events written?",
        paper=(
            "With one segment Pulsar reached 300 MB/s, Pravega 160, held back by its tier 2 (far"
            " more with one that drops its data), and Kafka 70. With 16 segments Pravega reached"
            " 350, Kafka 330 and Pulsar 250."
        ),
        scale="10 and 51 MB/s and the maximum; a drive there took about 800 MB/s in synced writes",
        works=(LARGE_1, LARGE_16),
        series=(OURS, keys.LOGGED_OURS, DURABLE, KAFKA, PULSAR),
        pictures=tuple(
            _over_rate("Large events", work, BYTES, P95) for work in (LARGE_1, LARGE_16)
        ),
        shown=(BYTES, P95),
        targets=(
            *(
                Target(metric=BYTES, at=_last(LARGE_16), reach=1.5, lowest_of=(peer,))
                for peer in (DURABLE, KAFKA, PULSAR)
            ),
            Target(metric=BYTES, at=_last(LARGE_1), reach=0.9, lowest_of=(keys.LOGGED_OURS,)),
        ),
        differs=(
            "Tier 2 is a directory on the drive of the journal, not a file service on the"
            " network: it holds a single segment back by the drive's share, and not by its own"
            " limit for one file."
        ),
    ),
    Figure(
        number=8,
        question="How soon does a reader at the tail have an event?",
        paper=(
            "Pravega and Kafka delivered sooner than Pulsar, whose p95 was never below 12 ms. With"
            " one segment Pravega's readers got 72 % more than Kafka's and Pulsar's 56 %; with 16"
            " Pulsar's got 76 % less than with one."
        ),
        scale="the same rates, up to what the machine takes",
        works=(SMALL_1, SMALL_16),
        series=(OURS, DURABLE, KAFKA, PULSAR),
        pictures=tuple(
            _over_rate("Tail reads", work, EVENTS, END_TO_END_P95) for work in (SMALL_1, SMALL_16)
        ),
        shown=(EVENTS, END_TO_END_P95),
        targets=(
            Target(
                metric=END_TO_END_P95,
                at=[*_paced(SMALL_1), *_paced(SMALL_16)],
                reach=0.5,
                lowest_of=(PULSAR,),
            ),
        ),
        differs=(
            "All readers are in the process of the writer, and the rate is that of the writer:"
            " where readers cannot follow, their latency says so."
        ),
    ),
    Figure(
        number=9,
        question="Do routing keys cost a reader anything?",
        paper=(
            "Random keys made Pulsar's p95 from end to end 3.25 times as high at 10,000 events/s;"
            " Kafka read 59.6 % more without keys. Pravega's readers saw no difference."
        ),
        scale="the same rates, up to what the machine takes",
        works=(SMALL_16, KEYLESS_16),
        series=(OURS, KAFKA, PULSAR),
        pictures=(
            Curves(
                title="Routing keys: 100 B, 16 segments",
                panels={
                    SMALL_16.points[0].panel: ", keys",
                    KEYLESS_16.points[0].panel: ", no keys",
                },
                x_label=EVENTS.unit,
                x=EVENTS,
                y=END_TO_END_P95,
            ),
        ),
        shown=(EVENTS, END_TO_END_P95),
        targets=(
            Target(
                metric=END_TO_END_P95,
                at=_paced(SMALL_16),
                reach=1.1,
                beside=dict(zip(_paced(SMALL_16), _paced(KEYLESS_16), strict=True)),
            ),
        ),
        differs=(
            f"There are {KEYS:,} keys, each used in turn, where those of the paper were drawn at"
            " random; their hashes spread them alike."
        ),
    ),
    Figure(
        number=10,
        question="How many writers and segments can a store carry at one rate?",
        paper=(
            "At 250 MB/s of 1 KB events Pravega alone held the rate up to 5,000 segments and 100"
            " writers. Kafka fell with more partitions, and with syncs by about 80 % more (100"
            " producers, 500 partitions); Pulsar crashed in most runs."
        ),
        scale=f"{PARALLEL_RATE * KILOBYTE / 1e6:g} MB/s, a fifth of the 250 MB/s there",
        works=(PARALLEL,),
        series=(OURS, DURABLE, KAFKA, KAFKA_FSYNC, PULSAR),
        pictures=tuple(
            Curves(
                title=f"Parallelism: {panel}",
                panels={panel: ""},
                x_label="segments",
                x=None,
                y=BYTES,
            )
            for panel in dict.fromkeys(point.panel for point in PARALLEL.points)
        ),
        shown=(BYTES, P95),
        targets=(
            Target(
                metric=BYTES,
                at=PARALLEL.points[-1:],
                reach=0.98,
                limit=PARALLEL_RATE * KILOBYTE / 1e6,
            ),
            Target(
                metric=P95,
                at=PARALLEL.points[-1:],
                reach=2.0,
                beside={PARALLEL.points[-1]: PARALLEL.points[-len(PARALLEL_SEGMENTS)]},
            ),
        ),
        differs=(
            "Ours and the original get blocks of ten events straight over the wire, since their"
            " official client cannot have 100 writers of 5,000 segments in one process; the others"
            " have their own clients, all in one process."
        ),
    ),
    Figure(
        number=11,
        question="What is the maximum, and what does it have to do with the number of segments?",
        paper=(
            "Pravega took 720 MB/s with 10 and with 500 segments, near the 800 MB/s that the drive"
            " took in synced writes. Kafka took 900 MB/s with 10 and 140 with 500, with syncs 700"
            " and 22; Pulsar nearly 400, and less with more partitions."
        ),
        scale="the maximum; the drive's own, in synced writes of 1 MiB, stands beside it",
        works=(UNTHROTTLED,),
        series=(
            OURS,
            DURABLE,
            KAFKA,
            KAFKA_FSYNC,
            PULSAR,
            CEILING,
            keys.DRIVE,
        ),
        pictures=(
            Curves(
                title="Maximum: 1 KB, 10 writers",
                panels={WIDEST: ""},
                x_label="segments",
                x=None,
                y=BYTES,
            ),
        ),
        shown=(BYTES, P95),
        targets=(
            Target(
                metric=BYTES,
                at=UNTHROTTLED.points[1:],
                reach=0.9,
                beside={UNTHROTTLED.points[1]: UNTHROTTLED.points[0]},
            ),
            Target(
                metric=BYTES,
                at=UNTHROTTLED.points,
                reach=0.9,
                lowest_of=(keys.DRIVE, CEILING),
            ),
        ),
        differs=(
            "Ten writers in one process share two processors with the server, so that a server"
            " that stores nothing shows the clients' ceiling; a journal that overwrites its files"
            " can be faster than synced writes that make a file longer."
        ),
    ),
    Figure(
        number=12,
        question="How fast is history read while writers go on?",
        paper=(
            "Readers of a backlog of 100 GB, written at 100 MB/s, peaked at 731 MB/s and caught up"
            " with the writers. No setting made Pulsar read faster than it was written to."
        ),
        scale="a backlog of 10 GB instead of 100, at 50 MB/s instead of 100",
        works=(HELD,),
        series=(OURS, keys.SPARK_OURS, DURABLE, PULSAR_OFFLOAD),
        pictures=(
            Timeline(
                title="History beside writers: 10 KB, 16 segments",
                panel=HELD.whole.panel,
                strips=(
                    Strip("MB/s read", (backlog.READ,)),
                    Strip("MB/s written", (backlog.WRITTEN,)),
                ),
            ),
        ),
        shown=(
            backlog.HISTORY,
            backlog.PEAK,
            backlog.CAUGHT_UP,
            backlog.WRITERS_P99_ALONE,
            backlog.WRITERS_P99,
        ),
        shown_points=(HELD.whole,),
        targets=(
            Target(metric=backlog.HISTORY, at=(HELD.whole,), reach=3.0, lowest_of=(DURABLE,)),
            Target(
                metric=backlog.HISTORY,
                at=(HELD.whole,),
                reach=8.0,
                lowest_of=(PULSAR_OFFLOAD,),
            ),
            Target(metric=backlog.WRITERS_TIMES, at=(HELD.whole,), reach=1.0, limit=2.0),
        ),
        differs=(
            "Tier 2 is a local directory, some of which the system still has in memory; writers,"
            " readers and server share two processors, and Spark reads when its writers have"
            " stopped."
        ),
    ),
    Figure(
        number=13,
        question="What does a stream that scales by itself gain?",
        paper=(
            "A stream with a target of 20 MB/s for each segment, loaded with 100 MB/s, was split"
            " step by step; the stores then shared the load, not all alike, and p50 fell with"
            " each step."
        ),
        scale="a target of 2 MB/s and a load of 10 MB/s, a tenth of those there",
        works=(SPLIT,),
        series=(OURS, DURABLE),
        pictures=(
            Timeline(
                title="Scaling in a cluster of three stores: 10 KB events",
                panel=SPLIT.whole.panel,
                strips=(
                    Strip("MB/s by store", scaling.STORE_LOADS),
                    Strip("segments", (scaling.SEGMENTS,), has_steps=True),
                    Strip("write p50, ms", (scaling.P50,)),
                ),
            ),
        ),
        shown=(
            scaling.SPLIT,
            scaling.P50_BEFORE,
            scaling.P50_AFTER,
            scaling.IN_ORDER,
        ),
        shown_points=(SPLIT.whole,),
        targets=(
            Target(metric=scaling.P50_TIMES, at=(SPLIT.whole,), reach=1.0, limit=0.5),
            Target(metric=scaling.IN_ORDER, at=(SPLIT.whole,), reach=1.0, limit=1.0),
        ),
        differs=(
            "Three stores, three bookies and the writer share one machine and one drive: a second"
            " store brings no further processor, so that latency falls by shorter queues alone."
        ),
    ),
)
BY_NUMBER = {figure.number: figure for figure in FIGURES}
WORKS = tuple({work.key: work for figure in FIGURES for work in figure.works}.values())
POINTS = {point.name: point for work in WORKS for point in work.points}


def series_of(work: Work) -> list[keys.Series]:
    """Return the series of all figures that show a work, in their usual order."""
    needed = {key for figure in FIGURES if work in figure.works for key in figure.series}
    return [series for series in keys.ALL if series.key in needed]
