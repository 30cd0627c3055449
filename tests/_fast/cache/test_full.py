"""A full cache: the bound, the callback that frees entries, and what that may do."""

import random
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
CALLS_MAX = 5


class Entries:
    """A cache of two buffers that is full of entries of one block, and the actions of its
    callback."""

    def __init__(self) -> None:
        self.cache = StreamingCache(2 * BUFFER_LENGTH)
        self.data = {
            self.cache.insert(self.block(number)): self.block(number)
            for number in range(2 * BLOCKS_PER_BUFFER)
        }
        self.calls = 0
        self.action: Callable[[], object] = lambda: False
        self.cache.on_full = self.on_full

    @staticmethod
    def block(number: int) -> bytes:
        return random.Random(number).randbytes(BLOCK_LENGTH)

    def on_full(self) -> object:
        self.calls += 1
        return self.action()

    def evict(self, count: int = 1) -> bool:
        for address in list(self.data)[:count]:
            self.cache.delete(address)
            del self.data[address]
        return True

    def check(self) -> None:
        self.cache.check()
        assert all(self.cache.get(address) == data for address, data in self.data.items())
        assert self.cache.used_bytes <= self.cache.reserved_bytes <= self.cache.capacity_bytes


@pytest.fixture
def full() -> Entries:
    return Entries()


def test_a_full_cache_has_used_its_capacity_and_no_more(full: Entries) -> None:
    assert full.cache.used_bytes == full.cache.reserved_bytes == full.cache.capacity_bytes
    assert full.cache.stored_bytes == 2 * BLOCKS_PER_BUFFER * BLOCK_LENGTH
    assert full.calls == 0


@pytest.mark.parametrize("operation", ["insert", "append", "replace"])
def test_without_a_callback_a_full_cache_refuses(full: Entries, operation: str) -> None:
    full.cache.on_full = None
    address = next(iter(full.data))
    arguments = (b"x",) if operation == "insert" else (address, b"x")
    with pytest.raises(CacheFullError, match="0 free blocks, not 1"):
        getattr(full.cache, operation)(*arguments)
    full.check()


def test_an_append_into_the_last_block_needs_no_room() -> None:
    cache = StreamingCache(BUFFER_LENGTH)
    address = cache.insert(b"one")
    cache.insert(bytes((BLOCKS_PER_BUFFER - 1) * BLOCK_LENGTH))
    assert cache.append(address, b"x" * (BLOCK_LENGTH - 3)) == address
    with pytest.raises(CacheFullError):
        cache.append(address, b"x")
    assert cache.get(address) == b"one" + b"x" * (BLOCK_LENGTH - 3)
    cache.check()


def test_a_full_cache_asks_for_room_and_takes_it(full: Entries) -> None:
    full.action = full.evict
    full.data[full.cache.insert(b"new")] = b"new"
    full.check()
    assert full.calls == 1


def test_a_full_cache_asks_again_while_that_helps(full: Entries) -> None:
    full.action = full.evict
    data = bytes(CALLS_MAX * BLOCK_LENGTH)
    full.data[full.cache.insert(data)] = data
    full.check()
    assert full.calls == CALLS_MAX


def test_a_full_cache_does_not_ask_for_ever(full: Entries) -> None:
    full.action = full.evict
    with pytest.raises(CacheFullError, match="5 free blocks, not 6"):
        full.cache.insert(bytes((CALLS_MAX + 1) * BLOCK_LENGTH))
    full.check()
    assert full.calls == CALLS_MAX


def test_a_callback_that_did_not_help_is_not_asked_again(full: Entries) -> None:
    with pytest.raises(CacheFullError):
        full.cache.insert(b"x")
    full.check()
    assert full.calls == 1


def test_room_that_the_callback_denies_is_taken_all_the_same(full: Entries) -> None:
    full.action = lambda: full.evict() and None
    full.data[full.cache.insert(b"new")] = b"new"
    full.check()


def test_what_the_callback_raises_comes_out_and_changes_nothing(full: Entries) -> None:
    def fail() -> None:
        raise OSError("tier 2 is away")

    full.action = fail
    address = next(iter(full.data))
    for _ in range(2):
        with pytest.raises(OSError, match="tier 2 is away"):
            full.cache.insert(b"x")
        with pytest.raises(OSError, match="tier 2 is away"):
            full.cache.append(address, b"x")
        with pytest.raises(OSError, match="tier 2 is away"):
            full.cache.replace(address, b"x")
        full.check()
    assert full.calls == 6
    assert full.cache.pinned_count == 0


def test_a_truth_value_that_raises_is_an_error_too(full: Entries) -> None:
    class Undecided:
        def __bool__(self) -> bool:
            raise ArithmeticError("who knows")

    full.action = Undecided
    with pytest.raises(ArithmeticError):
        full.cache.append(next(iter(full.data)), b"x")
    full.check()
    assert full.cache.pinned_count == 0


def test_the_callback_may_insert_but_is_not_called_by_that(full: Entries) -> None:
    outcomes = []

    def move() -> bool:
        try:
            full.cache.insert(b"too early")
        except CacheFullError as error:
            outcomes.append(str(error))
        full.evict(3)
        full.data[full.cache.insert(b"inner")] = b"inner"
        return True

    full.action = move
    full.data[full.cache.insert(b"outer")] = b"outer"
    full.check()
    assert full.calls == 1
    assert outcomes == ["the cache has 0 free blocks, not 1"]


@pytest.mark.parametrize("operation", ["append", "replace"])
def test_the_callback_may_delete_the_very_entry(full: Entries, operation: str) -> None:
    address = next(iter(full.data))
    full.action = lambda: full.evict(100)
    with pytest.raises(EntryMissingError, match="was deleted to make room"):
        getattr(full.cache, operation)(address, b"x")
    full.check()
    assert full.cache.stored_bytes == (2 * BLOCKS_PER_BUFFER - 100) * BLOCK_LENGTH


@pytest.mark.parametrize("operation", ["append", "replace"])
def test_an_entry_that_took_the_deleted_ones_place_is_left_alone(
    full: Entries, operation: str
) -> None:
    """The callback deletes the entry and inserts as many bytes: they get other blocks meanwhile."""
    address = next(iter(full.data))

    def swap() -> bool:
        full.evict(2)
        other = full.cache.insert(b"other" * 800)
        assert other != address
        full.data[other] = b"other" * 800
        return True

    full.action = swap
    with pytest.raises(EntryMissingError):
        getattr(full.cache, operation)(address, b"x")
    full.check()


def test_bytes_go_behind_those_that_the_callback_appends() -> None:
    cache = StreamingCache(BUFFER_LENGTH)
    address = cache.insert(b"one")
    filler = cache.insert(bytes((BLOCKS_PER_BUFFER - 1) * BLOCK_LENGTH))

    def append() -> bool:
        assert cache.append(address, b"two") == address
        cache.delete(filler)
        return True

    cache.on_full = append
    address = cache.append(address, b"x" * BLOCK_LENGTH)
    assert cache.get(address) == b"onetwo" + b"x" * BLOCK_LENGTH
    cache.check()


def test_an_entry_that_the_callback_moves_is_missed() -> None:
    cache = StreamingCache(BUFFER_LENGTH)
    address = cache.insert(b"one")
    filler = cache.insert(bytes((BLOCKS_PER_BUFFER - 1) * BLOCK_LENGTH))
    moved = []

    def append() -> bool:
        cache.delete(filler)
        moved.append(cache.append(address, bytes(BLOCK_LENGTH)))
        return True

    cache.on_full = append
    with pytest.raises(EntryMissingError):
        cache.append(address, b"x" * BLOCK_LENGTH)
    assert cache.get(moved[0]) == b"one" + bytes(BLOCK_LENGTH)
    cache.check()


def test_an_append_that_the_callback_makes_too_long_is_refused() -> None:
    """Lengths are looked at again after the callback."""
    cache = StreamingCache(67 * 1024**2)
    address = cache.insert(b"")
    filler = cache.insert(bytes(cache.capacity_bytes // 512 * 511 - 50 * 1024**2))
    step = 13 * 1024**2 - 1

    def grow() -> bool:
        nonlocal filler
        cache.delete(filler)
        assert cache.append(address, bytes(4096)) == address
        return True

    cache.on_full = grow
    with pytest.raises(ValueError, match="at most"):
        cache.append(address, bytes(64 * 1024**2 - 1))
    assert cache.length(address) == 4096
    assert cache.get(cache.append(address, bytes(step))) == bytes(4096 + step)
    cache.check()


def test_deleting_a_viewed_entry_makes_no_room(full: Entries) -> None:
    address = next(iter(full.data))
    views = full.cache.views(address)
    full.action = lambda: address in full.data and full.evict()
    with pytest.raises(CacheFullError):
        full.cache.insert(b"x")
    assert full.calls == 2
    views.clear()
    full.data[full.cache.insert(b"x")] = b"x"
    full.check()
    assert full.calls == 2


def test_a_callback_that_lets_go_of_views_makes_room(full: Entries) -> None:
    views = full.cache.views(next(iter(full.data)))
    full.evict()

    def let_go() -> bool:
        views.clear()
        return True

    full.action = let_go
    full.data[full.cache.insert(b"x")] = b"x"
    full.check()


def test_a_replacement_needs_room_beside_the_old_entry(full: Entries) -> None:
    address = list(full.data)[7]
    with pytest.raises(CacheFullError):
        full.cache.replace(address, b"x")
    full.check()
    full.action = full.evict
    full.data[full.cache.replace(address, b"x")] = b"x"
    if address not in (new for new, data in full.data.items() if data == b"x"):
        del full.data[address]
    full.check()


def test_the_callback_can_be_changed(full: Entries) -> None:
    calls: list[str] = []
    assert full.cache.on_full == full.on_full
    full.cache.on_full = lambda: bool(calls.append("other"))
    with pytest.raises(CacheFullError):
        full.cache.insert(b"x")
    assert (calls, full.calls) == (["other"], 0)
