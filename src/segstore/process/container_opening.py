"""Opens one container after the other on what their process has.

Owns: ``ContainerOpening``: the caches that containers share, and how the configuration becomes the
policies of a container.

Invariants:
1. A container's run has a view of tier 2 of its own, which knows the epoch of its log.
2. Before a log is opened tier 2 is asked whether a later owner than the log knows has used it.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from _fast.btree.tree import PageCache
from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.scan_plan import ReadableTier
from segstore.chunks.scrub import Pace, ScrubPolicy
from segstore.chunks.system_journal import LastEpoch
from segstore.container import Container, open_container
from segstore.inactive.eviction import EvictionPolicy
from segstore.model.segment_attributes import AttributeCache
from segstore.process.config import SegmentStoreConfig
from segstore.process.tier_two import EpochRecordingLogs
from segstore.process.tier_two_vendors import StorageOfOwner
from segstore.runtime.clock import wall_clock_ms
from segstore.throttling.throttle import ThrottlePolicy
from segstore.tiers.api import ChunkStorage, DurableDataLogFactory
from segstore.writer.flush_policy import FlushPolicy


class ContainerOpening:
    """Opens containers on logs that are given, and ``storage_of`` each.

    ``boot_id`` names the start of the machine for ``ChunkedSegmentStorage``, ``readable`` tells
    others where chunks lie, unless only this process can read them.
    """

    def __init__(
        self,
        config: SegmentStoreConfig,
        storage_of: Callable[[int], StorageOfOwner],
        *,
        boot_id: str | None,
        scrub: ScrubPolicy | None,
        readable: Callable[[ChunkStorage], ReadableTier] | None,
        now_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._config = config
        self._storage_of = storage_of
        self._boot_id = boot_id
        self._scrub = scrub
        self._readable = readable
        self._now_ms = now_ms
        self._opened: set[int] = set()
        page_bytes_max = config.cache_bytes_max * config.attribute_pages_percent // 100
        self._attribute_pages = PageCache(page_bytes_max)
        self._cache_manager = CacheManager(StreamingCache(config.cache_bytes_max - page_bytes_max))

    def open_on(
        self,
        data_logs: DurableDataLogFactory,
        container_id: int,
        *,
        log_bytes: Callable[[], int] | None,
        confirm: Callable[[], Awaitable[None]] | None,
    ) -> AbstractAsyncContextManager[Container]:
        """Open and serve a container inside the block. ``log_bytes`` returns how much all
        containers hold of a tier 1 that they share; ``confirm`` raises when tier 2 is not ours any
        more."""
        config = self._config
        logs = EpochRecordingLogs(data_logs)
        chunks = self._storage_of(container_id)(logs.epoch_now)
        storage = ChunkedSegmentStorage(
            chunks,
            epoch=logs.epoch_now,
            container_id=container_id,
            boot_id=self._boot_id,
            scrub=self._scrub,
            readable=self._readable and self._readable(chunks),
        )
        is_again = container_id in self._opened
        self._opened.add(container_id)

        async def check_log(last_epoch: LastEpoch) -> None:
            # At the start everything was checked a moment ago.
            if confirm is not None and is_again:
                await confirm()
            await storage.check_log(last_epoch)

        logs.check_log = check_log
        return open_container(
            container_id,
            logs,
            storage,
            self._cache_manager,
            now_ms=self._now_ms,
            drain_seconds=config.drain_seconds,
            confirm_owner=confirm,
            flush_policy=FlushPolicy(held_bytes_max=config.held_bytes_max),
            throttling=_throttle_policy(config),
            log_bytes=log_bytes,
            eviction=EvictionPolicy(
                active_count_max=config.active_segments_max,
                idle_seconds_max=config.active_segment_seconds,
            ),
            attribute_pages=self._attribute_pages,
            attribute_cache=AttributeCache(
                segment_count_max=config.attributes_cached_segment_max,
                container_count_max=config.attributes_cached_max,
            ),
        )


def scrub_policy(config: SegmentStoreConfig) -> ScrubPolicy:
    """Return how the containers of a process look for damage."""
    settings = config.scrub
    return ScrubPolicy(Pace(settings.bytes_per_second), settings.pass_seconds_min, random.random)


def _throttle_policy(config: SegmentStoreConfig) -> ThrottlePolicy:
    settings = config.throttling
    return ThrottlePolicy(
        delay_seconds_max=settings.delay_seconds_max,
        log_bytes_max=config.log_bytes_max,
        operations_max=settings.operations_max,
        attributes_dirty_max=settings.attributes_dirty_max,
        batching_seconds_max=settings.batching_seconds_max,
    )
