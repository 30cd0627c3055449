"""HDFS as a vendor of tier 2.

Owns: ``HDFS``, its declaration.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from typing import Final

from segstore.tiers.api import ChunkStorage
from segstore.tiers.hdfs.location import HdfsLocation
from segstore.tiers.hdfs.settings import HdfsSettings
from segstore.tiers.vendor import TierTwo, Vendor, for_each_journal, parse_by


@asynccontextmanager
async def _open_hdfs(location: str, settings: HdfsSettings) -> AsyncIterator[TierTwo]:
    from segstore.tiers.hdfs.opening import open_hdfs

    opened = await open_hdfs(HdfsLocation.parse(location), settings)
    with closing(opened):
        yield TierTwo(
            where=location,
            chunks_under=lambda _: opened.storage,
            open=for_each_journal(opened.open),
            make=opened.try_everything,
        )


@contextmanager
def _look_at_hdfs(location: str, settings: HdfsSettings) -> Iterator[ChunkStorage]:
    from segstore.tiers.hdfs.opening import connect
    from segstore.tiers.hdfs.storage import HdfsChunkStorage

    hdfs = connect(HdfsLocation.parse(location), settings)
    with closing(HdfsChunkStorage(hdfs, random_bytes=os.urandom)) as chunks:
        yield chunks


HDFS: Final = Vendor(
    "HDFS",
    "webhdfs://HOST:PORT/PATH",
    ("webhdfs", "swebhdfs"),
    parse=parse_by(HdfsLocation),
    open=_open_hdfs,
    look=_look_at_hdfs,
    leaves_doubt=True,
    can_move=True,
)
