import json
from pathlib import Path

import pytest

from benchmarks import bench_read_index

pytestmark = pytest.mark.proof


def test_the_small_size_compares_the_read_index_with_a_sorted_dictionary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both read the same bytes, or it has failed."""
    monkeypatch.setenv("JSON", str(tmp_path / "rows.json"))
    assert bench_read_index.main(["--small"]) == 0
    rows = json.loads((tmp_path / "rows.json").read_text())
    assert len(rows) == 7
    assert all(row["ours"] > 0 and row["peer"] > 0 for row in rows)
    assert "longest call" in capsys.readouterr().out
