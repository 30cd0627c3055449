"""A kind of tier 2 is one entry of the vendors: nothing else in the store names it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from segstore.errors import StorageConfigurationError
from segstore.ownership.data_directory import DataDirectory
from segstore.process.assembly import open_containers
from segstore.process.config import SegmentStoreConfig
from segstore.process.tier_two import name_start
from segstore.process.tier_two_vendors import (
    VENDORS,
    VendorSettings,
    is_location,
    vendor_of,
)
from segstore.repair.scrub_store import StoreScrub, open_to_look, spending
from segstore.tiers.api import ChunkStorage
from segstore.tiers.memory import MemoryChunkStorage
from segstore.tiers.vendor import StorageOfOwner, TierTwo, Vendor, do_nothing

LOCATION = "shelf://one/two"


class Shelf:
    """A vendor that keeps chunks in memory, by location, between the starts of a store."""

    def __init__(self) -> None:
        self.places: dict[str, MemoryChunkStorage] = {}

    def vendor(self) -> Vendor:
        return Vendor(
            "a shelf", "shelf://PLACE", ("shelf",), str.lower, open=self.open, look=self.look
        )

    @asynccontextmanager
    async def open(self, location: str, _: None) -> AsyncIterator[TierTwo]:
        chunks = self.places.setdefault(location, MemoryChunkStorage())

        async def begin(journals: Collection[int]) -> Mapping[int, StorageOfOwner]:
            return dict.fromkeys(journals, lambda epoch: chunks)

        yield TierTwo(
            where=location,
            chunks_under=lambda number: chunks,
            open=begin,
            make=do_nothing,
        )

    @contextmanager
    def look(self, location: str, _: None) -> Iterator[ChunkStorage]:
        yield self.places[location]


@pytest.fixture
def shelf(monkeypatch: pytest.MonkeyPatch) -> Shelf:
    shelf = Shelf()
    monkeypatch.setitem(VENDORS, "shelf", shelf.vendor())
    return shelf


def config(path: Path, **changes: Any) -> SegmentStoreConfig:
    return SegmentStoreConfig(data_dir=path, container_count=1, **changes)


async def test_a_store_keeps_and_finds_its_history_at_a_vendor_of_one_entry(
    tmp_path: Path, shelf: Shelf
) -> None:
    for start in range(2):
        async with (
            open_containers(config(tmp_path, tier2="shelf://ONE/two")) as open_container,
            open_container(0) as container,
        ):
            if start == 0:
                await container.create_segment("s")
                await container.append("s", b"hello")
            else:
                read = await container.read("s", offset=0, length_max=10)
                assert bytes(read.data) == b"hello"
    assert list(shelf.places) == [LOCATION]
    names = [each.name for each in await shelf.places[LOCATION].list_chunks("")]
    assert any(name.startswith("s.S-") for name in names)


async def test_a_scrub_looks_at_a_vendor_of_one_entry(tmp_path: Path, shelf: Shelf) -> None:
    async with (
        open_containers(config(tmp_path, tier2=LOCATION)) as opening,
        opening(0) as container,
    ):
        await container.create_segment("s")
        await container.append("s", b"hello")
    directory = DataDirectory.read(tmp_path)
    async with open_to_look(directory, VendorSettings()) as chunks:
        scrub = StoreScrub(chunks, container_count=1)
        assert await scrub.prepare() >= len(b"hello")
        report = await scrub.run(spending(None, lambda count: None))
    assert report.damages == []


async def test_a_store_at_a_vendor_is_not_started_elsewhere(tmp_path: Path, shelf: Shelf) -> None:
    async with open_containers(config(tmp_path, tier2=LOCATION)) as opening, opening(0):
        pass
    for other in (None, "shelf://other"):
        with pytest.raises(StorageConfigurationError, match=LOCATION):
            async with open_containers(config(tmp_path, tier2=other)):
                pass


def test_owners_that_share_a_tier_2_never_trust_each_others_unfinished_writes() -> None:
    numbers = Random(1)
    for shared in (None, "webhdfs://namenode:9870/path"):
        names = [name_start(shared, None, numbers.randbytes) for _ in range(3)]
        assert None not in names
        assert len(set(names)) == 3, "each start has a name of its own"
    assert name_start("s3://bucket/prefix", None) is None, "S3 stores whole objects or nothing"
    assert name_start(None, lambda: "boot") == "boot", "the directory of one machine"


async def test_a_package_that_a_vendor_misses_is_named(
    tmp_path: Path, shelf: Shelf, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def open_with_package(location: str, _: None) -> AsyncIterator[TierTwo]:
        raise ModuleNotFoundError("No module named 'shelves'", name="shelves")
        yield

    monkeypatch.setattr(shelf, "open", open_with_package)
    monkeypatch.setitem(VENDORS, "shelf", shelf.vendor())
    with pytest.raises(StorageConfigurationError, match="needs the Python package shelves"):
        async with open_containers(config(tmp_path, tier2=LOCATION)):
            pass


def test_a_location_without_a_vendor_is_refused_with_the_known_schemes() -> None:
    assert is_location("s3://bucket/prefix")
    assert not is_location("/mnt/history")
    assert not is_location("tape://1")
    with pytest.raises(StorageConfigurationError, match="is not s3://BUCKET/PREFIX"):
        vendor_of("tape://1")


@pytest.mark.parametrize("text", ["s3://", "s3://a bucket", "s3://bucket/a//b"])
def test_a_location_that_is_wrong_is_refused_by_its_vendor(text: str) -> None:
    with pytest.raises(StorageConfigurationError, match="--tier2"):
        vendor_of(text).parse(text)
