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


def test_a_picture_keeps_its_frames_and_loses_its_script() -> None:
    frame = '<g><title>serve</title><rect x="0%"/><text x="0%">ser..</text></g>'
    buttons = '<text id="unzoom" x="1">Reset Zoom</text><text id="search" x="2">Search</text>'
    picture = f'<svg onload="init(evt)"><script>x</script>{buttons}{frame}</svg>'
    assert flame_graph.without_script(picture) == f"<svg>{frame}</svg>"
