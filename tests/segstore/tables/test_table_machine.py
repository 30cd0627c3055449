"""Both table layouts against a dictionary, through restarts, compactions, index steps and crashes.

In the hash layout keys may share buckets. So little is known of a table at once that most of what
is asked is asked of the attributes.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Literal, TypeVar

import trio
import trio.testing
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from pravega_wire.commands import NO_VERSION, NOT_EXISTS, TableEntry, TableKey
from segstore.errors import (
    BadOffsetError,
    ContainerOfflineError,
    SegmentStoreError,
    TableKeyMissingError,
    TableKeyVersionError,
)
from segstore.model.attributes import NULL_ATTRIBUTE_VALUE, AttributeId
from segstore.tables.layouts import hash_key
from segstore.tables.settings import TableSettings
from segstore.tables.table_segments import TableSegments
from support.models.memory_container import MemoryContainer

SETTINGS = TableSettings(
    kept_value_bytes_max=10,
    read_bytes=50,
    append_bytes_max=200,
    compaction_utilization_percent_min=90,
    compaction_bytes_min=60,
    compaction_step_bytes=60,
    clean_bytes_max=900,
    index_count=4,
    unindexed_count_max=12,
)
KEYS = [b"k%d" % number for number in range(5)]
T = TypeVar("T")

keys = st.sampled_from(KEYS)
values = st.binary(max_size=25)
# Mostly what the client would know, sometimes nonsense.
conditions = st.sampled_from(["none", "absent", "exact", "stale"])
changes = st.lists(st.tuples(keys, values, conditions), min_size=1, max_size=4)


def two_buckets(key: bytes) -> bytes:
    """Return a hash that many keys share; the second bucket lies behind the backpointers."""
    return bytes(16) if key[-1] % 2 else b"\xff" * 16


def no_collisions(key: bytes) -> bytes:
    return hash_key(key)


class GatedContainer(MemoryContainer):
    """A container whose attribute reads wait at a gate, except those in memory: all, none, or
    every other."""

    gate: trio.Event | None = None
    at_hand: Literal["all", "nothing", "some"] = "nothing"

    def attribute_now(self, name: str, attribute_id: AttributeId) -> int | None:
        if self.at_hand == "nothing" or (self.at_hand == "some" and sum(attribute_id) % 2):
            return None
        return self._find(name).attributes.get(attribute_id, NULL_ATTRIBUTE_VALUE)

    def bytes_now(self, name: str, *, offset: int, length_max: int) -> bytes:
        segment = self._find(name)
        known = self.at_hand == "all" or (self.at_hand == "some" and offset % 2)
        if not known or offset < segment.start_offset:
            return b""
        return bytes(segment.data[offset : offset + length_max])

    async def get_attributes(
        self, name: str, attribute_ids: Sequence[AttributeId]
    ) -> dict[AttributeId, int]:
        if self.gate is not None:
            await self.gate.wait()
        return await super().get_attributes(name, attribute_ids)

    def reopen(self) -> GatedContainer:
        super().reopen()
        again = GatedContainer(segments=self._state)
        again.at_hand = self.at_hand
        return again


class TableMachine(RuleBasedStateMachine):
    """``model`` is the table as acknowledged; ``replica`` follows it by deltas."""

    def __init__(self) -> None:
        super().__init__()
        self.container = GatedContainer()
        self.hash_key = no_collisions
        self.open()
        self.model: dict[bytes, tuple[bytes, int]] = {}
        self.replica: dict[bytes, tuple[bytes, int]] = {}
        self.position = 0
        self.key_length = 0

    def open(self) -> None:
        self.tables = TableSegments(self.container, SETTINGS, hash_key=self.hash_key)

    @initialize(
        layout=st.sampled_from(["hash", "shared", "fixed"]),
        at_hand=st.sampled_from(["all", "nothing", "some"]),
    )
    def create(self, layout: str, at_hand: Literal["all", "nothing", "some"]) -> None:
        self.container.at_hand = at_hand
        self.key_length = 2 if layout == "fixed" else 0
        self.hash_key = two_buckets if layout == "shared" else no_collisions
        self.open()
        trio.run(lambda: self.tables.create("t", key_length=self.key_length))

    def attempt(self, request: Callable[[], Awaitable[T]]) -> T | SegmentStoreError:
        async def run() -> T | SegmentStoreError:
            try:
                return await request()
            except SegmentStoreError as error:
                return error

        return trio.run(run)

    def version(self, key: bytes, condition: str) -> int:
        known = self.model.get(key)
        match condition:
            case "none":
                return NO_VERSION
            case "absent":
                return NOT_EXISTS
            case "exact" if known:
                return known[1]
            case _:
                return known[1] - 1 if known and known[1] else 1 << 40

    def refusal(self, conditioned: list[tuple[bytes, int]]) -> type[SegmentStoreError] | None:
        wrong = False
        for key, version in conditioned:
            known = self.model.get(key)
            if version == NO_VERSION:
                continue
            if known is None and version != NOT_EXISTS:
                return TableKeyMissingError
            wrong |= known is not None and known[1] != version
        return TableKeyVersionError if wrong else None

    @rule(made=changes, offset=st.sampled_from([None, "right", "wrong"]))
    def update(self, made: list[tuple[bytes, bytes, str]], offset: str | None) -> None:
        length = self.container.segment_info("t").length
        segment_offset = {None: -1, "right": length, "wrong": length + 1}[offset]
        entries = [
            TableEntry(TableKey(key, self.version(key, condition)), value)
            for key, value, condition in made
        ]
        refusal = self.refusal([(entry.key.key, entry.key.version) for entry in entries])
        if refusal is None and offset == "wrong":
            refusal = BadOffsetError
        outcome = self.attempt(
            lambda: self.tables.update("t", entries, segment_offset=segment_offset)
        )
        if refusal is not None:
            assert isinstance(outcome, refusal), outcome
            assert self.container.segment_info("t").length == length
            return
        assert isinstance(outcome, list), outcome
        assert outcome[0] == length
        for entry, version in zip(entries, outcome, strict=True):
            self.model[entry.key.key] = (entry.value, version)

    @rule(made=st.lists(changes, min_size=2, max_size=6))
    def update_together(self, made: list[list[tuple[bytes, bytes, str]]]) -> None:
        """Update together: one update waits for its keys, so updates of other keys overtake it."""
        batches = [
            [
                TableEntry(TableKey(key, self.version(key, condition)), value)
                for key, value, condition in batch
            ]
            for batch in made
        ]
        outcomes = trio.run(self._update_together, batches)
        for entries, outcome in zip(batches, outcomes, strict=True):
            refusal = self.refusal([(entry.key.key, entry.key.version) for entry in entries])
            if refusal is not None:
                assert isinstance(outcome, refusal), outcome
                continue
            assert isinstance(outcome, list), outcome
            for entry, version in zip(entries, outcome, strict=True):
                self.model[entry.key.key] = (entry.value, version)

    async def _update_together(
        self, batches: list[list[TableEntry]]
    ) -> list[list[int] | SegmentStoreError | None]:
        outcomes: list[list[int] | SegmentStoreError | None] = [None] * len(batches)

        async def update(number: int) -> None:
            try:
                outcomes[number] = await self.tables.update("t", batches[number])
            except SegmentStoreError as error:
                outcomes[number] = error

        await self.tables.info("t")
        self.container.gate = trio.Event()
        async with trio.open_nursery() as nursery:
            for number in range(len(batches)):
                nursery.start_soon(update, number)
                await trio.testing.wait_all_tasks_blocked()
            self.container.gate.set()
        self.container.gate = None
        return outcomes

    @rule(made=st.lists(st.tuples(keys, conditions), min_size=1, max_size=3))
    def remove(self, made: list[tuple[bytes, str]]) -> None:
        conditioned = [(key, self.version(key, condition)) for key, condition in made]
        refusal = self.refusal(conditioned)
        outcome = self.attempt(
            lambda: self.tables.remove("t", [TableKey(*item) for item in conditioned])
        )
        if refusal is not None:
            assert isinstance(outcome, refusal), outcome
            return
        assert outcome is None
        for key, _ in conditioned:
            self.model.pop(key, None)

    @rule(asked=st.lists(keys, max_size=10))
    def read(self, asked: list[bytes]) -> None:
        outcome = self.attempt(lambda: self.tables.read("t", asked))
        assert isinstance(outcome, list), outcome
        assert [(item.key.key, item.value, item.key.version) for item in outcome] == [
            (key, *self.model.get(key, (b"", NOT_EXISTS))) for key in asked
        ]

    @rule(count_max=st.integers(1, 10))
    def iterate(self, count_max: int) -> None:
        found: list[TableEntry] = []
        token, from_key = b"", b""
        while True:
            ask = partial(
                self.tables.iterate_entries,
                "t",
                count_max=count_max,
                continuation_token=token,
                from_key=from_key,
            )
            outcome = self.attempt(ask)
            assert not isinstance(outcome, SegmentStoreError), outcome
            if not outcome.entries:
                break
            found += outcome.entries
            token = outcome.continuation_token
            if self.key_length:
                from_key = outcome.entries[-1].key.key[:-1] + bytes(
                    [outcome.entries[-1].key.key[-1] + 1]
                )
        listed = {item.key.key: (item.value, item.key.version) for item in found}
        assert listed == self.model
        assert len(found) == len(self.model)
        if self.key_length:
            assert [item.key.key for item in found] == sorted(self.model)

    @rule(count_max=st.integers(1, 3), meanwhile=st.lists(changes, min_size=1, max_size=5))
    def iterate_meanwhile(
        self, count_max: int, meanwhile: list[list[tuple[bytes, bytes, str]]]
    ) -> None:
        """Iterate while the table changes, follows, is compacted and opened again between the
        pages."""
        before = dict(self.model)
        found: list[TableEntry] = []
        token, from_key = b"", b""
        touched: set[bytes] = set()
        for number in range(len(KEYS) + 1):
            ask = partial(self.tables.iterate_entries, "t", count_max=count_max)
            page = self.attempt(partial(ask, continuation_token=token, from_key=from_key))
            assert not isinstance(page, SegmentStoreError), page
            if not page.entries:
                break
            assert {
                item.key.key: (item.value, item.key.version) for item in page.entries
            }.items() <= (self.model.items())
            found += page.entries
            token = page.continuation_token
            if self.key_length:
                last = page.entries[-1].key.key
                from_key = last[:-1] + bytes([last[-1] + 1])
            if number < len(meanwhile):
                made = [(key, value, "none") for key, value, _ in meanwhile[number]]
                touched |= {key for key, _, _ in made}
                self.update(made, None)
                self.remove([(made[0][0], "none")])
                for change in (self.step, self.compact, self.restart)[: len(made)]:
                    change()
        seen = [item.key.key for item in found]
        assert len(seen) == len(set(seen))
        assert before.keys() - touched <= set(seen)

    @precondition(lambda self: self.key_length == 0)
    @rule(count_max=st.integers(1, 10), page_count=st.integers(1, 10))
    def follow(self, count_max: int, page_count: int) -> None:
        for _ in range(page_count):
            outcome = self.attempt(
                lambda: self.tables.read_delta(
                    "t", from_position=self.position, count_max=count_max
                )
            )
            assert not isinstance(outcome, SegmentStoreError), outcome
            if outcome.should_clear:
                self.replica.clear()
            for item in outcome.entries:
                self.replica[item.key.key] = (item.value, item.key.version)
            self.position = outcome.last_position
            if outcome.reached_end:
                break
        else:
            return  # it goes on there later, whatever happens to the table meanwhile
        # Removals do not travel; everything that lives does.
        assert self.model.items() <= self.replica.items()
        self.replica = dict(self.model)

    @rule()
    def restart(self) -> None:
        self.open()

    @rule()
    def step(self) -> None:
        """Move the tail into the attributes."""
        assert self.attempt(self.tables.find_table("t").follow) is None

    @rule()
    def count(self) -> None:
        outcome = self.attempt(lambda: self.tables.info("t"))
        assert not isinstance(outcome, SegmentStoreError), outcome
        assert outcome.entry_count == len(self.model)

    @rule()
    def compact(self) -> None:
        assert self.attempt(lambda: self.tables.compact("t")) is None

    @rule(made=st.lists(changes, min_size=1, max_size=5), durable_count=st.integers(0, 3))
    def crash(self, made: list[list[tuple[bytes, bytes, str]]], durable_count: int) -> None:
        """Crash with unconditional updates in flight: a prefix of them may have happened."""
        states = [dict(self.model)]
        trio.run(self._crash, made, durable_count)
        self.container = self.container.reopen()
        self.container.auto_commit = True
        self.open()
        for batch in made:
            state = dict(states[-1])
            state |= {key: (value, -1) for key, value, _ in batch}
            states.append(state)
        page = self.attempt(lambda: self.tables.iterate_entries("t", count_max=100))
        assert not isinstance(page, SegmentStoreError)
        found = {item.key.key: (item.value, item.key.version) for item in page.entries}
        contents = {key: value for key, (value, _) in found.items()}
        assert contents in [{key: value for key, (value, _) in state.items()} for state in states]
        self.model = found

    async def _crash(self, made: list[list[tuple[bytes, bytes, str]]], durable_count: int) -> None:
        async def update(batch: list[tuple[bytes, bytes, str]]) -> None:
            entries = [TableEntry(TableKey(key), value) for key, value, _ in batch]
            try:
                await self.tables.update("t", entries)
            except ContainerOfflineError:
                return

        await self.tables.info("t")
        self.container.auto_commit = False
        async with trio.open_nursery() as nursery:
            for batch in made:
                nursery.start_soon(update, batch)
                await trio.testing.wait_all_tasks_blocked()
            self.container.crash(durable_count=durable_count)


TestTableMachine = TableMachine.TestCase
TestTableMachine.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
