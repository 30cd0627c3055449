"""The cache stays below its bound without losing what tier 2 does not have."""

from __future__ import annotations

from _fast.cache.read_index import SegmentEntries
from _fast.cache.streaming_cache import BLOCK_LENGTH, StreamingCache
from segstore.cache.manager import EVICTIONS_PER_CALL, CacheManager, block_bytes

MIB = 1024 * 1024
ENTRY = b"x" * MIB
CAPACITY_BYTES = 20 * MIB


def filled(entry_count: int, stored: int) -> tuple[CacheManager, SegmentEntries]:
    """Make a cache of 20 MiB with this many entries of 1 MiB.

    The first ``stored`` are in tier 2.
    """
    manager = CacheManager(StreamingCache(CAPACITY_BYTES))
    entries = SegmentEntries(manager.generations)
    manager.advance(0)
    for number in range(entry_count):
        entries.append(number * MIB, ENTRY)
        manager.advance(number + 1)
    entries.set_stored_length(stored * MIB)
    return manager, entries


def kept(entries: SegmentEntries) -> list[int]:
    return [offset // MIB for offset, _, _ in entries.entries()]


def evict_all_that_is_due(manager: CacheManager) -> None:
    while manager.evict_some():
        pass


def test_nothing_goes_below_the_target() -> None:
    manager, _ = filled(14, stored=14)
    evict_all_that_is_due(manager)
    assert manager.generations.evicted_bytes == 0


def test_above_the_target_the_oldest_generations_go() -> None:
    manager, entries = filled(16, stored=16)
    for used in (0, 2):
        entries.gather(used * MIB, 1)
    evict_all_that_is_due(manager)
    assert kept(entries) == [0, 2, *range(5, 16)]


def test_what_was_used_in_this_generation_stays_while_there_is_room() -> None:
    manager = CacheManager(StreamingCache(CAPACITY_BYTES))
    entries = SegmentEntries(manager.generations)
    for number in range(17):
        entries.append(number * MIB, ENTRY)
    entries.set_stored_length(17 * MIB)
    evict_all_that_is_due(manager)
    assert len(entries) == 17
    assert manager.has_room(4 * MIB), "rather than let writers wait, it goes"
    assert 0 < len(entries) < 17


def test_what_tier_2_does_not_have_stays_and_writers_must_wait() -> None:
    manager, entries = filled(18, stored=2)
    assert not manager.has_room(3 * MIB)
    assert kept(entries) == list(range(2, 18))
    assert manager.has_room(1 * MIB)
    entries.set_stored_length(18 * MIB)
    assert manager.has_room(3 * MIB)


def test_more_than_there_can_ever_be_room_for_has_none() -> None:
    manager, _ = filled(3, stored=3)
    assert not manager.has_room(CAPACITY_BYTES)


def test_a_full_cache_evicts_for_data_that_must_go_in() -> None:
    manager, entries = filled(19, stored=19)
    entries.append(19 * MIB, ENTRY)
    assert entries.gather(19 * MIB, 2 * MIB) == ENTRY
    assert manager.cache.used_bytes < CAPACITY_BYTES


def test_one_call_evicts_a_bounded_number_of_entries() -> None:
    manager = CacheManager(StreamingCache(CAPACITY_BYTES))
    entries = SegmentEntries(manager.generations)
    for number in range(4500):
        entries.append(number * 5000, b"x" * 4096)
    entries.set_stored_length(4500 * 5000)
    manager.advance(0)
    manager.advance(1)
    counts = []
    more = True
    while more:
        before = len(entries)
        more = manager.evict_some()
        counts.append(before - len(entries))
    assert max(counts) == EVICTIONS_PER_CALL
    assert manager.cache.used_bytes <= 0.70 * CAPACITY_BYTES
    for number in range(4500, 9000):
        before = len(entries)
        assert manager.has_room(BLOCK_LENGTH)
        entries.append(number * 5000, b"x" * 4096)
        entries.set_stored_length(number * 5000)
        manager.advance(number)
        assert before - len(entries) < 2 * 16 + 4
    assert manager.cache.used_bytes <= 0.76 * CAPACITY_BYTES


def test_what_nobody_used_for_half_an_hour_goes() -> None:
    manager, entries = filled(5, stored=4)
    manager.advance(1801)
    entries.gather(2 * MIB, 1)
    manager.advance(1803.5)
    evict_all_that_is_due(manager)
    assert kept(entries) == [2, 3, 4]
    manager.advance(1e9)
    evict_all_that_is_due(manager)
    assert kept(entries) == [4], "tier 2 does not have it"


def test_a_clock_that_goes_back_stops_the_generations() -> None:
    manager = CacheManager(StreamingCache(CAPACITY_BYTES))
    for now, generation in [(100, 0), (103.9, 3), (50, 3), (103, 3), (104, 4)]:
        manager.advance(now)
        assert manager.generations.current == generation


def test_history_never_pushes_out_what_was_appended() -> None:
    manager, entries = filled(14, stored=14)
    for number in range(100, 200):
        if manager.has_history_room(MIB):
            entries.insert(number * MIB, ENTRY)
        evict_all_that_is_due(manager)
    assert [number for number in kept(entries) if number < 100] == list(range(14))
    assert manager.generations.history_bytes >= MIB, "and has its share, all the same"


def test_what_is_appended_pushes_out_history() -> None:
    manager, entries = filled(0, stored=0)
    for number in range(14):
        assert manager.has_history_room(MIB)
        entries.insert(number * MIB, ENTRY)
    for number in range(20, 33):
        assert manager.has_room(MIB)
        entries.append(number * MIB, ENTRY)
    assert [number for number in kept(entries) if number >= 20] == list(range(20, 33))
    assert manager.generations.history_bytes <= 4 * MIB


def test_what_cannot_go_slows_writers_down_and_system_segments_have_a_little_more() -> None:
    manager, entries = filled(17, stored=0)
    assert manager.throttle_bytes < manager.held_bytes < manager.writer_limit_bytes
    assert not manager.has_room(3 * MIB // 2)
    assert manager.has_room(3 * MIB // 2, system=True)
    assert not manager.has_room(3 * MIB, system=True)
    entries.set_stored_length(17 * MIB)
    assert manager.held_bytes < manager.throttle_bytes


def test_data_in_flight_counts_in_whole_blocks() -> None:
    assert [block_bytes(length) for length in (0, 1, BLOCK_LENGTH, BLOCK_LENGTH + 1)] == [
        0,
        BLOCK_LENGTH,
        BLOCK_LENGTH,
        2 * BLOCK_LENGTH,
    ]
