"""The workload of a cache, the same in Python and in Java.

1. Both sides draw from the same generator with the same seed, before anything is measured, and
   sum up what they did and what they read: runs whose sums differ did different work.
2. What is copied out goes into a buffer that exists, on both sides.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, fields

MASK = 2**64 - 1
CHECKED_EVERY = 97
"""Of how many entries the content of one goes into the sum."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One run: passes over a scratch cache to warm up, then passes over a new one.

    Sequential: `count` entries of `size` bytes are inserted, got, deleted. Random: `count` times an
    entry is inserted (`insert_percent`) or one at random deleted, and one at random read; with
    `vary` lengths are below `size`, evenly. There are never more than `live_max` entries.
    """

    size: int
    count: int
    capacity: int
    random: bool = False
    vary: bool = False
    passes: int = 4
    warmup_count: int = 2_000
    warmup_passes: int = 15
    insert_percent: int = 60
    live_max: int = 2**31 - 1
    seed: int = 42

    def arguments(self) -> list[str]:
        """Return the arguments that both sides take."""
        pairs = ((field.name, getattr(self, field.name)) for field in fields(self))
        return [f"--{name.replace('_', '-')}={int(value)}" for name, value in pairs]

    @classmethod
    def parse(cls, arguments: list[str]) -> Workload:
        values = {}
        for argument in arguments:
            name, _, value = argument.removeprefix("--").partition("=")
            values[name.replace("-", "_")] = int(value)
        random, vary = bool(values.pop("random")), bool(values.pop("vary"))
        return cls(**values, random=random, vary=vary)

    @property
    def warmup_capacity(self) -> int:
        """Return the capacity for the entries that the warm-up inserts."""
        return self.warmup_count * (self.size + 8192) + 4 * 1024**2


class SplitMix:
    """The random number generator SplitMix64."""

    def __init__(self, seed: int) -> None:
        self.state = seed & MASK

    def next(self) -> int:
        self.state = z = (self.state + 0x9E3779B97F4A7C15) & MASK
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        return z ^ (z >> 31)

    def below(self, bound: int) -> int:
        return (self.next() >> 33) % bound

    def bytes(self, length: int) -> bytes:
        return bytes(self.next() & 0xFF for _ in range(length))


@dataclass(frozen=True, slots=True)
class Work:
    """The operations of a random run.

    Each deletes the entry at a place, or inserts one of a length where that is -1; then the entry
    at another place is read, if not -1. Deleting moves the last entry to the place.
    """

    deletes: list[int]
    lengths: list[int]
    reads: list[int]

    def summed(self, value: int) -> int:
        """Continue this CRC32 over all operations and return it."""
        for line in zip(self.deletes, self.lengths, self.reads, strict=True):
            value = zlib.crc32(struct.pack("<iii", *line), value)
        return value


def draw(workload: Workload, count: int) -> Work:
    """Draw the operations of a random run."""
    random = SplitMix(workload.seed)
    work = Work([], [], [])
    live = 0
    for _ in range(count):
        insert = random.below(100) < workload.insert_percent
        if (insert or live == 0) and live < workload.live_max:
            work.deletes.append(-1)
            work.lengths.append(random.below(workload.size) if workload.vary else workload.size)
            live += 1
        else:
            work.deletes.append(random.below(live))
            work.lengths.append(0)
            live -= 1
        work.reads.append(random.below(live) if live else -1)
    return work
