"""A store is killed, and a request that it had under way is done after its end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import trio

from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.tiers.hdfs.settings import HdfsSettings
from support.faults.fake_hdfs import FakeHdfs, fake_hdfs

pytestmark = pytest.mark.processes

WRITER = """
import sys, trio
from pathlib import Path
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.tiers.hdfs.settings import HdfsSettings

async def main():
    config = SegmentStoreConfig(
        data_dir=Path(sys.argv[1]),
        container_count=1,
        tier2=sys.argv[2],
        hdfs=HdfsSettings(user="somebody"),
    )
    async with open_containers(config) as open_container, open_container(0) as container:
        await container.create_segment("s")
        await container.append("s", b"hello")
        await trio.sleep_forever()

trio.run(main)
"""
FLUSHED_SECONDS_MAX = 60.0


def wait_for_chunk(hdfs: FakeHdfs) -> str:
    """Wait until the segment is flushed; the path of its chunk's file."""
    deadline = time.monotonic() + FLUSHED_SECONDS_MAX
    while time.monotonic() < deadline:
        with hdfs.lock:
            for path, content in hdfs.files.items():
                if path.startswith("/stores/one/s.S-") and content == b"hello":
                    return path
        time.sleep(0.02)
    raise AssertionError(f"not flushed: {hdfs.files}")


@pytest.mark.proof
def test_what_a_killed_store_appended_late_counts_for_nobody(tmp_path: Path) -> None:
    with fake_hdfs() as hdfs:
        tier2 = f"webhdfs://{hdfs.namenodes[0]}/stores/one"
        with subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path), tier2]) as writer:
            try:
                chunk = wait_for_chunk(hdfs)
            finally:
                writer.kill()
        hdfs.files[chunk] += b" from the past"

        async def go_on() -> None:
            config = SegmentStoreConfig(
                data_dir=tmp_path,
                container_count=1,
                tier2=tier2,
                hdfs=HdfsSettings(user="somebody"),
            )
            for before in (b"hello", b"hello again"):  # the second time all is read from HDFS
                async with (
                    open_containers(config) as open_container,
                    open_container(0) as container,
                ):
                    read = await container.read("s", offset=0, length_max=100)
                    assert bytes(read.data) == before
                    if before == b"hello":
                        await container.append("s", b" again")

        trio.run(go_on)
        assert hdfs.files[chunk] == b"hello from the past"
