"""A scrub of a store while its chunks come and go."""

from __future__ import annotations

import pytest

from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import open_container
from segstore.repair.scrub_store import StoreScrub, spending
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from support.chunk_owners import next_owner

NAMES = ("scope/stream/0.#epoch.0", "scope/stream/1.#epoch.0")


async def spend(count: int) -> None:
    """Read as fast as possible."""


@pytest.mark.parametrize("is_dropped", [True, False])
async def test_a_chunk_that_the_store_drops_meanwhile_is_not_damaged(is_dropped: bool) -> None:
    chunks = MemoryChunkStorage()
    storage = next_owner(chunks, garbage_delay_seconds=0)
    manager = CacheManager(StreamingCache(8 << 20))
    async with open_container(0, MemoryDataLogFactory(), storage, manager) as container:
        for name in NAMES:
            await container.create_segment(name)
            await container.append(name, bytes(1000))
        await container.flush()
        scrub = StoreScrub(chunks, container_count=1)
        assert await scrub.prepare() >= 2000
        if is_dropped:
            await container.delete_segment(NAMES[0])
            await container.flush()
            await storage.collect()
        else:
            [name] = [
                each.name for each in await chunks.list_chunks("") if each.name.startswith(NAMES[0])
            ]
            await chunks.delete(name)
        left = {each.name for each in await chunks.list_chunks("")}
        assert not any(each.startswith(NAMES[0]) for each in left)
        report = await scrub.run(spend)
    assert [each.segment.partition(".S-")[0] for each in report.damages] == (
        [] if is_dropped else [NAMES[0]]
    )


async def test_a_scrub_changes_nothing() -> None:
    chunks = MemoryChunkStorage()
    manager = CacheManager(StreamingCache(8 << 20))
    logs, storage = MemoryDataLogFactory(), next_owner(chunks)
    async with open_container(0, logs, storage, manager) as container:
        for name in NAMES:
            await container.create_segment(name)
            await container.append(name, bytes(1000))
    before = await contents(chunks)
    scrub = StoreScrub(chunks, container_count=1)
    await scrub.prepare()
    report = await scrub.run(spend)
    assert report.bytes >= 2000
    assert report.damages == []
    assert await contents(chunks) == before


async def contents(chunks: MemoryChunkStorage) -> dict[str, bytes]:
    """Return the bytes of all chunks, by name."""
    return {
        each.name: bytes(await chunks.read(each.name, offset=0, length=each.length))
        for each in await chunks.list_chunks("")
    }


async def test_what_is_read_is_reported_before_the_pause_that_it_costs() -> None:
    seen: list[str] = []

    async def pause(count: int) -> None:
        seen.append(f"pause for {count}")

    def report(count: int) -> None:
        seen.append(f"read {count}")

    await spending(pause, report)(7)
    await spending(None, report)(9)
    assert seen == ["read 7", "pause for 7", "read 9"]
