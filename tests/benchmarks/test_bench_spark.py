"""The benchmark of Spark's data sources runs: every row has numbers of both sides."""

from pathlib import Path

import pytest
from benchmarks.bench_spark import ROWS, SMALL, run

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(600),
    # py4j leaves sockets to the collector.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


def test_every_row_is_measured(tmp_path: Path) -> None:
    found = run(SMALL, ROWS, tmp_path)
    assert {each.row.split(",")[0].removesuffix(" direct") for each in found} == set(ROWS)
    for each in found:
        assert each.ours is not None, each
        assert each.peer is not None, each
    assert any(each.row == "read-1KB direct" and each.ratio for each in found)
