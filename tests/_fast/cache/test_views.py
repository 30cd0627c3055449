"""Views of cache entries: what they show stays, whatever happens to the cache."""

import gc
import random
import threading
import weakref
from collections.abc import Callable

import pytest

from _fast.cache.streaming_cache import (
    BLOCK_LENGTH,
    BUFFER_LENGTH,
    CacheFullError,
    EntryMissingError,
    StreamingCache,
)

BLOCKS_PER_BUFFER = BUFFER_LENGTH // BLOCK_LENGTH - 1
LENGTH = 10_000


def some_bytes(length: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(length)


@pytest.fixture
def cache() -> StreamingCache:
    return StreamingCache(BUFFER_LENGTH)


def overwrite_everything_free(cache: StreamingCache) -> list[int]:
    """Fill every block that the cache gives out with other bytes."""
    addresses = []
    while True:
        try:
            addresses.append(cache.insert(b"\xee" * BLOCK_LENGTH))
        except CacheFullError:
            return addresses


Change = Callable[[StreamingCache, int], object]
CHANGES: dict[str, Change] = {
    "deleted": lambda cache, address: cache.delete(address),
    "replaced": lambda cache, address: cache.replace(address, b"new" * 4000),
    "appended to": lambda cache, address: cache.append(address, b"more" * 5000),
    "appended to, then deleted": lambda cache, address: cache.delete(
        cache.append(address, b"more" * 5000)
    ),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
@pytest.mark.parametrize("length", [1, 4095, 4096, LENGTH])
def test_a_view_stays_what_it_is_when_the_entry_is(
    cache: StreamingCache, change: Change, length: int
) -> None:
    data = some_bytes(length)
    address = cache.insert(data)
    views = cache.views(address)
    change(cache, address)
    overwrite_everything_free(cache)
    cache.check()
    assert b"".join(views) == data


def test_blocks_of_a_deleted_entry_come_back_with_its_last_view(cache: StreamingCache) -> None:
    address = cache.insert(some_bytes(LENGTH))
    first, second = cache.views(address), cache.views(address, 5000, 100)
    assert cache.pinned_count == 1
    cache.delete(address)
    filler = overwrite_everything_free(cache)
    assert len(filler) == BLOCKS_PER_BUFFER - 3
    del first
    assert overwrite_everything_free(cache) == []
    del second
    cache.check()
    assert cache.pinned_count == 0
    assert len(overwrite_everything_free(cache)) == 3


def test_one_of_several_runs_keeps_the_whole_entry(cache: StreamingCache) -> None:
    apart = [cache.insert(bytes(BLOCK_LENGTH)) for _ in range(9)]
    for address in apart[::2]:
        cache.delete(address)
    data = some_bytes(5 * BLOCK_LENGTH)
    address = cache.insert(data)
    views = cache.views(address)
    assert len(views) == 5
    last = views.pop()
    del views
    cache.delete(address)
    assert len(overwrite_everything_free(cache)) == BLOCKS_PER_BUFFER - 4 - 5
    assert last == data[-BLOCK_LENGTH:]


def test_a_part_of_a_view_keeps_the_entry(cache: StreamingCache) -> None:
    data = some_bytes(LENGTH)
    address = cache.insert(data)
    part = cache.views(address)[0][100:200]
    cache.delete(address)
    overwrite_everything_free(cache)
    assert part == data[100:200]
    part.release()
    assert cache.pinned_count == 0
    assert len(overwrite_everything_free(cache)) == 3


def test_a_deleted_entry_has_no_address_while_views_keep_it(cache: StreamingCache) -> None:
    address = cache.insert(some_bytes(LENGTH))
    views = cache.views(address)
    assert cache.delete(address) == LENGTH
    calls: list[Callable[[], object]] = [
        lambda: cache.delete(address),
        lambda: cache.append(address, b"x"),
        lambda: cache.replace(address, b"x"),
        lambda: cache.get(address),
        lambda: cache.length(address),
        lambda: cache.views(address),
    ]
    for call in calls:
        with pytest.raises(EntryMissingError):
            call()
    cache.check()
    assert cache.stored_bytes == LENGTH
    del views
    assert cache.stored_bytes == 0
    cache.check()


def test_what_is_appended_is_in_later_views_only(cache: StreamingCache) -> None:
    address = cache.insert(b"one")
    early = cache.views(address)
    assert cache.append(address, b"two") == address
    late = cache.views(address)
    assert (early, late) == ([b"one"], [b"onetwo"])
    assert cache.pinned_count == 1


def test_a_view_of_an_empty_entry_is_empty(cache: StreamingCache) -> None:
    address = cache.insert(b"")
    (view,) = cache.views(address)
    assert (bytes(view), cache.pinned_count) == (b"", 1)


def test_a_view_is_a_plain_read_only_buffer(cache: StreamingCache) -> None:
    (view,) = cache.views(cache.insert(b"abc"))
    assert (view.format, view.itemsize, view.ndim, view.shape) == ("B", 1, 1, (3,))
    assert view.readonly
    assert view.contiguous
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(BufferError):
        cache.get_into(1, view)
    assert memoryview(view.obj) == b"abc"
    with pytest.raises(TypeError):
        type(view.obj)()


def test_the_caches_own_views_can_be_inserted(cache: StreamingCache) -> None:
    data = some_bytes(LENGTH)
    address = cache.insert(data)
    copy = cache.insert(cache.views(address)[0])
    assert cache.get(copy) == data
    address = cache.append(address, cache.views(address)[0])
    assert cache.get(address) == data + data
    address = cache.replace(address, cache.views(address, 4000, 3000)[0])
    assert cache.get(address) == (data + data)[4000:7000]
    cache.check()
    assert cache.pinned_count == 0


def test_evicting_the_entry_whose_view_is_inserted_makes_no_room(cache: StreamingCache) -> None:
    data = some_bytes(300 * BLOCK_LENGTH)
    addresses = [cache.insert(data)]
    cache.on_full = lambda: bool(addresses) and cache.delete(addresses.pop())
    (view,) = cache.views(addresses[0])
    with pytest.raises(CacheFullError):
        cache.insert(view)
    assert addresses == []
    assert view == data
    cache.check()
    assert cache.used_bytes == 301 * BLOCK_LENGTH


def test_views_outlive_their_cache() -> None:
    cache = StreamingCache(4 * BUFFER_LENGTH)
    data = some_bytes(3 * BUFFER_LENGTH)
    address = cache.insert(data)
    gone = weakref.ref(cache)
    views = cache.views(address)
    cache.delete(address)
    del cache
    gc.collect()
    assert b"".join(views) == data
    assert gone() is not None
    views.clear()
    gc.collect()
    assert gone() is None


def test_a_ring_of_cache_views_and_callback_is_collected() -> None:
    class Holder:
        def __init__(self) -> None:
            self.cache = StreamingCache(BUFFER_LENGTH, self.evict)
            self.views = self.cache.views(self.cache.insert(bytes(LENGTH)))
            self.cache.delete(1 + LENGTH // BLOCK_LENGTH)

        def evict(self) -> bool:
            return False

    holder = Holder()
    gone = weakref.ref(holder.cache)
    del holder
    gc.collect()
    assert gone() is None


def test_views_in_a_ring_of_garbage_let_go_of_their_entry(cache: StreamingCache) -> None:
    address = cache.insert(some_bytes(LENGTH))
    ring: list[object] = [cache.views(address).pop()]
    ring.append(ring)
    cache.delete(address)
    del ring
    gc.collect()
    assert (cache.pinned_count, cache.stored_bytes) == (0, 0)
    cache.check()


def test_many_entries_can_be_viewed_at_once(cache: StreamingCache) -> None:
    data = [some_bytes(100, seed) for seed in range(500)]
    addresses = [cache.insert(piece) for piece in data]
    views = [cache.views(address) for address in addresses]
    assert cache.pinned_count == 500
    for address in addresses[::2]:
        cache.delete(address)
    overwrite_everything_free(cache)
    assert [b"".join(view) for view in views] == data
    cache.check()
    random.Random(1).shuffle(views)
    while views:
        views.pop()
    cache.check()
    assert cache.pinned_count == 0
    assert cache.stored_bytes == 250 * 100 + (BLOCKS_PER_BUFFER - 500) * BLOCK_LENGTH


def test_views_may_go_away_in_another_thread_while_one_copies() -> None:
    """The blocks of a deleted entry are not given out in the midst of a copy, nor lost."""
    cache = StreamingCache(100 * 1024**2)
    large = some_bytes(32 * 1024**2)
    small = cache.insert(b"small")
    looks = []
    for seed in range(500):
        address = cache.insert(some_bytes(LENGTH, seed))
        looks.append(cache.views(address))
        cache.delete(address)
    stop = threading.Event()
    stayed_pinned = threading.Event()

    def is_copying() -> bool:
        try:
            cache.length(small)
        except RuntimeError:
            return True
        return False

    def drop() -> None:
        while looks and not stayed_pinned.is_set() and not stop.is_set():
            if is_copying():
                looks.pop()
                if cache.pinned_count == len(looks) + 1:
                    stayed_pinned.set()

    helper = threading.Thread(target=drop)
    helper.start()
    try:
        for _ in range(300):
            entry = cache.insert(large)
            cache.check()
            assert cache.get(entry) == large
            cache.delete(entry)
            if not helper.is_alive():
                break
    finally:
        stop.set()
        helper.join()
    assert stayed_pinned.is_set()
    cache.check()
    assert cache.pinned_count == len(looks)
    looks.clear()
    cache.check()
    assert (cache.pinned_count, cache.stored_bytes) == (0, 5)
