"""Both alarms ring at their time, not before, and can be set anew while somebody waits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import closing

import pytest
import trio
import trio.testing

from segstore.runtime.alarm import Alarm, SleepingAlarm, TimerAlarm


@pytest.fixture(params=["sleeping", "timer"])
def alarm(request: pytest.FixtureRequest) -> Iterator[Alarm]:
    if request.param == "sleeping":
        yield SleepingAlarm()
        return
    with closing(TimerAlarm()) as timer:
        yield timer


async def test_it_rings_at_its_time_and_not_before(alarm: Alarm) -> None:
    for seconds in (0.02, 0.0005, 0.0, -1.0):
        at = trio.current_time() + seconds
        alarm.set(at)
        await alarm.wait()
        assert trio.current_time() >= at


async def test_an_earlier_time_takes_the_place_of_a_later_one(alarm: Alarm) -> None:
    alarm.set(trio.current_time() + 1_000)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarm.wait)
        await trio.testing.wait_all_tasks_blocked()
        alarm.set(trio.current_time() + 0.001)


async def test_a_later_time_takes_the_place_of_an_earlier_one(alarm: Alarm) -> None:
    alarm.set(trio.current_time() + 0.05)
    later = trio.current_time() + 0.1
    async with trio.open_nursery() as nursery:
        nursery.start_soon(alarm.wait)
        await trio.testing.wait_all_tasks_blocked()
        alarm.set(later)
    assert trio.current_time() >= later


async def test_without_a_time_it_never_rings(alarm: Alarm) -> None:
    alarm.set(trio.current_time())
    alarm.set(math.inf)
    with trio.move_on_after(0.05) as scope:
        await alarm.wait()
    assert scope.cancelled_caught
    # A wait that was cancelled leaves it as it was.
    alarm.set(trio.current_time() + 0.001)
    await alarm.wait()


async def test_a_timer_is_not_rounded_up_to_milliseconds() -> None:
    with closing(TimerAlarm()) as timer:
        quickest = math.inf
        for _ in range(50):
            began = trio.current_time()
            timer.set(began + 0.0002)
            await timer.wait()
            quickest = min(quickest, trio.current_time() - began)
    # On a busy machine one of fifty is enough: a time-out of epoll has none below a millisecond.
    assert 0.0002 <= quickest < 0.001


def test_a_timer_can_be_closed_twice() -> None:
    timer = TimerAlarm()
    timer.close()
    timer.close()
