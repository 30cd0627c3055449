"""The article's statements about the streaming cache that test_layout does not cover."""

from __future__ import annotations

import random
import tracemalloc

import pytest

from _fast.cache.streaming_cache import (
    BLOCK_LENGTH,
    BUFFER_LENGTH,
    CAPACITY_BYTES_MAX,
    StreamingCache,
)

KB = 1000


@pytest.fixture
def cache() -> StreamingCache:
    return StreamingCache(16 * BUFFER_LENGTH)


def test_using_4_kb_blocks_and_2_mb_buffers_lets_us_use_511_of_the_512_blocks_per_buffer(
    cache: StreamingCache,
) -> None:
    """The overhead is a constant 0.2%: 8 MB for a cache of 4 GB."""
    cache.insert(bytes(511 * BLOCK_LENGTH))
    assert cache.used_bytes == 512 * BLOCK_LENGTH == BUFFER_LENGTH
    assert 4 * 1024**3 // BUFFER_LENGTH * BLOCK_LENGTH == 8 * 1024**2
    assert BLOCK_LENGTH / BUFFER_LENGTH < 0.002


def test_each_block_is_uniquely_addressable_using_a_32_bit_pointer() -> None:
    buffers = CAPACITY_BYTES_MAX // BUFFER_LENGTH
    assert (buffers - 1) << 10 | 511 < 2**32
    cache = StreamingCache(3 * BUFFER_LENGTH)
    addresses = {cache.insert(b"") for _ in range(3 * 511)}
    assert addresses == {buffer << 10 | block for buffer in range(3) for block in range(1, 512)}


def test_pointing_to_the_last_block_enables_us_to_immediately_locate_that_and_perform_appends(
    cache: StreamingCache,
) -> None:
    """However long the entry is, one block is written to, and then one is added."""
    entry = cache.insert(bytes(700 * BLOCK_LENGTH + 100))
    before = cache.views(entry, 0, 700 * BLOCK_LENGTH)
    kept = [bytes(view) for view in before]
    used = cache.used_bytes
    for _ in range(BLOCK_LENGTH - 100):
        assert cache.append(entry, b"+") == entry
    assert cache.used_bytes == used
    moved = cache.append(entry, b"+")
    assert moved != entry
    assert cache.used_bytes == used + BLOCK_LENGTH
    assert [bytes(view) for view in before] == kept
    assert cache.get(moved, 700 * BLOCK_LENGTH + 100) == b"+" * (BLOCK_LENGTH - 99)


def test_insert_operations_do_not_need_to_allocate_memory(cache: StreamingCache) -> None:
    data = bytes(10 * KB)
    cache.insert(data)
    tracemalloc.start()
    try:
        addresses = [cache.insert(data) for _ in range(1000)]
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(addresses) == 1000
    assert held <= most < 100 * KB  # the list and its numbers; the data are 10 MB


def test_get_operations_return_read_only_views_whose_contents_are_copied_where_they_are_needed(
    cache: StreamingCache,
) -> None:
    data = random.Random(1).randbytes(10 * KB)
    entry = cache.insert(data)
    target = bytearray(len(data))
    place = 0
    for view in cache.views(entry):
        assert view.readonly
        target[place : place + len(view)] = view
        place += len(view)
    assert target == data


def test_the_sequential_test_entries_are_inserted_then_queried_then_deleted() -> None:
    cache = StreamingCache(64 * BUFFER_LENGTH)
    data = [bytes([number % 256]) * (10 * KB) for number in range(5000)]
    entries = [cache.insert(piece) for piece in data]
    assert cache.stored_bytes == 50_000 * KB
    assert [cache.get(entry) for entry in entries] == data
    assert sum(map(cache.delete, entries)) == 50_000 * KB
    assert cache.stored_bytes == 0
    cache.check()


@pytest.mark.parametrize("length", [10 * KB, 100 * KB])
def test_the_random_test_60_of_100_operations_insert_and_40_remove(length: int) -> None:
    chance = random.Random(length)
    cache = StreamingCache(64 * BUFFER_LENGTH)
    entries: dict[int, bytes] = {}
    for _ in range(30_000 * KB // length):
        if chance.random() < 0.6 or not entries:
            data = chance.randbytes(4) * (length // 4)
            entries[cache.insert(data)] = data
        else:
            removed = chance.choice(list(entries))
            assert cache.delete(removed) == length
            del entries[removed]
        entry = chance.choice(list(entries)) if entries else None
        assert entry is None or cache.get(entry) == entries[entry]
        assert cache.used_bytes <= cache.capacity_bytes
    assert cache.stored_bytes == length * len(entries)
    cache.check()
