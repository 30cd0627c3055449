"""The bytes of segments that a recovery finds in chunks and adds from the log."""

from __future__ import annotations

import pytest

from segstore.chunks.chunk_metadata import ChunkMetadata
from segstore.chunks.records import Chunk, StoredSegment
from segstore.repair.pieces import SegmentPieces
from segstore.tiers.memory import MemoryChunkStorage


@pytest.mark.parametrize("epoch", [None, 7], ids=["planned", "done"])
async def test_bytes_are_added_only_where_no_chunk_has_them(epoch: int | None) -> None:
    chunks, metadata = MemoryChunkStorage(), ChunkMetadata()
    await chunks.write("first", offset=0, data=[b"c" * 10])
    await chunks.write("second", offset=0, data=[b"c" * 10])
    found = (Chunk(0, 10, "first", 1), Chunk(20, 10, "second", 1))
    metadata.put("s", StoredSegment(found, 30))
    lengths = {each.name: each.length for each in await chunks.list_chunks("")}
    pieces = SegmentPieces(chunks, metadata, lengths, epoch=epoch)
    assert list(pieces.gaps("s", 0, 40)) == [(10, 20), (30, 40)]
    await pieces.add("s", 5, b"l" * 30, rollover_bytes=0)
    assert pieces.ranges("s", 0, 40) == [(0, 35)]
    pieces.settle("s", start=0, end=35)
    await pieces.write_all()
    if epoch is None:
        assert {each.name for each in await chunks.list_chunks("")} == {"first", "second"}
        return
    content = b""
    while len(content) < 35:
        content += await pieces.read("s", offset=len(content), length=35 - len(content))
    assert content == b"c" * 10 + b"l" * 10 + b"c" * 10 + b"l" * 5


async def test_bytes_behind_the_recorded_end_of_a_chunk_fill_no_gap() -> None:
    """After a power cut, an owner wrote what the log had behind offset 10 into a second chunk,
    which is lost now."""
    chunks, metadata = MemoryChunkStorage(), ChunkMetadata()
    await chunks.write("first", offset=0, data=[b"c" * 10, b"\0" * 10])
    found = (Chunk(0, 10, "first", 1), Chunk(10, 10, "second", 2))
    metadata.put("s", StoredSegment(found, 20))
    pieces = SegmentPieces(chunks, metadata, {"first": 20}, epoch=7)
    assert list(pieces.gaps("s", 0, 20)) == [(10, 20)]
    assert await pieces.read_until("s", 0, 20) == b"c" * 10
    await pieces.add("s", 0, b"l" * 20, rollover_bytes=0)
    assert await pieces.read_until("s", 0, 20) == b"c" * 10 + b"l" * 10
