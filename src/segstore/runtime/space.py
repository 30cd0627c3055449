"""Watches how full the disks are that a process writes to, and logs warnings.

Owns: ``SpaceWatch``, ``Space``, and the used shares of a disk at which a warning is logged.

Bytes and inodes are watched in the same way. A warning has the time until the disk is full: the
free part divided by the rate at which it became smaller in the last ``RATE_SECONDS``.

Invariants:
1. When the use of a disk reaches a level, one warning is logged. Held by
   ``test_each_level_is_warned_of_once_with_the_time_left``. The next warning of that level is
   logged only after the use was more than ``REARMED_BELOW`` below it. Held by
   ``test_a_disk_that_got_room_is_warned_of_again``.
2. When several directories are on one disk, one warning is logged for all of them. Held by
   ``test_directories_on_one_disk_have_one_warning``.
3. When a disk cannot be measured, nothing is raised, and it is measured again later. Held by
   ``test_a_disk_that_cannot_be_asked_ends_nothing``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from pathlib import Path
from typing import Final

import structlog
import trio

from pravega_metrics.store_metrics import DISK_BYTES

LEVELS: Final = (0.80, 0.90, 0.95)
"""Used shares of a disk at which a warning is logged."""
REARMED_BELOW: Final = 0.05
LOOK_SECONDS: Final = 10.0
RATE_SECONDS: Final = 600.0

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Amount:
    """The used part of something, and the part that a process may still use."""

    used: int
    free: int

    @property
    def used_share(self) -> float:
        """Return the used share; 0 for what the file system does not count, such as inodes on some
        file systems."""
        return self.used / (self.used + self.free) if self.used + self.free else 0.0


@dataclass(frozen=True, slots=True)
class Space:
    """The space of one disk."""

    device: int
    """The same number for all directories on the disk."""
    bytes: Amount
    inodes: Amount


def measure_space(directory: Path) -> Space:
    """Return the space of the disk of a directory. Blocks; raises ``OSError``."""
    found = os.statvfs(directory)
    return Space(
        os.stat(directory).st_dev,
        # Space that only root may use is neither free nor used, as in the output of df.
        Amount((found.f_blocks - found.f_bfree) * found.f_frsize, found.f_bavail * found.f_frsize),
        Amount(found.f_files - found.f_ffree, found.f_favail),
    )


@dataclass(slots=True)
class _Trend:
    """The use of bytes or inodes over the last minutes, and the highest level for which a warning
    was logged."""

    samples: deque[tuple[float, int]] = field(default_factory=deque)
    warned: float = 0.0

    def add(self, now: float, used: int) -> None:
        self.samples.append((now, used))
        while now - self.samples[0][0] > RATE_SECONDS:
            self.samples.popleft()

    def seconds_left(self, free: int) -> float:
        """Return the time until nothing is free at the present rate; infinite if the use does not
        grow."""
        (began, first), (now, last) = self.samples[0], self.samples[-1]
        return free * (now - began) / (last - first) if last > first else inf

    def level_to_warn(self, share: float) -> float | None:
        """Return the highest level that is reached, if no warning was logged for it; None
        otherwise."""
        if share < self.warned - REARMED_BELOW:
            self.warned = 0.0
        reached = max((level for level in LEVELS if share >= level), default=0.0)
        if reached <= self.warned:
            return None
        self.warned = reached
        return reached


class SpaceWatch:
    """Watches the disks of ``directories``. ``measure`` blocks, and is called in a thread."""

    def __init__(
        self, directories: Iterable[Path], *, measure: Callable[[Path], Space] = measure_space
    ) -> None:
        self._directories = tuple(dict.fromkeys(directories))
        self._measure = measure
        self._trends: dict[tuple[int, str], _Trend] = {}
        self._scope = trio.CancelScope()

    def stop(self) -> None:
        """End ``run``."""
        self._scope.cancel()

    async def run(self) -> None:
        """Measure the disks from time to time, until stopped."""
        with self._scope:
            while True:
                # A network disk may not answer for a long time.
                spaces = await trio.to_thread.run_sync(self.measure, abandon_on_cancel=True)
                self.warn(spaces)
                await trio.sleep(LOOK_SECONDS)

    def measure(self) -> dict[Path, Space]:
        """Return the present space of each directory whose disk answers. Blocks."""
        found = {}
        for directory in self._directories:
            try:
                found[directory] = self._measure(directory)
            except OSError as error:
                logger.debug("a disk cannot be asked", directory=directory, error=str(error))
        return found

    def warn(self, spaces: dict[Path, Space]) -> None:
        """Record the space, and log a warning for each disk that has reached a level since the last
        call."""
        now = trio.current_time()
        by_device: dict[int, list[Path]] = {}
        for directory, space in spaces.items():
            DISK_BYTES.of(str(directory), "used").value = space.bytes.used
            DISK_BYTES.of(str(directory), "free").value = space.bytes.free
            by_device.setdefault(space.device, []).append(directory)
        for device, directories in by_device.items():
            space = spaces[directories[0]]
            for name, amount in (("bytes", space.bytes), ("inodes", space.inodes)):
                trend = self._trends.setdefault((device, name), _Trend())
                trend.add(now, amount.used)
                if trend.level_to_warn(amount.used_share) is not None:
                    logger.warning(
                        "a disk is filling up",
                        directory=", ".join(map(str, directories)),
                        used_percent=int(100 * amount.used_share),
                        left=f"{amount.free} {name}",
                        full_in=describe_seconds(trend.seconds_left(amount.free)),
                    )


def describe_seconds(seconds: float) -> str:
    """Return a time as text, in its two largest units."""
    if seconds == inf:
        return "no time: it does not grow now"
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if days:
        return f"{days} d {hours % 24} h"
    if hours:
        return f"{hours} h {minutes % 60} min"
    return f"{minutes} min {int(seconds) % 60} s"
