"""Stores and controllers are restarted by the guide's command, under the official Java client."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from compat_harness.cluster import Cluster
from compat_harness.java import JavaClient
from compat_harness.server import TARGET_VARIABLE
from foreign_servers.deadlines import scale
from test_kill_nine import ACKED_BEFORE_FIRST_KILL, judge, running_workload

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.timeout(590),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a cluster of its own"),
]

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "cluster.md"
COMMAND_SECONDS_MAX = scale(400.0)


def test_a_rolling_restart_by_the_guide_disturbs_no_client(
    java_client: JavaClient, tmp_path: Path
) -> None:
    section = GUIDE.read_text().split("\n### A rolling restart\n")[1]
    loop = re.findall(r"^\$ (.*)$", section, re.MULTILINE)[0]
    assert loop.startswith("for part in segment-store-0 ")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    with (
        Cluster(tmp_path) as cluster,
        running_workload(java_client, cluster.controller_uris, tmp_path / "workload") as workload,
    ):
        workload.wait_until_acked(ACKED_BEFORE_FIRST_KILL)
        before = {path: path.read_text() for path in (cluster.data_dir / "run").glob("*.pid")}
        done = subprocess.run(
            ["bash", "-euc", loop.replace("127.0.0.1:2181", cluster.zookeeper)],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{cluster.tell()}"
        for file, text in before.items():
            is_restarted = file.read_text() != text
            assert is_restarted == file.stem.startswith(("segment-store", "controller")), file
        workload.wait_until_acked(workload.acked() + 1)
        workload.finish()
    judge(tmp_path / "workload")
