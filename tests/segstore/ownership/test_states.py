"""The table of an owner's states, walked completely, and the page that explains it."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from segstore.ownership.states import (
    ENDED,
    IN_DOUBT,
    NEXT_STATES,
    PERMISSIONS,
    OwnerEvent,
    OwnerState,
    Permission,
    RefusedStepError,
    next_state,
)

PAGE = Path(__file__).parents[3] / "docs/internals/ownership.md"
PAIRS = list(product(OwnerState, OwnerEvent))


@pytest.mark.parametrize(("state", "event"), PAIRS)
def test_every_pair_is_a_step_or_is_refused(state: OwnerState, event: OwnerEvent) -> None:
    if event in NEXT_STATES[state]:
        assert next_state(state, event) is NEXT_STATES[state][event]
    else:
        with pytest.raises(RefusedStepError, match=f"{state.value} cannot {event.value}"):
            next_state(state, event)


def test_every_state_is_reached_from_the_first() -> None:
    reached = {OwnerState.ABSENT}
    waiting = [OwnerState.ABSENT]
    while waiting:
        for after in NEXT_STATES[waiting.pop()].values():
            if after not in reached:
                reached.add(after)
                waiting.append(after)
    assert reached == set(OwnerState) == set(NEXT_STATES) == set(PERMISSIONS)


def test_what_has_ended_changes_no_more_and_all_else_can_end() -> None:
    for state in OwnerState:
        following = set(NEXT_STATES[state].values())
        assert (following <= {state}) == (state in ENDED)
        ends, before = {state}, set[OwnerState]()
        while ends != before:
            before = set(ends)
            ends |= {after for each in before for after in NEXT_STATES[each].values()}
        assert ends & ENDED, f"{state} never ends"


def test_every_event_is_a_step_of_some_state() -> None:
    assert {event for steps in NEXT_STATES.values() for event in steps} == set(OwnerEvent)


def test_who_sees_a_later_owner_never_does_anything_again() -> None:
    for state in OwnerState:
        if OwnerEvent.FENCE in NEXT_STATES[state]:
            after = NEXT_STATES[state][OwnerEvent.FENCE]
            assert after in ENDED
            assert not PERMISSIONS[after]


def test_an_owner_in_doubt_may_all_that_its_certain_twin_may_but_answer() -> None:
    for state in IN_DOUBT:
        certain = NEXT_STATES[state][OwnerEvent.CONFIRM]
        assert NEXT_STATES[certain][OwnerEvent.DOUBT] is state
        assert PERMISSIONS[certain] - PERMISSIONS[state] == {Permission.ANSWER}


def test_nothing_is_deleted_without_a_claim_and_nothing_stored_without_a_log() -> None:
    for permitted in PERMISSIONS.values():
        if Permission.DELETE in permitted:
            assert Permission.STORE in permitted
        if Permission.STORE in permitted:
            assert Permission.APPEND in permitted
    claimed = {state for state, permitted in PERMISSIONS.items() if Permission.DELETE in permitted}
    assert claimed == {OwnerState.CLAIMED, OwnerState.CLAIMED_IN_DOUBT, OwnerState.LEAVING}


def test_the_page_about_ownership_has_the_tables() -> None:
    page = PAGE.read_text()
    rows = re.findall(r"^\| ([A-Z_]+) \| ([A-Z]+) \| ([A-Z_]+) \|", page, re.MULTILINE)
    found = {(OwnerState[one], OwnerEvent[event], OwnerState[two]) for one, event, two in rows}
    assert len(rows) == len(found)
    assert found == {
        (state, event, after)
        for state, steps in NEXT_STATES.items()
        for event, after in steps.items()
    }
    permitted = {
        OwnerState[state]: {Permission[name] for name in re.findall("[A-Z]+", names)}
        for state, names in re.findall(r"^\| ([A-Z_]+) \| ((?:[A-Z]+, )*[A-Z]+|-) \|$", page, re.M)
    }
    assert permitted == {state: set(names) for state, names in PERMISSIONS.items()}
