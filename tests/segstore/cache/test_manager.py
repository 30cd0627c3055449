"""The cache stays below its bound without losing what tier 2 does not have."""

from __future__ import annotations

from segstore.cache.heap import HeapCache
from segstore.cache.manager import CacheManager
from segstore.metadata import SegmentMetadata
from segstore.read_index.segment_index import ENTRY_BYTES_MAX, SegmentReadIndex

ENTRY = b"x" * ENTRY_BYTES_MAX


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def filled(entry_count: int, stored: int) -> tuple[CacheManager, SegmentReadIndex]:
    manager = CacheManager(HeapCache(20 * ENTRY_BYTES_MAX))
    index = SegmentReadIndex(SegmentMetadata(1, "s"), manager.cache, Clock())
    manager.register(index)
    for number in range(entry_count):
        index.append(number * ENTRY_BYTES_MAX, ENTRY)
    index.segment.length = entry_count * ENTRY_BYTES_MAX
    index.segment.storage_length = stored * ENTRY_BYTES_MAX
    return manager, index


def test_nothing_goes_below_the_target() -> None:
    manager, _ = filled(15, stored=15)
    manager.evict_if_needed()
    assert manager.evicted_bytes == 0


def test_the_entries_used_longest_ago_go_first() -> None:
    manager, index = filled(16, stored=16)
    for used in (0, 2):
        index.gather(used * ENTRY_BYTES_MAX, 1)
    manager.evict_if_needed()
    kept = [entry.offset // ENTRY_BYTES_MAX for entry in index._entries]
    assert kept == [0, 2, *range(4, 16)]


def test_what_tier_2_does_not_have_stays_and_writers_must_wait() -> None:
    manager, index = filled(18, stored=2)
    assert not manager.has_room(3 * ENTRY_BYTES_MAX)
    assert [entry.offset // ENTRY_BYTES_MAX for entry in index._entries] == list(range(2, 18))
    assert manager.has_room(2 * ENTRY_BYTES_MAX)
    index.segment.storage_length = index.segment.length
    assert manager.has_room(3 * ENTRY_BYTES_MAX)


def test_an_index_that_is_closed_takes_no_part() -> None:
    manager, index = filled(18, stored=18)
    manager.unregister(index)
    manager.evict_if_needed()
    assert manager.evicted_bytes == 0
