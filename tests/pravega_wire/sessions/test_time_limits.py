"""The limit of a call: what holds below it, and that it ends with it."""

from __future__ import annotations

import math
import sys
from types import FrameType

import pytest

from pravega_wire.sessions import time_limits
from pravega_wire.sessions.time_limits import (
    ATTEMPT_SECONDS_MIN,
    bound_attempt,
    call_unlimited,
    call_within,
    find_wait_left,
)


def find_both() -> tuple[float, float]:
    return find_wait_left(), bound_attempt(1000.0)


def test_the_shorter_limit_holds() -> None:
    assert find_both() == (math.inf, 1000.0)
    assert call_within(None, find_both) == (math.inf, 1000.0)
    left, attempt = call_within(500.0, lambda: call_within(600.0, find_both))
    assert 0 < left <= 500.0
    assert 0 < attempt <= 500.0
    assert call_within(500.0, lambda: call_within(600.0, lambda: bound_attempt(0.5))) == 0.5


def test_an_attempt_has_some_time_without_any_to_wait() -> None:
    left, attempt = call_within(0.0, find_both)
    assert left <= 0.0
    assert 0 < attempt <= ATTEMPT_SECONDS_MIN


def test_a_call_of_the_program_has_no_limit() -> None:
    assert call_within(0.0, lambda: call_unlimited(find_both)) == (math.inf, 1000.0)


def test_a_limit_ends_with_its_call() -> None:
    """Python runs what interrupts a program at the begin of a function, and behind a call."""
    events = chosen = 0

    def interrupt(frame: FrameType, kind: str, _about: object) -> None:
        nonlocal events
        if frame.f_globals["__name__"] == time_limits.__name__ and kind in ("call", "c_return"):
            events += 1
            if events == chosen:
                raise KeyboardInterrupt

    is_interrupted = True
    while is_interrupted:
        events, chosen = 0, chosen + 1
        sys.setprofile(interrupt)
        try:
            call_within(1.0, find_both)
            is_interrupted = False
        except KeyboardInterrupt:
            pass
        finally:
            sys.setprofile(None)
        assert find_wait_left() == math.inf
    assert chosen > 3
    with pytest.raises(ZeroDivisionError):
        call_within(1.0, lambda: 1 / 0)
    assert find_wait_left() == math.inf
