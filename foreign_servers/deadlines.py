"""Deadlines of tests that start processes, scaled by the speed of the machine.

A deadline only ends a hang. On a machine that is slow, or busy with other programs, servers need
longer to start: ``make test`` measures the speed once, and says the factor by a variable.
"""

from __future__ import annotations

import os
from typing import Final

FACTOR_VARIABLE: Final = "SEGSTORE_DEADLINE_FACTOR"
FACTOR: Final = float(os.environ.get(FACTOR_VARIABLE, "1"))


def scale(seconds: float) -> float:
    """Return the seconds that a step may take here which may take these on a usual machine."""
    return seconds * FACTOR
