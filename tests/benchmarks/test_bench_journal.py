"""The journal's benchmark runs, and stores what it claims to measure."""

import pytest
from benchmarks.bench_journal import SMALL, Row

from benchmarks import bench_journal

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[Row]:
    return bench_journal.run(SMALL, directory=tmp_path_factory.mktemp("journal"))


def test_every_row_has_its_numbers(rows: list[Row]) -> None:
    latencies = [row for row in rows if "latency" in row.what]
    throughputs = [row for row in rows if "throughput" in row.what]
    assert len(latencies) == 2 * len(throughputs) == 6
    for row in latencies:
        assert row.p50_us is not None
        assert row.p95_us is not None
        assert 0 < row.p50_us <= row.p95_us
    for row in throughputs:
        assert row.mb_per_second is not None
        assert row.mb_per_second > 0
    assert len([row for row in rows if row.what.startswith("recovery")]) == 3


def test_the_table_has_a_line_for_every_row(rows: list[Row]) -> None:
    lines = bench_journal.table([rows, rows]).splitlines()
    assert len(lines) == 1 + len(rows)
