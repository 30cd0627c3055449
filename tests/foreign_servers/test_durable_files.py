"""Tests of the files that servers of others are started with."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from foreign_servers.durable_files import find_full_share, write_bookie_settings

GIB = 1024**3


@pytest.mark.parametrize(
    ("total", "share"),
    [(GIB // 5, 0.95), (20 * GIB, 0.95), (250 * GIB, 0.996), (4000 * GIB, 0.9998)],
)
def test_a_bookie_takes_writes_until_a_gibibyte_of_a_large_disk_is_left(
    total: int, share: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It took none with 12 GB left of 250: its default is a share."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(total=total))
    data = tmp_path / "not" / "made"
    assert find_full_share(data) == share
    write_bookie_settings(tmp_path / "conf", data=data, port=1, zookeeper_port=2)
    assert f"diskUsageThreshold={share}" in (tmp_path / "conf").read_text().splitlines()
