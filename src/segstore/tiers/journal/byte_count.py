"""Counts the bytes of a container's log, by groups of entries, so that the memory stays small."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

GROUP_BYTES = 64 * 1024


@dataclass(slots=True)
class _Group:
    """Consecutive entries; ``position`` is that of the first one."""

    position: int
    byte_count: int


@dataclass(slots=True)
class ByteCount:
    """The number of bytes of the entries after the truncation point. It may be too large by one
    group."""

    total: int = 0
    _groups: deque[_Group] = field(default_factory=deque)

    def add(self, position: int, length: int) -> None:
        """Count an entry at the end of the log."""
        self.total += length
        if self._groups and self._groups[-1].byte_count < GROUP_BYTES:
            self._groups[-1].byte_count += length
        else:
            self._groups.append(_Group(position, length))

    def extend(self, groups: Sequence[Sequence[int]]) -> None:
        """Count groups of entries at the end of the log. Each is the position of its first entry
        and its number of bytes."""
        for position, byte_count in groups:
            self.total += byte_count
            self._groups.append(_Group(position, byte_count))

    def truncate(self, position: int, *, end: int) -> None:
        """Stop counting the entries before ``position``. ``end`` is the position after the last
        entry."""
        while len(self._groups) > 1 and self._groups[1].position <= position:
            self.total -= self._groups.popleft().byte_count
        if position == end:
            self._groups.clear()
            self.total = 0
