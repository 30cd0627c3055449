"""The cached entries of segments beside plain Python ones, through any sequence of operations."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from _fast.cache.read_index import ENTRY_BYTES_MAX, GENERATIONS_MAX, Generations, SegmentEntries
from _fast.cache.streaming_cache import StreamingCache

CAPACITY_BYTES = 64 << 20

segments = st.integers(0, 2)
offsets = st.integers(0, 40_000)
sizes = st.one_of(
    st.integers(0, 3000), st.sampled_from([4095, 4096, 4097, 60_000, ENTRY_BYTES_MAX])
)


@dataclass(slots=True)
class Entry:
    offset: int
    data: bytes
    generation: int
    history: bool = False
    consumed: bool = False
    listed_at: int = -1
    """The time at which it came into its present list; -1 if it is in none."""
    listed_generation: int = 0

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(slots=True)
class Oracle:
    """The entries of some segments, by segment number and offset."""

    segments: dict[int, dict[int, Entry]] = field(default_factory=dict)
    stored: dict[int, int] = field(default_factory=dict)
    generation: int = 0
    time: int = 0

    def open(self, segment: int) -> None:
        self.segments[segment] = {}
        self.stored[segment] = 0

    def close(self, segment: int) -> None:
        del self.segments[segment], self.stored[segment]

    def sorted(self, segment: int) -> list[Entry]:
        entries = self.segments[segment]
        return [entries[offset] for offset in sorted(entries)]

    def end(self, segment: int) -> int:
        return max((entry.end for entry in self.segments[segment].values()), default=0)

    def list_entry(self, entry: Entry) -> None:
        self.time += 1
        entry.listed_at = self.time
        entry.listed_generation = max(entry.generation, self.generation - GENERATIONS_MAX + 1)

    def append(self, segment: int, offset: int, data: bytes) -> None:
        if not data:
            return
        entries = self.sorted(segment)
        last = entries[-1] if entries else None
        if last and last.end == offset and len(last.data) + len(data) <= ENTRY_BYTES_MAX:
            last.data += data
            last.history = last.consumed = False
            last.generation = self.generation
            last.listed_at = -1
        else:
            last = self.segments[segment][offset] = Entry(offset, data, self.generation)
        if last.end <= self.stored[segment]:
            self.list_entry(last)

    def insert(self, segment: int, offset: int, data: bytes) -> bool:
        end = offset + len(data)
        overlaps = any(
            entry.offset < end and offset < entry.end for entry in self.segments[segment].values()
        )
        if not data or overlaps:
            return False
        entry = self.segments[segment][offset] = Entry(offset, data, self.generation, history=True)
        self.list_entry(entry)
        return True

    def set_stored_length(self, segment: int, stored: int) -> bool:
        self.stored[segment] = max(stored, self.stored[segment])
        for entry in self.sorted(segment):
            if entry.end <= self.stored[segment] and entry.listed_at < 0:
                self.list_entry(entry)
        return self.end(segment) <= self.stored[segment]

    def gather(self, segment: int, offset: int, length_max: int, *, use: bool) -> bytes:
        result = b""
        for entry in self.sorted(segment):
            at = offset + len(result)
            left = length_max - len(result)
            if entry.offset <= at < entry.end and left > 0:
                rest = entry.data[at - entry.offset :]
                result += rest[:left]
                if use and (entry.history or entry.generation != self.generation):
                    entry.generation = self.generation
                    entry.consumed = entry.history and len(rest) <= left
                    if entry.listed_at >= 0:
                        self.list_entry(entry)
        return result

    def cached_end(self, segment: int, offset: int) -> int:
        for entry in self.sorted(segment):
            if entry.offset <= offset < entry.end:
                offset = entry.end
        return offset

    def next_cached_offset(self, segment: int, offset: int) -> int | None:
        return min((at for at in self.segments[segment] if at >= offset), default=None)

    def drop_before(self, segment: int, offset: int) -> None:
        for entry in self.sorted(segment):
            if entry.end <= offset:
                del self.segments[segment][entry.offset]

    def adopt_entries(self, target: int, source: int, shift: int) -> None:
        for entry in self.sorted(source):
            entry.offset += shift
            if any(
                kept.offset < entry.end and entry.offset < kept.end
                for kept in self.segments[target].values()
            ):
                continue
            self.segments[target][entry.offset] = entry
            entry.listed_at = -1
            entry.history = entry.consumed = False
            if entry.end <= self.stored[target]:
                self.list_entry(entry)
        self.segments[source] = {}

    def victims(self, generation_end: int, history_bytes_min: int) -> list[tuple[int, Entry]]:
        """Return the entries that may be evicted now, in the order of their eviction."""
        listed = [
            (segment, entry)
            for segment, entries in self.segments.items()
            for entry in entries.values()
            if entry.listed_at >= 0
        ]
        listed.sort(key=lambda pair: pair[1].listed_at)
        left = sum(len(entry.data) for _, entry in self.all_entries() if entry.history)
        result = [pair for pair in listed if pair[1].consumed]
        left -= sum(len(entry.data) for _, entry in result)
        for pair in listed:
            if pair[1].history and not pair[1].consumed and left > history_bytes_min:
                left -= len(pair[1].data)
                result.append(pair)
        oldest = self.generation - GENERATIONS_MAX + 1
        tail = [
            pair
            for pair in listed
            if not pair[1].history and max(pair[1].listed_generation, oldest) < generation_end
        ]
        return result + sorted(tail, key=lambda pair: pair[1].listed_generation)

    def all_entries(self) -> list[tuple[int, Entry]]:
        return [
            (segment, entry)
            for segment, entries in self.segments.items()
            for entry in entries.values()
        ]


class EntriesModel(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.seed = 0
        self.cache = StreamingCache(CAPACITY_BYTES)
        self.generations = Generations(self.cache)
        self.oracle = Oracle()
        self.entries: dict[int, SegmentEntries] = {}
        self.looks: list[tuple[list[memoryview], bytes]] = []

    @initialize()
    def open(self) -> None:
        for segment in range(3):
            self.entries[segment] = SegmentEntries(self.generations)
            self.oracle.open(segment)

    def fresh_bytes(self, length: int) -> bytes:
        self.seed += 1
        return random.Random(self.seed).randbytes(length)

    @rule(segment=segments, size=sizes, gap=st.sampled_from([0, 0, 0, 1, 500]))
    def append(self, segment: int, size: int, gap: int) -> None:
        data = self.fresh_bytes(size)
        offset = self.oracle.end(segment) + gap
        self.entries[segment].append(offset, data)
        self.oracle.append(segment, offset, data)

    @rule(segment=segments, back=st.integers(1, 5000))
    def append_too_early(self, segment: int, back: int) -> None:
        end = self.oracle.end(segment)
        if 0 < back <= end:
            with pytest.raises(ValueError, match="cannot be appended"):
                self.entries[segment].append(end - back, b"x")

    @rule(segment=segments, offset=offsets, size=st.integers(0, 3000))
    def insert(self, segment: int, offset: int, size: int) -> None:
        data = self.fresh_bytes(size)
        kept = self.entries[segment].insert(offset, data)
        assert kept == self.oracle.insert(segment, offset, data)

    @rule(segment=segments, first=offsets, count=st.integers(30, 200), step=st.integers(10, 20))
    def insert_many(self, segment: int, first: int, count: int, step: int) -> None:
        order = [first + number * step for number in range(count)]
        random.Random(count).shuffle(order)
        for offset in order:
            data = self.fresh_bytes(7)
            kept = self.entries[segment].insert(offset, data)
            assert kept == self.oracle.insert(segment, offset, data)

    @rule(segment=segments, stored=st.one_of(offsets, st.integers(0, 1_000_000)))
    def set_stored_length(self, segment: int, stored: int) -> None:
        all_stored = self.entries[segment].set_stored_length(stored)
        assert all_stored == self.oracle.set_stored_length(segment, stored)

    @rule(segment=segments, offset=offsets, length=st.integers(0, 200_000), use=st.booleans())
    def gather(self, segment: int, offset: int, length: int, use: bool) -> None:
        expected = self.oracle.gather(segment, offset, length, use=use)
        assert self.entries[segment].gather(offset, length, use) == expected

    @rule(segment=segments, offset=offsets, length=st.integers(0, 200_000))
    def look(self, segment: int, offset: int, length: int) -> None:
        expected = self.oracle.gather(segment, offset, length, use=False)
        self.looks.append((self.entries[segment].views(offset, length), expected))

    @precondition(lambda self: self.looks)
    @rule()
    def look_away(self) -> None:
        self.looks.pop(0)

    @rule(segment=segments, offset=offsets)
    def find(self, segment: int, offset: int) -> None:
        entries = self.entries[segment]
        assert entries.cached_end(offset) == self.oracle.cached_end(segment, offset)
        assert entries.next_cached_offset(offset) == self.oracle.next_cached_offset(segment, offset)

    @rule(segment=segments, offset=offsets)
    def drop_before(self, segment: int, offset: int) -> None:
        self.entries[segment].drop_before(offset)
        self.oracle.drop_before(segment, offset)

    @rule(taker=segments, source=segments, shift=st.integers(0, 50_000))
    def adopt_entries(self, taker: int, source: int, shift: int) -> None:
        if taker != source:
            self.entries[taker].adopt_entries(self.entries[source], shift)
            self.oracle.adopt_entries(taker, source, shift)
        else:
            with pytest.raises(ValueError, match="entries move between segments"):
                self.entries[taker].adopt_entries(self.entries[source], shift)

    @rule(count=st.sampled_from([1, 1, 1, 2, 7, GENERATIONS_MAX - 1, GENERATIONS_MAX + 9]))
    def advance(self, count: int) -> None:
        self.generations.advance(count)
        self.oracle.generation += min(count, GENERATIONS_MAX)
        assert self.generations.current == self.oracle.generation

    @rule(
        count=st.integers(0, 100),
        age=st.sampled_from([-1, 0, 1, 3, GENERATIONS_MAX]),
        history_min=st.integers(0, 20_000),
    )
    def evict(self, count: int, age: int, history_min: int) -> None:
        end = max(0, self.oracle.generation - age)
        victims = self.oracle.victims(end, history_min)[:count]
        evicted = self.generations.evict(
            used_bytes_max=0, count_max=count, generation_end=end, history_bytes_min=history_min
        )
        assert evicted == len(victims)
        for segment, entry in victims:
            del self.oracle.segments[segment][entry.offset]

    @rule(age=st.integers(0, 3))
    def expire(self, age: int) -> None:
        end = max(0, self.oracle.generation - age)
        self.generations.expire(end, count_max=2**32 - 1)
        for segment, entry in self.oracle.all_entries():
            if entry.listed_at >= 0 and entry.generation < end:
                del self.oracle.segments[segment][entry.offset]

    @rule(segment=segments)
    def begin_anew(self, segment: int) -> None:
        self.entries[segment] = SegmentEntries(self.generations)
        self.oracle.close(segment)
        self.oracle.open(segment)

    @rule(segment=segments)
    def clear(self, segment: int) -> None:
        self.entries[segment].clear()
        self.oracle.segments[segment] = {}

    @invariant()
    def they_agree(self) -> None:
        for segment, entries in self.entries.items():
            entries.check()
            expected = self.oracle.sorted(segment)
            assert len(entries) == len(expected)
            assert entries.end == self.oracle.end(segment)
            assert entries.entries() == [(e.offset, len(e.data), e.generation) for e in expected]
        everything = [entry for _, entry in self.oracle.all_entries()]
        listed = [entry for entry in everything if entry.listed_at >= 0]
        generations = self.generations
        assert generations.entry_count == len(everything)
        assert generations.evictable_bytes == sum(len(entry.data) for entry in listed)
        assert generations.history_bytes == sum(len(e.data) for e in everything if e.history)
        for views, expected_bytes in self.looks:
            assert b"".join(views) == expected_bytes
        self.cache.check()

    def teardown(self) -> None:
        self.looks.clear()
        self.entries.clear()
        assert self.cache.stored_bytes == 0
        assert self.generations.entry_count == 0


TestEntries = EntriesModel.TestCase
TestEntries.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
