"""Delays quick replies to reads until the client is ready for them.

Owns: ``must_wait``, which decides which replies wait, and ``HeldReads``, the queue of these
replies, one for all connections of an event loop.

The official clients have a race. A reply that comes within a millisecond of its request may come
before the client has registered the receiver of the reply. Then the reader wakes up, finds nothing,
and sleeps until its time-out, although the data have come. One task with one alarm sends all
replies that wait.

Invariants:
1. When a reply has to wait, it is sent as soon as its request is ``age_seconds_min`` old. Held by
   ``test_each_is_answered_when_its_request_is_old_enough``.
2. When a reply is a refusal, or is short and has all that the segment has for now, it waits while
   its request is young. Long replies, and replies to readers that are behind, are sent at once.
   Held by ``test_only_young_requests_wait_and_only_for_what_is_short_and_the_last``.
3. While a reply waits, its data are not kept: they are read again when it is sent, together with
   what was appended meanwhile. Held by
   ``test_bytes_that_are_there_wait_and_take_along_what_comes_meanwhile``.
4. While no task runs ``HeldReads``, no reply waits. Held by
   ``test_nothing_waits_where_nobody_answers_what_is_held``.
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
"""Maximum length, in bytes, of a short reply. A reader at the tail of a segment that is written at
64 MB/s receives as much in a millisecond."""

Answer = Callable[[], None]
"""Answers a read. It must not raise, because the task that sends all held replies calls it."""


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
    """A held reply. ``answer`` sends it, ``cancel`` drops it."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Answer) -> None:
        self._answer: Answer | None = answer

    def cancel(self) -> None:
        """Drop the reply without sending it. Idempotent."""
        self._answer = None

    def answer(self) -> None:
        """Send the reply, unless it was sent or cancelled before."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer()


class HeldReads:
    """See the module. With ``age_seconds_min`` 0, no reply waits."""

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
