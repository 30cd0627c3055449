"""The read index's entries: merging of small appends, generations, eviction, and what they cost."""

from __future__ import annotations

import gc
import random
import weakref

import pytest

from _fast.cache.read_index import ENTRY_BYTES_MAX, GENERATIONS_MAX, Generations, SegmentEntries
from _fast.cache.streaming_cache import BUFFER_LENGTH, CacheFullError, StreamingCache
from support.rare_parameters import mark_rare

MIB = 1024 * 1024
EVERYTHING = 2**32 - 1


def make_entries(capacity_bytes: int = 64 * MIB) -> SegmentEntries:
    return SegmentEntries(Generations(StreamingCache(capacity_bytes)))


def offsets_of(entries: SegmentEntries) -> list[int]:
    return [offset for offset, _, _ in entries.entries()]


def test_small_appends_are_merged_into_one_entry_up_to_its_limit() -> None:
    entries = make_entries()
    for number in range(ENTRY_BYTES_MAX // 1000 + 1):
        entries.append(number * 1000, b"x" * 1000)
    whole = ENTRY_BYTES_MAX // 1000 * 1000
    assert entries.entries() == [(0, whole, 0), (whole, 1000, 0)]
    # One entry of the cache, and so no block for each append.
    assert entries.generations.cache.used_bytes < whole + 4 * 4096 + 4096


def test_an_append_extends_the_last_entry_in_place() -> None:
    entries = make_entries()
    entries.append(0, b"a" * 5000)
    before = entries.views(0, 5000)
    entries.append(5000, b"b" * 5000)
    assert entries.gather(0, 10_000) == b"a" * 5000 + b"b" * 5000
    [first, *_] = entries.views(0, 10_000)
    # The old bytes were not copied anywhere: both views show the same memory.
    assert b"".join(before) == b"a" * 5000
    assert len(first) > len(before[0])


def test_an_append_behind_a_gap_or_to_a_full_entry_begins_another() -> None:
    entries = make_entries()
    entries.append(0, b"a" * ENTRY_BYTES_MAX)
    entries.append(ENTRY_BYTES_MAX, b"b")
    entries.append(ENTRY_BYTES_MAX + 2, b"c")
    assert offsets_of(entries) == [0, ENTRY_BYTES_MAX, ENTRY_BYTES_MAX + 2]
    assert entries.gather(0, 2 * ENTRY_BYTES_MAX) == b"a" * ENTRY_BYTES_MAX + b"b"
    assert entries.next_cached_offset(1) == ENTRY_BYTES_MAX


def test_only_what_tier_2_has_is_evicted() -> None:
    entries = make_entries()
    for number in range(10):
        entries.append(number * MIB, b"x" * MIB)
    evict = entries.generations.evict
    assert evict(used_bytes_max=0, count_max=EVERYTHING) == 0
    assert not entries.set_stored_length(4 * MIB + 1)
    assert evict(used_bytes_max=0, count_max=EVERYTHING) == 4
    assert offsets_of(entries) == [number * MIB for number in range(4, 10)]
    assert entries.set_stored_length(10 * MIB)
    assert evict(used_bytes_max=0, count_max=EVERYTHING) == 6


def test_an_entry_that_grows_again_is_not_evicted_any_more() -> None:
    entries = make_entries()
    entries.append(0, b"a" * 10)
    assert entries.set_stored_length(10)
    assert entries.generations.evictable_bytes == 10
    entries.append(10, b"b" * 10)
    assert entries.generations.evictable_bytes == 0
    assert entries.generations.evict(used_bytes_max=0, count_max=EVERYTHING) == 0
    entries.set_stored_length(20)
    assert entries.generations.evict(used_bytes_max=0, count_max=EVERYTHING) == 1


def test_every_use_gives_an_entry_the_current_generation() -> None:
    entries = make_entries()
    for number in range(3):
        entries.append(number * MIB, b"x" * MIB)
        entries.generations.advance()
    assert [generation for _, _, generation in entries.entries()] == [0, 1, 2]
    entries.gather(0, 10)
    entries.gather(MIB, 10, False)
    entries.views(MIB, 10)
    assert [generation for _, _, generation in entries.entries()] == [3, 1, 2]


def test_what_was_stored_of_a_growing_segment_may_be_evicted() -> None:
    entries = make_entries()
    entries.append(0, b"a" * 50_000)
    entries.end_last()
    entries.append(50_000, b"b" * 10)
    assert not entries.set_stored_length(50_000)
    assert entries.generations.evictable_bytes == 50_000
    entries.append(50_010, b"c" * 10)
    assert entries.generations.evictable_bytes == 50_000
    assert offsets_of(entries) == [0, 50_000]
    # A short one goes on: each has blocks of its own.
    entries.end_last()
    entries.append(50_020, b"d" * 10)
    assert offsets_of(entries) == [0, 50_000]
    assert entries.generations.evict(used_bytes_max=0, count_max=EVERYTHING) == 1
    assert entries.gather(50_000, 100) == b"b" * 10 + b"c" * 10 + b"d" * 10


def test_the_oldest_generation_moves_up_as_it_is_evicted() -> None:
    entries = make_entries()
    generations = entries.generations
    for number in range(6):
        entries.append(number * MIB, b"x" * MIB)
        generations.advance()
    entries.set_stored_length(6 * MIB)
    entries.gather(0, 1)
    assert generations.oldest == 1
    assert generations.evict(used_bytes_max=4 * MIB + 65536, count_max=EVERYTHING) == 2
    assert generations.oldest == 3
    assert offsets_of(entries) == [0, 3 * MIB, 4 * MIB, 5 * MIB]
    assert generations.evict(used_bytes_max=0, count_max=EVERYTHING, generation_end=5) == 2
    assert generations.evict(used_bytes_max=0, count_max=1) == 1
    assert offsets_of(entries) == [0]


def test_the_oldest_entries_of_all_segments_go_first() -> None:
    generations = Generations(StreamingCache(64 * MIB))
    segments = [SegmentEntries(generations) for _ in range(3)]
    for number in range(9):
        segments[number % 3].append(number * MIB, b"x" * MIB)
        generations.advance()
    for entries in segments:
        entries.set_stored_length(9 * MIB)
    assert generations.evict(used_bytes_max=0, count_max=4) == 4
    assert [offsets_of(entries) for entries in segments] == [
        [6 * MIB],
        [4 * MIB, 7 * MIB],
        [5 * MIB, 8 * MIB],
    ]


def test_what_was_not_used_for_long_expires() -> None:
    entries = make_entries()
    generations = entries.generations
    entries.append(0, b"old")
    generations.advance(5)
    entries.append(10, b"new")
    entries.insert(20, b"history")
    entries.set_stored_length(13)
    assert generations.expire(5, count_max=EVERYTHING) == 1
    assert offsets_of(entries) == [10, 20]
    generations.advance()
    assert generations.expire(6, count_max=EVERYTHING) == 2


def test_generations_that_are_not_told_apart_any_more_keep_their_order() -> None:
    entries = make_entries()
    generations = entries.generations
    for number in range(5):
        entries.append(number * MIB, b"x" * MIB)
        generations.advance(GENERATIONS_MAX // 2)
    entries.set_stored_length(5 * MIB)
    generations.advance(3 * GENERATIONS_MAX)
    assert generations.current == GENERATIONS_MAX // 2 * 5 + GENERATIONS_MAX
    for number in range(1, 6):
        assert generations.evict(used_bytes_max=0, count_max=1) == 1
        assert offsets_of(entries) == [MIB * kept for kept in range(number, 5)]


def test_history_goes_before_what_was_appended_and_what_was_read_of_it_first() -> None:
    entries = make_entries()
    generations = entries.generations
    entries.append(10 * MIB, b"t" * MIB)
    entries.set_stored_length(11 * MIB)
    generations.advance(100)
    for number in range(4):
        assert entries.insert(number * MIB, b"h" * MIB)
    entries.gather(2 * MIB, MIB)
    assert entries.read_history
    assert generations.history_bytes == 4 * MIB
    assert generations.evict(used_bytes_max=0, count_max=1) == 1
    assert offsets_of(entries) == [0, MIB, 3 * MIB, 10 * MIB]
    share = {"history_bytes_min": MIB, "generation_end": 0}
    assert generations.evict(used_bytes_max=0, count_max=EVERYTHING, **share) == 2
    assert offsets_of(entries) == [3 * MIB, 10 * MIB]
    entries.gather(10 * MIB, MIB)
    assert not entries.read_history


def test_bytes_from_tier_2_never_cover_bytes_that_are_cached() -> None:
    entries = make_entries()
    entries.append(100, b"n" * 50)
    for offset, length in [(90, 20), (100, 50), (120, 10), (149, 10)]:
        assert not entries.insert(offset, b"o" * length)
    assert entries.insert(50, b"o" * 50)
    assert entries.insert(150, b"o" * 10)
    assert entries.gather(50, 1000) == b"o" * 50 + b"n" * 50 + b"o" * 10


def test_an_append_may_evict_to_make_room_but_never_what_it_extends() -> None:
    cache = StreamingCache(2 * BUFFER_LENGTH)
    generations = Generations(cache)
    cache.on_full = lambda: generations.evict(used_bytes_max=0, count_max=EVERYTHING)
    other, entries = SegmentEntries(generations), SegmentEntries(generations)
    other.append(0, b"o" * (3 * MIB + 600_000))
    other.set_stored_length(8 * MIB)
    entries.append(0, b"a" * 4096)
    entries.set_stored_length(4096)
    at = 4096
    while len(other):
        entries.append(at, b"b" * 100_000)
        at += 100_000
    assert entries.gather(0, at)[:4097] == b"a" * 4096 + b"b"
    entries.check()


def test_an_append_without_room_changes_nothing() -> None:
    entries = make_entries(BUFFER_LENGTH)
    entries.append(0, b"a" * 1000)
    entries.set_stored_length(1000)
    before = entries.entries()
    entries.generations.advance()
    for offset in (1000, 5000):
        with pytest.raises(CacheFullError):
            entries.append(offset, bytes(BUFFER_LENGTH))
    with pytest.raises(CacheFullError):
        entries.insert(5000, bytes(BUFFER_LENGTH))
    with pytest.raises(CacheFullError):
        entries.append(1000, bytes(ENTRY_BYTES_MAX - 1000) * 17)
    assert entries.entries() == before
    entries.check()
    assert entries.generations.evict(used_bytes_max=0, count_max=1) == 1


def test_a_view_never_shows_bytes_that_took_an_evicted_entrys_place() -> None:
    entries = make_entries(BUFFER_LENGTH)
    generations = entries.generations
    data = random.Random(1).randbytes(BUFFER_LENGTH // 2)
    entries.append(0, data)
    entries.set_stored_length(len(data))
    views = entries.views(0, len(data))
    assert generations.evict(used_bytes_max=0, count_max=EVERYTHING) == 1
    assert offsets_of(entries) == []
    fill = b"\xff" * 4096
    at, room = len(data), True
    while room:
        try:
            entries.append(at, fill)
            at += len(fill)
        except CacheFullError:
            room = False
    assert b"".join(views) == data
    del views
    while at < 2 * len(data) - 65536:
        entries.append(at, fill)
        at += len(fill)
    assert generations.cache.pinned_count == 0


def test_entries_go_with_their_segment() -> None:
    generations = Generations(StreamingCache(8 * MIB))
    kept = SegmentEntries(generations)
    kept.append(0, b"k")
    for _ in range(200):
        entries = [SegmentEntries(generations) for _ in range(5)]
        for one in entries:
            one.insert(7, b"x" * 5000)
        del one, entries
    gc.collect()
    assert generations.entry_count == 1
    assert generations.cache.stored_bytes == 1
    assert generations.history_bytes == 0
    assert kept.gather(0, 1) == b"k"


def test_a_cycle_of_everything_is_collected() -> None:
    cache = StreamingCache(8 * MIB)
    generations = Generations(cache)
    entries = SegmentEntries(generations)
    entries.append(0, b"x" * 5000)
    kept = weakref.ref(entries)
    cycle = [cache, generations, entries]
    cache.on_full = cycle.clear
    del cache, generations, entries, cycle
    gc.collect()
    assert kept() is None


def test_entries_of_a_merged_segment_move_to_its_target() -> None:
    generations = Generations(StreamingCache(8 * MIB))
    target, source = SegmentEntries(generations), SegmentEntries(generations)
    target.append(0, b"before")
    source.append(0, b"merged")
    target.append(12, b"after")
    source.set_stored_length(6)
    target.set_stored_length(12)
    target.adopt_entries(source, 6)
    assert target.gather(0, 100) == b"beforemergedafter"
    assert len(source) == 0
    assert source.end == 0
    assert generations.evictable_bytes == 12
    target.check()
    source.check()


def test_entries_do_not_move_to_another_cache() -> None:
    entries = make_entries()
    for other in (entries, make_entries()):
        with pytest.raises(ValueError, match="same cache"):
            entries.adopt_entries(other, 0)


@pytest.mark.parametrize("order", mark_rare(["random", "ascending", "descending"], 1))
def test_a_hundred_thousand_entries_cost_a_logarithm_each(order: str) -> None:
    """The test counts, without a clock, the nodes looked at and the slots moved.

    A list would move 50,000.
    """
    count = 100_000
    numbers = list(range(count))
    if order == "descending":
        numbers.reverse()
    elif order == "random":
        random.Random(3).shuffle(numbers)
    entries = make_entries(512 * MIB)
    worst = 0
    steps = 0

    def spent() -> int:
        nonlocal steps
        before, steps = steps, entries.steps
        return steps - before

    for number in numbers:
        entries.insert(number * 10, b"x")
        worst = max(worst, spent())
    # Four levels of at most 32 slots, each of which may be split.
    assert worst <= 4 * (32 + 32 + 1)
    for number in numbers[::100]:
        assert entries.cached_end(number * 10) == number * 10 + 1
        assert spent() <= 8
    entries.check()
    spent()
    while len(entries):
        entries.generations.evict(used_bytes_max=0, count_max=1)
        worst = max(worst, spent())
    assert worst <= 4 * (32 + 32 + 24 + 1)
    assert entries.memory_bytes == 0


def test_an_entry_takes_less_than_48_bytes_when_written_in_order() -> None:
    entries = make_entries(512 * MIB)
    for number in range(100_000):
        entries.insert(number * 10, b"x")
    assert entries.memory_bytes / len(entries) < 48
    entries.clear()
    numbers = list(range(100_000))
    random.Random(3).shuffle(numbers)
    for number in numbers:
        entries.insert(number * 10, b"x")
    assert entries.memory_bytes / len(entries) < 52


def test_eviction_looks_at_nothing_but_what_it_evicts() -> None:
    generations = Generations(StreamingCache(512 * MIB))
    segments = [SegmentEntries(generations) for _ in range(100)]
    for number in range(100_000):
        segments[number % 100].append(number * 10, b"x")
    before = [entries.steps for entries in segments]
    assert generations.evict(used_bytes_max=0, count_max=50) == 0
    assert [entries.steps for entries in segments] == before
    for entries in segments:
        entries.set_stored_length(10)
    before = [entries.steps for entries in segments]
    assert generations.evict(used_bytes_max=0, count_max=50) == 1
    assert [entries.steps for entries in segments][1:] == before[1:]
