"""Puts a segment store process together on the local machine's tiers.

Owns: which journal, cache and tier 2 the containers of a process share, and their lifetimes.

Invariants:
1. Tier 1 outlives every container; a container that is being closed can still write.
2. A container's run has a view of tier 2 of its own, which knows the epoch of its log.
3. A journal that failed is never used again: the block ends with the error, the process with it,
   and the next process recovers from what is on disk.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager

import trio

from _fast.btree import PageCache
from _fast.cache import StreamingCache
from _fast.replay import digest_frame
from segstore.api import SegmentContainer
from segstore.attributes.segment_attributes import AttributeCache
from segstore.cache.manager import CacheManager
from segstore.config import SegmentStoreConfig
from segstore.container import open_container
from segstore.data_directory import DataDirectory
from segstore.registry import OpenContainer
from segstore.storage.chunked import ChunkedSegmentStorage
from segstore.throttling.throttle import ThrottlePolicy
from segstore.tier_two import EpochNotingLogs, belongs_to, open_storage
from segstore.tiers.api import ChunkStorage, DurableDataLogFactory
from segstore.tiers.journal import Journal, JournalSettings, open_journal


@asynccontextmanager
async def open_containers(
    config: SegmentStoreConfig,
    *,
    data_logs: DurableDataLogFactory | None = None,
    chunk_storage: ChunkStorage | None = None,
) -> AsyncIterator[OpenContainer]:
    """Open the data directory and yield what opens a container in it.

    Measurements give tiers of their own; by default these are journals and what the configuration
    says. Raises ``DataDirectoryError`` when the data directory cannot be used,
    ``StorageConfigurationError`` or ``StorageUnreachableError`` when tier 2 cannot, and leaves the
    block with a ``DataLogError`` when a journal fails.
    """
    directory = DataDirectory.open(config.data_dir, container_count=config.container_count)
    page_bytes_max = config.cache_bytes_max * config.attribute_pages_percent // 100
    attribute_pages = PageCache(page_bytes_max)
    cache_manager = CacheManager(StreamingCache(config.cache_bytes_max - page_bytes_max))
    settings = JournalSettings(
        file_bytes=config.journal_file_bytes, journal_bytes_max=config.journal_bytes_max
    )
    async with AsyncExitStack() as stack:
        storage_of = await stack.enter_async_context(
            open_storage(config, directory, given=chunk_storage)
        )
        journals: dict[int, Journal] = {}
        numbers = {directory.journal_of(n) for n in config.hosted_containers}
        for number in sorted(numbers) if data_logs is None else ():
            path = stack.enter_context(directory.lock_journal(number))
            journals[number] = await stack.enter_async_context(
                open_journal(path, settings, digest=digest_frame)
            )

        def open_hosted(container_id: int) -> AbstractAsyncContextManager[SegmentContainer]:
            logs = EpochNotingLogs(data_logs or journals[directory.journal_of(container_id)])
            return open_container(
                container_id,
                logs,
                ChunkedSegmentStorage(
                    storage_of(logs.epoch_now),
                    epoch=logs.epoch_now,
                    container_id=container_id,
                    belongs=belongs_to(container_id, config.container_count),
                ),
                cache_manager,
                drain_seconds=config.drain_seconds,
                held_bytes_max=config.held_bytes_max,
                throttling=_throttle_policy(config),
                log_bytes=_log_bytes(journals, directory.journal_of(container_id), config),
                attribute_pages=attribute_pages,
                attribute_cache=AttributeCache(
                    segment_count_max=config.attributes_cached_segment_max,
                    container_count_max=config.attributes_cached_max,
                ),
            )

        nursery = await stack.enter_async_context(trio.open_nursery())
        for journal in journals.values():
            nursery.start_soon(_end_when_failed, journal)
        yield open_hosted
        nursery.cancel_scope.cancel()


def _throttle_policy(config: SegmentStoreConfig) -> ThrottlePolicy:
    settings = config.throttling
    return ThrottlePolicy(
        delay_seconds_max=settings.delay_seconds_max,
        log_bytes_max=config.log_bytes_max,
        operations_max=settings.operations_max,
        attributes_dirty_max=settings.attributes_dirty_max,
        batching_seconds_max=settings.batching_seconds_max,
    )


def _log_bytes(
    journals: Mapping[int, Journal], number: int, config: SegmentStoreConfig
) -> Callable[[], int] | None:
    """How much of a journal cannot be freed, whoever holds it."""
    journal = journals.get(number)
    if journal is None:
        return None
    return lambda: journal.statistics().needed_file_count * config.journal_file_bytes


async def _end_when_failed(journal: Journal) -> None:
    await journal.failed.wait()
    assert journal.failure is not None
    raise journal.failure
