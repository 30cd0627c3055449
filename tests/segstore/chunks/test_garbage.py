"""The deletion of chunks that nobody needs any more."""

from __future__ import annotations

import pytest

from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.errors import StorageError
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
