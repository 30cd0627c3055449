"""The rules of retention, beside models that follow one key after the other."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_controller.rules.retention import (
    Released,
    StoredCut,
    choose_truncation,
    count_bytes,
    lower_bound,
)
from pravega_controller.rules.stream_cuts import pieces, refuse_partly_read
from pravega_controller.rules.streams import RetentionPolicy, RetentionType, Segment, even_ranges
from pravega_wire import names

SIZE, TIME = RetentionType.SIZE, RetentionType.TIME
Cut = dict[int, int]


@dataclass
class World:
    """Segments of a stream that was scaled at random, and two cuts of it or more."""

    segments: dict[int, Segment]
    cuts: list[Cut]

    def positions(self, cut: Cut) -> list[tuple[int, int]]:
        """Return (epoch, offset) of every key that is the first one of some segment."""
        found = []
        for key in sorted({segment.low for segment in self.segments.values()}):
            covering = [self.segments[i] for i in cut if self.segments[i].low <= key]
            [owner] = [each for each in covering if key < each.high]
            found.append((owner.epoch, cut[owner.segment_id]))
        return found


@st.composite
def worlds(draw: st.DrawFn, cut_count: int = 3) -> World:
    active = [
        Segment(names.segment_id(number, 0), low, high)
        for number, (low, high) in enumerate(even_ranges(draw(st.integers(1, 4))))
    ]
    segments = {each.segment_id: each for each in active}
    first = list(active)
    scales: list[tuple[list[Segment], list[Segment]]] = []
    for epoch in range(1, draw(st.integers(0, 6)) + 1):
        start = draw(st.integers(0, len(active) - 1))
        end = draw(st.integers(start + 1, min(len(active), start + 3)))
        sealed = active[start:end]
        low, high = sealed[0].low, sealed[-1].high
        inner = draw(st.integers(0, 2))
        ends = [low, *[low + (high - low) * (n + 1) / (inner + 1) for n in range(inner)], high]
        number = 1 + max(each.number for each in active)
        created = [
            Segment(names.segment_id(number + n, epoch), ends[n], ends[n + 1])
            for n in range(inner + 1)
        ]
        scales.append((sealed, created))
        active[start:end] = created
        segments.update((each.segment_id, each) for each in created)
    cuts = []
    for _ in range(cut_count):
        position = {each.segment_id for each in first}
        for sealed, created in scales:
            ids = {each.segment_id for each in sealed}
            if ids <= position and draw(st.booleans()):
                position = position - ids | {each.segment_id for each in created}
        cuts.append({each: draw(st.integers(0, 5)) for each in position})
    return World(segments, cuts)


@given(worlds())
def test_nothing_that_somebody_needs_lies_before_the_lower_bound(world: World) -> None:
    bound = lower_bound(world.segments, world.cuts)
    lowest = [min(each) for each in zip(*map(world.positions, world.cuts), strict=True)]
    assert world.positions(bound) == lowest


@given(worlds(1))
def test_the_lower_bound_of_one_is_that_one(world: World) -> None:
    assert lower_bound(world.segments, world.cuts) == world.cuts[0]


@given(worlds())
def test_the_lower_bound_is_a_cut_that_readers_can_reach(world: World) -> None:
    tiling = pieces(world.segments, lower_bound(world.segments, world.cuts))
    refuse_partly_read(world.segments.values(), tiling)


def test_a_segment_that_one_has_not_finished_holds_up_its_successor() -> None:
    halves = [Segment(0, 0.0, 0.5), Segment(1, 0.5, 1.0)]
    merged = Segment(1 << 32 | 2, 0.0, 1.0)
    segments = {each.segment_id: each for each in (*halves, merged)}
    assert lower_bound(segments, [{merged.segment_id: 7}, {0: 3, 1: 4}]) == {0: 3, 1: 4}


@given(
    st.dictionaries(st.integers(0, 9), st.integers(0, 50), min_size=1),
    st.data(),
)
def test_bytes_between_cuts_are_those_of_the_segments_in_a_row(
    lengths: dict[int, int], data: st.DataObject
) -> None:
    """The segments follow each other, and a cut is a place in all their bytes."""
    order = sorted(lengths)
    places = [(each, offset) for each in order for offset in range(lengths[each] + 1)]
    start = data.draw(st.integers(0, len(places) - 1))
    end = data.draw(st.integers(start, len(places) - 1))
    (first, first_offset), (last, last_offset) = places[start], places[end]
    between = [each for each in order if first <= each <= last]
    whole = sum(lengths[each] for each in order if first <= each < last)
    found = count_bytes(between, {first: first_offset}, {last: last_offset}, lengths)
    assert found == whole - first_offset + last_offset


def at_or_after(later: Cut, earlier: Cut) -> bool:
    return all(later[key] >= earlier[key] for key in later)


async def choose(
    policy: RetentionPolicy, stored: list[tuple[int, int, Cut]], bound: Cut | None, now: int
) -> Cut | None:
    cuts = [StoredCut(time, size) for time, size, _ in stored]

    async def fetch(wanted: StoredCut) -> Cut:
        return stored[cuts.index(wanted)][2]

    async def compare(later: Cut, earlier: Cut) -> bool:  # type: ignore[override]
        return at_or_after(later, earlier)

    released = None
    if bound is not None:
        latest = stored[-1]
        kept = sum(max(0, latest[2][key] - bound[key]) for key in bound)
        released = Released(bound, kept)
    found = await choose_truncation(
        policy,
        cuts,
        fetch,
        released,
        compare,
        now_ms=now,  # type: ignore[arg-type]
    )
    return None if found is None else dict(found)


def slow_choice(
    policy: RetentionPolicy, stored: list[tuple[int, int, Cut]], bound: Cut | None, now: int
) -> Cut | None:
    """Choose by the documented rules, applied one after the other."""
    latest_size = stored[-1][1]
    values = [
        now - time if policy.retention_type is TIME else latest_size - size
        for time, size, _ in stored
    ]
    maximum = policy.maximum if policy.maximum > 0 else 2**63
    cuts = [cut for _, _, cut in stored]
    enough = [n for n, value in enumerate(values) if value >= policy.minimum]
    least = cuts[max(enough)] if enough else None
    fitting = [n for n in enough if values[n] <= maximum]
    most_at = min(fitting) if fitting else (max(enough) if enough else None)
    if bound is None:
        return least
    not_after = [cuts[n] for n in enough if at_or_after(bound, cuts[n])]
    newest_released = not_after[-1] if not_after else None
    if policy.retention_type is SIZE:
        kept = latest_size - sum(bound.values())
        if kept < policy.minimum:
            return newest_released
        if kept >= maximum and most_at is not None and values[most_at] < kept:
            return cuts[most_at]
        return bound
    if least is None:
        return None
    if not at_or_after(least, bound):
        return newest_released
    older = [n for n, value in enumerate(values) if value > maximum]
    if not older or at_or_after(bound, cuts[older[-1]]):
        return bound
    if at_or_after(cuts[older[-1]], bound):
        assert most_at is not None
        return cuts[most_at]
    return cuts[older[-1]]


@st.composite
def situations(
    draw: st.DrawFn,
) -> tuple[RetentionPolicy, list[tuple[int, int, Cut]], Cut | None, int]:
    """Draw a stream of two segments, whose sizes count from the beginning."""
    now, cut, stored = 0, {0: 0, 1: 0}, []
    for _ in range(draw(st.integers(1, 12))):
        now += draw(st.integers(1, 5))
        cut = {key: offset + draw(st.integers(0, 5)) for key, offset in cut.items()}
        stored.append((now, sum(cut.values()), cut))
    bound = {key: draw(st.integers(0, cut[key])) for key in cut} if draw(st.booleans()) else None
    minimum = draw(st.integers(0, 60))
    maximum = draw(st.sampled_from([0, minimum, minimum + 5, minimum + 20, 2**63 - 1]))
    policy = RetentionPolicy(draw(st.sampled_from([SIZE, TIME])), minimum, maximum)
    return policy, stored, bound, now + draw(st.integers(0, 10))


@given(situations())
async def test_the_choice_is_that_of_the_rules(
    situation: tuple[RetentionPolicy, list[tuple[int, int, Cut]], Cut | None, int],
) -> None:
    assert await choose(*situation) == slow_choice(*situation)


@given(situations())
async def test_what_is_kept_is_never_less_than_the_minimum(
    situation: tuple[RetentionPolicy, list[tuple[int, int, Cut]], Cut | None, int],
) -> None:
    """What a subscriber needs is removed only where the maximum says so."""
    policy, stored, bound, now = situation
    chosen = await choose(*situation)
    if chosen is None:
        return
    at = next((entry for entry in stored if entry[2] == chosen), None)
    if policy.retention_type is SIZE:
        assert stored[-1][1] - sum(chosen.values()) >= policy.minimum
    elif at is not None:
        assert now - at[0] >= policy.minimum
    unlimited = policy.maximum in (0, 2**63 - 1)
    if bound is not None and unlimited:
        assert at_or_after(bound, chosen)


@pytest.mark.parametrize("kind", [SIZE, TIME])
async def test_without_any_cut_nothing_is_chosen(kind: RetentionType) -> None:
    async def never(*_: object) -> bool:
        raise AssertionError

    found = await choose_truncation(
        RetentionPolicy(kind, 0, 0),
        [],
        never,
        None,
        never,
        now_ms=1,  # type: ignore[arg-type]
    )
    assert found is None
