"""The slow tier's benchmark runs: memory stays bounded, nothing is lost, writers come back."""

from pathlib import Path

import pytest
from benchmarks.bench_slow_tier import SMALL, rows, run

pytestmark = pytest.mark.proof


def test_a_store_on_a_slow_tier_keeps_its_memory_and_its_data(tmp_path: Path) -> None:
    findings = run(SMALL, directory=tmp_path, quiet=True)
    assert findings.written_bytes == findings.read_bytes > 8 * 1024 * 1024
    assert findings.recovery_seconds is not None
    for row in rows(SMALL, findings):
        assert row.holds, row
