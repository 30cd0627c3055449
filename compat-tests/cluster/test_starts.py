"""A cluster whose first process, ZooKeeper, cannot start for a while becomes ready by itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from compat_harness.cluster import Cluster
from compat_harness.server import HOST, TARGET_VARIABLE
from foreign_servers.deadlines import scale

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.timeout(590),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a cluster of its own"),
]

SECONDS_MAX = scale(120.0)
SEGSTORE = str(Path(sys.executable).parent / "segstore")


def test_a_zookeeper_that_cannot_start_for_a_while_is_tried_again(tmp_path: Path) -> None:
    """Earlier the whole cluster ended when ZooKeeper did before it listened."""
    cluster = Cluster(tmp_path)
    output = tmp_path / "cluster.log"
    failures: list[str] = []

    def disturb() -> None:
        deadline = time.monotonic() + SECONDS_MAX
        # The ports have been looked at when these settings are written.
        while not (cluster.data_dir / "zookeeper.properties").exists():
            time.sleep(0.001)
        with socket.create_server((HOST, cluster.first_port)):
            while "Address already in use" not in output.read_text():
                if time.monotonic() > deadline:
                    failures.append("the reason was not told")
                    break
                time.sleep(0.05)
        killed: set[int] = set()
        while len(killed) < 3 and time.monotonic() < deadline:
            pid = cluster.pid_of("zookeeper")
            if pid is not None and pid not in killed:
                cluster.kill("zookeeper")
                killed.add(pid)
            time.sleep(0.05)

    disturber = threading.Thread(target=disturb)
    disturber.start()
    try:
        cluster.start()
        disturber.join()
        assert not failures
        told = output.read_text()
        assert "zookeeper ended with exit code 1; starting it again" in told, cluster.tell()
        assert "zookeeper was killed by SIGKILL; starting it again in" in told, cluster.tell()
        uri = f"tcp://{HOST}:{cluster.controller_port}"
        command = [SEGSTORE, "scope", "create", "demo", "--controller", uri]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
    finally:
        disturber.join()
        cluster.stop()
