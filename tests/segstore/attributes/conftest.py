"""A container whose tiers survive it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import pytest

from _fast.btree import PageCache
from _fast.cache import StreamingCache
from segstore.attributes.attribute_index import attribute_segment_name
from segstore.attributes.segment_attributes import AttributeCache, SegmentAttributes
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import DataLogError
from segstore.testing.chunk_owners import next_owner
from segstore.testing.faulty_chunks import Fault, FaultyChunkStorage
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory


class Tiers:
    """Both tiers, and the container that was opened on them last.

    ``next_fault`` decides about every call of tier 2; ``calls`` has their names. Reads of it take
    ``read_seconds``.
    """

    def __init__(self) -> None:
        self.logs = MemoryDataLogFactory()
        self.chunks = MemoryChunkStorage()
        self.next_fault: Callable[[str], Fault] = lambda _: Fault.NONE
        self.read_seconds = 0.0
        self.calls: list[str] = []
        self.container: Container
        self.cache: AttributeCache
        self.faulty: FaultyChunkStorage
        self.crashed = False

    def _fault(self, call: str) -> Fault:
        self.calls.append(call)
        return self.next_fault(call)

    def _delay(self, call: str) -> float:
        return self.read_seconds if call == "read" else 0.0

    @asynccontextmanager
    async def open(
        self,
        *,
        drain_seconds: float = 5.0,
        segment_count_max: int = 4096,
        container_count_max: int = 65536,
        page_bytes_max: int = 1 << 20,
    ) -> AsyncIterator[Container]:
        self.crashed = False
        self.cache = AttributeCache(
            segment_count_max=segment_count_max, container_count_max=container_count_max
        )
        self.faulty = FaultyChunkStorage(
            self.chunks, next_fault=self._fault, next_delay=self._delay
        )
        try:
            async with open_container(
                0,
                self.logs,
                next_owner(self.faulty),
                CacheManager(StreamingCache(16 * 1024 * 1024)),
                drain_seconds=drain_seconds,
                attribute_pages=PageCache(page_bytes_max),
                attribute_cache=self.cache,
            ) as self.container:
                yield self.container
        except* DataLogError:
            if not self.crashed:
                raise
        await self.faulty.settle(Random(1))

    def crash(self) -> None:
        """The process dies: what is not acknowledged is lost, and nothing is written any more."""
        self.crashed = True
        self.faulty.abandon()
        self.logs.drop_unacknowledged()

    def memory(self, name: str) -> SegmentAttributes:
        """What is in memory of a segment's attributes."""
        return self.container._metadata.by_name[name].attribute_memory

    def forget_clean(self, name: str) -> None:
        """Evict everything that may go."""
        memory = self.memory(name)
        memory.evict(len(memory.cached))
        self.cache.count = 0
        self.cache._segments.clear()

    async def index_bytes(self, name: str) -> int:
        """How much tier 2 has of a segment's attributes."""
        segment = self.container._metadata.by_name[name]
        chunks = await self.chunks.list_chunks(attribute_segment_name(segment.storage_name))
        return sum(chunk.length for chunk in chunks)


@pytest.fixture
def tiers() -> Tiers:
    return Tiers()
