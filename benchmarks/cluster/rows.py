"""The rows of the benchmark, the set-up of each, and its targets."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from benchmarks.cluster import servers, works
from benchmarks.cluster.servers import SetUp
from benchmarks.cluster.works import Session
from benchmarks.comparison import Outcome
from benchmarks.streams.rows import PUBLISH_P50, PUBLISH_P95, PUBLISHED

PUBLISHED_BYTES = "published bytes"
PACED = {PUBLISH_P50: 0.6, PUBLISH_P95: 0.6}
UNTHROTTLED = {PUBLISHED: 1.5, PUBLISHED_BYTES: 1.5}
KILLED = "kill -9 of one of 3 stores with 16 containers and 1 GB unflushed, under a client"
SESSION_SECONDS = 10.0
"""The time-out of sessions with ZooKeeper, of both by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table. Rows of one set-up share a cluster in each round."""

    name: str
    work: str
    set_up: SetUp
    measure: Callable[[Session], Outcome]
    is_shared: bool = True
    reaches: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)


def _load_row(name: str, work: str, set_up: SetUp, reaches: Mapping[str, float]) -> Row:
    return Row(
        name=name,
        work=f"{work}, {set_up.name}",
        set_up=set_up,
        measure=lambda asked: asked.load(name),
        reaches=reaches,
    )


ROWS = (
    _load_row("L1", "100 B at 10k events/s, 1 segment", servers.ONE_BOOKIE_SET_UP, reaches=PACED),
    _load_row("L2", "100 B at 10k events/s, 16 segments", servers.ONE_BOOKIE_SET_UP, reaches=PACED),
    _load_row(
        "T1", "100 B unthrottled, 1 segment", servers.THREE_BOOKIES_SET_UP, reaches=UNTHROTTLED
    ),
    _load_row(
        "T4", "10 KB unthrottled, 16 segments", servers.THREE_BOOKIES_SET_UP, reaches=UNTHROTTLED
    ),
    Row(
        name="restart",
        work=f"{KILLED}; it is started again at once",
        set_up=servers.RESTART_SET_UP,
        measure=lambda asked: asked.kill(starts_again=True),
        reaches={works.SERVED.name: 0.5, works.GAP.name: 0.7},
    ),
    Row(
        name="kill",
        work=f"{KILLED}; it stays away",
        set_up=servers.KILL_SET_UP,
        measure=lambda asked: asked.kill(starts_again=False),
        reaches={works.SERVED.name: 0.5, works.GAP.name: 0.7},
        limits={works.SERVED.name: SESSION_SECONDS + 3.0},
    ),
    Row(
        name="move",
        work="one of 3 stores with 16 containers is told to end and started again, under a client",
        set_up=servers.MOVE_SET_UP,
        measure=Session.move,
        is_shared=False,
        limits={works.GAP.name: 1.0},
    ),
    Row(
        name="open",
        work="a store opens a container whose owner was killed, with a log of 1 GB",
        set_up=servers.OPEN_SET_UP,
        measure=Session.open,
        reaches={works.OPENED.name: 0.5},
    ),
)
BY_NAME = {row.name: row for row in ROWS}
