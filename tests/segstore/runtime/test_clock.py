"""The wall clock, and waiting in its time."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from segstore.runtime.clock import next_look


def look_at(now: float, seconds: float) -> float:
    """Return the time of the next look, at this interval, if it is ``now``."""
    clock = trio.testing.MockClock()

    async def look() -> float:
        clock.jump(now)
        assert trio.current_time() == now
        await trio.lowlevel.checkpoint()
        return next_look(seconds)

    return trio.run(look, clock=clock)


@pytest.mark.parametrize("seconds", [0.1, 0.3, 0.7, 1 / 3, 0.5, 1.0, 2.5])
def test_the_next_look_after_one_in_time_is_later_and_none_is_left_out(seconds: float) -> None:
    for number in range(1, 400):
        now = number * seconds
        assert now < look_at(now, seconds) == pytest.approx(now + seconds)


def test_who_looks_every_so_often_looks_with_the_others() -> None:
    assert {look_at(now, 0.7) for now in (0.75, 0.9, 1.0, 1.39)} == {1.4}
