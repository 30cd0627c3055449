"""What a segment owes to tier 2 goes there in few writes."""

from __future__ import annotations

from collections.abc import Sequence

import trio
import trio.testing

from _fast.cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import open_container
from segstore.testing.chunk_owners import next_owner
from segstore.tiers.api import Buffer
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from segstore.writer.storage_writer import FLUSH_SECONDS

MIB = 1024 * 1024


class CountedChunkStorage(MemoryChunkStorage):
    """Notes how long each write was that is about one of our segments."""

    def __init__(self) -> None:
        super().__init__()
        self.written: list[tuple[str, int]] = []

    async def write(self, name: str, *, offset: int, data: Sequence[Buffer]) -> None:
        if name.startswith("scope/"):
            self.written.append((name, sum(map(len, data))))
        await super().write(name, offset=offset, data=data)


async def test_appends_that_took_turns_with_those_of_other_segments_are_one_write(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = CountedChunkStorage()
    manager = CacheManager(StreamingCache(8 * MIB))
    names = [f"scope/stream/{number}.#epoch.0" for number in range(3)]
    logs, storage = MemoryDataLogFactory(), next_owner(chunks)
    async with open_container(0, logs, storage, manager) as container:
        for name in names:
            await container.create_segment(name)
        for _ in range(50):
            for name in names:
                await container.append(name, bytes(100))
        await trio.sleep(2 * FLUSH_SECONDS)
        assert sorted(length for _, length in chunks.written) == [5_000] * 3
        assert len({name for name, _ in chunks.written}) == 3
        for name in names:
            assert container.segment_info(name).storage_length == 5_000
