"""Checks that answers about an object can be those of one that answers one call after the other.

Owns: ``Operation``, the record of one call, and ``find_order``.

A call that was answered takes effect at one moment between its begin and its end. A call without an
answer takes effect at one moment after its begin, or never. ``find_order`` looks for moments with
which each answer is the right one, as a model of the object says. If there are none, two callers
were told of one thing that each of them has done, or somebody was told of what nobody has done.

The search goes depth first through the calls that may be next. It remembers which calls it has
tried in which state, so that no part of the search is made twice (Wing and Gong; Lowe).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

State: TypeAlias = Hashable
Step: TypeAlias = Callable[[State, str, Any, Any], Iterable[State]]
"""Returns the states that an object may have after a call with this name, argument and answer; none
if the answer is not possible. ``UNKNOWN`` is the answer of a call that was not answered."""

UNKNOWN = "?"
TRIED_MAX = 200_000
"""Maximum number of sets of calls, with states, that a search tries before it is given up."""


@dataclass
class Operation:
    """One call: what was asked, from when to when, and what was answered."""

    name: str
    argument: Any
    began: int
    ended: float = math.inf
    """Infinite for a call without an answer, which may take effect at any time later."""
    answer: Any = UNKNOWN

    def __str__(self) -> str:
        return f"[{self.began}, {self.ended}] {self.name}({self.argument}): {self.answer}"


class TooManyOrdersError(Exception):
    """The search was given up."""


def find_order(operations: Sequence[Operation], first: State, step: Step) -> list[int] | None:
    """Return the positions of the calls in an order that explains the answers; None if none does.

    Calls without an answer that need not have taken effect are left out. Raises
    ``TooManyOrdersError``.
    """
    answered = sum(1 << at for at, one in enumerate(operations) if one.answer != UNKNOWN)
    tried: set[tuple[int, State]] = set()
    path: list[tuple[int, State, list[tuple[int, State]]]] = []
    done, state = 0, first

    def following(done: int, state: State) -> list[tuple[int, State]]:
        """Return the calls that may be next, each with a state after it."""
        left = [at for at in range(len(operations)) if not done >> at & 1]
        end = min((operations[at].ended for at in left), default=math.inf)
        return [
            (at, after)
            for at in left
            if operations[at].began < end
            for after in step(
                state, operations[at].name, operations[at].argument, operations[at].answer
            )
            # A call without an answer that changes nothing explains nothing.
            if operations[at].answer != UNKNOWN or after != state
        ]

    choices = following(done, state)
    while done & answered != answered:
        while choices:
            at, after = choices.pop()
            if (done | 1 << at, after) not in tried:
                break
        else:
            if not path:
                return None
            at, state, choices = path.pop()
            done &= ~(1 << at)
            continue
        tried.add((done | 1 << at, after))
        if len(tried) > TRIED_MAX:
            raise TooManyOrdersError(f"{len(operations)} calls")
        path.append((at, state, choices))
        done, state = done | 1 << at, after
        choices = following(done, state)
    return [at for at, _, _ in path]
