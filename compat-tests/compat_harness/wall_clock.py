"""A wall clock that is set while processes run that believe in it, by libfaketime.

Owns: ``WallClock``, and where the library is. Only the wall clock is set: what measures durations
goes on.
"""

from __future__ import annotations

import math
import os
import random
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

LIBRARIES = ("/usr/lib/*/faketime/libfaketime.so.1", "/usr/lib*/faketime/libfaketime.so.1")
MISSING = "libfaketime is not installed (Debian's package faketime)"
JUMP_SECONDS = (1.0, 10 * 365 * 86_400.0)
"""How far the clock jumps: any order of magnitude between is as likely as another."""
HOLDS_SECONDS = 1
"""Time, in seconds, for which a process may believe in what was set before."""


def find_library() -> Path | None:
    """Return where libfaketime is, or None."""
    root = Path("/")
    found = [path for pattern in LIBRARIES for path in root.glob(pattern.lstrip("/"))]
    return min(found, default=None)


class WallClock:
    """The clock of the processes that have ``environment``. Its setting is a file in a directory.

    Without the library, the environment is the present one, and the clock cannot be set. It jumps
    by ``jump_seconds_max`` at most.
    """

    def __init__(self, directory: Path, *, jump_seconds_max: float | None = None) -> None:
        self._jump_seconds = (JUMP_SECONDS[0], jump_seconds_max or JUMP_SECONDS[1])
        self._file = directory / "wall-clock"
        self._library = find_library()
        self.set_ahead(0)

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the environment of processes with this clock."""
        if self._library is None:
            return os.environ
        return {
            **os.environ,
            "LD_PRELOAD": str(self._library),
            "PYTHONPATH": str(Path(__file__).parent / "settable_clock"),
            "FAKETIME_TIMESTAMP_FILE": str(self._file),
            "FAKETIME_CACHE_DURATION": str(HOLDS_SECONDS),
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            # Otherwise timed waits end at once: a hop to a thread costs ten times its CPU, and a
            # recovery of seconds takes a minute on a busy machine.
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
            # The clocks of ZooKeeper and bookies are not the ones under test.
            "FAKETIME_SKIP_CMDS": "java",
        }

    @contextmanager
    def jumped(self, rng: random.Random) -> Iterator[None]:
        """Set the clock by seconds to years, forward or back, for the time of the block."""
        low, high = map(math.log, self._jump_seconds)
        seconds = math.exp(rng.uniform(low, high))
        self.set_ahead(rng.choice([-seconds, seconds]))
        try:
            yield
        finally:
            self.set_ahead(0)

    def set_ahead(self, seconds: float) -> None:
        """Set the clock ahead of the real one, or behind it where ``seconds`` is negative."""
        written = self._file.with_suffix(".new")
        written.write_text(f"{seconds:+.0f}\n")
        # A process that reads meanwhile finds the one or the other.
        written.replace(self._file)
