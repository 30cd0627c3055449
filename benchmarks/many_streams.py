"""Rows of `bench_streams` beside each other: many segments, many writers, a crash with much to do.

1. Ours is compared with ours on a lesser row, and shown beside the original on the same row.
2. A run that failed has no numbers, and says why on standard error.
"""

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.comparison import ComparedRow, Outcome, compare
from benchmarks.finished_parts import FinishedParts
from benchmarks.streams.rows import BY_NAME, CRASH, DURABLE, OURS, READY_AGAIN, Plan
from benchmarks.streams.run import Measured, run
from benchmarks.streams.servers import servers


def run_rows(plan: Plan, *, directory: str | None) -> Measured:
    """Run a plan and tell on standard error what disturbed it."""
    place = tempfile.mkdtemp(prefix="bench-scale-", dir=directory)
    try:
        needed = {peer for name in plan.rows for peer in plan.peers_of(BY_NAME[name])}
        measured = run(
            plan,
            servers=servers([OURS, *sorted(needed)]),
            directory=Path(place),
            finished=FinishedParts(None),
        )
    finally:
        shutil.rmtree(place, ignore_errors=True)
    for remark in measured.remarks():
        print(remark, file=sys.stderr)
    return measured


def beside_lesser(
    title: str,
    measured: Measured,
    *,
    lesser: str,
    greater: Sequence[str],
    metric: str,
    reach: float,
) -> list[ComparedRow]:
    """Compare a metric of ours on each greater row with that on the lesser one, and the
    original's."""
    base = measured.of(lesser, OURS)
    found = []
    for name in (lesser, *greater):
        ours = measured.of(name, OURS)
        row = f"{title}: {BY_NAME[name].work}"
        if name != lesser:
            found += _one(row, metric, ours, base, peer_name=lesser, reach=reach)
        if DURABLE in measured.servers:
            found += _one(row, metric, ours, measured.of(name, DURABLE), peer_name=DURABLE)
    return found


def ready_after_crash(title: str, measured: Measured) -> list[ComparedRow]:
    """Return how long a start takes after a kill, beside its limit."""
    return [
        replace(each, row=f"{title}: {BY_NAME[CRASH].work}")
        for each in measured.compared()
        if each.metric.name == READY_AGAIN and each.reach is not None
    ]


def _one(
    row: str,
    metric: str,
    ours: Sequence[Outcome],
    peer: Sequence[Outcome],
    *,
    peer_name: str,
    reach: float | None = None,
) -> list[ComparedRow]:
    reaches = {} if reach is None else {metric: reach}
    compared = compare(row, ours=ours, peer=peer, reaches=reaches, peer_name=peer_name)
    return [each for each in compared if each.metric.name == metric]
