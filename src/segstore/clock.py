"""The wall clock, for times that people see. What waits or measures uses the event loop's clock."""

from __future__ import annotations

import time


def wall_clock_ms() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000
