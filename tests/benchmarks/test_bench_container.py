"""The container's benchmark runs, and every append of it is acknowledged."""

import pytest
from benchmarks.bench_container import SMALL, STAGES, run

pytestmark = pytest.mark.proof


def test_every_load_has_its_stages() -> None:
    rows = run(SMALL, rounds=1)
    assert len(rows) == sum(2 + load.is_timed * len(STAGES) for load in SMALL)
    for row in rows:
        assert row.ours is not None
        assert row.ours > 0 or row.metric.name == "rest"
