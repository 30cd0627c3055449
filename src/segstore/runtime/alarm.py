"""Waking one task at a time: to within a fraction of a millisecond, where it matters.

Owns: ``TimerAlarm``, which asks the kernel for a timer, and ``SleepingAlarm``, which asks the
event loop, for tests and simulations whose clock is not the machine's.

The event loop waits in ``epoll_wait``, whose time-outs are whole milliseconds, rounded up: a task
that wants to be woken in 0.3 ms is woken after 1. A timer among the files that it watches is exact.

Invariants:
1. One task waits at a time. A time that is set while it waits, earlier or later, takes the place of
   the one before.
2. An alarm rings when its time has come and never before.
"""

from __future__ import annotations

import ctypes
import math
import os
import time
from typing import Final, Protocol

import trio

_NANOSECONDS: Final = 1_000_000_000
_libc = ctypes.CDLL(None, use_errno=True)


class Alarm(Protocol):
    """See the module. Times are those of ``trio.current_time``."""

    def set(self, at: float) -> None:
        """Ring at this time; never, if it is infinite."""
        ...

    async def wait(self) -> None:
        """Return when it rings."""
        ...


class SleepingAlarm:
    """An alarm by the event loop's own clock, in whole milliseconds on a real one."""

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


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Timer(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("first", _Timespec))


class TimerAlarm:
    """An alarm by a timer of the kernel. Raises ``OSError`` when there is none to be had."""

    def __init__(self) -> None:
        flags = os.O_NONBLOCK | os.O_CLOEXEC
        self._descriptor = _checked(_libc.timerfd_create(time.CLOCK_MONOTONIC, flags))

    def set(self, at: float) -> None:
        """See ``Alarm``."""
        timer = _Timer()  # all zero: never
        if at != math.inf:
            left = max(1, math.ceil((at - trio.current_time()) * _NANOSECONDS))
            timer.first.seconds, timer.first.nanoseconds = divmod(left, _NANOSECONDS)
        _checked(_libc.timerfd_settime(self._descriptor, 0, ctypes.byref(timer), None))

    async def wait(self) -> None:
        """See ``Alarm``."""
        while True:
            await trio.lowlevel.wait_readable(self._descriptor)
            try:
                os.read(self._descriptor, 8)
            except BlockingIOError:
                continue  # it was set anew since it rang
            return

    def close(self) -> None:
        """Free the timer. Idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
