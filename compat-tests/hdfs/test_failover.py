"""Chunks in an HDFS with two NameNodes, of which the active one dies."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from foreign_servers.hdfs import USER, HdfsCluster

from segstore.tiers.api import ChunkInfo
from segstore.tiers.hdfs.location import HdfsLocation
from segstore.tiers.hdfs.opening import open_hdfs
from segstore.tiers.hdfs.settings import HdfsSettings

pytestmark = [pytest.mark.proof, pytest.mark.timeout(300)]

NAME = "scope/stream/0.#epoch.0.S-7$00000000000000000000.E1.1"


async def test_the_other_namenode_is_asked_from_then_on(tmp_path: Path) -> None:
    cluster = HdfsCluster(tmp_path / "hdfs", namenodes=2)
    try:
        location = HdfsLocation.parse(cluster.location("store"))
        opened = await open_hdfs(location, HdfsSettings(user=USER))
        with closing(opened):
            await opened.try_everything()
            chunks = (await opened.open())(lambda: 1)
            await chunks.write(NAME, offset=0, data=[b"first,"])
            cluster.kill("namenode-0")
            cluster.fail_over(1)
            await chunks.write(NAME, offset=6, data=[b"second,"])
            # It comes back as the one on standby, which is named first.
            cluster.start_namenode(0)
            await chunks.write(NAME, offset=13, data=[b"third"])
            assert await chunks.list_chunks("scope/") == [ChunkInfo(NAME, 18)]
            assert await chunks.read(NAME, offset=0, length=18) == b"first,second,third"
        reopened = await open_hdfs(location, HdfsSettings(user=USER))
        with closing(reopened):
            assert await reopened.storage.info(NAME) == ChunkInfo(NAME, 18)
    finally:
        cluster.stop()
