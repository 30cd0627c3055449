"""The event scanner's benchmark runs, and finds the events that it claims to measure."""

from pathlib import Path

import pytest
from benchmarks.bench_events import SMALL, measure, run, ways

from benchmarks import bench_events
from pravega_wire.event_framing import frame_events

pytestmark = pytest.mark.proof


def test_every_row_has_ours_and_the_plain_way_and_ours_is_faster() -> None:
    rows = run(SMALL, rounds=1)
    assert len(rows) == len(SMALL.event_bytes) * 3 * 2
    for row in rows:
        assert row.ratio is not None, row.name
        assert row.ratio > 1, row.name


def test_a_way_that_misses_an_event_has_failed() -> None:
    data = frame_events([b"a", b"b"])
    for ours, plain in ways(2).values():
        for way in (ours, plain):
            assert measure(way, data, count=2, passes=1).failure is None
            assert measure(way, data, count=3, passes=1).failure == "2 events of 3"


def test_the_command_prints_and_writes_its_rows(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JSON", str(tmp_path / "rows.json"))
    assert bench_events.main(["--small"]) == 0
    assert "compact, 1000 B" in capsys.readouterr().out
    assert (tmp_path / "rows.json").exists()
