"""A store of format version 1, whose chunks no metadata name, is opened by this version."""

from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import trio

from segstore.api import SegmentContainer
from segstore.errors import DataDirectoryError
from segstore.model.attributes import AttributeUpdate, AttributeUpdateType
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.process.data_directory import DataDirectory
from segstore.process.tier_two import belongs_to
from segstore.testing.older_stores import make_older
from segstore.tiers.files.filesystem import FilesystemChunkStorage

COUNT = 3
NAMES = [f"scope/stream/{number}.#epoch.0" for number in range(12)]
KEY = b"k" * 16


def content_of(name: str) -> bytes:
    return name.encode() * 1000


async def with_containers(path: Path, use: object) -> None:
    config = SegmentStoreConfig(data_dir=path, container_count=COUNT)
    async with open_containers(config) as open_container, AsyncExitStack() as stack:
        containers = [
            await stack.enter_async_context(open_container(number)) for number in range(COUNT)
        ]
        for name in NAMES:
            [number] = [
                number for number in range(COUNT) if belongs_to(number, COUNT)(f"{name}.S-1")
            ]
            await use(containers[number], name)  # type: ignore[operator]


async def make_version_1(path: Path) -> int:
    """Give every chunk the name that it had in version 1, and forget the metadata."""
    make_older(path, format_version=1)
    storage = FilesystemChunkStorage(path / "storage")
    count = 0
    for chunk in await storage.list_chunks(""):
        if not chunk.name.startswith("_system/chunks-"):
            older, _, _ = chunk.name.rpartition(".E")
            data = await storage.read(chunk.name, offset=0, length=chunk.length)
            await storage.write(older, offset=0, data=[data])
            count += 1
        await storage.delete(chunk.name)
    storage.close()
    return count


async def test_what_version_1_has_stored_is_there(tmp_path: Path) -> None:
    async def write(container: SegmentContainer, name: str) -> None:
        await container.create_segment(name)
        update = AttributeUpdate(KEY, AttributeUpdateType.REPLACE, len(name))
        await container.append(name, content_of(name), attribute_updates=[update])

    async def check(container: SegmentContainer, name: str) -> None:
        expected = content_of(name)
        info = container.segment_info(name)
        times, rest = divmod(info.length, len(expected))
        assert rest == 0
        assert info.storage_length == info.length
        data = b""
        while len(data) < info.length:
            data += (await container.read(name, offset=len(data), length_max=info.length)).data
        assert data == expected * times
        assert await container.get_attributes(name, [KEY]) == {KEY: len(name)}
        await container.append(name, expected)

    await with_containers(tmp_path, write)
    assert await make_version_1(tmp_path) == 2 * len(NAMES)
    for _ in range(3):
        await with_containers(tmp_path, check)
        assert "format_version = 3" in (tmp_path / "segstore.toml").read_text()


async def test_an_older_segstore_refuses_what_this_one_has_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DataDirectory.open(tmp_path)
    monkeypatch.setattr("segstore.process.data_directory.FORMAT_VERSION", 2)
    monkeypatch.setattr("segstore.process.data_directory.OLDER_VERSIONS", frozenset())
    with pytest.raises(DataDirectoryError, match="has format version 3; this segstore reads"):
        DataDirectory.open(tmp_path)
    await trio.lowlevel.checkpoint()


def test_every_segment_belongs_to_one_container() -> None:
    suffixes = [".S-1", ".S-77", ".S-1$attributes.index"]
    for name in [*NAMES, "_system/_tables/x", "a/b/0.#epoch.0#transaction." + "0" * 32]:
        owners = [
            {number for number in range(COUNT) if belongs_to(number, COUNT)(name + suffix)}
            for suffix in suffixes
        ]
        assert len(owners[0]) == 1
        assert owners == [owners[0]] * len(suffixes)
    assert not any(belongs_to(number, COUNT)("a file of somebody") for number in range(COUNT))
