"""The streaming cache beside a dictionary of bytes, through any sequence of operations."""

import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from _fast.cache.streaming_cache import (
    BLOCK_LENGTH,
    BUFFER_LENGTH,
    CacheFullError,
    EntryMissingError,
    StreamingCache,
)

BLOCKS_PER_BUFFER = BUFFER_LENGTH // BLOCK_LENGTH - 1

edges = st.sampled_from([0, 1, 4095, 4096, 4097, 8192, 12_288, 511 * 4096, 511 * 4096 + 1])
lengths = st.one_of(edges, st.integers(0, 20_000), st.integers(0, 1_500_000))
places = st.integers(0, 2**16)


def block_count(length: int) -> int:
    return max(1, -(-length // BLOCK_LENGTH))


@dataclass(slots=True)
class Entry:
    data: bytes
    looked_at: int = 0  # how many lists of views show it
    deleted: bool = False


@dataclass(slots=True)
class Look:
    entry: Entry
    views: list[memoryview]
    expected: bytes


class CacheModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.seed = 0
        self.entries: dict[int, Entry] = {}
        self.deleted: list[Entry] = []  # but still looked at
        self.looks: list[Look] = []
        self.cleanup: Callable[[], object] = lambda: False
        self.calls = 0

    @initialize(buffers=st.integers(1, 3))
    def open(self, buffers: int) -> None:
        self.cache = StreamingCache(buffers * BUFFER_LENGTH, self.on_full)
        self.block_count = buffers * BLOCKS_PER_BUFFER

    # ---- the model ----

    def fresh_bytes(self, length: int) -> bytes:
        self.seed += 1
        return random.Random(self.seed).randbytes(length)

    def pick(self, place: int) -> int:
        return list(self.entries)[place % len(self.entries)]

    def used_blocks(self) -> int:
        entries = [*self.entries.values(), *self.deleted]
        return sum(block_count(len(entry.data)) for entry in entries)

    def forget(self, address: int) -> None:
        entry = self.entries.pop(address)
        entry.deleted = True
        if entry.looked_at:
            self.deleted.append(entry)

    def add(self, address: int, entry: Entry) -> None:
        assert address not in self.entries
        self.entries[address] = entry

    def drop(self, look: Look) -> None:
        look.views.clear()
        look.entry.looked_at -= 1
        if look.entry.deleted and not look.entry.looked_at:
            self.deleted = [entry for entry in self.deleted if entry is not look.entry]

    def expect_full(self, blocks: int) -> None:
        assert self.used_blocks() + blocks > self.block_count

    def expect_room(self, blocks: int) -> None:
        assert self.used_blocks() + blocks <= self.block_count

    # ---- what happens when there is no room ----

    def on_full(self) -> object:
        self.calls += 1
        assert self.calls <= 5
        return self.cleanup()

    def evict(self, count: int) -> bool:
        victims = list(self.entries)[:count]
        for address in victims:
            assert self.cache.delete(address) == len(self.entries[address].data)
            self.forget(address)
        return bool(victims)

    def fail(self) -> None:
        raise OSError("no cleanup now")

    def evict_and_insert(self) -> bool:
        helped = self.evict(2)
        data = self.fresh_bytes(5000)
        try:
            self.add(self.cache.insert(data), Entry(data))
        except CacheFullError:
            self.expect_full(2)
        return helped

    def let_go(self) -> bool:
        helped = bool(self.looks)
        while self.looks:
            self.drop(self.looks.pop())
        return helped

    @rule(choice=st.sampled_from(["refuse", "one", "many", "all", "fail", "insert", "let go"]))
    def choose_cleanup(self, choice: str) -> None:
        self.cleanup = {
            "refuse": lambda: False,
            "one": lambda: self.evict(1),
            "many": lambda: self.evict(5),
            "all": lambda: self.evict(len(self.entries)),
            "fail": self.fail,
            "insert": self.evict_and_insert,
            "let go": self.let_go,
        }[choice]

    # ---- operations ----

    @rule(length=lengths)
    def insert(self, length: int) -> None:
        self.calls = 0
        data = self.fresh_bytes(length)
        try:
            address = self.cache.insert(data)
        except CacheFullError:
            self.expect_full(block_count(length))
        except OSError:
            assert self.cleanup == self.fail
        else:
            self.expect_room(block_count(length))
            self.add(address, Entry(data))

    @precondition(lambda self: self.entries)
    @rule(place=places, length=lengths)
    def append(self, place: int, length: int) -> None:
        self.calls = 0
        old = self.pick(place)
        entry = self.entries[old]
        data = self.fresh_bytes(length)
        more = block_count(len(entry.data) + length) - block_count(len(entry.data))
        try:
            new = self.cache.append(old, data)
        except CacheFullError:
            self.expect_full(more)
        except EntryMissingError:
            assert entry.deleted
        except OSError:
            assert self.cleanup == self.fail
        else:
            self.expect_room(more)
            assert (new == old) == (more == 0)
            assert self.entries.pop(old) is entry
            entry.data += data
            self.add(new, entry)

    @precondition(lambda self: self.entries)
    @rule(place=places, length=lengths)
    def replace(self, place: int, length: int) -> None:
        self.calls = 0
        old = self.pick(place)
        entry = self.entries[old]
        data = self.fresh_bytes(length)
        try:
            new = self.cache.replace(old, data)
        except CacheFullError:
            self.expect_full(block_count(length))
        except EntryMissingError:
            assert entry.deleted
        except OSError:
            assert self.cleanup == self.fail
        else:
            self.expect_room(block_count(length))
            self.forget(old)
            self.add(new, Entry(data))

    @precondition(lambda self: self.entries)
    @rule(place=places)
    def delete(self, place: int) -> None:
        address = self.pick(place)
        assert self.cache.delete(address) == len(self.entries[address].data)
        self.forget(address)

    @rule(address=st.one_of(st.integers(-5, 2**34), st.integers(0, 4 << 10)))
    def use_a_wrong_address(self, address: int) -> None:
        if address in self.entries:
            return
        for call in (self.cache.delete, self.cache.get, self.cache.views, self.cache.length):
            with pytest.raises(EntryMissingError):
                call(address)
        for change in (self.cache.append, self.cache.replace):
            with pytest.raises(EntryMissingError):
                change(address, b"x")

    @precondition(lambda self: self.entries)
    @rule(place=places, start=places, length=lengths)
    def get(self, place: int, start: int, length: int) -> None:
        address = self.pick(place)
        data = self.entries[address].data
        start %= len(data) + 1
        target = bytearray(length)
        assert self.cache.get_into(address, target, start) == min(length, len(data) - start)
        assert target[: len(data) - start] == data[start : start + length]
        length = min(length, len(data) - start)
        assert self.cache.get(address, start, length) == data[start : start + length]

    @precondition(lambda self: self.entries)
    @rule(place=places, start=places, length=st.one_of(st.just(-1), lengths))
    def look(self, place: int, start: int, length: int) -> None:
        address = self.pick(place)
        entry = self.entries[address]
        start %= len(entry.data) + 1
        if length >= 0:
            length = min(length, len(entry.data) - start)
        views = self.cache.views(address, start, length)
        entry.looked_at += 1
        end = len(entry.data) if length == -1 else start + length
        self.looks.append(Look(entry, views, entry.data[start:end]))

    @precondition(lambda self: self.looks)
    @rule(place=places)
    def look_away(self, place: int) -> None:
        self.drop(self.looks.pop(place % len(self.looks)))

    @precondition(lambda self: self.looks)
    @rule(place=places)
    def insert_what_is_looked_at(self, place: int) -> None:
        look = self.looks[place % len(self.looks)]
        self.cleanup = lambda: False
        for view in look.views:
            try:
                address = self.cache.insert(view)
            except CacheFullError:
                self.expect_full(block_count(len(view)))
            else:
                self.add(address, Entry(bytes(view)))

    # ---- what holds after each of them ----

    @invariant()
    def the_metadata_is_sound(self) -> None:
        self.cache.check()

    @invariant()
    def the_counters_are_right(self) -> None:
        entries = [*self.entries.values(), *self.deleted]
        assert self.cache.stored_bytes == sum(len(entry.data) for entry in entries)
        assert self.cache.pinned_count == sum(entry.looked_at > 0 for entry in entries)
        metadata_blocks = self.cache.reserved_bytes // BUFFER_LENGTH
        assert self.cache.used_bytes == (self.used_blocks() + metadata_blocks) * BLOCK_LENGTH
        assert self.cache.used_bytes <= self.cache.reserved_bytes <= self.cache.capacity_bytes

    @invariant()
    def entries_hold_their_bytes(self) -> None:
        for address, entry in self.entries.items():
            assert self.cache.length(address) == len(entry.data)
            assert self.cache.get(address) == entry.data

    @invariant()
    def views_show_what_they_showed(self) -> None:
        for look in self.looks:
            assert b"".join(look.views) == look.expected


TestCacheModel = CacheModel.TestCase
TestCacheModel.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
