"""The wall clock, and the times at which an idle process wakes up.

Times that users see come from the wall clock. Code that waits or measures uses the event loop's
clock.
"""

from __future__ import annotations

import time

import trio


def wall_clock_ms() -> int:
    """Return Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def next_look(seconds: float) -> float:
    """Return the time of the next periodic check, on the event loop's clock. All callers with the
    same interval get the same time, so that the process wakes up once for all their checks."""
    now = trio.current_time()
    look = now // seconds + 1
    # Rounding may make the quotient too low when a check is due right now.
    return look * seconds if look * seconds > now else (look + 1) * seconds
