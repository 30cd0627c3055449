"""Estimates how many bytes of a log are behind a position, from samples."""

from __future__ import annotations

from bisect import bisect_right, insort

SAMPLE_BYTES = 64 * 1024


class LogSizes:
    """Counts bytes by position. What is dropped is counted to the last sample before it."""

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []
        """Positions, each with the bytes before it."""
        self._total = 0
        self._dropped = 0

    @property
    def held(self) -> int:
        """Return the number of bytes that were added and not dropped."""
        return self._total - self._dropped

    def add(self, position: int, size: int) -> None:
        """Count ``size`` bytes at a position behind all earlier ones."""
        if not self._samples or self._total - self._samples[-1][1] >= SAMPLE_BYTES:
            self._samples.append((position, self._total))
        self._total += size

    def refine(self, position: int, before: int) -> None:
        """Record that ``before`` bytes are in front of a position between earlier ones."""
        insort(self._samples, (position, before))

    def drop_before(self, position: int) -> None:
        """Stop counting the bytes in front of a position."""
        index = bisect_right(self._samples, (position, self._total)) - 1
        if index >= 0:
            self._dropped = max(self._dropped, self._samples[index][1])
            del self._samples[:index]
