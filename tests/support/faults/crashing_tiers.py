"""A container on tiers that survive its crashes, whose idle segments leave when a test says so.

Owns: ``CrashingTiers``, and what tests of inactive segments do to such a container.

Invariants:
1. Nothing leaves unless ``evict`` is called, or the test has another policy.
2. A container that was closed has left nothing in the cache, however it ended.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from random import Random

import trio

from _fast.btree.tree import PageCache
from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.container import Container, open_container
from segstore.errors import DataLogError
from segstore.inactive.eviction import EvictionPolicy
from segstore.model.segment_attributes import AttributeCache
from segstore.tiers.api import ChunkStorage
from segstore.tiers.memory import MemoryChunkStorage, MemoryDataLogFactory
from segstore.writer.flush_policy import DEFAULT_FLUSH_POLICY, FlushPolicy
from support.chunk_owners import next_owner
from support.faults.faulty_chunks import Fault, FaultyChunkStorage

BY_HAND = EvictionPolicy(active_count_max=0, look_seconds=1e9)


class CrashingTiers:
    """Both tiers, and the container that was opened on them last.

    ``next_fault`` decides about every call of tier 2; ``calls`` has their names. Reads of it take
    ``read_seconds``. ``policy`` says which segments leave, and ``boot_id`` names the start of the
    machine.
    """

    def __init__(self, policy: EvictionPolicy = BY_HAND) -> None:
        self.policy = policy
        self.logs = MemoryDataLogFactory()
        self.chunks: ChunkStorage = MemoryChunkStorage()
        self.boot_id: str | None = None
        self.next_fault: Callable[[str], Fault] = lambda _: Fault.NONE
        self.read_seconds = 0.0
        self.calls: list[str] = []
        self.crashed = False
        self.container: Container
        self.attribute_cache: AttributeCache
        self.faulty: FaultyChunkStorage

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
        cache_bytes: int = 64 * 1024 * 1024,
        segment_count_max: int = 4096,
        container_count_max: int = 65536,
        page_bytes_max: int = 1 << 20,
        policy: EvictionPolicy | None = None,
        flush_policy: FlushPolicy = DEFAULT_FLUSH_POLICY,
    ) -> AsyncIterator[Container]:
        """Yield a container that keeps so many attributes of a segment, and of all, in memory: with
        1 it forgets what it found in the index."""
        self.crashed = False
        self.attribute_cache = AttributeCache(
            segment_count_max=segment_count_max, container_count_max=container_count_max
        )
        self.faulty = FaultyChunkStorage(
            self.chunks, next_fault=self._fault, next_delay=self._delay
        )
        cache_manager = CacheManager(StreamingCache(cache_bytes))
        try:
            async with open_container(
                0,
                self.logs,
                next_owner(self.faulty, boot_id=self.boot_id),
                cache_manager,
                drain_seconds=drain_seconds,
                attribute_pages=PageCache(page_bytes_max),
                attribute_cache=self.attribute_cache,
                eviction=policy or self.policy,
                flush_policy=flush_policy,
            ) as self.container:
                yield self.container
        except* DataLogError:
            if not self.crashed:
                raise
        assert cache_manager.cache.stored_bytes == 0
        await self.faulty.settle(Random(1))

    def crash(self) -> None:
        """Crash the process: what is not acknowledged is lost, and nothing is written any more."""
        self.crashed = True
        self.faulty.abandon()
        self.logs.drop_unacknowledged()

    def refuse_reads(self) -> None:
        """Make tier 2 refuse reads, until ``next_fault`` is set again."""
        self.next_fault = lambda call: Fault.REFUSED if call == "read" else Fault.NONE

    def refuse_nothing(self) -> None:
        """Make tier 2 do everything again."""
        self.next_fault = lambda _: Fault.NONE


async def evict(container: Container, *, flush: bool = True) -> None:
    """Evict all segments that may be evicted; ``flush`` writes everything to tier 2 before."""
    if flush:
        await container.flush()
    container.parts.eviction.look(trio.current_time())
    await container.parts.eviction.evict(container.parts.eviction.look(trio.current_time()))


def active_names(container: Container) -> set[str]:
    """Return the segments that are in memory."""
    return set(container.parts.metadata.by_name)


async def checkpoint(container: Container) -> None:
    """Write a checkpoint and truncate the log: what is needed of the past is in the checkpoint, or
    in tier 2."""
    await container.checkpoint()
    await container.flush()
