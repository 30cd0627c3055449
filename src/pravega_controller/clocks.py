"""The times that the controller stores in records, and the ages that it computes from them.

A machine's wall clock may be set at any moment, by seconds or by years, so the difference of two
readings is no duration. ``SteadyClock`` begins with the wall clock, and then follows a clock that
cannot be set. Its times are stored, and other machines have other clocks: so a stored time may lie
in the future. ``RecordTimes`` has a time of its own for each record: it is never before the last
stored time of the record. ``ContinuedTime`` bounds by how much a starting process can be ahead: it
continues at the time that earlier processes have stored.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable

FOLLOWED_SHARE = 1 / 16
"""Part of the passing time by which a steady clock approaches the wall clock. If the wall clock is
wrong for a moment, the steady clock hardly changes; in the long run it follows the wall clock."""
RECORDS_MAX = 100_000
"""Maximum number of records whose distance from this process's clock is remembered."""


def wall_clock_ms() -> int:
    """Return the machine's wall clock, in milliseconds since 1970. It jumps when a user sets it."""
    return time.time_ns() // 1_000_000


def seconds_since_boot() -> float:
    """Return the seconds since the machine's start, those in which it was suspended included."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class SteadyClock:
    """The time of one process, in milliseconds since 1970. It neither jumps nor goes back."""

    def __init__(
        self,
        wall_ms: Callable[[], int] = wall_clock_ms,
        seconds: Callable[[], float] = seconds_since_boot,
    ) -> None:
        self._wall_ms = wall_ms
        self._seconds = seconds
        self._read_at: float | None = None
        self._ms = 0.0

    def now_ms(self) -> int:
        """Return the time; the first call takes it from the wall clock."""
        wall_ms, now = self._wall_ms(), self._seconds()
        if self._read_at is None:
            self._ms = float(wall_ms)
        else:
            passed_ms = 1000 * (now - self._read_at)
            self._ms += passed_ms
            step_ms = FOLLOWED_SHARE * passed_ms
            self._ms += min(max(wall_ms - self._ms, -step_ms), step_ms)
        self._read_at = now
        return int(self._ms)


class ContinuedTime:
    """A time that continues at the time that earlier processes stored, and follows a steady clock.

    ``now_ms`` never goes back. The time since the last process stored its time counts as the steady
    clock says, but as ``gap_ms_max`` at most.
    """

    def __init__(self, now_ms: Callable[[], int], *, gap_ms_max: int) -> None:
        self._now_ms = now_ms
        self._gap_ms_max = gap_ms_max
        self._began_ms = 0
        self._ahead_ms = 0
        """Distance from the steady clock at the beginning; negative for behind it."""

    def go_on_from(self, left_ms: int) -> None:
        """Begin at the steady clock's time, but within ``gap_ms_max`` after ``left_ms``."""
        now_ms = self._began_ms = self._now_ms()
        self._ahead_ms = min(max(now_ms, left_ms), left_ms + self._gap_ms_max) - now_ms

    def now_ms(self) -> int:
        """Return the time in milliseconds; it approaches the steady clock by ``FOLLOWED_SHARE``."""
        now_ms = self._now_ms()
        step_ms = int(FOLLOWED_SHARE * max(0, now_ms - self._began_ms))
        return now_ms + self._ahead_ms - min(max(self._ahead_ms, -step_ms), step_ms)


class RecordTimes:
    """The present time of each record, computed from the stored times of this and of other clocks.

    ``gap_ms_max`` is the maximum, in milliseconds, by which a record's time advances while this
    process does not know the record: only the wall clocks of two processes tell how long that was.
    """

    def __init__(self, *, gap_ms_max: int | None = None, records_max: int = RECORDS_MAX) -> None:
        self._gap_ms_max = gap_ms_max
        self._records_max = records_max
        self._ahead_ms: OrderedDict[Hashable, int] = OrderedDict()
        """Distances of records from this process's clock; negative for those after it."""

    def now_ms(self, record: Hashable, latest_ms: int, *, now_ms: int) -> int:
        """Return the time of a record, which is never before ``latest_ms``, its last stored time.

        If that time was ahead of this process's clock when it was first seen here, the result is
        ahead of ``now_ms`` by as much.
        """
        ahead_ms = self._ahead_ms.get(record)
        if ahead_ms is None:
            ahead_ms = 0
            if self._gap_ms_max is not None and latest_ms:
                ahead_ms = min(0, latest_ms + self._gap_ms_max - now_ms)
        ahead_ms = max(ahead_ms, latest_ms - now_ms)
        if ahead_ms or self._gap_ms_max is not None:
            self._ahead_ms[record] = ahead_ms
            self._ahead_ms.move_to_end(record)
            if len(self._ahead_ms) > self._records_max:
                self._ahead_ms.popitem(last=False)
        return now_ms + ahead_ms
