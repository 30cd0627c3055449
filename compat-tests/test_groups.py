"""The division of tests among processes: the tests of one group stay in one process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TESTS = """
import os
import pytest


@pytest.mark.parametrize("number", range(6))
@pytest.mark.parametrize(
    "group", [pytest.param(name, marks=pytest.mark.xdist_group(name)) for name in ("a b", "c")]
)
def test_one(group, number):
    with open(f"{group}.txt", "a") as file:
        print(os.environ["PYTEST_XDIST_WORKER"], file=file)
"""


def test_a_group_stays_in_one_process(tmp_path: Path) -> None:
    """Otherwise each process would start all servers.

    Versions of pytest-xdist have forgotten the groups.
    """
    (tmp_path / "test_some.py").write_text(TESTS)
    (tmp_path / "pytest.ini").touch()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for group in ("a b", "c"):
        workers = (tmp_path / f"{group}.txt").read_text().split()
        assert len(workers) == 6
        assert len(set(workers)) == 1, workers
