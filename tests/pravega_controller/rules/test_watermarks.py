"""The rules of watermarks from writers' marks, beside models."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.rules.streams import Segment, even_ranges
from pravega_controller.rules.watermarks import (
    Verdict,
    WriterState,
    bound_cut,
    find_gaps,
    goes_on,
    judge_writers,
)
from pravega_wire import names


def alive(time: int, lagging: float = 0.0) -> WriterState:
    return WriterState(time, True, lagging)


@pytest.mark.parametrize(
    ("writers", "last", "verdict"),
    [
        ({}, None, Verdict((), False)),
        ({"a": alive(5), "b": alive(7)}, None, Verdict((), True, 5, 7)),
        ({"a": alive(5), "b": alive(7)}, 4, Verdict((), True, 5, 7)),
        ({"a": alive(5), "b": alive(7)}, 5, Verdict((), False)),
        ({"a": alive(5, 9.9), "b": alive(7)}, 5, Verdict((), False)),
        ({"a": alive(5, 10.0), "b": alive(7)}, 5, Verdict(("a",), True, 7, 7)),
        ({"a": WriterState(5, False, 0.0), "b": alive(7)}, 5, Verdict(("a",), True, 7, 7)),
        ({"a": WriterState(6, False, 0.0), "b": alive(7)}, 5, Verdict((), True, 6, 7)),
        ({"a": alive(5, 10.0)}, 5, Verdict(("a",), False)),
    ],
)
def test_writers_that_lag_are_waited_for_until_the_time_out(
    writers: dict[str, WriterState], last: int | None, verdict: Verdict
) -> None:
    assert judge_writers(writers, last, 10.0) == verdict


@given(st.dictionaries(st.text("abc", min_size=1), st.integers(-5, 9)), st.integers(-5, 9))
def test_watermarks_advance_in_time(times: dict[str, int], last: int) -> None:
    verdict = judge_writers({name: alive(t, 1.0) for name, t in times.items()}, last, 1.0)
    left = [time for name, time in times.items() if name not in verdict.gone]
    assert verdict.is_complete == bool(left)
    if left:
        assert last < verdict.lower == min(left) <= verdict.upper == max(left)


def test_a_position_goes_on_where_no_common_offset_falls() -> None:
    assert goes_on({1: 5, 2: 5}, {1: 5, 2: 6, 3: 0})
    assert goes_on({1: 5}, {2: 0})
    assert not goes_on({1: 5, 2: 5}, {1: 4, 2: 9})


@dataclass
class World:
    """A scaled stream's epochs, and positions of writers in it."""

    epochs: list[list[Segment]]
    positions: list[dict[Segment, int]]
    last: dict[Segment, int]

    async def segments_in(self, number: int) -> list[Segment]:
        return self.epochs[number]


@st.composite
def worlds(draw: st.DrawFn) -> World:
    active = [
        Segment(names.segment_id(number, 0), low, high)
        for number, (low, high) in enumerate(even_ranges(draw(st.integers(1, 4))))
    ]
    epochs = [list(active)]
    for epoch in range(1, draw(st.integers(0, 5)) + 1):
        start = draw(st.integers(0, len(active) - 1))
        end = draw(st.integers(start + 1, min(len(active), start + 3)))
        low, high = active[start].low, active[end - 1].high
        ranges = [(low, high)]
        if draw(st.booleans()):
            ranges = [(low, (low + high) / 2), ((low + high) / 2, high)]
        number = 1 + max(each.number for each in active)
        active[start:end] = [
            Segment(names.segment_id(number + n, epoch), *each) for n, each in enumerate(ranges)
        ]
        epochs.append(list(active))

    def cut() -> dict[Segment, int]:
        here = epochs[draw(st.integers(0, len(epochs) - 1))]
        return {segment: draw(st.integers(0, 9)) for segment in here}

    positions = []
    for _ in range(draw(st.integers(1, 4))):
        whole = cut()
        kept = draw(st.lists(st.sampled_from(sorted(whole)), min_size=1, unique=True))
        positions.append({segment: whole[segment] for segment in kept})
    return World(epochs, positions, cut() if draw(st.booleans()) else {})


@given(worlds())
async def test_the_cut_is_whole_and_behind_all_positions(world: World) -> None:
    cut = await bound_cut(world.positions, world.last, world.segments_in)
    assert find_gaps(cut) == []
    assert sum(segment.high - segment.low for segment in cut) == pytest.approx(1.0)
    for position in [*world.positions, world.last]:
        for segment, offset in position.items():
            for place in cut:
                if place.overlaps(segment):
                    assert (place.epoch, cut[place]) >= (segment.epoch, offset)


async def test_a_segment_that_is_left_out_throws_out_those_before_it() -> None:
    """A random test found this: the left half stayed in epoch 0, although a writer was in epoch
    1 there."""
    first = [Segment(0, 0.0, 0.5), Segment(1, 0.5, 1.0)]
    whole = Segment(names.segment_id(2, 1), 0.0, 1.0)
    halves = [
        Segment(names.segment_id(3, 2), 0.0, 0.5),
        Segment(names.segment_id(4, 2), 0.5, 1.0),
    ]

    async def segments_in(epoch: int) -> list[Segment]:
        return [first, [whole], halves][epoch]

    positions = [{halves[1]: 0}, {first[0]: 0}, {whole: 0}]
    assert await bound_cut(positions, {}, segments_in) == dict.fromkeys(halves, 0)


@given(worlds())
async def test_segments_that_all_wrote_to_are_where_the_furthest_is(world: World) -> None:
    """In one epoch the bound is the maximum, segment by segment."""
    here = world.epochs[-1]
    positions = [{each: 3 * n for n, each in enumerate(here)}, dict.fromkeys(here, 5)]
    cut = await bound_cut(positions, {}, world.segments_in)
    assert cut == {each: max(3 * n, 5) for n, each in enumerate(here)}
