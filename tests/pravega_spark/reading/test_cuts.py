"""The rules by which a streaming query advances, against a stream that scales at random."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_spark.errors import OptionError
from pravega_spark.reading.cuts import (
    EPOCH_SHIFT,
    SegmentState,
    Slice,
    Successor,
    cut_to_offset,
    find_completed,
    is_behind,
    offset_to_cut,
    parse_cut,
    readable_end,
    replace_completed,
    resolve_ends,
    slices_between,
)

CUTS = st.dictionaries(st.integers(0, 2**62), st.integers(0, 2**62), min_size=1)


@given(CUTS)
def test_an_offset_of_spark_reads_back(cut: dict[int, int]) -> None:
    offset = cut_to_offset("s/t", cut)
    assert offset_to_cut("s/t", json.loads(json.dumps(offset))) == cut
    assert parse_cut("s/t", json.dumps(offset)) == cut
    assert parse_cut("s/t", json.dumps(offset["cut"])) == cut


@pytest.mark.parametrize("text", ["", "[]", "3", "first", '{"0": "a"}', '{"a": 1}', '{"0": -2}'])
def test_what_is_no_cut_is_refused(text: str) -> None:
    with pytest.raises(OptionError):
        parse_cut("s/t", text)


def test_minus_one_is_the_end_of_a_sealed_segment() -> None:
    """Positions of the Java client have it; it was read from the start, a second time."""
    cut = parse_cut("s/t", '{"0": -1, "1": 3}')
    states = {0: SegmentState(0, 77, is_sealed=True), 1: SegmentState(0, 50, is_sealed=False)}
    assert resolve_ends(cut, states) == {0: 77, 1: 3}
    for bad in ({1: -1}, {2: -1}):
        with pytest.raises(OptionError, match="end of a sealed segment"):
            resolve_ends(bad, states)


def test_a_checkpoint_of_another_stream_is_refused() -> None:
    with pytest.raises(OptionError, match="s/other"):
        offset_to_cut("s/t", cut_to_offset("s/other", {0: 1}))


def test_slices_are_what_lies_between_two_cuts() -> None:
    assert slices_between({0: 10, 1: 5}, {1: 5, 2: 7, 3: 0}) == [Slice(2, 0, 7)]
    assert slices_between({0: 10}, {0: 12}) == [Slice(0, 10, 12)]


@dataclass
class ModelStream:
    """A stream whose segments are key ranges in sixteenths; each has a length and may be sealed."""

    rng: Random
    epoch: int = 0
    next_number: int = 1
    ranges: dict[int, tuple[int, int]] = field(default_factory=lambda: {0: (0, 16)})
    active: list[int] = field(default_factory=lambda: [0])
    lengths: dict[int, int] = field(default_factory=lambda: {0: 0})
    sealed_at: dict[int, int] = field(default_factory=dict)
    successors: dict[int, list[Successor]] = field(default_factory=dict)

    def append(self) -> None:
        self.lengths[self.rng.choice(self.active)] += self.rng.randint(1, 9)

    def scale(self) -> None:
        """Replace some neighbouring segments by others that cover the same keys."""
        self.epoch += 1
        ordered = sorted(self.active, key=lambda segment: self.ranges[segment])
        first = self.rng.randrange(len(ordered))
        sealed = ordered[first : first + self.rng.randint(1, 3)]
        low, high = self.ranges[sealed[0]][0], self.ranges[sealed[-1]][1]
        count = self.rng.randint(1, min(3, high - low))
        inner = sorted(self.rng.sample(range(low + 1, high), count - 1))
        created = []
        for begin, end in zip([low, *inner], [*inner, high], strict=True):
            segment = (self.epoch << EPOCH_SHIFT) | self.next_number
            self.next_number += 1
            self.ranges[segment], self.lengths[segment] = (begin, end), 0
            created.append(segment)
        for segment in sealed:
            self.sealed_at[segment] = self.epoch
            self.successors[segment] = [
                Successor(new, frozenset(old for old in sealed if self._overlap(old, new)))
                for new in created
                if self._overlap(segment, new)
            ]
        self.active = [each for each in self.active if each not in sealed] + created

    def _overlap(self, one: int, other: int) -> bool:
        (low, high), (begin, end) = self.ranges[one], self.ranges[other]
        return low < end and begin < high

    def tail(self) -> dict[int, int]:
        return {segment: self.lengths[segment] for segment in self.active}

    def states(self, cut: dict[int, int]) -> dict[int, SegmentState]:
        return {
            segment: SegmentState(0, self.lengths[segment], segment in self.sealed_at)
            for segment in cut
        }


def advance(
    stream: ModelStream, cut: dict[int, int], end: dict[int, int] | None, rng: Random
) -> dict[int, int]:
    """Do the work of a batch, with a limit on each segment drawn at random."""
    while True:
        states = stream.states(cut)
        completed = find_completed(cut, states, end)
        known = {segment: stream.successors.get(segment, []) for segment in completed}
        replaced = replace_completed(cut, completed, known, end)
        if replaced == cut:
            break
        cut = replaced
    return {
        segment: max(
            offset, min(offset + rng.randint(0, 12), readable_end(segment, states[segment], end))
        )
        for segment, offset in cut.items()
    }


def keys_of(stream: ModelStream, segment: int) -> range:
    return range(*stream.ranges[segment])


@given(st.integers(0, 2**32), st.integers(5, 60))
def test_every_byte_is_read_once_and_each_key_in_order(seed: int, steps: int) -> None:
    rng = Random(seed)
    stream = ModelStream(rng)
    cut: dict[int, int] = {0: 0}
    read: dict[int, int] = {}
    order: dict[int, list[int]] = {key: [] for key in range(16)}

    def batch(end: dict[int, int] | None) -> bool:
        nonlocal cut
        after = advance(stream, cut, end, rng)
        # A cut covers every key once, but for segments that wait for others to be completed.
        assert sorted(key for segment in after for key in keys_of(stream, segment)) == list(
            range(16)
        )
        for piece in slices_between(cut, after):
            assert piece.start == read.get(piece.segment_id, 0)
            read[piece.segment_id] = piece.end
            for key in keys_of(stream, piece.segment_id):
                order[key].append(piece.segment_id)
        changed, cut = after != cut, after
        return changed

    for _ in range(steps):
        action = rng.random()
        if action < 0.5:
            stream.append()
        elif action < 0.65:
            stream.scale()
        else:
            batch(None)
    end = stream.tail()
    lengths = dict(stream.lengths)
    for _ in range(10):
        # What comes after the end was taken is not for this query.
        stream.append()
        if rng.random() < 0.3:
            stream.scale()
    waited = 0
    while waited < 50:
        waited = 0 if batch(end) else waited + 1
    for segment, length in lengths.items():
        assert read.get(segment, 0) == length
    assert sum(read.values()) == sum(lengths.values())
    assert cut == end
    for key in range(16):
        epochs = [segment >> EPOCH_SHIFT for segment in order[key]]
        assert epochs == sorted(epochs)


def test_segments_made_after_the_end_was_taken_are_behind_it() -> None:
    end = {0: 5, (3 << EPOCH_SHIFT) | 4: 0}
    assert not is_behind(0, end)
    assert not is_behind((2 << EPOCH_SHIFT) | 3, end)
    assert is_behind((4 << EPOCH_SHIFT) | 5, end)
    assert not is_behind((4 << EPOCH_SHIFT) | 5, None)
