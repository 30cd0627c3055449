"""Delays quick replies to reads until the client is ready for them.

Owns: ``must_wait``, the decision which replies wait, and ``HeldReads``, the line of those that do,
one for all connections of an event loop.

The official clients have a race. A reply that comes within a millisecond of its request may come
before the client has said who takes it: its reader is woken, finds nothing, and sleeps out its
time-out beside data that are there.

Invariants:
1. A reply waits until its request is ``age_seconds_min`` old, and no longer.
2. Only a short reply waits behind which the segment has nothing more, and a refusal. Long replies,
   and those of a reader that is behind, leave at once.
3. Data that wait are not kept: they are read again when their time has come, with what was appended
   meanwhile.
4. One task waits for the whole line, with one alarm. Where it is not run, nothing waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final

import trio

from segstore.api import ReadResult
from segstore.runtime.alarm import Alarm
from segstore.runtime.reactor import current_reactor

SHORT_BYTES_MAX: Final = 64 * 1024
"""Maximum length, in bytes, of a short reply: a reader at the tail of a segment that is written at
64 MB/s gets so much in a millisecond."""

Answer = Callable[[], None]
"""Answers a read. It may not raise, because the task of the line calls it."""


def must_wait(result: ReadResult | None, *, age: float, age_min: float) -> bool:
    """Decide whether the reply to a read waits until its request is ``age_min`` seconds old.

    ``result`` is None for a refusal, ``age`` the seconds since the request was received.
    """
    if age >= age_min:
        return False
    if result is None:
        return True
    return (result.is_last or result.end_of_segment) and len(result.data) <= SHORT_BYTES_MAX


class HeldRead:
    """A place in the line. It is left by its answer, or by ``cancel``."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Answer) -> None:
        self._answer: Answer | None = answer

    def cancel(self) -> None:
        """Drop the reply without sending it. Idempotent."""
        self._answer = None

    def answer(self) -> None:
        """Send the reply, unless that was done or is not wanted any more."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer()


class HeldReads:
    """See the module. ``age_seconds_min`` is 0 where no reply shall wait."""

    def __init__(self, age_seconds_min: float) -> None:
        self.age_seconds_min = age_seconds_min
        self._line: list[tuple[float, int, HeldRead]] = []
        self._held_count = 0
        self._alarm: Alarm | None = None

    @property
    def is_running(self) -> bool:
        """Return whether a task sends the replies that are held."""
        return self._alarm is not None

    def must_wait(self, result: ReadResult | None, asked: float) -> bool:
        """Return whether the reply to a read that was received at the time ``asked`` must wait."""
        if self._alarm is None or not self.age_seconds_min:
            return False
        age = trio.current_time() - asked
        return must_wait(result, age=age, age_min=self.age_seconds_min)

    def hold(self, asked: float, answer: Answer) -> HeldRead:
        """Call ``answer`` when a request that was received at the time ``asked`` is old enough."""
        assert self._alarm is not None, "no task sends the replies that are held"
        due = asked + self.age_seconds_min
        self._held_count += 1
        heappush(self._line, (due, self._held_count, held := HeldRead(answer)))
        if self._line[0][2] is held:
            self._alarm.set(due)
        return held

    async def run(self, alarm: Alarm) -> None:
        """Send the replies that are held, each at its time, until cancelled."""
        reactor = current_reactor()
        self._alarm = alarm
        try:
            while True:
                alarm.set(self._line[0][0] if self._line else math.inf)
                await alarm.wait()
                reactor.run_step(self._answer_due)
        finally:
            self._alarm = None

    def _answer_due(self) -> None:
        line, now = self._line, trio.current_time()
        while line and line[0][0] <= now:
            heappop(line)[2].answer()
