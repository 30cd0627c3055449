"""Looks at stores and streams: their numbers now, their rates, and how both were before.

Owns: ``Looks``, and the times between two looks.

Nothing is looked at unless somebody has a page open. All who have the same page open share its
looks, so a page costs the stores the same for one browser as for many.

Invariants:
1. When many ask at once, or within ``LOOK_SECONDS``, there is one look. Held by
   ``test_many_who_ask_share_a_look``.
2. When a counter begins again with its process, no rate is told of that time. Held by
   ``test_a_counter_that_begins_again_has_no_rate``.
3. When many subjects are looked at, those that nobody has asked for longest are forgotten. Held by
   ``test_subjects_that_nobody_asks_for_are_forgotten``.
4. When a look takes long, it is kept for longer.
   Held by ``test_what_takes_long_is_looked_at_less``.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final, Generic, TypeVar

import trio

from pravega_controller.clocks import wall_clock_ms

LOOK_SECONDS: Final = 1.0
"""Minimum time, in seconds, between two looks at the same subject."""
LOOK_SHARE: Final = 10
"""A look is kept for so many times the time that it took, so that looks are a small part of the
work of stores; but not longer than ``RATE_SECONDS``."""
RATE_SECONDS: Final = 10.0
"""Time, in seconds, over which rates are told, or a little more."""
BREAK_SECONDS: Final = 30.0
"""Time, in seconds, after which a look does not count for rates: nobody had the page open."""
POINTS_MAX: Final = 300
"""Maximum number of earlier points of a chart: ten minutes of a page that is open."""
SUBJECTS_MAX: Final = 128
"""Maximum number of subjects that are looked at by turns."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Look(Generic[T]):
    """The state that was seen at one time, by the clock of the event loop."""

    time: float
    seen: T


Summary = tuple[float | None, ...]
"""The numbers of one point of a chart."""


class Track(Generic[T]):
    """The looks at one subject: the recent ones whole, the earlier ones as points."""

    def __init__(
        self,
        take: Callable[[], Awaitable[T]],
        summarize: Callable[[list[Look[T]]], Summary] | None = None,
    ) -> None:
        self._take = take
        self._summarize = summarize
        self._lock = trio.Lock()
        self._looks: deque[Look[T]] = deque()
        self._next = -inf
        """The time from which on a look is taken."""
        self.points: deque[tuple[int, Summary]] = deque(maxlen=POINTS_MAX)
        """Milliseconds since 1970, and the numbers."""

    async def look(self) -> list[Look[T]]:
        """Return the looks of the last ``RATE_SECONDS`` and the one before them, in order.

        Without a summary there are no rates, and only the last look is kept. Raises the errors of
        the function that looks.
        """
        async with self._lock:
            began = trio.current_time()
            if began >= self._next:
                seen = await self._take()
                now = trio.current_time()
                kept = min(LOOK_SHARE * (now - began), RATE_SECONDS)
                self._next = now + max(kept, LOOK_SECONDS)
                self._looks.append(Look(now, seen))
                while len(self._looks) > 1 and self._is_needless(now):
                    self._looks.popleft()
                if self._summarize is not None:
                    self.points.append((wall_clock_ms(), self._summarize(list(self._looks))))
            return list(self._looks)

    def renew(self) -> None:
        """Let the next look be a new one."""
        self._next = -inf

    def _is_needless(self, now: float) -> bool:
        """Return whether the first look is none from which rates are told."""
        first, second, *_ = self._looks
        is_old = now - second.time > RATE_SECONDS or now - first.time > BREAK_SECONDS
        return is_old or self._summarize is None


class Looks:
    """The tracks of all subjects that pages ask for."""

    def __init__(self) -> None:
        self._tracks: OrderedDict[object, Track[Any]] = OrderedDict()

    def track(
        self,
        subject: object,
        take: Callable[[], Awaitable[T]],
        summarize: Callable[[list[Look[T]]], Summary] | None = None,
    ) -> Track[T]:
        """Return the track of a subject; the functions are those of the first who asked."""
        found = self._tracks.get(subject)
        if found is None:
            found = self._tracks[subject] = Track(take, summarize)
        self._tracks.move_to_end(subject)
        if len(self._tracks) > SUBJECTS_MAX:
            self._tracks.popitem(last=False)
        return found

    def renew(self, subject: object) -> None:
        """Let the next look at a subject be a new one: it was changed."""
        if (found := self._tracks.get(subject)) is not None:
            found.renew()

    def forget(self, subject: object) -> None:
        """Forget the looks at a subject that was changed."""
        self._tracks.pop(subject, None)


def rate(looks: Sequence[Look[T]], count: Callable[[T], float | None]) -> float | None:
    """Return by how much a count grew each second; None if it cannot be told."""
    found = trend(looks, count)
    return None if found is None or found < 0 else found


def trend(looks: Sequence[Look[T]], measure: Callable[[T], float | None]) -> float | None:
    """Return by how much a measure changed each second; None if it cannot be told."""
    earlier, later = measure(looks[0].seen), measure(looks[-1].seen)
    seconds = looks[-1].time - looks[0].time
    # Over a shorter time a rate would be that of one append, or of none.
    if earlier is None or later is None or seconds < LOOK_SECONDS / 2:
        return None
    return (later - earlier) / seconds
