"""The wall clock, for times that people see, and when an idle process wakes up.

What waits or measures uses the event loop's clock.
"""

from __future__ import annotations

import time

import trio


def wall_clock_ms() -> int:
    """Return Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


def next_look(seconds: float) -> float:
    """Return the event loop's time of the next look, the same for all that look every ``seconds``:
    waking up costs more than the look."""
    now = trio.current_time()
    look = now // seconds + 1
    # The quotient of fractions may be a little too low for a look that is due right now.
    return look * seconds if look * seconds > now else (look + 1) * seconds
