"""The rows of the benchmark, and the targets of each.

1. A shared row runs on ours and on the peer; its reaches are ratios of the two.
2. A limit is a number that ours has to keep to. Rows with limits alone that need a store of their
   own run on ours.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.controller import works
from benchmarks.controller.sizes import Size
from benchmarks.controller.works import Numbers, Session


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One row of the table, either ``shared`` or with stores of its ``own``."""

    name: str
    work: str
    shared: Callable[[Session], Numbers] | None = None
    own: Callable[[Path, Size], Numbers] | None = None
    reaches: Mapping[str, float] = field(default_factory=dict)
    limits: Mapping[str, float] = field(default_factory=dict)

    @property
    def is_shared(self) -> bool:
        """Return whether the peer runs the row, too."""
        return self.shared is not None


ROWS = (
    Row(
        name="commit-1",
        work="begin, 1 event, commit, until COMMITTED; 1 segment",
        shared=lambda asked: asked.commit(1),
        reaches={works.P50.name: 0.15, works.P99.name: 0.15},
    ),
    Row(
        name="commit-16",
        work="begin, 1 event, commit, until COMMITTED; 16 segments",
        shared=lambda asked: asked.commit(16),
        reaches={works.P50.name: 0.15, works.P99.name: 0.15},
    ),
    Row(
        name="rate-1",
        work="16 transactional writers and a reader, 1 segment",
        shared=lambda asked: asked.rate(1),
        reaches={works.RATE.name: 5.0},
    ),
    Row(
        name="rate-16",
        work="16 transactional writers and a reader, 16 segments",
        shared=lambda asked: asked.rate(16),
        reaches={works.RATE.name: 5.0},
    ),
    Row(
        name="split",
        work="16 transactional writers across a split each 5 s",
        shared=lambda asked: asked.split(),
        limits={works.STOP.name: 0.5},
    ),
    Row(
        name="begin",
        work="begin on 1,000 segments",
        shared=lambda asked: asked.begin(),
        limits={works.BEGIN.name: 300.0},
    ),
    Row(
        name="create",
        work="createStream, 1 segment, one after the other",
        shared=lambda asked: asked.create(),
        reaches={works.CREATE.name: 0.25},
    ),
    Row(
        name="scale",
        work="scale 1 to 4 segments beside a writer of 1,000 events/s",
        shared=lambda asked: asked.scale(),
        reaches={works.STALL.name: 0.5},
    ),
    Row(
        name="large",
        work="a stream of 5,000 segments",
        shared=lambda asked: asked.large(),
        limits={
            works.LARGE_CREATE.name: 3.0,
            works.LARGE_REPLACE.name: 3.0,
            works.LARGE_DELETE.name: 3.0,
        },
    ),
    Row(
        name="open",
        work="10,000 transactions open beside 10,000 others; kill -9 with all of them",
        own=works.open_transactions,
        limits={
            works.OPEN_MEMORY.name: 2.0,
            works.OPEN_SEGMENT_MEMORY.name: 1.0,
            works.READY.name: 2.0,
            works.STILL_OPEN.name: 100.0,
        },
    ),
    Row(
        name="waiting",
        work="1,000 calls that wait for a stopped segment store",
        own=works.waiting_calls,
        limits={works.PING.name: 50.0, works.ADDRESS.name: 50.0},
    ),
    Row(
        name="streams",
        work="10,000 streams with policies, 10 with a tag; a scope of 1,000 deleted",
        own=works.many_streams,
        limits={
            works.LIST.name: 1.0,
            works.BY_TAG.name: 20.0,
            works.DELETE_SCOPE.name: 20.0,
            works.IDLE.name: 2.0,
        },
    ),
    Row(
        name="epochs",
        work="a stream of 10,000 epochs",
        own=works.many_epochs,
        limits={works.FIRST.name: 0.2, works.AGED_SCALE.name: 1.1},
    ),
    Row(
        name="appends",
        work="100 B, 16 segments, unthrottled, rates measured or not",
        own=works.appends,
        limits={works.MEASURED.name: 0.99},
    ),
)
BY_NAME = {row.name: row for row in ROWS}
