"""Segments whose flush failed: when they are tried again, and in which order."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from segstore.errors import StorageError
from segstore.writer.failing_segments import FailingSegments
from segstore.writer.flush_policy import DEFAULT_FLUSH_POLICY as POLICY


def make_failing() -> FailingSegments:
    return FailingSegments(0, str, lambda: 0, POLICY)


def aggregator(segment_id: int, *, frees_space: bool = False) -> Any:
    return SimpleNamespace(segment_id=segment_id, frees_space=frees_space)


def order(failing: FailingSegments, *aggregators: Any, now: float) -> list[int]:
    return [each.segment_id for each in failing.order(aggregators, now)]


def test_pauses_double_up_to_the_maximum_while_others_succeed() -> None:
    failing, now, pauses = make_failing(), 0.0, []
    for number in range(8):
        expected = [2, 1] if number else [1, 2]
        assert order(failing, aggregator(1), aggregator(2), now=now) == expected
        failing.record_failure(1, StorageError("refused"))
        failing.record_success(2)
        failing.pause([1], now)
        pauses.append(failing.failures[1].retry_at - now)
        assert order(failing, aggregator(1), now=now + pauses[-1] - 0.01) == []
        now += pauses[-1]
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_no_segment_pauses_when_none_succeeds() -> None:
    failing = make_failing()
    for now in (0.0, 1.0, 2.0):
        assert order(failing, aggregator(1), aggregator(2), now=now) == [1, 2]
        for segment_id in (1, 2):
            failing.record_failure(segment_id, StorageError("tier 2 is away"))
        failing.pause([1, 2], now)


@pytest.mark.parametrize("pauses", [False, True])
def test_what_frees_space_is_tried_first_while_segments_fail(pauses: bool) -> None:
    failing = make_failing()
    segments = [aggregator(1), aggregator(2), aggregator(3, frees_space=True)]
    assert order(failing, *segments, now=0.0) == [1, 2, 3]
    failing.record_failure(3, StorageError("no space"))
    if pauses:
        failing.record_success(2)
        failing.pause([3], 0.0)
    assert order(failing, *segments, now=0.0) == [3, 1, 2]
