"""The deletion of chunks that nobody needs any more."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.garbage import GARBAGE_DELAY_SECONDS
from segstore.chunks.space_lack import SpaceLack
from segstore.errors import StorageError, StorageFullError
from segstore.tiers.api import ChunkInfo
from segstore.tiers.memory import MemoryChunkStorage


class StubbornChunks(MemoryChunkStorage):
    """Storage that will not delete some chunks."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: set[str] = set()

    async def delete(self, name: str) -> None:
        """Delete, if it is not one of those."""
        if name in self.kept:
            raise StorageError(f"{name} cannot be deleted")
        await super().delete(name)


def segment_chunks(listed: list[ChunkInfo]) -> set[str]:
    return {chunk.name for chunk in listed if not chunk.name.startswith("_system/")}


async def test_a_chunk_that_cannot_be_deleted_does_not_keep_the_others() -> None:
    chunks = StubbornChunks()
    storage = ChunkedSegmentStorage(chunks, epoch=lambda: 1)
    await storage.write("segment", offset=0, data=[bytes(100)], rollover_bytes=10)
    names = segment_chunks(await chunks.list_chunks(""))
    assert len(names) == 10
    chunks.kept = set(sorted(names)[:2])
    await storage.delete("segment")
    with pytest.raises(StorageError, match="cannot be deleted"):
        await storage.collect()
    assert segment_chunks(await chunks.list_chunks("")) == chunks.kept
    chunks.kept = set()
    await storage.collect()
    assert not segment_chunks(await chunks.list_chunks(""))


async def test_storage_that_deletes_nothing_is_not_asked_for_everything() -> None:
    chunks = StubbornChunks()
    storage = ChunkedSegmentStorage(chunks, epoch=lambda: 1)
    await storage.write("segment", offset=0, data=[bytes(300)], rollover_bytes=1)
    chunks.kept = names = segment_chunks(await chunks.list_chunks(""))
    await storage.delete("segment")
    with pytest.raises(StorageError, match="cannot be deleted"):
        await storage.collect()
    assert segment_chunks(await chunks.list_chunks("")) == names


async def test_system_chunks_go_one_by_one_and_snapshots_first() -> None:
    chunks = StubbornChunks()
    for epoch in range(1, 6):
        owner = ChunkedSegmentStorage(chunks, epoch=lambda epoch=epoch: epoch)
        await owner.write("segment", offset=epoch - 1, data=[b"x"], rollover_bytes=1)
    system = {chunk.name for chunk in await chunks.list_chunks("_system/")}
    journals = sorted(name for name in system if "journal" in name)
    assert len(journals) == 5
    chunks.kept = {journals[2]}
    with pytest.raises(StorageError, match="cannot be deleted"):
        await owner.collect()
    left = {chunk.name for chunk in await chunks.list_chunks("_system/")}
    assert sum("snapshot" in name for name in left) == 1
    assert journals[0] not in left
    chunks.kept = set()
    await owner.collect()
    left = {chunk.name for chunk in await chunks.list_chunks("_system/")}
    assert [name for name in sorted(left) if "journal" in name] == journals[4:]
    assert await owner.stored_length("segment") == 5


class FullChunks(MemoryChunkStorage):
    """Storage that has no space while told so."""

    is_full = False

    async def write(self, name: str, **how: Any) -> None:
        """Write, if there is space."""
        if self.is_full:
            raise StorageFullError("no space")
        await super().write(name, **how)


async def test_chunks_go_at_once_when_another_container_wants_their_space(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks, lack = FullChunks(), SpaceLack()
    one, other = (
        ChunkedSegmentStorage(chunks, epoch=lambda: 1, container_id=number, lack=lack)
        for number in range(2)
    )
    async with trio.open_nursery() as nursery:
        for storage, name in ((one, "one"), (other, "other")):
            nursery.start_soon(storage.run)
            await storage.write(name, offset=0, data=[b"x"], rollover_bytes=1)
        await one.delete("one")
        await trio.sleep(GARBAGE_DELAY_SECONDS / 2)
        assert len(segment_chunks(await chunks.list_chunks(""))) == 2
        chunks.is_full = True
        with pytest.raises(StorageFullError):
            await other.write("other", offset=1, data=[b"y"], rollover_bytes=1)
        chunks.is_full = False
        await trio.sleep(1)
        assert len(segment_chunks(await chunks.list_chunks(""))) == 1
        nursery.cancel_scope.cancel()
