"""The search for an order that explains answers: it finds one if there is one, and no other."""

from __future__ import annotations

from itertools import permutations
from random import Random
from typing import Any

import pytest
from controllers.linearizability import (
    UNKNOWN,
    Operation,
    State,
    TooManyOrdersError,
    find_order,
)
from controllers.rivals import step_scope


def step_counter(state: State, name: str, argument: Any, answer: Any) -> tuple[State, ...]:
    """Apply a call to a number that calls replace: the answer is the number before."""
    return (argument,) if answer in (state, UNKNOWN) else ()


def explains(order: tuple[int, ...], operations: list[Operation]) -> bool:
    """Return whether an order of all calls, or of some, keeps to their times and answers."""
    state: State = 0
    for place, at in enumerate(order):
        if any(operations[later].ended < operations[at].began for later in order[place + 1 :]):
            return False
        one = operations[at]
        if one.answer not in (state, UNKNOWN):
            return False
        state = one.argument
    left_out = set(range(len(operations))) - set(order)
    return all(operations[at].answer == UNKNOWN for at in left_out)


def test_it_finds_an_order_if_there_is_one() -> None:
    """The orders of few calls are tried one by one; calls without answers may be left out."""
    found = {True: 0, False: 0}
    random = Random(5)
    for _ in range(1500):
        operations = []
        for _ in range(random.randint(1, 5)):
            began = 2 * random.randrange(10)
            one = Operation("put", random.randrange(3), began)
            if random.random() < 0.7:
                one.ended, one.answer = began + random.randrange(1, 9, 2), random.randrange(3)
            operations.append(one)
        count = len(operations)
        expected = any(
            explains(order, operations)
            for size in range(count + 1)
            for order in permutations(range(count), size)
        )
        order = find_order(operations, 0, step_counter)
        assert (order is not None) == expected, operations
        assert order is None or explains(tuple(order), operations)
        found[expected] += 1
    assert min(found.values()) > 200


def test_two_who_both_created_are_found() -> None:
    calls = [Operation("create", None, 0, 3, "ok"), Operation("create", None, 1, 2, "ok")]
    assert find_order(calls, None, step_scope) is None
    # One that was not answered may have deleted the scope in between.
    assert find_order([*calls, Operation("delete", None, 0)], None, step_scope) is not None


@pytest.mark.proof
def test_a_search_without_an_end_is_given_up() -> None:
    calls = [Operation("put", number, 0) for number in range(30)]
    calls.append(Operation("put", 0, 0, 1, -1))
    with pytest.raises(TooManyOrdersError):
        find_order(calls, 0, step_counter)
