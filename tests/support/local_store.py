"""A whole segment store on real tiers in a directory, without a port.

Owns: the assembly: registry, connections over streams in memory, the product's own containers, and
the observed tiers of ``local_tiers`` under them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path

import trio
import trio.testing

from segstore.network.server import ConnectionServer
from segstore.process.assembly import open_containers
from segstore.process.config import ConnectionSettings, SegmentStoreConfig
from segstore.process.registry import ContainerRegistry
from segstore.testing.wire_client import WireClient
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.journal import JournalSettings, open_journal
from support.local_tiers import MIB, ObservedChunks, ObservedLogs


class LocalStore:
    """``logs`` and ``chunks`` are what the containers asked of their tiers."""

    def __init__(
        self, registry: ContainerRegistry, logs: ObservedLogs, chunks: ObservedChunks
    ) -> None:
        self.registry = registry
        self.logs = logs
        self.chunks = chunks
        self.server = ConnectionServer(registry, ConnectionSettings())
        self.nursery: trio.Nursery

    def connect(self) -> WireClient:
        """Return a new connection."""
        client, server = trio.testing.memory_stream_pair()
        self.nursery.start_soon(self.server.serve, server)
        return WireClient(client)


@asynccontextmanager
async def local_store(
    path: Path, *, container_count: int = 4, container_ids: tuple[int, ...] | None = None
) -> AsyncIterator[LocalStore]:
    """Serve a store inside the block; what is in tier 1 is in tier 2 too at its end."""
    for name in ("journal", "chunks"):
        (path / name).mkdir(exist_ok=True)
    config = SegmentStoreConfig(
        data_dir=path / "data",
        container_count=container_count,
        container_ids=container_ids,
        cache_bytes_max=32 * MIB,
        restart_seconds_min=0.5,
        drain_seconds=600,
    )
    with closing(FilesystemChunkStorage(path / "chunks")) as files:
        chunks = ObservedChunks(files)
        async with open_journal(path / "journal", JournalSettings(file_bytes=2 * MIB)) as journal:
            logs = ObservedLogs(journal)
            async with open_containers(config, data_logs=logs, chunk_storage=chunks) as opener:
                registry = ContainerRegistry(
                    opener,
                    container_count=container_count,
                    container_ids=config.hosted_containers,
                    tables=config.tables,
                    restart_seconds_min=config.restart_seconds_min,
                    restart_seconds_max=config.restart_seconds_max,
                )
                store = LocalStore(registry, logs, chunks)
                async with trio.open_nursery() as nursery:
                    store.nursery = nursery
                    nursery.start_soon(registry.run)
                    await registry.wait_until_tried()
                    yield store
                    nursery.cancel_scope.cancel()
