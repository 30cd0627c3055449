"""The wall clock of a simulated machine, which is set forward and back while everything goes on.

Owns: ``WallClock``. It draws from a random of its own, and only when it is read, so that it changes
nothing else of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random
from typing import Final

import trio

START_MS: Final = 1_700_000_000_000
JUMP_SECONDS: Final = (1.0, 20 * 365 * 86_400.0)
"""How far a clock jumps: any order of magnitude between is as likely as another."""
SPELL_SECONDS: Final = (0.5, 200.0)
"""How long a clock stays as it was set."""
STAYS_SHARE: Final = 0.2
"""Part of the jumps after which nobody puts a clock right before the next."""
STEADY_SHARE: Final = 0.3
"""Part of the machines whose clock is never set."""


class WallClock:
    """A machine's wall clock, in milliseconds since 1970."""

    def __init__(self, random: Random, note: Callable[[str], None] = lambda what: None) -> None:
        self._random = random
        self._note = note
        self._ahead_ms = 0
        self._is_set = False
        steady = random.random() < STEADY_SHARE
        self._next = math.inf if steady else self._spell()

    def now_ms(self) -> int:
        """Return what the clock shows."""
        now = trio.current_time()
        while now >= self._next:
            self._set()
            self._next += self._spell()
        return START_MS + self._ahead_ms + int(1000 * now)

    def calm_down(self) -> None:
        """Leave the clock as it is now."""
        self._next = math.inf

    def put_right(self) -> None:
        """Set the clock right, and leave it so."""
        self._next = math.inf
        if self._ahead_ms:
            self._ahead_ms, self._is_set = 0, False
            self._note("clock put right")

    def _set(self) -> None:
        random = self._random
        if self._is_set and random.random() >= STAYS_SHARE:
            self._ahead_ms, self._is_set = 0, False
            self._note("clock put right")
            return
        seconds = self._spread(JUMP_SECONDS)
        self._ahead_ms += int(1000 * random.choice([-seconds, seconds]))
        self._is_set = True
        self._note(f"clock set to be {self._ahead_ms / 1000:.0f} s ahead")

    def _spell(self) -> float:
        return self._spread(SPELL_SECONDS)

    def _spread(self, bounds: tuple[float, float]) -> float:
        low, high = map(math.log, bounds)
        return math.exp(self._random.uniform(low, high))
