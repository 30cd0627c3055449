"""No byte of a chunk is read that is not what was written, by whichever owner."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import trio
from structlog.testing import capture_logs

from segstore.chunks.checksums import BLOCK_BYTES
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.system_journal import CHECKSUMS_SECONDS_MAX
from segstore.errors import ChunkDamagedError, StorageError
from segstore.tiers.api import Buffer, Check
from segstore.tiers.chunk_paths import path_of
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.memory import MemoryChunkStorage
from support.chunk_owners import next_owner
from support.local_tiers import ObservedChunks

DATA = random.Random(7).randbytes(3 * BLOCK_BYTES + 1000)


async def write(storage: ChunkedSegmentStorage, segment: str, *pieces: bytes) -> None:
    for piece in pieces:
        end = await storage.stored_length(segment)
        await storage.write(segment, offset=end, data=[piece], rollover_bytes=0)


def flip(chunks: MemoryChunkStorage, segment: str, offset: int, bit: int = 3) -> str:
    [name] = [each for each in chunks.contents if each.startswith(f"{segment}$")]
    chunks.contents[name][offset] ^= 1 << bit
    return name


async def read_refused(storage: ChunkedSegmentStorage, segment: str, offset: int) -> str:
    with pytest.raises(ChunkDamagedError) as refused:
        await storage.read(segment, offset=offset, length=10)
    return str(refused.value)


async def test_a_short_source_that_is_damaged_is_merged_with_its_damage() -> None:
    chunks = MemoryChunkStorage()
    storage = next_owner(chunks)
    await write(storage, "target", b"before")
    await write(storage, "source", DATA)
    flip(chunks, "source", BLOCK_BYTES + 5)
    for _ in range(2):
        await storage.concat(
            "target", offset=6, source="source", length=len(DATA), rollover_bytes=0
        )
    await storage.delete("source", merged_into="target")
    await write(storage, "target", b"behind")
    assert await storage.stored_length("target") == 6 + len(DATA) + 6
    for offset in (0, 2 * BLOCK_BYTES, len(DATA) - 10):
        found = await storage.read("target", offset=6 + offset, length=10)
        assert found == DATA[offset : offset + 10]
    assert "is damaged" in await read_refused(storage, "target", 6 + BLOCK_BYTES + 100)
    assert await storage.read("target", offset=6 + len(DATA), length=10) == b"behind"


async def test_a_damaged_block_is_refused_and_named_and_others_are_read() -> None:
    chunks = MemoryChunkStorage()
    storage = next_owner(chunks)
    await write(storage, "s", DATA[:100], DATA[100:70_000], DATA[70_000:])
    name = flip(chunks, "s", BLOCK_BYTES + 5)
    with capture_logs() as logs:
        for _ in range(3):
            message = await read_refused(storage, "s", 2 * BLOCK_BYTES - 1)
    assert f"chunk {name} is damaged: the block at byte {BLOCK_BYTES} " in message
    [entry] = [each for each in logs if each["log_level"] == "error"]
    assert entry["segment"] == "s"
    assert entry["chunk"] == name
    assert entry["chunk_offset"] == entry["segment_offset"] == BLOCK_BYTES
    for offset in (0, BLOCK_BYTES - 10, 2 * BLOCK_BYTES, len(DATA) - 10):
        assert await storage.read("s", offset=offset, length=10) == DATA[offset : offset + 10]
    before = await storage.read("s", offset=BLOCK_BYTES - 5, length=10)
    assert before == DATA[BLOCK_BYTES - 5 : BLOCK_BYTES], "what lies before it is read"
    flip(chunks, "s", BLOCK_BYTES + 5)
    assert await storage.read("s", offset=0, length=len(DATA)) == DATA, "the chunk was restored"


@pytest.mark.parametrize("noted_by", ["note", "settle", "snapshot"])
async def test_a_later_owner_has_the_checksums(noted_by: str) -> None:
    chunks = MemoryChunkStorage()
    first = next_owner(chunks)
    await write(first, "s", DATA[:5], DATA[5:BLOCK_BYTES])
    await first.journal.record_checksums()
    await write(first, "s", DATA[BLOCK_BYTES:90_000], DATA[90_000:])
    if noted_by == "note":
        await first.journal.record_checksums()
    elif noted_by == "settle":
        await first.settle()
    else:
        async with first.journal.changing():
            await first.journal._write_snapshot()
    flip(chunks, "s", len(DATA) - 1)
    second = next_owner(chunks)
    await read_refused(second, "s", 3 * BLOCK_BYTES)
    assert await second.read("s", offset=0, length=BLOCK_BYTES) == DATA[:BLOCK_BYTES]
    third = next_owner(chunks)
    await read_refused(third, "s", 3 * BLOCK_BYTES)


async def test_after_a_crash_bytes_without_checksums_are_read_as_they_are() -> None:
    chunks = MemoryChunkStorage()
    first = next_owner(chunks)
    await write(first, "s", DATA[:1000])
    await first.journal.record_checksums()
    await write(first, "s", DATA[1000:])
    second = next_owner(chunks)
    assert await second.read("s", offset=0, length=len(DATA)) == DATA
    flip(chunks, "s", 5)
    await read_refused(second, "s", 0)
    await read_refused(second, "s", 990)
    assert await second.read("s", offset=1000, length=2000) == DATA[1000:3000]


async def test_a_new_chunk_is_named_and_the_last_one_noted_in_one_write() -> None:
    memory = MemoryChunkStorage()
    chunks = ObservedChunks(memory)
    storage = next_owner(chunks)
    await write(storage, "s", b"0123456789")
    chunks.calls.clear()
    await storage.write("s", offset=10, data=[b"ab"], rollover_bytes=10)
    assert [call.kind for call in chunks.calls] == ["write", "write"]
    name = next(each for each in memory.contents if each.startswith("s$"))
    memory.contents[name][0] ^= 1
    await read_refused(next_owner(memory), "s", 0)


async def test_an_append_is_one_write_however_short() -> None:
    chunks = ObservedChunks(MemoryChunkStorage())
    storage = next_owner(chunks)
    await write(storage, "s", b"first")
    chunks.calls.clear()
    for _ in range(20):
        await write(storage, "s", b"another")
    assert len(chunks.calls) == 20


async def test_checksums_are_noted_in_time_and_not_when_nothing_was_written(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = ObservedChunks(MemoryChunkStorage())
    storage = next_owner(chunks)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.run)
        await write(storage, "s", DATA)
        await write(storage, "t", DATA)
        chunks.calls.clear()
        await trio.sleep(CHECKSUMS_SECONDS_MAX + 1)
        assert [call.kind for call in chunks.calls] == ["write"]
        await trio.sleep(10 * CHECKSUMS_SECONDS_MAX)
        assert len(chunks.calls) == 1
        nursery.cancel_scope.cancel()
    [record] = [chunk.checksums for chunk in await next_owner(chunks).chunks_of("t")]
    assert record.length == len(DATA)


async def test_checksums_that_cannot_be_noted_are_noted_later(
    autojump_clock: trio.testing.MockClock,
) -> None:
    chunks = ObservedChunks(MemoryChunkStorage())
    storage = next_owner(chunks)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(storage.run)
        await write(storage, "s", DATA[:100])
        chunks.refused.add("write")
        await trio.sleep(CHECKSUMS_SECONDS_MAX + 1)
        chunks.refused.clear()
        await write(storage, "s", DATA[100:])
        await trio.sleep(CHECKSUMS_SECONDS_MAX + 1)
        nursery.cancel_scope.cancel()
    [chunk] = await next_owner(chunks).chunks_of("s")
    assert chunk.checksums.length == len(DATA)


async def test_after_a_clean_end_nothing_has_to_be_found_out() -> None:
    memory = MemoryChunkStorage()
    first = next_owner(memory)
    await write(first, "s", DATA)
    await first.settle()
    [name] = [each for each in memory.contents if each.startswith("s$")]
    memory.contents[name] += b"what nobody wrote"
    chunks = ObservedChunks(memory)
    second = next_owner(chunks)
    assert await second.stored_length("s") == len(DATA), "what lies behind it does not count"
    assert not [call for call in chunks.calls if call.kind == "info"]
    await write(second, "s", b"more")
    assert await second.read("s", offset=len(DATA), length=10) == b"more"
    calls = len(chunks.calls)
    await next_owner(chunks).settle()
    assert len(chunks.calls) == calls, "one that was never used has nothing to note"


async def test_a_merged_chunk_keeps_its_checksums() -> None:
    chunks = MemoryChunkStorage()
    epoch = 1
    storage = ChunkedSegmentStorage(chunks, epoch=lambda: epoch, move_bytes_min=8)
    await write(storage, "source", DATA[:100], DATA[100:])
    await write(storage, "target", b"before")
    await storage.concat("target", offset=6, source="source", length=len(DATA), rollover_bytes=0)
    await storage.delete("source", merged_into="target")
    flip(chunks, "source", 100_000)
    later = ChunkedSegmentStorage(chunks, epoch=lambda: 2)
    for each in (storage, later):
        await read_refused(each, "target", 100_006)
        assert await each.read("target", offset=6, length=50) == DATA[:50]
        assert await each.read("target", offset=0, length=50) == b"before"


@pytest.mark.parametrize("left", [0, 10, BLOCK_BYTES])
async def test_a_chunk_that_is_short_or_missing_is_damaged(left: int) -> None:
    chunks = MemoryChunkStorage()
    storage = next_owner(chunks)
    await write(storage, "s", DATA)
    [name] = [each for each in chunks.contents if each.startswith("s$")]
    if left:
        del chunks.contents[name][left:]
    else:
        del chunks.contents[name]
    message = await read_refused(storage, "s", len(DATA) - 10)
    assert name in message
    assert ("shorter" if left else "missing") in message


async def test_bytes_that_were_damaged_on_their_way_are_read_again() -> None:
    class Noisy(MemoryChunkStorage):
        async def read(
            self, name: str, *, offset: int, length: int, check: Check | None = None
        ) -> Buffer:  # type: ignore[override]
            data = await super().read(name, offset=offset, length=length)
            self.is_noisy = not self.is_noisy
            if self.is_noisy:
                data = bytes([data[0] ^ 1]) + data[1:]
            if check is not None:
                check(data)
            return data

        is_noisy = False

    storage = next_owner(Noisy())
    await write(storage, "s", DATA)
    assert await storage.read("s", offset=50, length=100) == DATA[50:150]


@pytest.mark.parametrize("length", [100, 300_000, 2_000_000])
async def test_files_are_checked_however_they_are_read(tmp_path: Path, length: int) -> None:
    data = random.Random(3).randbytes(length)
    chunks = FilesystemChunkStorage(tmp_path)
    storage = next_owner(chunks)
    await write(storage, "s", data[:40], data[40:])
    path = tmp_path / path_of((await storage.chunks_of("s"))[0].name)
    for offset in (0, length // 2, length - 1):
        assert await storage.read("s", offset=0, length=length) == data
        content = bytearray(path.read_bytes())
        content[offset] ^= 0x80
        path.write_bytes(content)
        block = offset // BLOCK_BYTES * BLOCK_BYTES
        if block:
            assert await storage.read("s", offset=0, length=length) == data[:block]
        with pytest.raises(ChunkDamagedError):
            await storage.read("s", offset=block, length=length - block)
        path.write_bytes(data)
    chunks.close()


async def test_metadata_whose_checksums_have_a_gap_are_damaged() -> None:
    chunks = MemoryChunkStorage()
    storage = next_owner(chunks)
    await write(storage, "s", DATA[:100])
    storage.journal._unrecorded["s"] = 50
    await storage.journal.record_checksums()
    with pytest.raises(StorageError, match="from 0 to 50 are missing"):
        await next_owner(chunks).stored_length("s")


async def test_bytes_that_are_written_again_have_to_be_the_same() -> None:
    chunks = MemoryChunkStorage()
    crashed = next_owner(chunks)
    await write(crashed, "s", DATA[:1000])
    storage = next_owner(chunks)
    await storage.write("s", offset=900, data=[DATA[900:950], DATA[950:1100]], rollover_bytes=0)
    assert await storage.read("s", offset=1000, length=200) == DATA[1000:1100]
    with pytest.raises(ChunkDamagedError, match="other bytes in tier 2, from 1000 on"):
        await storage.write("s", offset=1000, data=[b"another"], rollover_bytes=0)
