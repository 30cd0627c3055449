"""The benchmark of the console runs: each row has a number beside its limit."""

import pytest
from benchmarks.bench_console import PARTS, SMALL, run

pytestmark = pytest.mark.proof


@pytest.mark.timeout(300)
def test_the_small_size_measures_each_row() -> None:
    rows = run(SMALL, PARTS)
    assert len(rows) >= 9
    for row in rows:
        assert row.ours is not None, row
        assert row.reach == 1.0
