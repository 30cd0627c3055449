"""The checker notes answers in the order in which they come."""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import pytest
import trio
from simulation.checked_container import CheckedContainer
from simulation.completions import completions_noted
from simulation.model import Kind, Model, Observed, ViolationError

from segstore import container
from segstore.api import OnAppended, OnRead, ReadResult, Waiter
from segstore.durable_log import prefetch
from segstore.errors import NoSuchSegmentError, SegmentStoreError, StorageError
from segstore.model.operations import AppendOperation


class AnsweredByHand:
    """A container whose answers a test gives."""

    def __init__(self) -> None:
        self.waiters: list[Waiter] = []
        self.appends: list[OnAppended] = []

    async def create_segment(self, name: str, **_: Any) -> None:
        await self._wait()

    async def merge_segment(self, target: str, source: str, **_: Any) -> int:
        return await self._wait()

    def append_nowait(self, name: str, data: bytes, *, on_complete: OnAppended, **_: Any) -> None:
        self.appends.append(on_complete)

    async def _wait(self) -> int:
        waiter = container.Waiter()
        self.waiters.append(waiter)
        return await waiter.wait()


@pytest.mark.parametrize("error", [StorageError("no room"), NoSuchSegmentError("source")])
async def test_a_refusal_is_noted_when_it_comes_and_not_when_its_task_goes_on(
    error: SegmentStoreError,
) -> None:
    violations: list[ViolationError] = []
    model = Model(lambda _: None, violations.append)
    by_hand = AnsweredByHand()
    checked = CheckedContainer(cast("Any", by_hand), model, lambda _: None)
    refused: list[SegmentStoreError] = []

    async def merge() -> None:
        try:
            await checked.merge_segment("target", "source")
        except SegmentStoreError as caught:
            refused.append(caught)

    with completions_noted():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(checked.create_segment, "target"))
            await trio.testing.wait_all_tasks_blocked()
            by_hand.waiters[0].complete(None, 0)
            nursery.start_soon(merge)
            await trio.testing.wait_all_tasks_blocked()
            checked.append_nowait("target", b"abc", on_complete=lambda *_: None)
            by_hand.waiters[1].complete(error, -1)
            by_hand.appends[0](None, 3)
    assert violations == []
    assert refused == [error]
    assert bytes(model.segments.by_name["target"].data) == b"abc"


async def test_a_call_that_tier_2_refused_before_a_crash_is_not_expected_after_it() -> None:
    """A later call on its segment was durable when the process died, before either was answered."""
    violations: list[ViolationError] = []
    model = Model(lambda _: None, violations.append)
    model.create("target", {})
    by_hand = AnsweredByHand()
    checked = CheckedContainer(cast("Any", by_hand), model, lambda _: None)
    with completions_noted():
        for data in (b"refused", b"kept"):
            checked.append_nowait("target", data, on_complete=lambda *_: None)
        operation = AppendOperation("target", b"refused", on_complete=by_hand.appends[0])
        prefetch.RefusedOperation(operation, StorageError("tier 2 fails"))
    seen = Observed(0, 0, 4, False, dict(model.segments.by_name["target"].attributes), b"kept")
    model.recovered({"target": seen})
    assert violations == []


class WithRead:
    """A container with one read under way."""

    def read_nowait(self, name: str, *, on_complete: OnRead, **_: Any) -> object:
        self.on_complete = on_complete
        return object()

    async def merge_segment(self, target: str, source: str, **_: Any) -> int:
        return 3


async def test_a_read_that_began_before_a_merge_may_tell_where_the_source_ended() -> None:
    violations: list[ViolationError] = []
    model = Model(lambda _: None, violations.append)
    for name in ("target", "source"):
        model.create(name, {})
    model.segments.by_name["source"].data.extend(b"abc")
    with_read = WithRead()
    checked = CheckedContainer(cast("Any", with_read), model, lambda _: None)
    results: list[ReadResult | None] = []
    with completions_noted():
        checked.read_nowait(
            "source", offset=0, length_max=9, on_complete=lambda _, result: results.append(result)
        )
        model.answered(
            model.call(
                "merge", ("target", "source"), lambda: model.segments.merge("target", "source", [])
            ),
            3,
        )
        with_read.on_complete(None, ReadResult(0, b"abc", False, True))
    assert violations == []
    assert len(results) == 1


def test_a_truncation_that_is_durable_before_its_answer_did_not_pass_the_write_it_needs() -> None:
    violations: list[ViolationError] = []
    model = Model(lambda _: None, violations.append)
    model.create("target", {})
    appended = model.call(
        "append", ("target",), lambda: model.segments.append("target", b"abc", [], None), Kind.WRITE
    )

    def truncate() -> int:
        model.segments.truncate("target", 2)
        return 0

    truncated = model.call("truncate", ("target",), truncate, Kind.TRUNCATE)
    model.took_effect(truncated)
    model.answered(appended, 3)
    model.answered(truncated, 0)
    assert violations == []
