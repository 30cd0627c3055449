"""A container whose idle segments leave when a test says so, on tiers that survive it.

Owns: ``EvictingTiers``, and what tests of inactive segments do to such a container.

Invariants:
1. Nothing leaves unless ``evict`` is called, or the test gives another policy.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio

from _fast.btree import PageCache
from _fast.cache import StreamingCache
from segstore.attributes.segment_attributes import AttributeCache
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import DataLogError
from segstore.inactive.eviction import EvictionPolicy
from segstore.testing.chunk_owners import next_owner
from segstore.testing.faulty_chunks import Fault, FaultyChunkStorage
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory

BY_HAND = EvictionPolicy(active_count_max=0, look_seconds=1e9)


class EvictingTiers:
    """What survives a crash. ``next_fault`` of ``faulty`` decides about every call of tier 2."""

    def __init__(self) -> None:
        self.logs = MemoryDataLogFactory()
        self.chunks = MemoryChunkStorage()
        self.fault = Fault.NONE
        self.calls: list[str] = []
        self.crashed = False
        self.faulty: FaultyChunkStorage

    def _fault(self, call: str) -> Fault:
        self.calls.append(call)
        return self.fault if call == "read" else Fault.NONE

    @asynccontextmanager
    async def open(
        self,
        *,
        drain_seconds: float = 5.0,
        attribute_count_max: int = 4096,
        page_bytes_max: int = 1 << 20,
        policy: EvictionPolicy = BY_HAND,
    ) -> AsyncIterator[Container]:
        """A container; an attribute count of 1 makes it forget what it found in the index."""
        self.crashed = False
        self.faulty = FaultyChunkStorage(self.chunks, next_fault=self._fault)
        try:
            async with open_container(
                0,
                self.logs,
                next_owner(self.faulty),
                CacheManager(StreamingCache(16 * 1024 * 1024)),
                drain_seconds=drain_seconds,
                attribute_pages=PageCache(page_bytes_max),
                attribute_cache=AttributeCache(segment_count_max=attribute_count_max),
                eviction=policy,
            ) as container:
                yield container
        except* DataLogError:
            if not self.crashed:
                raise

    def crash(self) -> None:
        """The process dies: what is not acknowledged is lost, and nothing is written any more."""
        self.crashed = True
        self.faulty.abandon()
        self.logs.drop_unacknowledged()


async def evict(container: Container, *, flush: bool = True) -> None:
    """Let all segments leave that may; ``flush`` brings everything to tier 2 before."""
    if flush:
        await container._writer.flush()
    assert container._eviction is not None
    container._eviction.look(trio.current_time())
    await container._eviction.evict(container._eviction.look(trio.current_time()))


def active_names(container: Container) -> set[str]:
    """The segments that are in memory."""
    return set(container._metadata.by_name)


async def checkpoint(container: Container) -> None:
    """Let the log begin anew: what is needed of the past is in the checkpoint, or in tier 2."""
    await container._checkpoint()
    await container._writer.flush()
