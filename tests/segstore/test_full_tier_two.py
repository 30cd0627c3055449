"""A tier 2 without space is no dead end: truncations and deletions go through, and free space."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio
import trio.testing

from _fast.cache.streaming_cache import StreamingCache
from segstore.api import SegmentContainer
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.garbage import GARBAGE_DELAY_SECONDS
from segstore.container import Container, open_container
from segstore.errors import StorageError
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from segstore.writer.flush_policy import DEFAULT_FLUSH_POLICY as POLICY

MIB = 1024 * 1024
KIB = 1024
FULL, OTHER = "scope/full/0.#epoch.0", "scope/other/0.#epoch.0"
EVENT = bytes(64 * KIB)
SECONDS = 3 * POLICY.flush_seconds
"""Long enough for rounds of flushes."""


class Tiers:
    """Both tiers of a container whose tier 2 takes so many bytes."""

    def __init__(self, capacity_bytes: int) -> None:
        self.chunks = MemoryChunkStorage(capacity_bytes=capacity_bytes)
        self.logs = MemoryDataLogFactory()
        self.epoch = 0

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Container]:
        self.epoch += 1
        epoch = self.epoch
        storage = ChunkedSegmentStorage(
            self.chunks, epoch=lambda: epoch, reserve_bytes=64 * KIB, boot_id="boot"
        )
        manager = CacheManager(StreamingCache(64 * MIB))
        async with open_container(0, self.logs, storage, manager, drain_seconds=1) as container:
            yield container

    @property
    def free_bytes(self) -> int:
        assert self.chunks.capacity_bytes is not None
        return self.chunks.capacity_bytes - self.chunks.used_bytes


async def fill(container: Container, tiers: Tiers) -> None:
    """Append to both segments until tier 2 takes no more, and for a while longer."""
    for name in (FULL, OTHER):
        await container.create_segment(name)
    await container.append(OTHER, b"kept")
    for _ in range(12):
        await container.append(FULL, EVENT)
        await container.flush()
    for _ in range(28):
        await container.append(FULL, EVENT)
    await trio.sleep(SECONDS)
    with pytest.raises(StorageError, match="no room"):
        await container.flush()


async def truncate(container: SegmentContainer) -> None:
    await container.truncate_segment(FULL, offset=container.segment_info(FULL).length)


async def seal_and_truncate(container: SegmentContainer) -> None:
    await container.seal_segment(FULL)
    await truncate(container)


async def delete(container: SegmentContainer) -> None:
    await container.delete_segment(FULL)


@pytest.mark.parametrize("restarts", [False, True])
@pytest.mark.parametrize("free", [truncate, seal_and_truncate, delete])
async def test_what_frees_space_needs_none(
    autojump_clock: trio.testing.MockClock,
    free: Callable[[SegmentContainer], Awaitable[None]],
    restarts: bool,
) -> None:
    tiers = Tiers(MIB)
    async with tiers.open() as container:
        await fill(container, tiers)
        tiers.chunks.capacity_bytes = tiers.chunks.used_bytes  # others take what is left
        if not restarts:
            await free(container)
            await check_room(container, tiers)
    if restarts:
        async with tiers.open() as container:
            await free(container)
            await check_room(container, tiers)
    async with tiers.open() as container:
        result = await container.read(OTHER, offset=0, length_max=100)
        assert bytes(result.data)[:4] == b"kept"
        assert container.segment_info(OTHER).length == 4 + len(EVENT)


async def check_room(container: Container, tiers: Tiers) -> None:
    """Check that there is space again, that the log is let go, and that writers go on."""
    await trio.sleep(GARBAGE_DELAY_SECONDS + SECONDS)
    assert tiers.free_bytes > MIB // 2
    await container.append(OTHER, EVENT)
    await container.flush()
    await container.checkpoint()
    await container.flush()
    assert container.parts.log.bytes_since_truncation < 16 * KIB


async def test_bytes_before_a_truncation_are_never_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tiers = Tiers(MIB)
    tiers.chunks.capacity_bytes = 0
    async with tiers.open() as container:
        await container.create_segment(FULL)
        for _ in range(40):
            await container.append(FULL, EVENT)
        await container.truncate_segment(FULL, offset=39 * len(EVENT))
        tiers.chunks.capacity_bytes = MIB
        await container.flush()
        assert tiers.chunks.used_bytes < 3 * len(EVENT)
    async with tiers.open() as container:
        info = container.segment_info(FULL)
        assert (info.start_offset, info.length) == (39 * len(EVENT), 40 * len(EVENT))
        result = await container.read(FULL, offset=39 * len(EVENT), length_max=len(EVENT))
        assert bytes(result.data) == EVENT


async def test_merged_segments_before_a_truncation_are_never_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    tiers = Tiers(0)
    source = "scope/full/0.#epoch.0#transaction.00000000000000010000000000000001"
    async with tiers.open() as container:
        await container.create_segment(FULL)
        for data in (b"first", EVENT * 20, b"last"):
            await container.create_segment(source)
            await container.append(source, data)
            await container.merge_segment(FULL, source)
        length = container.segment_info(FULL).length
        await container.truncate_segment(FULL, offset=length - 4)
        tiers.chunks.capacity_bytes = MIB // 2
        await container.flush()
        assert container.segment_info(FULL).storage_length == length
    async with tiers.open() as container:
        result = await container.read(FULL, offset=length - 4, length_max=10)
        assert bytes(result.data) == b"last"
        assert source not in container.parts.metadata.by_name
