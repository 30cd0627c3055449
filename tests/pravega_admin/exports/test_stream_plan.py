"""The segments of a stream for an export, also when the records of their epochs are gone."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pravega_admin.exports import stream_plan
from pravega_admin.exports.stream_plan import find_ranges, find_segments, plan_steps
from pravega_wire.names import segment_number
from pravega_wire.sessions.routes import SegmentRange
from segstore_client.errors import ConflictError, NotFoundError

EPOCHS = 40


def identifier(number: int, epoch: int) -> int:
    return (epoch << 32) + number


def make_epochs(choices: Iterable[int]) -> list[dict[int, SegmentRange]]:
    """Return the segments of each epoch; a choice says which one is split, or merged with the next
    one."""
    number = 0
    epochs = [{0: SegmentRange(0, 0.0, 1.0)}]
    for epoch, choice in enumerate(choices, 1):
        active = sorted(epochs[-1].values(), key=lambda each: each.low)
        at = choice % len(active)
        merges = choice % 2 and at + 1 < len(active)
        old = active[at : at + 2] if merges else [active[at]]
        low, high = old[0].low, old[-1].high
        bounds = [low, high] if merges else [low, (low + high) / 2, high]
        left = {each.segment_id: each for each in active if each not in old}
        for begin, end in pairwise(bounds):
            number += 1
            left[identifier(number, epoch)] = SegmentRange(identifier(number, epoch), begin, end)
        epochs.append(left)
    return epochs


class FakeController:
    """Has the records of epochs from the first one on; ``calls`` are the epochs asked for.

    Ids of segments carry the epoch, as those of controllers do.
    """

    def __init__(self, epochs: list[dict[int, SegmentRange]], first: int = 0) -> None:
        self.epochs = epochs
        self.first = first
        self.calls: list[int] = []

    def epoch_segments(self, scope: str, stream: str, epoch: int) -> tuple[SegmentRange, ...]:
        self.calls.append(epoch)
        if not self.first <= epoch < len(self.epochs):
            raise NotFoundError("no record")
        found = self.epochs[epoch].items()
        return tuple(
            SegmentRange(identifier(segment_number(segment), epoch), each.low, each.high)
            for segment, each in found
        )

    def head_segments(self, scope: str, stream: str) -> Any:
        return SimpleNamespace(offsets=dict.fromkeys(self.epochs[self.first], 0))

    def segments_between(self, scope: str, stream: str, start: Any, end: Any) -> list[int]:
        return sorted({each for epoch in self.epochs[self.first :] for each in epoch})


choices = st.lists(st.integers(0, 99), max_size=EPOCHS)


@given(choices, st.integers(0, EPOCHS))
def test_ranges_are_found_from_the_first_epoch_on_record_on(choices: list[int], first: int) -> None:
    epochs = make_epochs(choices)
    controller: Any = FakeController(epochs, min(first, len(epochs) - 1))
    right = {each: item for epoch in epochs[controller.first :] for each, item in epoch.items()}
    assert find_segments(controller, "s", "t") == right
    assert len(controller.calls) <= len(epochs) + 8


def test_segments_from_before_the_records_are_told() -> None:
    epochs = make_epochs([0, 0, 0])
    controller: Any = FakeController(epochs, 3)
    with pytest.raises(NotFoundError, match="no record of segment 0 of stream s/t"):
        find_ranges(controller, "s", "t", [0, *epochs[3]])


def plan(
    monkeypatch: pytest.MonkeyPatch,
    epochs: list[dict[int, SegmentRange]],
    lengths: dict[int, int],
    start: dict[int, int],
    end: dict[int, int],
) -> list[list[tuple[int, int, int]]]:
    monkeypatch.setattr(
        stream_plan,
        "segment_infos",
        lambda controller, scope, stream, segments: {
            each: SimpleNamespace(write_offset=lengths[each])
            for each in segments
            if each in lengths
        },
    )
    controller: Any = FakeController(epochs)
    steps = plan_steps(controller, "s", "t", start, end)
    return [[(part.id, part.start, part.end) for part in step] for step in steps]


def test_the_steps_are_the_beginning_and_the_epochs_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 0 is split into 1 and 2, 1 into 3 and 4.
    epochs = make_epochs([0, 0])
    one, two = identifier(1, 1), identifier(2, 1)
    three, four = identifier(3, 2), identifier(4, 2)
    lengths = {0: 70, one: 50, two: 60, three: 0, four: 9}
    assert plan(monkeypatch, epochs, lengths, {0: 7}, {two: 40, three: 0, four: 8}) == [
        [(0, 7, 70)],
        [(one, 0, 50), (two, 0, 40)],
        [(three, 0, 0), (four, 0, 8)],
    ]
    assert plan(monkeypatch, epochs[:2], lengths, {0: 0}, {}) == [
        [(0, 0, 70)],
        [(one, 0, 50), (two, 0, 60)],
    ]
    del lengths[0]
    with pytest.raises(ConflictError, match="segment 0 of stream s/t has been truncated"):
        plan(monkeypatch, epochs, lengths, {0: 0}, {})
