"""The benchmark of recovery kills, recovers, and finds everything again."""

from pathlib import Path

import pytest
from benchmarks.bench_recovery import SMALL

from benchmarks import bench_recovery

pytestmark = pytest.mark.proof


def test_a_small_journal_is_recovered(tmp_path: Path) -> None:
    found = bench_recovery.run(SMALL, directory=tmp_path)
    assert found.found_bytes == SMALL.unflushed_bytes
    assert found.journal > 0
    assert found.containers > 0
