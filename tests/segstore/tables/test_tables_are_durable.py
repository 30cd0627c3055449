"""Tables on the durable container: what was acknowledged is there after a restart."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from _fast.cache.streaming_cache import StreamingCache
from pravega_wire.commands import NO_VERSION, TableEntry, TableKey
from segstore.cache.manager import CacheManager
from segstore.container import open_container
from segstore.model.attributes import (
    NULL_ATTRIBUTE_VALUE,
    AttributeUpdate,
    AttributeUpdateType,
)
from segstore.tables.settings import TableSettings
from segstore.tables.table_segments import TableSegments
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from support.chunk_owners import next_owner

SETTINGS = TableSettings(
    kept_value_bytes_max=16, compaction_bytes_min=2000, compaction_step_bytes=500
)


class Tiers:
    """The tiers that survive a restart."""

    def __init__(self) -> None:
        self._log_factory = MemoryDataLogFactory()
        self._storage = next_owner(MemoryChunkStorage())

    @asynccontextmanager
    async def open(self) -> AsyncIterator[TableSegments]:
        cache_manager = CacheManager(StreamingCache(8 * 1024 * 1024))
        async with (
            open_container(0, self._log_factory, self._storage, cache_manager) as container,
            trio.open_nursery() as nursery,
        ):
            tables = TableSegments(container, SETTINGS)
            nursery.start_soon(tables.run)
            yield tables
            nursery.cancel_scope.cancel()


def entry(key: bytes, value: bytes, version: int = NO_VERSION) -> TableEntry:
    return TableEntry(TableKey(key, version), value)


@pytest.mark.parametrize("key_length", [0, 4])
async def test_entries_and_versions_survive_restarts_and_compactions(key_length: int) -> None:
    tiers = Tiers()
    model: dict[bytes, tuple[bytes, int]] = {}
    async with tiers.open() as tables:
        await tables.create("scope/table/0", key_length=key_length)
    for generation in range(4):
        async with tiers.open() as tables:
            page = await tables.iterate_entries("scope/table/0", count_max=1000)
            assert {item.key.key: (item.value, item.key.version) for item in page.entries} == model
            for number in range(60):
                key = b"%04d" % (number % 20)
                value = b"generation %d, number %d" % (generation, number)
                known = model.get(key)
                update = entry(key, value, NO_VERSION if known is None else known[1])
                [version] = await tables.update("scope/table/0", [update])
                model[key] = (value, version)
            removed = b"%04d" % generation
            await tables.remove("scope/table/0", [TableKey(removed, model.pop(removed)[1])])
    async with tiers.open() as tables:
        info = await tables.info("scope/table/0")
        assert info.entry_count == len(model) == 19
        assert info.start_offset > 0, "it has been compacted"
        page = await tables.iterate_entries("scope/table/0", count_max=1000)
        assert {item.key.key: (item.value, item.key.version) for item in page.entries} == model


async def test_the_container_tells_at_once_what_is_in_memory_and_nothing_that_is_gone() -> None:
    name, present, absent = "scope/table/0", bytes(15) + b"p", bytes(15) + b"a"
    tiers = Tiers()
    async with tiers.open() as tables:
        container = tables._container
        assert container.attribute_now(name, present) is None
        assert container.bytes_now(name, offset=0, length_max=9) == b""
        await container.create_segment(name)
        put = AttributeUpdate(present, AttributeUpdateType.REPLACE, 7)
        await container.append(name, b"hello", attribute_updates=[put])
        assert container.attribute_now(name, present) == 7
        assert container.attribute_now(name, absent) == NULL_ATTRIBUTE_VALUE
        await container.truncate_segment(name, offset=2)
        assert container.bytes_now(name, offset=0, length_max=9) == b""
        assert container.bytes_now(name, offset=2, length_max=9) == b"llo"
        assert container.bytes_now(name, offset=2, length_max=1) == b"l"
        assert container.bytes_now(name, offset=5, length_max=9) == b""
    async with tiers.open() as tables:
        container = tables._container
        await container.activate(name)
        # Nobody has asked yet: whether there is such an attribute only tier 2 knows.
        assert container.attribute_now(name, absent) in {None, NULL_ATTRIBUTE_VALUE}
        values = await container.get_attributes(name, [present, absent])
        assert values == {present: 7}
        assert container.attribute_now(name, present) == 7
        assert container.attribute_now(name, absent) == NULL_ATTRIBUTE_VALUE
