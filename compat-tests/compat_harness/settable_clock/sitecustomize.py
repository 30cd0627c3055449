"""Changes ``time.sleep`` in each Python process that has this directory in its path.

libfaketime 0.9.10 lets the monotonic clock alone, but fails the sleep until one of its times that
Python makes (``EINVAL``).
"""

from __future__ import annotations

import select
import time


def sleep(seconds: float) -> None:
    """Sleep like ``time.sleep``."""
    if seconds < 0:
        raise ValueError("sleep length must be non-negative")
    select.select([], [], [], seconds)


time.sleep = sleep
