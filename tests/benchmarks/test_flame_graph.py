"""The flame graph's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import flame_graph


def test_it_says_what_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SystemExit):
        flame_graph.main(["--row", "L1"])
    assert "pip install py-spy" in capsys.readouterr().err


def test_a_row_without_a_load_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        flame_graph.main(["--row", "R2"])
    assert "invalid choice" in capsys.readouterr().err
