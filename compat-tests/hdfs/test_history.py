"""Official clients on a store whose history is in HDFS, whose servers die meanwhile."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
import trio
from compat_harness.java import NEWEST, JavaClient
from compat_harness.server import TARGET_VARIABLE, Server
from foreign_servers.deadlines import scale
from foreign_servers.hdfs import USER, HdfsCluster
from test_kill_nine import ACKED_BEFORE_FIRST_KILL, judge, running_workload

from segstore.tiers.hdfs.location import HdfsLocation
from segstore.tiers.hdfs.opening import connect
from segstore.tiers.hdfs.settings import HdfsSettings
from segstore.tiers.hdfs.storage import HdfsChunkStorage

pytestmark = [
    pytest.mark.compat,
    pytest.mark.timeout(600),
    pytest.mark.skipif(TARGET_VARIABLE in os.environ, reason="needs a server of its own"),
]

AWAY_SECONDS = 8.0
"""Longer than a flush may wait: the storage writer has something to write meanwhile."""
ACKED_WHILE_AWAY = 300
FLUSHED_SECONDS_MAX = scale(120.0)


def stored_bytes(location: str) -> int:
    """Count the bytes of users' segments in HDFS."""

    async def count() -> int:
        hdfs = connect(HdfsLocation.parse(location), HdfsSettings(user=USER))
        chunks = HdfsChunkStorage(hdfs, random_bytes=os.urandom)
        try:
            found = await chunks.list_chunks("")
        finally:
            chunks.close()
        return sum(each.length for each in found if not each.name.startswith("_"))

    return trio.run(count)


def wait_until_flushed(location: str, before: int) -> None:
    """Wait until HDFS has more than before."""
    deadline = time.monotonic() + FLUSHED_SECONDS_MAX
    while stored_bytes(location) <= before:
        assert time.monotonic() < deadline, "nothing is flushed"
        time.sleep(0.5)


def test_history_in_hdfs_outlives_its_servers(pytestconfig: pytest.Config, tmp_path: Path) -> None:
    """A store that is killed and has nothing in its cache reads everything again; in the full form,
    writes go on while a NameNode or a DataNode is away, and are flushed when it is back."""
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[segment_store.hdfs]\nuser = "{USER}"\n')
    java_client = JavaClient.build(NEWEST)
    hdfs = HdfsCluster(tmp_path / "hdfs")
    location = hdfs.location("history")
    try:
        with (
            Server(tmp_path, [f"--tier2={location}", f"--config={settings}"]) as server,
            running_workload(java_client, server.controller_uri, tmp_path / "workload") as workload,
        ):
            workload.wait_until_acked(ACKED_BEFORE_FIRST_KILL)
            wait_until_flushed(location, 0)
            for name in ("namenode-0", "datanode") if pytestconfig.getoption("--full") else ():
                before = stored_bytes(location)
                hdfs.kill(name)
                workload.wait_until_acked(workload.acked() + ACKED_WHILE_AWAY)
                time.sleep(AWAY_SECONDS)
                workload.wait_until_acked(workload.acked() + ACKED_WHILE_AWAY)
                if name == "namenode-0":
                    hdfs.start_namenode()
                    hdfs.wait_until_ready()
                else:
                    hdfs.start_datanode()
                wait_until_flushed(location, before)
            server.kill_all()
            server.start()
            workload.finish()
            print(workload.output())
    finally:
        hdfs.stop()
    judge(tmp_path / "workload")
    assert not (tmp_path / "data" / "storage").exists()
