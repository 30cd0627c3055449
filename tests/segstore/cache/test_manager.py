"""The cache stays below its bound without losing what tier 2 does not have."""

from __future__ import annotations

from _fast.cache import BLOCK_LENGTH, StreamingCache
from segstore.cache.manager import CacheManager, block_bytes
from segstore.metadata import SegmentMetadata
from segstore.read_index.segment_index import SegmentReadIndex

MIB = 1024 * 1024
ENTRY = b"x" * MIB
CAPACITY_BYTES = 20 * MIB


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1
        return self.now


def filled(entry_count: int, stored: int) -> tuple[CacheManager, SegmentReadIndex]:
    """A cache of 20 MiB with that many entries of 1 MiB; the first ``stored`` are in tier 2."""
    manager = CacheManager(StreamingCache(CAPACITY_BYTES))
    index = SegmentReadIndex(SegmentMetadata(1, "s"), manager.cache, Clock())
    manager.register(index)
    for number in range(entry_count):
        index.append(number * MIB, ENTRY)
    index.segment.length = entry_count * MIB
    index.segment.storage_length = stored * MIB
    return manager, index


def kept(index: SegmentReadIndex) -> list[int]:
    return [entry.offset // MIB for entry in index._entries]


def test_nothing_goes_below_the_target() -> None:
    manager, _ = filled(14, stored=14)
    manager.evict_if_needed()
    assert manager.evicted_bytes == 0


def test_the_entries_used_longest_ago_go_first() -> None:
    manager, index = filled(16, stored=16)
    for used in (0, 2):
        index.gather(used * MIB, 1)
    manager.evict_if_needed()
    assert kept(index) == [0, 2, *range(5, 16)]


def test_what_tier_2_does_not_have_stays_and_writers_must_wait() -> None:
    manager, index = filled(18, stored=2)
    assert not manager.has_room(3 * MIB)
    assert kept(index) == list(range(2, 18))
    assert manager.has_room(1 * MIB)
    index.segment.storage_length = index.segment.length
    assert not manager.has_room(3 * MIB), "nothing said yet that tier 2 has more"
    manager.note_stored()
    assert manager.has_room(3 * MIB)


def test_an_index_that_is_closed_takes_no_part() -> None:
    manager, index = filled(18, stored=18)
    manager.unregister(index)
    manager.evict_if_needed()
    assert manager.evicted_bytes == 0


def test_a_full_cache_evicts_for_data_that_must_go_in() -> None:
    manager, index = filled(19, stored=19)
    index.append(19 * MIB, ENTRY)
    assert index.gather(19 * MIB, 2 * MIB) == ENTRY
    assert manager.cache.used_bytes < CAPACITY_BYTES


def test_data_in_flight_counts_in_whole_blocks() -> None:
    assert [block_bytes(length) for length in (0, 1, BLOCK_LENGTH, BLOCK_LENGTH + 1)] == [
        0,
        BLOCK_LENGTH,
        BLOCK_LENGTH,
        2 * BLOCK_LENGTH,
    ]
