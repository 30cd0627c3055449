"""The benchmark of many segments measures all of its rows."""

from dataclasses import replace

import pytest
from benchmarks.bench_scale import ROW_NAMES, SMALL, measure
from benchmarks.comparison import Metric, Outcome
from benchmarks.finished_parts import FinishedParts
from benchmarks.many_streams import beside_lesser
from benchmarks.streams.rows import DURABLE, OURS, PUBLISHED
from benchmarks.streams.run import Measured
from benchmarks.streams.servers import servers

pytestmark = pytest.mark.proof


@pytest.mark.timeout(300)  # a server for each row
def test_the_small_size_gives_every_row() -> None:
    rows = measure(ROW_NAMES, SMALL, FinishedParts(None))
    assert [row.row.partition(":")[0] for row in rows] == [
        *("S1", "S1", "S1", "S1", "S2", "S2", "S3", "S3", "S3", "S4", "S4", "S5", "S5")
    ]
    assert all(row.ours is not None and row.ours >= 0 for row in rows)
    assert all(row.peer for row in rows)


def test_rows_of_streams_stand_beside_lesser_ones() -> None:
    plan = replace(SMALL.plan, rows=("T2", "S2-10"), peers=(DURABLE,))
    outcomes = {
        ("T2", OURS): [outcome(100.0)],
        ("T2", DURABLE): [outcome(50.0)],
        ("S2-10", OURS): [outcome(80.0)],
        ("S2-10", DURABLE): [Outcome({}, failure="none")],
    }
    measured = Measured(plan, servers([OURS, DURABLE]), outcomes, 1.0)
    rows = beside_lesser(
        "S2", measured, lesser="T2", greater=["S2-10"], metric=PUBLISHED, reach=1.0
    )
    assert [(row.peer_name, row.ratio, row.holds) for row in rows] == [
        (DURABLE, 2.0, None),
        ("T2", 0.8, False),
        (DURABLE, None, None),
    ]


def outcome(published: float) -> Outcome:
    other = Metric("another", "", "lower")
    return Outcome({Metric(PUBLISHED, "events/s", "higher"): published, other: 1.0})
