"""A segment store of ours on tiers that only measurements use, with a controller beside it.

Run as `python -m benchmarks.peers.assembled_store TIERS DATA_DIR CONTROLLER_PORT STORE_PORT
[CACHE_BYTES]`.
"""

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import trio
from foreign_servers.tied_processes import tied

from benchmarks.peers.segstore_standalone import HELD, LOGGED, UNSTORED, UNSYNCED
from segstore.network.server import serve
from segstore.ownership.data_directory import DataDirectory
from segstore.process.assembly import open_containers
from segstore.process.config import GIB, MIB, SegmentStoreConfig
from segstore.process.registry import OpenContainer
from segstore.tiers.api import Buffer
from segstore.tiers.direct_io import DirectFile
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.journal.disk import LocalDisk, LocalFile
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from segstore.tiers.noop import NoOpChunkStorage, holds_user_data

CACHE_BYTES, HELD_CACHE_BYTES = 512 * MIB, 2 * GIB


class HeldChunkStorage(FilesystemChunkStorage):
    """A tier 2 that never finishes a write of users' data."""

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Wait for ever, unless the store itself has to read this chunk again."""
        if holds_user_data(name):
            await trio.sleep_forever()
        await super().write(name, offset=offset, data=data, meanwhile=meanwhile)


class UnsyncedDisk(LocalDisk):
    """A disk of a journal that syncs nothing: what is acknowledged is in the page cache."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory, direct=False)

    def _file(self, descriptor: int, direct: DirectFile | None) -> LocalFile:
        return UnsyncedFile(descriptor, direct)


class UnsyncedFile(LocalFile):
    """A file of ``UnsyncedDisk``."""

    def write_durably(self, buffers: Sequence[Buffer], offset: int) -> None:
        """Write all the buffers into the page cache."""
        self.write(buffers, offset)

    def writing_descriptor(self) -> int | None:
        """Return None: the journal's own thread would sync what it writes."""
        return None

    def sync(self) -> None:
        """Do nothing."""

    def settle(self) -> None:
        """Do nothing."""


def opened(tiers: str, config: SegmentStoreConfig) -> AbstractAsyncContextManager[OpenContainer]:
    """Open containers that store nothing (``UNSTORED``), or only in the journal (``HELD``,
    ``LOGGED``), or that sync nothing (``UNSYNCED``).

    Without a store, the log is a list in memory and tier 2 drops users' data. Held back, all of
    users' data has to be recovered from the journal; logged, tier 2 drops it there, too.
    """
    if tiers == UNSYNCED:
        return open_containers(config, disk_of=UnsyncedDisk)
    if tiers == LOGGED:
        return open_containers(config, chunk_storage=NoOpChunkStorage(MemoryChunkStorage()))
    if tiers == HELD:
        directory = DataDirectory.open(config.data_dir, container_count=config.container_count)
        directory.storage_path.mkdir(parents=True, exist_ok=True)
        return open_containers(config, chunk_storage=HeldChunkStorage(directory.storage_path))
    assert tiers == UNSTORED, tiers
    return open_containers(
        config,
        data_logs=MemoryDataLogFactory(),
        chunk_storage=NoOpChunkStorage(MemoryChunkStorage()),
    )


def main(arguments: Sequence[str]) -> None:
    """Serve until killed."""
    tiers, data_dir, controller_port, segment_store_port, *rest = arguments
    usual = HELD_CACHE_BYTES if tiers == HELD else CACHE_BYTES
    config = SegmentStoreConfig(
        data_dir=Path(data_dir),
        port=int(segment_store_port),
        cache_bytes_max=int(rest[0]) if rest else usual,
    )
    command = [sys.executable, "-m", "pravega_admin", "controller"]
    command += ["--port", controller_port, "--segment-store", f"127.0.0.1:{segment_store_port}"]
    with subprocess.Popen(tied(command)):
        trio.run(_serve, tiers, config)


async def _serve(tiers: str, config: SegmentStoreConfig) -> None:
    async with opened(tiers, config) as open_container:
        await serve(config, open_container)


if __name__ == "__main__":
    main(sys.argv[1:])
