"""The benchmark of Spark's data sources runs: every row has numbers of both sides."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from benchmarks.bench_spark import ROWS, SMALL, readme_table, run
from benchmarks.finished_parts import FinishedParts

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.timeout(600),
    # py4j leaves sockets to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_every_row_is_measured(tmp_path: Path) -> None:
    found = run(SMALL, ROWS, tmp_path, FinishedParts(None))
    assert {each.row.split(",")[0].removesuffix(" direct") for each in found} == set(ROWS)
    for each in found:
        assert each.ours is not None, each
        assert each.peer is not None, each
    assert any(each.row == "read-1KB direct" and each.ratio for each in found)
    table = readme_table(found, datetime(2026, 3, 1, tzinfo=UTC)).splitlines()
    assert table[0] == "| Spark, 1 March 2026 | beside | ratio | wanted |"
    assert len(table) == 2 + len(found)
    assert "failed" not in "".join(table)
