"""Routes of events against a model: a list of many positions, each with its segment."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pravega_wire.sessions.routes import Routes, SegmentRange

PARTS = 16
"""The key space is cut at multiples of 1 / ``PARTS``."""


def cut(bounds: list[int], first: int) -> list[SegmentRange]:
    """Return segments between bounds, of the numbers from ``first`` on."""
    return [
        SegmentRange(first + index, low / PARTS, high / PARTS)
        for index, (low, high) in enumerate(pairwise(bounds))
    ]


def segments_at(routes: Routes) -> list[int]:
    return [routes.find((part + 0.5) / PARTS) for part in range(PARTS)]


@given(st.data())
def test_each_position_has_one_segment_through_scalings(data: st.DataObject) -> None:
    inner = st.sets(st.integers(1, PARTS - 1), max_size=5)
    current = cut([0, *sorted(data.draw(inner)), PARTS], 0)
    routes = Routes(current)
    model = segments_at(routes)
    next_number = len(current)
    for _ in range(data.draw(st.integers(0, 4))):
        # A scale replaces neighbours, whose parts it cuts at other bounds.
        first = data.draw(st.integers(0, len(current) - 1))
        last = data.draw(st.integers(first, min(first + 2, len(current) - 1)))
        replaced = current[first : last + 1]
        low, high = int(replaced[0].low * PARTS), int(replaced[-1].high * PARTS)
        bounds = data.draw(st.sets(st.integers(low + 1, max(low + 1, high - 1)), max_size=3))
        successors = cut([low, *sorted(each for each in bounds if each < high), high], next_number)
        next_number += len(successors)
        current[first : last + 1] = successors
        known: set[int] = set()
        for ended in data.draw(st.permutations(replaced)):
            new = routes.replace(ended.segment_id, successors)
            assert known.isdisjoint(new)
            known |= set(new)
            for part, segment in enumerate(model):
                if segment == ended.segment_id:
                    position = (part + 0.5) / PARTS
                    (model[part],) = (
                        each.segment_id for each in successors if each.low <= position < each.high
                    )
            assert segments_at(routes) == model
            assert routes.segments == list(dict.fromkeys(model))
        assert known == {each.segment_id for each in successors}
    assert routes.find(1.0) == model[-1]
    assert routes.find(0.0) == model[0]
