"""The B+Tree beside a dictionary, through any sequence of updates, restarts and truncations."""

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from support.models.stored_tree import Changes, StoredTree, stored_tree

key_lengths = st.one_of(st.sampled_from([1, 2, 8, 16, 16, 16, 17, 256]), st.integers(1, 256))
records = st.sampled_from([2, 3, 4, 5, 8, 30])
numbers = st.integers(0, 600)
values = st.one_of(st.none(), st.integers(-(2**63) + 1, 2**63 - 1), st.integers(0, 3))


class TreeModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.model: dict[bytes, int] = {}

    @initialize(
        key_length=key_lengths,
        leaf_records=records,
        index_records=records,
        cache_bytes=st.sampled_from([0, 3000, 1_000_000]),
        compaction=st.sampled_from([True, True, True, False]),
        retained_ratio=st.sampled_from([0, 1.1, 2.5]),
        delta_bytes_max=st.sampled_from([0, 900, 2000, 262_144]),
        start=st.sampled_from([0, 2**40 + 7]),
    )
    def open(self, key_length: int, leaf_records: int, index_records: int, **how: Any) -> None:
        self.key_length = key_length
        self.tree: StoredTree = stored_tree(
            key_length=key_length,
            leaf_bytes_max=24 + leaf_records * (key_length + 8),
            index_bytes_max=24 + index_records * (key_length + 18),
            **how,
        )

    def key(self, number: int) -> bytes:
        """Return a key; some keys share beginnings, and some do not."""
        number %= 256**self.key_length
        data = number.to_bytes(max(2, self.key_length), "big")[-self.key_length :]
        return data[::-1] if number % 3 == 0 else data

    def change(self, changes: list[tuple[bytes, int | None]], *, packed: bool = False) -> None:
        before = dict(self.model)
        for key, value in changes:
            if value is None:
                self.model.pop(key, None)
            else:
                self.model[key] = value
        given: Changes = changes
        if packed:
            given = b"".join(
                key + (-(2**63) if value is None else value).to_bytes(8, "big", signed=True)
                for key, value in changes
            )
        start = self.tree.store.start
        update = self.tree.update(given)
        assert (update is None) == (before == self.model)
        if update is not None:
            assert update.truncate_offset >= start
            assert update.footer.entry_count == len(self.model)

    @rule(
        changes=st.lists(st.tuples(numbers, values), max_size=60),
        packed=st.booleans(),
    )
    def update_any(self, changes: list[tuple[int, int | None]], packed: bool) -> None:
        self.change([(self.key(number), value) for number, value in changes], packed=packed)

    @rule(first=numbers, count=st.integers(1, 200), value=st.integers(0, 2**40))
    def insert_row(self, first: int, count: int, value: int) -> None:
        self.change([(self.key(first + i), value + i) for i in range(count)])

    @precondition(lambda self: self.model)
    @rule(place=st.integers(0, 2**16), count=st.integers(1, 300))
    def remove_row(self, place: int, count: int) -> None:
        keys = sorted(self.model)
        place %= len(keys)
        self.change([(key, None) for key in keys[place : place + count]])

    @rule(number=numbers, value=st.integers(0, 2**62))
    def replace_often(self, number: int, value: int) -> None:
        for i in range(10):
            self.change([(self.key(number + 13 * i), value + i)])

    @rule(changes=st.lists(st.tuples(numbers, values), min_size=1, max_size=30))
    def prepare_in_vain(self, changes: list[tuple[int, int | None]]) -> None:
        """Prepare a batch twice without a commit: nothing happens, and both updates are the
        same."""
        given = [(self.key(number), value) for number, value in changes]
        first, second = self.tree.prepare(given), self.tree.prepare(given)
        if first is not None and second is not None:
            assert first.data == second.data
        else:
            assert first is second

    @rule(garbage=st.binary(max_size=50))
    def restart(self, garbage: bytes) -> None:
        """Restart the tree, also behind bytes of an unfinished update."""
        self.tree.store.data += garbage
        self.tree.restart()

    @rule(sought=st.lists(numbers, max_size=30))
    def find(self, sought: list[int]) -> None:
        keys = [self.key(number) for number in sought]
        assert self.tree.find_many(keys) == [self.model.get(key) for key in keys]
        for key in keys[:5]:
            assert self.tree.find(key) == self.model.get(key)

    @rule(bounds=st.tuples(numbers, numbers), limit=st.sampled_from([1, 7, 1000]))
    def scan(self, bounds: tuple[int, int], limit: int) -> None:
        first, last = self.key(bounds[0]), self.key(bounds[1])
        expected = sorted((k, v) for k, v in self.model.items() if first <= k <= last)
        assert self.tree.scan(first, last, limit) == expected

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        if hasattr(self, "tree"):
            assert self.tree.everything() == sorted(self.model.items())
            assert self.tree.tree.footer.min_offset >= self.tree.store.start
            assert self.tree.tree.cache.used_bytes <= self.tree.tree.cache.bytes_max


TreeModel.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestTreeModel = pytest.mark.timeout(300)(TreeModel.TestCase)
