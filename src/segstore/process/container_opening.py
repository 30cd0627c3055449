"""Opens each container with the caches, tier 2 and settings of its process.

Owns: ``ContainerOpening``: the caches that containers share, and how the policies of a container
follow from the configuration.

Invariants:
1. When a container is opened again, it gets a new view of tier 2, which writes under the epoch of
   the log that was opened for it. Held by
   ``test_each_opening_of_a_container_claims_tier_2_under_the_epoch_of_its_log``.
2. When tier 2 was used under a later epoch than the log has, the log is an older copy, and it is
   refused before it is opened. Held by
   ``test_an_older_journal_is_refused_however_often_it_is_started``.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager

from _fast.btree.tree import PageCache
from _fast.cache.streaming_cache import StreamingCache
from segstore.cache.manager import CacheManager
from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.chunks.reserve import RESERVE_BYTES
from segstore.chunks.scrub import Pace, ScrubPolicy
from segstore.chunks.space_lack import SpaceLack
from segstore.container import Container, open_container
from segstore.inactive.eviction import EvictionPolicy
from segstore.model.segment_attributes import AttributeCache
from segstore.ownership.epoch_claims import LastEpoch
from segstore.ownership.token import OwnerToken
from segstore.process.config import SegmentStoreConfig
from segstore.process.tier_two import EpochRecordingLogs
from segstore.runtime.clock import wall_clock_ms
from segstore.throttling.throttle import ThrottlePolicy
from segstore.tiers.api import ChunkStorage, DurableDataLogFactory
from segstore.tiers.measured import MeasuredChunkStorage
from segstore.tiers.vendor import ReadableTier, StorageOfOwner
from segstore.writer.flush_policy import FlushPolicy


class ContainerOpening:
    """Opens containers on the logs that a caller passes, and on the tier 2 that ``storage_of``
    returns for each.

    ``boot_id`` names the start of the machine for ``ChunkedSegmentStorage``. ``readable`` describes
    to other processes where chunks are; it is None if only this process can read them.
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
        lack: SpaceLack | None = None,
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
        self._lack = lack or SpaceLack()
        self._cache_manager = CacheManager(StreamingCache(config.cache_bytes_max - page_bytes_max))

    def open_on(
        self,
        data_logs: DurableDataLogFactory,
        container_id: int,
        *,
        log_bytes: Callable[[], int] | None,
        confirm: Callable[[], Awaitable[None]] | None,
        reserve_percent: Callable[[], int] = lambda: 0,
    ) -> AbstractAsyncContextManager[Container]:
        """Open and serve a container inside the block. ``log_bytes`` returns the bytes that all
        containers keep in the tier 1 that they share, and ``reserve_percent`` the part of its
        reserve that is used. ``confirm`` raises when another store has taken tier 2 over."""
        config = self._config
        token = OwnerToken()
        logs = EpochRecordingLogs(data_logs)
        chunks = self._storage_of(container_id)(token.epoch_now)
        storage = ChunkedSegmentStorage(
            MeasuredChunkStorage(chunks),
            epoch=token.epoch_now,
            container_id=container_id,
            reserve_bytes=RESERVE_BYTES,
            boot_id=self._boot_id,
            scrub=self._scrub,
            readable=self._readable and self._readable(chunks),
            lack=self._lack,
            token=token,
        )
        is_again = container_id in self._opened
        self._opened.add(container_id)

        async def check_log(last_epoch: LastEpoch) -> None:
            # For the first opening, the start of the store has just checked tier 2.
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
            token=token,
            flush_policy=FlushPolicy(held_bytes_max=config.held_bytes_max),
            throttling=_throttle_policy(config),
            log_bytes=log_bytes,
            reserve_percent=reserve_percent,
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
    """Return the settings with which the containers of a process look for damage."""
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
