"""Waiting between attempts, for a bounded time.

Owns: the pace of retries, shared by writers, readers and the supervisor.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator

from pravega_wire.sessions.time_limits import find_wait_left
from segstore_client.errors import OutOfTimeError

DELAY_SECONDS_MAX = 5.0
PATIENCE_SECONDS = 60.0
"""Time, in seconds, for which a client repeats what servers do not answer, unless it is told."""


def delays(first: float, *, maximum: float = DELAY_SECONDS_MAX) -> Iterator[float]:
    """Yield the seconds to wait before each further attempt: ``first``, then each time doubled."""
    for attempt in itertools.count():
        yield min(maximum, first * 2.0 ** min(attempt, 60))


class Patience:
    """The time for which failed attempts are repeated. A success sets it to its full length."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._since: float | None = None
        self._delays = delays(0.02, maximum=1.0)

    def renew(self) -> None:
        """Record a success: the next failure counts as the first one."""
        self._since = None

    def skip_pause(self, seconds: float) -> None:
        """Take note that nothing was tried for some seconds: what failed before a long pause does
        not count."""
        if seconds > self.seconds:
            self.renew()

    def begin(self) -> float:
        """Start the time unless it is running; return the seconds since its start."""
        now = time.monotonic()
        if self._since is None:
            self._since = now
            self._delays = delays(0.02, maximum=1.0)
        return now - self._since

    def next_delay(self) -> float | None:
        """Return the seconds to sleep before the next attempt, or None when the time is over.

        Raises ``OutOfTimeError`` when the limit of the call is over, of ``call_within``.
        """
        passed, delay = self.begin(), next(self._delays)
        if passed + delay > self.seconds:
            return None
        left = find_wait_left()
        if left <= 0:
            raise OutOfTimeError("the servers did not answer in the time of the call")
        return min(delay, left)

    def wait(self) -> bool:
        """Sleep before the next attempt and return True, or return False when the time is over."""
        delay = self.next_delay()
        if delay is None:
            return False
        time.sleep(delay)
        return True
