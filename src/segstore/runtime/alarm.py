"""Wakes a task at a given time, exact to a fraction of a millisecond where that matters.

Owns: ``TimerAlarm``, which uses a timer of the kernel, and ``SleepingAlarm``, which uses the event
loop's clock, for tests and simulations with another clock than the machine's.

The event loop waits in ``epoll_wait``, whose time-outs are whole milliseconds, rounded up: a task
that asks for 0.3 ms is woken after 1 ms. A timer among the descriptors that the loop watches is
exact. One task waits for an alarm at a time.

Invariants:
1. When a time is set while a task waits, it replaces the time that was set before. Held by
   ``test_an_earlier_time_takes_the_place_of_a_later_one`` and
   ``test_a_later_time_takes_the_place_of_an_earlier_one``.
2. When the time of an alarm comes, it rings, and it never rings before. Held by
   ``test_it_rings_at_its_time_and_not_before``.
"""

from __future__ import annotations

import math
import os
from typing import Protocol

import trio

from segstore.runtime.kernel import create_timer, set_timer


class Alarm(Protocol):
    """See the module. Times are those of ``trio.current_time``."""

    def set(self, at: float) -> None:
        """Ring at this time; never if it is infinite."""
        ...

    async def wait(self) -> None:
        """Return when it rings."""
        ...


class SleepingAlarm:
    """An alarm that uses the event loop's clock. A real clock rounds up to whole milliseconds."""

    def __init__(self) -> None:
        self._at = math.inf
        self._sleep: trio.CancelScope | None = None

    def set(self, at: float) -> None:
        """See ``Alarm``."""
        self._at = at
        if self._sleep is not None:
            self._sleep.deadline = at

    async def wait(self) -> None:
        """See ``Alarm``."""
        try:
            with trio.CancelScope(deadline=self._at) as self._sleep:
                await trio.sleep_forever()
        finally:
            self._sleep = None


class TimerAlarm:
    """An alarm that uses a timer of the kernel. Raises ``OSError`` when there is none."""

    def __init__(self) -> None:
        self._descriptor = create_timer()

    def set(self, at: float) -> None:
        """See ``Alarm``."""
        set_timer(self._descriptor, at - trio.current_time())

    async def wait(self) -> None:
        """See ``Alarm``."""
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                os.read(self._descriptor, 8)
            except BlockingIOError:
                continue  # another time was set after it rang
            return

    def close(self) -> None:
        """Free the timer. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
