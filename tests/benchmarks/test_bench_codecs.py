"""The codecs' benchmark runs, and its rows say what they are held to."""

import json
from pathlib import Path

import pytest
from benchmarks.bench_codecs import GIGABYTES, ROWS, SMALL, run

from benchmarks import bench_codecs

pytestmark = pytest.mark.proof


def test_every_row_has_a_number_and_its_limit() -> None:
    rows = run(SMALL, rounds=1)
    assert [row.row for row in rows] == [row.name for row in ROWS]
    for row, known in zip(rows, ROWS, strict=True):
        assert row.ours is not None
        assert row.ours > 0
        assert row.peer == known.limit
        assert (row.holds is None) == (known.limit is None)
    assert {row.metric for row in rows if row.peer == 3.0} == {GIGABYTES}


def test_the_command_writes_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "rows.json"
    monkeypatch.setenv("JSON", str(path))
    assert bench_codecs.main(["--small"]) == 0
    rows = json.loads(path.read_text())
    assert len(rows) == len(ROWS)
    assert set(rows[0]) == {"name", "ours", "peer", "ratio", "reach", "holds"}
