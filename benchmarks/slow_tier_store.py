"""A segment store of ours whose tier 2 is as fast as its standard input says; for measurements.

Run as `python -m benchmarks.slow_tier_store DATA_DIR CACHE_MIB`.

1. A line of standard input is the rate of tier 2 in bytes a second, 0 for unlimited. When the
   input ends the store stops.
2. Standard output has JSON lines: the port first, then each second what slows writers down.
"""

import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import structlog
import trio

from segstore.api import SegmentContainer
from segstore.container import Container
from segstore.network.server import serve
from segstore.ownership.data_directory import DataDirectory
from segstore.process.assembly import open_containers
from segstore.process.config import MIB, SegmentStoreConfig
from segstore.process.registry import OpenContainer
from segstore.tiers.api import Buffer
from segstore.tiers.files.filesystem import FilesystemChunkStorage

PIECE_BYTES = 256 * 1024


class SlowChunkStorage(FilesystemChunkStorage):
    """A directory whose writes, all together, go no faster than ``bytes_per_second``."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.bytes_per_second = 0.0
        self._free_at = 0.0

    async def write(
        self,
        name: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        meanwhile: Callable[[], None] | None = None,
    ) -> None:
        """Write, then wait until the rate allows it; a rate that changes counts at once."""
        await super().write(name, offset=offset, data=data, meanwhile=meanwhile)
        left = sum(memoryview(part).nbytes for part in data)
        while left > 0 and (rate := self.bytes_per_second) > 0:
            piece = min(left, PIECE_BYTES)
            left -= piece
            self._free_at = max(self._free_at, trio.current_time()) + piece / rate
            if self._free_at - trio.current_time() > 0.05:
                await trio.sleep_until(self._free_at)


class Watched:
    """An opener of containers that passes on to another one, and knows the open containers."""

    def __init__(self, opener: OpenContainer) -> None:
        self._opener = opener
        self.containers: dict[int, Container] = {}

    @asynccontextmanager
    async def open(self, container_id: int) -> AsyncIterator[SegmentContainer]:
        """Open a container, and note it while it is open."""
        async with self._opener(container_id) as container:
            assert isinstance(container, Container)
            self.containers[container_id] = container
            try:
                yield container
            finally:
                del self.containers[container_id]


def _say(fields: dict[str, object]) -> None:
    print(json.dumps(fields), flush=True)


async def _report(watched: Watched) -> None:
    while True:
        snapshots = [each.throttle_snapshot() for each in list(watched.containers.values())]
        if snapshots:
            strongest = max((each.strongest for each in snapshots), key=lambda gauge: gauge.seconds)
            _say({"delay_seconds": strongest.seconds, "by": strongest.name})
        await trio.sleep(1)


async def _follow(storage: SlowChunkStorage, shutdown: trio.Event) -> None:
    rest = b""
    stream = trio.lowlevel.FdStream(0)
    async for data in stream:
        *lines, rest = (rest + data).split(b"\n")
        for line in lines:
            storage.bytes_per_second = float(line)
    shutdown.set()


async def _main(data_dir: Path, cache_mib: int) -> None:
    config = SegmentStoreConfig(data_dir=data_dir, port=0, cache_bytes_max=cache_mib * MIB)
    directory = DataDirectory.open(config.data_dir, container_count=config.container_count)
    directory.storage_path.mkdir(parents=True, exist_ok=True)
    storage = SlowChunkStorage(directory.storage_path)
    shutdown = trio.Event()
    async with open_containers(config, chunk_storage=storage) as opener:
        watched = Watched(opener)
        async with trio.open_nursery() as nursery:

            async def run(*, task_status: trio.TaskStatus[int]) -> None:
                await serve(config, watched.open, shutdown=shutdown, task_status=task_status)
                nursery.cancel_scope.cancel()

            _say({"port": await nursery.start(run)})
            nursery.start_soon(_report, watched)
            nursery.start_soon(_follow, storage, shutdown)
            await shutdown.wait()
            storage.bytes_per_second = 0


if __name__ == "__main__":
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    trio.run(_main, Path(sys.argv[1]), int(sys.argv[2]))
