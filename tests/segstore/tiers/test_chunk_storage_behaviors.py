"""The behavior that every chunk storage has, whatever keeps its chunks."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
import trio

from segstore.chunks.records import new_chunk_name
from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError
from segstore.tiers.api import ChunkInfo, ChunkStorage
from segstore.tiers.files.filesystem import FilesystemChunkStorage
from segstore.tiers.hdfs import HdfsLocation
from segstore.tiers.hdfs.opening import connect
from segstore.tiers.hdfs.settings import HdfsSettings
from segstore.tiers.hdfs.storage import HdfsChunkStorage
from segstore.tiers.measured import MeasuredChunkStorage
from segstore.tiers.memory import MemoryChunkStorage
from segstore.tiers.noop import NoOpChunkStorage, holds_user_data
from segstore.tiers.s3.objects import ObjectStore
from segstore.tiers.s3.opening import boto3_client
from segstore.tiers.s3.settings import S3Settings
from segstore.tiers.s3.storage import S3Tier
from support.client_names import (
    EXTREME_NAMES,
    EXTREME_USER_NAMES,
    segments_of_group,
    segments_of_stream,
    segments_of_table,
)
from support.faults.fake_hdfs import fake_hdfs
from support.faults.faulty_chunks import FaultyChunkStorage

FILE_NAME_MAX = 255
STORAGES = [
    "memory",
    "filesystem",
    "faulty",
    "measured",
    "versitygw",
    "hdfs",
    pytest.param("moto", marks=pytest.mark.proof),
]


def s3_storage(endpoint: str, bucket: str, stack: ExitStack) -> ChunkStorage:
    client = boto3_client(S3Settings(endpoint_url=endpoint))
    stack.callback(client.close)
    objects = ObjectStore(client, bucket=bucket, prefix="a/prefix/", random=random.random)
    return S3Tier(objects).owned_by(lambda: 1)


def hdfs_storage(stack: ExitStack) -> ChunkStorage:
    namenode = stack.enter_context(fake_hdfs()).namenodes[0]
    location = HdfsLocation.parse(f"webhdfs://{namenode}/a/root")
    hdfs = connect(location, HdfsSettings(user="somebody"))
    return stack.enter_context(closing(HdfsChunkStorage(hdfs, random_bytes=os.urandom)))


@pytest.fixture
def make_storage(
    request: pytest.FixtureRequest, tmp_path: Path, new_bucket: Callable[[str], str]
) -> Iterator[Callable[[str], ChunkStorage]]:
    with ExitStack() as stack:

        def make(vendor: str) -> ChunkStorage:
            if vendor == "memory":
                return MemoryChunkStorage()
            if vendor == "filesystem":
                return FilesystemChunkStorage(tmp_path)
            if vendor == "faulty":  # with no fault it is a storage like others
                return FaultyChunkStorage(MemoryChunkStorage())
            if vendor == "measured":
                return MeasuredChunkStorage(MemoryChunkStorage())
            if vendor.startswith("noop"):
                drops = holds_user_data if vendor == "noop" else lambda _: False
                return NoOpChunkStorage(MemoryChunkStorage(), drops=drops)
            if vendor == "hdfs":
                return hdfs_storage(stack)
            endpoint = request.getfixturevalue(vendor)
            return s3_storage(endpoint, new_bucket(endpoint), stack)

        yield make


@pytest.fixture(params=STORAGES)
def storage(
    request: pytest.FixtureRequest, make_storage: Callable[[str], ChunkStorage]
) -> ChunkStorage:
    return make_storage(request.param)


@pytest.fixture(params=[*STORAGES, "noop", "noop, kept"])
def forgetful(
    request: pytest.FixtureRequest, make_storage: Callable[[str], ChunkStorage]
) -> ChunkStorage:
    """Storages that may drop the bytes: what is true of names and lengths holds for all."""
    return make_storage(request.param)


NAME = "scope/stream/0.#epoch.0$00000000000000000000"


async def test_a_write_at_zero_creates_the_chunk(storage: ChunkStorage) -> None:
    await storage.write(NAME, offset=0, data=[b"hello"])
    assert await storage.info(NAME) == ChunkInfo(NAME, 5)
    assert await storage.read(NAME, offset=0, length=5) == b"hello"


async def test_segments_of_every_name_that_the_controller_accepts_have_chunks(
    request: pytest.FixtureRequest, storage: ChunkStorage
) -> None:
    segments = [
        *segments_of_stream(EXTREME_NAMES[-1], EXTREME_NAMES[-1]),
        *segments_of_group(EXTREME_NAMES[-2], EXTREME_USER_NAMES[-1]),
        *segments_of_table(EXTREME_NAMES[-3], EXTREME_USER_NAMES[-2]),
        *(f"{name}/{name}/0.#epoch.0" for name in EXTREME_NAMES),
    ]
    if "versitygw" in request.node.name:
        # A gateway that keeps objects in files has no longer components, as docs/formats tells.
        segments = [one for one in segments if max(map(len, one.split("/"))) <= FILE_NAME_MAX - 2]
    wanted = set()
    for segment in segments:
        name = new_chunk_name(f"{segment}$attributes.index", start=0, epoch=1, number=1)
        await storage.write(name, offset=0, data=[segment.encode()])
        wanted.add(ChunkInfo(name, len(segment)))
    assert set(await storage.list_chunks("")) == wanted
    for info in wanted:
        data = await storage.read(info.name, offset=0, length=info.length)
        assert info.name.startswith(f"{data.decode()}$")
        await storage.delete(info.name)
    assert await storage.list_chunks("") == []


async def test_an_empty_write_creates_an_empty_chunk(forgetful: ChunkStorage) -> None:
    await forgetful.write(NAME, offset=0, data=[])
    assert await forgetful.info(NAME) == ChunkInfo(NAME, 0)
    assert await forgetful.read(NAME, offset=0, length=0) == b""
    await forgetful.write(NAME, offset=0, data=[b"now"])
    assert await forgetful.info(NAME) == ChunkInfo(NAME, 3)


async def test_writes_append_and_overwrite(storage: ChunkStorage) -> None:
    await storage.write(NAME, offset=0, data=[b"0123", bytearray(b"45"), memoryview(b"67")])
    await storage.write(NAME, offset=8, data=[b"89"])
    await storage.write(NAME, offset=6, data=[b"6789ab"])
    assert await storage.read(NAME, offset=0, length=12) == b"0123456789ab"
    assert await storage.read(NAME, offset=3, length=4) == b"3456"


async def test_a_write_of_very_many_buffers_is_whole(storage: ChunkStorage) -> None:
    data = [bytes([index % 256]) * (index % 7) for index in range(5000)]
    await storage.write(NAME, offset=0, data=data)
    joined = b"".join(data)
    assert await storage.read(NAME, offset=0, length=len(joined)) == joined


async def test_a_write_beyond_the_end_is_refused(forgetful: ChunkStorage) -> None:
    with pytest.raises(ChunkNotFoundError):
        await forgetful.write(NAME, offset=1, data=[b"x"])
    await forgetful.write(NAME, offset=0, data=[b"abc"])
    with pytest.raises(InvalidChunkOffsetError):
        await forgetful.write(NAME, offset=4, data=[b"x"])
    assert await forgetful.info(NAME) == ChunkInfo(NAME, 3)


async def test_a_read_is_of_exactly_what_was_asked(storage: ChunkStorage) -> None:
    await storage.write(NAME, offset=0, data=[b"abc"])
    for offset, length in [(0, 4), (3, 1), (-1, 1), (0, -1)]:
        with pytest.raises(InvalidChunkOffsetError):
            await storage.read(NAME, offset=offset, length=length)
    with pytest.raises(ChunkNotFoundError):
        await storage.read("other", offset=0, length=1)


async def test_lengths_follow_appends_and_overwrites(forgetful: ChunkStorage) -> None:
    await forgetful.write(NAME, offset=0, data=[b"0123", bytearray(b"45"), memoryview(b"67")])
    await forgetful.write(NAME, offset=8, data=[b"89"])
    await forgetful.write(NAME, offset=6, data=[b"6789ab"])
    await forgetful.write(NAME, offset=0, data=[b"0"])
    assert await forgetful.info(NAME) == ChunkInfo(NAME, 12)
    assert await forgetful.list_chunks("scope/") == [ChunkInfo(NAME, 12)]


async def test_a_read_outside_of_a_chunk_is_refused(forgetful: ChunkStorage) -> None:
    await forgetful.write(NAME, offset=0, data=[b"abc"])
    for offset, length in [(0, 4), (3, 1), (-1, 1), (0, -1)]:
        with pytest.raises(InvalidChunkOffsetError):
            await forgetful.read(NAME, offset=offset, length=length)
    with pytest.raises(ChunkNotFoundError):
        await forgetful.read("other", offset=0, length=1)


async def test_a_deleted_chunk_has_no_info(forgetful: ChunkStorage) -> None:
    await forgetful.write(NAME, offset=0, data=[b"abc"])
    await forgetful.delete(NAME)
    await forgetful.delete(NAME)
    with pytest.raises(ChunkNotFoundError):
        await forgetful.info(NAME)
    assert await forgetful.list_chunks("") == []


async def test_a_missing_chunk_has_no_info_and_can_be_deleted(storage: ChunkStorage) -> None:
    with pytest.raises(ChunkNotFoundError):
        await storage.info(NAME)
    await storage.delete(NAME)
    await storage.write(NAME, offset=0, data=[b"abc"])
    await storage.delete(NAME)
    await storage.delete(NAME)
    with pytest.raises(ChunkNotFoundError):
        await storage.read(NAME, offset=0, length=1)


async def test_a_chunk_can_be_created_again_after_it_was_deleted(storage: ChunkStorage) -> None:
    await storage.write(NAME, offset=0, data=[b"old bytes"])
    assert await storage.read(NAME, offset=0, length=3) == b"old"
    await storage.delete(NAME)
    await storage.write(NAME, offset=0, data=[b"new"])
    assert await storage.read(NAME, offset=0, length=3) == b"new"
    assert await storage.info(NAME) == ChunkInfo(NAME, 3)


async def test_listing_is_by_prefix_and_sorted(forgetful: ChunkStorage) -> None:
    names = ["a/b$1", "a/b$0", "a/bc$0", "a/b", "a", "b$0", "a/b$0/x", "a//b$0", "/a", ""]
    for name in names:
        await forgetful.write(name, offset=0, data=[name.encode()])
    for prefix in [
        "",
        "a",
        "a/",
        "a/b",
        "a/b$",
        "a/b$0",
        "a/b$0/",
        "b",
        "c",
        "a//",
        "/",
        "a/bc$00",
    ]:
        expected = sorted(name for name in names if name.startswith(prefix))
        found = await forgetful.list_chunks(prefix)
        assert [chunk.name for chunk in found] == expected
        assert [chunk.length for chunk in found] == [len(name) for name in expected]


async def test_many_chunks_are_written_and_read_at_the_same_time(storage: ChunkStorage) -> None:
    async def work(number: int) -> None:
        name = f"scope/stream/{number}"
        for round_number in range(5):
            await storage.write(name, offset=round_number * 10, data=[b"0123456789"])
        for round_number in range(5):
            assert await storage.read(name, offset=round_number * 10, length=10) == b"0123456789"
        if number % 2:
            await storage.delete(name)

    async with trio.open_nursery() as nursery:
        for number in range(40):
            nursery.start_soon(work, number)
    left = await storage.list_chunks("scope/stream/")
    assert len(left) == 20


async def test_lengths_are_told_in_the_order_of_the_names(forgetful: ChunkStorage) -> None:
    names = [f"scope/stream/{number}.#epoch.0$00000000000000000000" for number in range(70)]
    for number in (1, 3, 69):
        await forgetful.write(names[number], offset=0, data=[bytes(number)])
    await forgetful.write(names[3], offset=3, data=[b"more"])
    assert await forgetful.lengths([names[3], names[2], names[1]]) == [7, None, 1]
    assert await forgetful.lengths([]) == []
    lengths = await forgetful.lengths(names)
    assert lengths == [{1: 1, 3: 7, 69: 69}.get(number) for number in range(70)]
