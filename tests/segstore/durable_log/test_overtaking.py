"""Some operations may pass others that are held back, and the rest may not."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.durable_log.overtaking import Overtakers
from segstore.durable_log.priorities import Priority, priority_of
from segstore.errors import NoSuchSegmentError
from segstore.model.operations import (
    AppendOperation,
    BarrierOperation,
    DeleteOperation,
    MapOperation,
    MergeOperation,
    Operation,
    RefusedOperation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)

NAMES = ("a", "b", "_system/c", "_system/d")
names = st.sampled_from(NAMES)
held_back = st.one_of(
    names.map(lambda name: AppendOperation(name, b"x")),
    names.map(lambda name: UpdateAttributesOperation(name, ())),
    names.map(lambda name: MapOperation(name, {})),
    names.map(SealOperation),
    names.map(DeleteOperation),
    names.map(BarrierOperation),
    st.builds(TruncateOperation, names, st.integers(0, 1)),
    st.permutations(NAMES).map(lambda pair: MergeOperation(pair[0], pair[1])),
    st.just("").map(BarrierOperation),
)
refused = held_back.map(lambda each: RefusedOperation(each, NoSuchSegmentError(each.name)))
operations = held_back | refused


def names_of(operation: Operation) -> set[str]:
    if isinstance(operation, RefusedOperation):
        return names_of(operation.refused)
    source = {operation.source_name} if isinstance(operation, MergeOperation) else set()
    return {operation.name} | source


@given(st.lists(st.lists(operations)), st.sampled_from([Priority.SYSTEM, Priority.RELIEF]))
def test_nothing_overtakes_on_its_own_segments(
    arrivals: list[list[Operation]], lowest: Priority
) -> None:
    queue: deque[Operation] = deque()
    overtakers = Overtakers(queue, NAMES.__contains__)
    passed: list[Operation] = []
    everything: list[Operation] = []
    for arrived in arrivals:
        queue.extend(arrived)
        everything += arrived
        passing = overtakers.remove_passing(lowest=lowest)
        assert all(priority_of(operation) >= lowest for operation in passing)
        passed += passing
    done = {id(operation) for operation in passed}
    assert [id(each) for each in queue] == [id(e) for e in everything if id(e) not in done]
    assert [id(each) for each in passed] == [id(e) for e in everything if id(e) in done]
    for place, operation in enumerate(everything):
        before = [e for e in everything[:place] if id(e) not in done]
        behind = [each for each in before if names_of(each) & names_of(operation)]
        free = bool(operation.name) and priority_of(operation) >= lowest
        assert (id(operation) in done) == (free and not behind)


@given(
    st.lists(st.tuples(st.lists(operations), st.integers(0, 4))),
    st.sampled_from([Priority.SYSTEM, Priority.RELIEF]),
)
def test_a_queue_that_is_taken_from_need_not_be_looked_through_again(
    turns: list[tuple[list[Operation], int]], lowest: Priority
) -> None:
    """The passes are the same as if all of it were looked at anew each time."""
    queue: deque[Operation] = deque()
    overtakers = Overtakers(queue, NAMES.__contains__)
    for arrived, taken in turns:
        queue.extend(arrived)
        anew = deque(queue)
        expected = Overtakers(anew, NAMES.__contains__).remove_passing(lowest=lowest)
        assert [id(each) for each in overtakers.remove_passing(lowest=lowest)] == [
            id(e) for e in expected
        ]
        assert [id(each) for each in queue] == [id(each) for each in anew]
        overtakers.removed_head([queue.popleft() for _ in range(min(taken, len(queue)))])


def test_a_queue_whose_head_has_changed_is_looked_through_again() -> None:
    queue: deque[Operation] = deque([AppendOperation("a", b"x"), DeleteOperation("a")])
    overtakers = Overtakers(queue, NAMES.__contains__)
    assert overtakers.remove_passing(lowest=Priority.SYSTEM) == []
    queue.popleft()
    overtakers.reset()
    assert [type(each) for each in overtakers.remove_passing(lowest=Priority.SYSTEM)] == [
        DeleteOperation
    ]
    assert not queue


def test_priorities() -> None:
    own = UpdateAttributesOperation("a", ())
    own.segment_id = 3
    assert priority_of(own) is Priority.RELIEF
    assert priority_of(UpdateAttributesOperation("a", ())) is Priority.USER
    assert priority_of(AppendOperation("_system/_tables/x", b"")) is Priority.SYSTEM
    assert priority_of(AppendOperation("_systems/x", b"")) is Priority.USER
    assert priority_of(DeleteOperation("_system/c")) is Priority.RELIEF
    assert priority_of(MergeOperation("a", "b")) is Priority.USER


def test_the_containers_own_record_does_not_wait_behind_what_waits_for_the_storage_writer() -> None:
    for name in NAMES:
        own = UpdateAttributesOperation(name, ())
        own.segment_id = 7
        waiting = [AppendOperation(name, b"x"), UpdateAttributesOperation(name, ())]
        queue: deque[Operation] = deque([*waiting, own])
        assert Overtakers(queue, NAMES.__contains__).remove_passing(lowest=Priority.RELIEF) == [own]
        assert list(queue) == waiting


WRITES = (AppendOperation("a", b"x"), UpdateAttributesOperation("a", ()), BarrierOperation("a"))


def passes(operation: Operation, waiting: list[Operation], *, stopped: bool) -> bool:
    queue: deque[Operation] = deque([*waiting, operation])
    overtakers = Overtakers(queue, NAMES.__contains__)
    return operation in overtakers.remove_passing(lowest=Priority.RELIEF, stopped=stopped)


def test_what_frees_space_does_not_wait_behind_writes_that_wait_for_space() -> None:
    for operation in (TruncateOperation("a", 1), SealOperation("a"), DeleteOperation("a")):
        waiting = [AppendOperation("b", b"x"), *WRITES]
        assert not passes(operation, waiting, stopped=False)
        assert passes(operation, waiting, stopped=True)


def test_a_merge_that_waits_is_passed_by_a_truncation_alone() -> None:
    merge: list[Operation] = [AppendOperation("b", b"x"), MergeOperation("a", "b")]
    assert passes(TruncateOperation("a", 1), merge, stopped=True)
    for operation in (SealOperation("a"), DeleteOperation("a"), DeleteOperation("b")):
        assert not passes(operation, merge, stopped=True)


@pytest.mark.parametrize("behind", [SealOperation("a"), DeleteOperation("a")])
def test_a_truncation_passes_what_waits_for_a_merge(behind: Operation) -> None:
    """Seed 2815929: the merge waited for the space that the truncation was to free."""
    waiting: list[Operation] = [AppendOperation("b", b"x"), MergeOperation("a", "b"), behind]
    assert passes(TruncateOperation("a", 1), waiting, stopped=True)
    assert not passes(TruncateOperation("a", 1), waiting, stopped=False)
    assert not passes(AppendOperation("a", b"x"), waiting, stopped=True)


def test_a_creation_that_will_be_refused_holds_up_nothing_that_frees_space() -> None:
    """Seed 200417: a truncation waited for the space that it was to free."""
    for operation in (TruncateOperation("a", 1), SealOperation("a"), DeleteOperation("a")):
        creation = MapOperation("a", {})
        waiting: list[Operation] = [AppendOperation("b", b"x"), *WRITES, creation]
        assert not passes(operation, waiting, stopped=False)
        queue: deque[Operation] = deque([*waiting, operation])
        overtakers = Overtakers(queue, NAMES.__contains__)
        passing = overtakers.remove_passing(lowest=Priority.RELIEF, stopped=True)
        assert passing == [creation, operation]


def test_a_creation_of_a_segment_that_does_not_exist_keeps_its_order() -> None:
    creation = MapOperation("new", {})
    waiting: list[Operation] = [AppendOperation("b", b"x"), creation]
    assert not passes(creation, waiting[:1], stopped=True)
    assert not passes(TruncateOperation("new", 1), waiting, stopped=True)
    early: list[Operation] = [*waiting[:1], AppendOperation("_system/e", b"x")]
    queue: deque[Operation] = deque([*early, MapOperation("_system/e", {})])
    overtakers = Overtakers(queue, NAMES.__contains__)
    [append, *_] = overtakers.remove_passing(lowest=Priority.SYSTEM, stopped=True)
    assert append is early[1]


def test_a_creation_waits_for_the_deletion_before_it() -> None:
    merge = MergeOperation("a", "b")
    waiting: list[Operation] = [AppendOperation("c", b"x"), merge, DeleteOperation("a")]
    assert not passes(MapOperation("a", {}), waiting, stopped=True)
