"""Writes and reads past the page cache, and what of them is left to the page cache."""

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio
import trio.testing

from _fast.wire.lent_memory import LentMemory
from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError
from segstore.tiers.chunk_paths import path_of
from segstore.tiers.direct_io import (
    BLOCK_BYTES,
    READ_MEMORY_SECONDS,
    READ_PIECE_BYTES,
    STAGING_BYTES,
    DirectFile,
    StagingBuffers,
    block_bytes_of,
)
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.files.open_files import DIRECT_BYTES_MIN
from segstore.tiers.journal.disk import DIRECT_READ_BYTES_MIN, LocalDisk


@pytest.fixture
def direct(tmp_path: Path) -> DirectFile:
    path = tmp_path / "file"
    path.touch()
    opened = DirectFile.open(path, StagingBuffers())
    if opened is None:
        pytest.skip(f"{tmp_path} lies on no disk with blocks of {BLOCK_BYTES} bytes")
    return opened


def test_whole_blocks_are_written_and_the_rest_is_left(direct: DirectFile, tmp_path: Path) -> None:
    data = Random(1).randbytes(3 * BLOCK_BYTES + 100)
    assert direct.write([data[:700], data[700:]], BLOCK_BYTES) == 3 * BLOCK_BYTES
    assert (tmp_path / "file").read_bytes() == bytes(BLOCK_BYTES) + data[: 3 * BLOCK_BYTES]
    direct.close()


def test_a_write_within_a_block_is_refused(direct: DirectFile, tmp_path: Path) -> None:
    assert direct.write([bytes(BLOCK_BYTES)], 1) == 0
    assert direct.write([b"short"], 0) == 0
    assert (tmp_path / "file").stat().st_size == 0
    direct.close()


def test_a_write_longer_than_the_staging_memory_is_whole(
    direct: DirectFile, tmp_path: Path
) -> None:
    data = Random(2).randbytes(2 * STAGING_BYTES + 5 * BLOCK_BYTES)
    assert direct.write([data[:1000], data[1000:]], 0, durably=True) == len(data)
    assert (tmp_path / "file").read_bytes() == data
    direct.close()


@pytest.mark.parametrize("offset", [0, 1, BLOCK_BYTES, BLOCK_BYTES + 1, STAGING_BYTES - 1])
def test_a_read_may_begin_and_end_anywhere(direct: DirectFile, tmp_path: Path, offset: int) -> None:
    data = Random(3).randbytes(2 * STAGING_BYTES + 77)
    (tmp_path / "file").write_bytes(data)
    for length in (1, BLOCK_BYTES, STAGING_BYTES + 3, len(data)):
        buffer = memoryview(bytearray(length))
        count = direct.read_into(buffer, offset)
        assert count == min(length, len(data) - offset)
        assert buffer[:count] == data[offset : offset + count]
    direct.close()


@pytest.mark.parametrize("offset", [0, 1, BLOCK_BYTES, READ_PIECE_BYTES - 1, 3 * READ_PIECE_BYTES])
def test_what_is_read_into_given_memory_is_exact(
    direct: DirectFile, tmp_path: Path, offset: int
) -> None:
    data = Random(4).randbytes(4 * READ_PIECE_BYTES + 77)
    (tmp_path / "file").write_bytes(data)
    memory = LentMemory(block_bytes=len(data) + 4096, free_max=1)
    for length in (1, BLOCK_BYTES, READ_PIECE_BYTES + 3, len(data) - offset, len(data)):
        found = direct.read(memory.lend(), offset, length)
        assert found is not None
        assert found == data[offset : offset + length]
    found = direct.read(memory.lend(), len(data) + 10, 100)
    assert found is not None
    assert len(found) == 0
    direct.close()


def test_a_file_system_in_memory_offers_nothing() -> None:
    shared_memory = Path("/dev/shm")
    if not shared_memory.is_dir():
        pytest.skip("no file system in memory")
    assert block_bytes_of(shared_memory) is None
    assert DirectFile.open(shared_memory, StagingBuffers()) is None


@pytest.mark.parametrize("allowed", [True, False])
def test_a_journal_file_reads_back_what_both_ways_wrote(tmp_path: Path, allowed: bool) -> None:
    random = Random(4)
    model = bytearray()
    file = LocalDisk(tmp_path, direct=allowed).create_file("file")
    for _ in range(200):
        offset = random.choice([0, len(model) // BLOCK_BYTES * BLOCK_BYTES, len(model)])
        data = random.randbytes(random.choice([1, 511, 512, 4096, 70_000]))
        (file.write_durably if random.random() < 0.5 else file.write)([data[:9], data[9:]], offset)
        model[offset : offset + len(data)] = data
        place = random.randrange(len(model))
        buffer = memoryview(bytearray(random.choice([100, DIRECT_READ_BYTES_MIN])))
        count = file.read_into(buffer, place)
        assert buffer[:count] == model[place : place + len(buffer)]
    file.close()


async def test_a_chunk_that_grows_by_short_and_long_writes_has_all_of_them(tmp_path: Path) -> None:
    random = Random(5)
    storage = FilesystemChunkStorage(tmp_path)
    model = bytearray()
    for length in (100, DIRECT_BYTES_MIN, 3, STAGING_BYTES + 1, DIRECT_BYTES_MIN + 511, 0, 1):
        data = random.randbytes(length)
        await storage.write("chunk", offset=len(model), data=[data[:50], data[50:]])
        model += data
        assert (tmp_path / path_of("chunk")).read_bytes() == model
    again = random.randbytes(DIRECT_BYTES_MIN)  # a write that is repeated after a crash
    await storage.write("chunk", offset=70, data=[again])
    model[70 : 70 + len(again)] = again
    assert await storage.read("chunk", offset=0, length=len(model)) == model
    storage.close()


async def test_a_chunk_of_one_long_write_is_whole(tmp_path: Path) -> None:
    data = os.urandom(DIRECT_BYTES_MIN + 5)
    storage = FilesystemChunkStorage(tmp_path)
    await storage.write("scope/chunk", offset=0, data=[data])
    assert (tmp_path / path_of("scope/chunk")).read_bytes() == data
    storage.close()


async def test_a_long_read_is_exact_wherever_it_begins_and_ends(tmp_path: Path) -> None:
    storage = FilesystemChunkStorage(tmp_path)
    data = Random(8).randbytes(4 * DIRECT_BYTES_MIN + 99)
    await storage.write("c", offset=0, data=[data[: 3 * DIRECT_BYTES_MIN + 5]])
    await storage.write(
        "c", offset=3 * DIRECT_BYTES_MIN + 5, data=[data[3 * DIRECT_BYTES_MIN + 5 :]]
    )
    for offset in (0, 1, 511, 512, DIRECT_BYTES_MIN + 3):
        for length in (DIRECT_BYTES_MIN, 2 * DIRECT_BYTES_MIN + 7, len(data) - offset):
            found = await storage.read("c", offset=offset, length=length)
            assert found == data[offset : offset + length]
            with pytest.raises(InvalidChunkOffsetError):
                await storage.read("c", offset=offset + 1, length=len(data) - offset)
    with pytest.raises(ChunkNotFoundError):
        await storage.read("d", offset=0, length=DIRECT_BYTES_MIN)
    storage.close()


async def test_what_was_read_stays_as_it_is_while_more_is_read(tmp_path: Path) -> None:
    storage = FilesystemChunkStorage(tmp_path)
    data = Random(9).randbytes(20 * DIRECT_BYTES_MIN)
    await storage.write("c", offset=0, data=[data])
    found = {}

    async def read(number: int) -> None:
        offset = number * DIRECT_BYTES_MIN
        found[number] = await storage.read("c", offset=offset, length=DIRECT_BYTES_MIN)

    for _ in range(3):
        async with trio.open_nursery() as nursery:
            for number in range(20):
                nursery.start_soon(read, number)
        assert b"".join(found[number] for number in range(20)) == data
    storage.close()


async def test_memory_for_reads_is_given_back_when_nobody_has_read_for_a_while(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    autojump_clock.autojump_threshold = 0.05  # not while a thread reads
    storage = FilesystemChunkStorage(tmp_path)
    memory = storage._read_memory.memory
    data = Random(10).randbytes(DIRECT_BYTES_MIN)
    await storage.write("c", offset=0, data=[data])
    for _ in range(2):
        for _ in range(3):
            found = await storage.read("c", offset=0, length=DIRECT_BYTES_MIN)
            await trio.sleep(READ_MEMORY_SECONDS - 1)
            if not memory.lent_count:
                pytest.skip(f"{tmp_path} lies on no disk that is read from directly")
            other = await storage.read("c", offset=0, length=DIRECT_BYTES_MIN)
            del other
            await trio.sleep(READ_MEMORY_SECONDS - 1)
            assert memory.free_count == 1, "somebody reads still"
        await trio.sleep(READ_MEMORY_SECONDS + 2)
        assert (memory.free_count, memory.lent_count) == (0, 1)
        assert found == data
        del found
        assert memory.free_count == 1
        await trio.sleep(READ_MEMORY_SECONDS + 1)
        assert (memory.free_count, memory.lent_count) == (0, 0)
    storage.close()


async def test_memory_for_a_read_that_waited_for_long_is_given_back_too(
    tmp_path: Path, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    autojump_clock.autojump_threshold = 0.05  # not while a thread reads
    storage = FilesystemChunkStorage(tmp_path)
    memory = storage._read_memory.memory
    data = Random(11).randbytes(DIRECT_BYTES_MIN)
    await storage.write("c", offset=0, data=[data])
    run = storage._run

    async def run_late(*arguments: Any, **options: Any) -> Any:
        await trio.sleep(3 * READ_MEMORY_SECONDS)
        return await run(*arguments, **options)

    monkeypatch.setattr(storage, "_run", run_late)
    found = await storage.read("c", offset=0, length=DIRECT_BYTES_MIN)
    if not memory.lent_count:
        pytest.skip(f"{tmp_path} lies on no disk that is read from directly")
    assert found == data
    del found
    await trio.sleep(3 * READ_MEMORY_SECONDS)
    assert (memory.free_count, memory.lent_count) == (0, 0)
    storage.close()
