"""A cluster is backed up, destroyed and restored elsewhere, by the commands of its guide."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from compat_harness.cluster import BOOKIES, CONTROLLERS, STORES, Cluster
from compat_harness.server import TARGET_VARIABLE

pytestmark = [
    pytest.mark.proof,
    pytest.mark.compat,
    pytest.mark.timeout(590),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a cluster of its own"),
]

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "cluster.md"
SEGSTORE = str(Path(sys.executable).parent / "segstore")
CLIENT = Path(__file__).resolve().parents[1] / "python" / "numbers_in_order.py"
EVENTS = 5_000


def commands_of(heading: str) -> list[str]:
    """Return the commands of a section of the guide that a shell can run as they are."""
    section = GUIDE.read_text().split(f"\n### {heading}\n")[1].split("\n#")[0]
    return [
        line.removeprefix("$ ")
        for block in re.findall(r"```console\n(.*?)```", section, re.DOTALL)
        for line in block.splitlines()
        if line.startswith("$ ") and "make cluster" not in line
    ]


def run(command: str, directory: Path, **variables: str) -> None:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=directory,
        env={**os.environ, "PATH": f"{Path(SEGSTORE).parent}:{os.environ['PATH']}", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"


def use_official_client(what: str, cluster: Cluster, first: int, last: int) -> None:
    """Run the official Python client to write numbers, or to read and compare them."""
    uri = cluster.controller_uris.partition(",")[0]
    command = [sys.executable, str(CLIENT), what, uri, str(first), str(last)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}\n{cluster.tell()}"


def wait_whole(cluster: Cluster) -> None:
    counts = [f"--stores={STORES}", f"--controllers={CONTROLLERS}", f"--bookies={BOOKIES}"]
    command = [SEGSTORE, "cluster", "wait", f"--zookeeper={cluster.zookeeper}", *counts]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stderr}\n{cluster.tell()}"


def test_a_cluster_comes_back_from_its_backup(tmp_path: Path) -> None:
    pytest.importorskip("pravega_client")
    with Cluster(tmp_path) as cluster:
        use_official_client("write", cluster, 0, EVENTS)
    backup = commands_of("Backing up")
    restore = commands_of("Restoring")
    assert backup
    assert restore
    for command in backup:
        run(command, tmp_path)
    shutil.rmtree(cluster.data_dir)
    for command in restore:
        run(command, tmp_path)
    # Stores and bookies are known by their addresses, which are part of what is restored.
    with Cluster(tmp_path, name="restored", first_port=cluster.first_port) as restored:
        wait_whole(restored)
        use_official_client("read", restored, 0, EVENTS)
        use_official_client("write", restored, EVENTS, 2 * EVENTS)
        use_official_client("read", restored, 0, 2 * EVENTS)
