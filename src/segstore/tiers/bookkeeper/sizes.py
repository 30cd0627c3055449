"""Estimates the number of a log's bytes after a position, from samples."""

from __future__ import annotations

from bisect import bisect_right, insort

SAMPLE_BYTES_MAX = 64 * 1024
SAMPLES_OF_HELD = 512
"""Divisor: samples are at most this share of the counted bytes apart. So the bytes of a short log
are counted exactly. With samples at each 64 KiB, a truncation would not lower the count of a log
that is shorter than that."""


class LogSizes:
    """Counts bytes by position. After ``drop_before``, the count may be too large by the bytes
    between two samples."""

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []
        """Samples: a position, and the number of bytes before it."""
        self._total = 0
        self._dropped = 0

    @property
    def held(self) -> int:
        """Return the number of bytes that were added and not dropped."""
        return self._total - self._dropped

    @property
    def sample_bytes(self) -> int:
        """Return the maximum number of bytes between two samples."""
        return min(SAMPLE_BYTES_MAX, self.held // SAMPLES_OF_HELD)

    def add(self, position: int, size: int) -> None:
        """Count ``size`` bytes at a position that is higher than all before."""
        if not self._samples or self._total - self._samples[-1][1] >= self.sample_bytes:
            self._samples.append((position, self._total))
        self._total += size

    def refine(self, position: int, before: int) -> None:
        """Add a sample: ``before`` bytes are before ``position``, which lies between earlier
        samples."""
        insort(self._samples, (position, before))

    def drop_before(self, position: int) -> None:
        """Stop counting the bytes before a position."""
        index = bisect_right(self._samples, (position, self._total)) - 1
        if index >= 0:
            self._dropped = max(self._dropped, self._samples[index][1])
            del self._samples[:index]
