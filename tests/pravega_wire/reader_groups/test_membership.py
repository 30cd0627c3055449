"""Readers of a group that come, go and vanish, on streams that scale, without I/O: each seed is a
run in which the readers, the log and the stream take random steps."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

import pytest

from pravega_wire.names import parse_segment_name, segment_id, segment_name
from pravega_wire.reader_groups.changes import (
    Change,
    ReaderAdded,
    ReaderRemoved,
    begin_group,
    encode_changes,
    encode_state,
)
from pravega_wire.reader_groups.membership import (
    UNIT_SECONDS,
    EndedSegment,
    Membership,
    ReaderRemovedError,
)
from pravega_wire.reader_groups.settings import GroupSettings
from pravega_wire.reader_groups.states import GroupState

KEYS = 8
SEEDS = range(12)


@dataclass
class Segment:
    """A segment of the model: its keys, its events, and what follows it."""

    keys: frozenset[int]
    events: list[tuple[int, int]] = field(default_factory=list)
    """Keys, and the number of the event of its key. An offset is a place in this list."""
    successors: dict[str, list[int]] | None = None


class Stream:
    """The stream of the model."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._numbers = itertools.count()
        self.segments: dict[str, Segment] = {}
        self.written = dict.fromkeys(range(KEYS), 0)
        for keys in (range(3), range(3, 6), range(6, KEYS)):
            self._add(frozenset(keys))

    def _add(self, keys: frozenset[int]) -> str:
        name = segment_name("s", "t", segment_id(next(self._numbers), 0))
        self.segments[name] = Segment(keys)
        return name

    def write(self) -> None:
        key = self._random.randrange(KEYS)
        (segment,) = (each for each in self._open().values() if key in each.keys)
        segment.events.append((key, self.written[key]))
        self.written[key] += 1

    def split(self) -> None:
        name, segment = self._random.choice(list(self._open().items()))
        keys = sorted(segment.keys)
        if len(keys) > 1:
            at = self._random.randrange(1, len(keys))
            parts = [frozenset(keys[:at]), frozenset(keys[at:])]
            before = [identifier(name)]
            segment.successors = {self._add(part): before for part in parts}

    def merge(self) -> None:
        open_ones = self._open()
        if len(open_ones) > 2:
            names = self._random.sample(sorted(open_ones), 2)
            merged = self._add(frozenset().union(*(open_ones[name].keys for name in names)))
            for name in names:
                open_ones[name].successors = {merged: [identifier(each) for each in names]}

    def seal(self) -> None:
        for segment in self._open().values():
            segment.successors = {}

    def _open(self) -> dict[str, Segment]:
        return {name: each for name, each in self.segments.items() if each.successors is None}


def identifier(name: str) -> int:
    return parse_segment_name(name).segment_id


class Log:
    """The log of the group's state: revisions, of which one is appended behind the last only."""

    def __init__(self, stream: Stream) -> None:
        settings = GroupSettings({"s/t": {}}, {"s/t": {}}, checkpoint_ms=5000, refresh_ms=3000)
        cut = {identifier(name): 0 for name in stream.segments}
        self.revisions = [encode_state(begin_group(settings, {"s/t": cut}))]

    def append(self, revision: bytes, at: int) -> bool:
        if at != len(self.revisions):
            return False
        self.revisions.append(revision)
        return True


class Copy:
    """The state as one client knows it."""

    def __init__(self, log: Log, look: Callable[[GroupState], None] | None = None) -> None:
        self.log = log
        self.state = GroupState()
        self.position = 0
        self._look = look

    def read(self) -> GroupState:
        for revision in self.log.revisions[self.position :]:
            self.state.add(revision)
            if self._look is not None:
                self._look(self.state)
        self.position = len(self.log.revisions)
        return self.state

    def change(self, decide: Callable[[GroupState], list[Change]]) -> list[Change]:
        while True:
            changes = decide(self.state)
            if not changes or self.log.append(encode_changes(changes), self.position):
                self.state.apply(changes)
                self.position += bool(changes)
                return changes
            self.read()


class Reader:
    """A reader of the group, as the client's: a position in each of its segments."""

    def __init__(self, name: str, run: Run) -> None:
        self.name = name
        self._run = run
        self.copy = Copy(run.log)
        self.copy.read()
        self.copy.change(lambda _: [ReaderAdded(name)])
        self._member = Membership(name, run.now, lambda: f"c{next(run.numbers)}")
        self.positions: dict[str, int] = {}
        self._ended: dict[str, EndedSegment] = {}

    def update(self) -> None:
        member, now = self._member, self._run.now
        if member.needs_refresh(now):
            member.note_refresh(self.copy.read(), now)
        self._make_changes(None)
        while (checkpoint := member.find_checkpoint(self.copy.state)) is not None:
            self._make_changes(checkpoint)
        assert member.due_at(self.copy.state) > now - UNIT_SECONDS

    def _make_changes(self, reached: str | None) -> None:
        member, now = self._member, self._run.now
        changes = self.copy.change(
            lambda state: member.decide(state, now, self.positions, self._ended, reached)
        )
        state = self.copy.state
        member.note_changes(state, changes, now)
        mine = state.assigned[self.name]
        self.positions = {name: self.positions.get(name, mine[name]) for name in mine}
        self._ended = {name: end for name, end in self._ended.items() if name in mine}

    def process(self) -> None:
        """Process the next event of a segment, or come to its end."""
        if not self.positions:
            return
        name = self._run.random.choice(sorted(self.positions))
        segment, at = self._run.stream.segments[name], self.positions[name]
        if name in self._ended:
            return
        if 0 <= at < len(segment.events):
            self._run.processed(*segment.events[at])
            self.positions[name] += 1
        elif segment.successors is not None:
            self.positions[name] = -1
            self._ended[name] = EndedSegment(segment.successors)

    def leave(self) -> None:
        self.copy.change(lambda state: self._member.leave(state, self.positions))


class Run:
    """One run: a stream, a log, readers, and what was processed."""

    def __init__(self, seed: int, *, merges: bool, vanishes: bool) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.numbers = itertools.count()
        self.stream = Stream(self.random)
        self.log = Log(self.stream)
        self.readers: list[Reader] = []
        self.next = dict.fromkeys(range(KEYS), 0)
        self.again = 0
        self._merges, self._vanishes = merges, vanishes

    def processed(self, key: int, number: int) -> None:
        """Note an event; none before it may be missing."""
        assert number <= self.next[key], f"event {number} of key {key} before {self.next[key]}"
        self.again += number < self.next[key]
        self.next[key] = max(self.next[key], number + 1)

    def step(self) -> None:
        random = self.random
        self.now += random.expovariate(4)
        for _ in range(random.randrange(4)):
            self.stream.write()
        if random.random() < 0.02:
            self.stream.split()
        if self._merges and random.random() < 0.02:
            self.stream.merge()
        if len(self.readers) < 4 and random.random() < 0.05:
            self.readers.append(Reader(f"r{next(self.numbers)}", self))
        if len(self.readers) > 1 and random.random() < 0.03:
            self.end(self.readers.pop(random.randrange(len(self.readers))))
        if random.random() < 0.01:
            copy = Copy(self.log)
            state = copy.read()
            self.log.append(encode_state(state.compact()), copy.position)
        for reader in self.readers:
            for _ in range(random.randrange(5)):
                reader.process()
            if random.random() < 0.7:
                reader.update()

    def end(self, reader: Reader) -> None:
        if self._vanishes and self.random.random() < 0.7:
            operator = Copy(self.log)
            operator.read()
            operator.change(lambda _: [ReaderRemoved(reader.name, {})])
        else:
            reader.leave()

    def finish(self) -> GroupState:
        """Seal the stream, and read to its end."""
        self.stream.seal()
        if not self.readers:
            self.readers.append(Reader("last", self))
        for _ in range(5_000):
            self.now += 0.5
            for reader in self.readers:
                reader.update()
                reader.process()
                reader.process()
            if self.readers[0].copy.state.is_at_end:
                break
        state = self.readers[0].copy.read()
        assert state.is_at_end
        assert self.next == self.stream.written
        return state


@pytest.mark.parametrize("vanishes", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_each_event_is_processed_in_order(seed: int, vanishes: bool) -> None:
    run = Run(seed, merges=True, vanishes=vanishes)
    for _ in range(400):
        run.step()
    run.finish()
    assert vanishes or run.again == 0


def test_the_runs_above_have_readers_that_vanish() -> None:
    again = 0
    for seed in SEEDS:
        run = Run(seed, merges=True, vanishes=True)
        for _ in range(200):
            run.step()
        again += run.again
    assert again > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_the_positions_of_a_checkpoint_are_a_cut(seed: int) -> None:
    run = Run(seed, merges=False, vanishes=True)
    seen: set[str] = set()

    def look(state: GroupState) -> None:
        for name, positions in state.checkpoints.positions.items():
            if name in seen or name in state.checkpoints.waiting:
                continue
            seen.add(name)
            keys = [key for each in positions for key in run.stream.segments[each].keys]
            assert sorted(keys) == list(range(KEYS))

    observer = Copy(run.log, look)
    for _ in range(400):
        run.step()
        observer.read()
    assert len(seen) > 5


def test_a_reader_that_was_removed_is_told() -> None:
    run = Run(0, merges=False, vanishes=False)
    reader = Reader("a", run)
    reader.update()
    assert len(reader.positions) == 3
    operator = Copy(run.log)
    operator.read()
    operator.change(lambda _: [ReaderRemoved("a", {})])
    run.now += 100.0
    with pytest.raises(ReaderRemovedError):
        reader.update()
    reader.leave()
    assert len(run.log.revisions) == 4


def test_segments_stay_while_a_checkpoint_waits() -> None:
    """Else a segment would be in the positions of no reader, or of two."""
    run = Run(0, merges=False, vanishes=False)
    first, second = Reader("a", run), Reader("b", run)
    first.update()
    assert not second.positions
    run.now += 100.0
    state = first.copy.read()
    assert state.checkpoints.next_of("b") is None
    first.update()
    checkpoint = second.copy.read().checkpoints.next_of("b")
    assert checkpoint is not None
    member = Membership("b", run.now, lambda: "unused")
    changes = member.decide(second.copy.state, run.now + 100.0, {}, {})
    assert {type(each).__name__ for each in changes} == {"PositionTold"}
