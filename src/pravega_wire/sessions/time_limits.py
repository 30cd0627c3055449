"""The time limit of a call that blocks, which holds for all that is called for it in its thread.

Owns: ``call_within``, and what is left. A program gives a limit to one call, such as the next event
within three seconds; below it are waits, connections and calls of the controller, each of which has
a longer limit of its own.

Something that was begun, such as a connection, has at least ``ATTEMPT_SECONDS_MIN``: a program that
asks again and again with a short limit, or none, would never be connected otherwise.

Invariants:
1. When the call has ended, in whatever way, the limit has ended with it, also if an interrupt comes
   at any moment: the limit is in a copy of the context. Held by
   ``test_a_limit_ends_with_its_call``.
"""

from __future__ import annotations

import contextvars
import math
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

ATTEMPT_SECONDS_MIN = 1.0
"""Time, in seconds, that an attempt may take if the limit is shorter."""

T = TypeVar("T")


class _Limit(NamedTuple):
    """The times at which waits, and attempts that were begun, have to end."""

    waits: float
    attempts: float


_NONE = _Limit(math.inf, math.inf)
_limit = contextvars.ContextVar("_limit", default=_NONE)


def call_within(seconds: float | None, call: Callable[[], T]) -> T:
    """Return the result of a call that ends after so many seconds, or earlier if a limit holds
    already; without seconds only that holds."""
    if seconds is None:
        return call()
    now, present = time.monotonic(), _limit.get()
    limit = _Limit(
        min(present.waits, now + seconds),
        min(present.attempts, now + max(seconds, ATTEMPT_SECONDS_MIN)),
    )
    return contextvars.copy_context().run(_call, limit, call)


def call_unlimited(call: Callable[[], T]) -> T:
    """Return the result of a call of the program's own, which the limit does not concern."""
    return contextvars.copy_context().run(_call, _NONE, call)


def find_wait_left() -> float:
    """Return the seconds that are left to wait; 0 or less when the time is over."""
    waits = _limit.get().waits
    return waits if waits == math.inf else waits - time.monotonic()


def bound_attempt(seconds: float) -> float:
    """Return the seconds that an attempt may take which has so many without a limit."""
    attempts = _limit.get().attempts
    if attempts == math.inf:
        return seconds
    return min(seconds, max(attempts - time.monotonic(), 0.001))


def _call(limit: _Limit, call: Callable[[], T]) -> T:
    _limit.set(limit)
    return call()
