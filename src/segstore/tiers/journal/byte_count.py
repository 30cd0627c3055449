"""Counts the bytes of a container's log, in little memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

GROUP_BYTES = 64 * 1024


@dataclass(slots=True)
class _Group:
    """Consecutive entries from ``position`` on."""

    position: int
    byte_count: int


@dataclass(slots=True)
class ByteCount:
    """Bytes of the entries from the truncation point on, too many by at most one group."""

    total: int = 0
    _groups: deque[_Group] = field(default_factory=deque)

    def add(self, position: int, length: int) -> None:
        """Count an entry behind all others."""
        self.total += length
        if self._groups and self._groups[-1].byte_count < GROUP_BYTES:
            self._groups[-1].byte_count += length
        else:
            self._groups.append(_Group(position, length))

    def extend(self, groups: Sequence[Sequence[int]]) -> None:
        """Count entries behind all others: (first position, bytes) of each group of them."""
        for position, byte_count in groups:
            self.total += byte_count
            self._groups.append(_Group(position, byte_count))

    def truncate(self, position: int, *, end: int) -> None:
        """Forget the entries before ``position``; the log ends before ``end``."""
        while len(self._groups) > 1 and self._groups[1].position <= position:
            self.total -= self._groups.popleft().byte_count
        if position == end:
            self._groups.clear()
            self.total = 0
