"""Finds the beginnings of events in bytes of a segment, by walking from event to event.

Owns: ``scan_starts``, and ``EventScan``, which remembers its position: a batch with a limit ends
between two events, and the next one continues there, so the driver reads each byte once.

Invariants:
1. A scan's position is the beginning of an event, or the end of the bytes.
2. Between two calls a scan has the bytes of one read at most, and no request is under way.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from _fast.wire.events import EventError, scan_events
from pravega_blocking.errors import PravegaError
from pravega_spark.event_batches import HEADER_BYTES
from pravega_spark.segments import Piece

SPAN_NUMBERS = 2


@dataclass(frozen=True, slots=True)
class Starts:
    """One or more events that follow each other."""

    base: int
    positions: Sequence[int]
    """Offsets of the events' bytes after their headers, relative to ``base``."""
    after: int
    """The offset after the last event."""

    def __len__(self) -> int:
        return len(self.positions)

    def offset(self, number: int) -> int:
        """Return the beginning of an event; for the number behind the last one, its end."""
        if number == len(self.positions):
            return self.after
        return self.base + self.positions[number] - HEADER_BYTES

    def count_until(self, offset: int) -> int:
        """Return how many of the events end at an offset or before."""
        if self.after <= offset:
            return len(self.positions)
        # As many as begin there or before, without the one that continues after it.
        return max(0, bisect_right(self.positions, offset - self.base + HEADER_BYTES) - 1)


def scan_starts(name: str, pieces: Iterable[Piece], start: int) -> Iterator[Starts]:
    """Yield the events of a segment's bytes, as they come. ``name`` is the segment's, for errors.

    Raises ``PravegaError`` for bytes that are no event.
    """
    buffer = bytearray()
    base = start
    for offset, data in pieces:
        if offset != base + len(buffer):
            buffer, base = bytearray(), offset
        buffer += data
        try:
            spans, consumed = scan_events(buffer)
        except EventError as error:
            raise PravegaError(
                f"segment {name} holds no event at offset {base + error.position}: perhaps it is a"
                " byte stream"
            ) from None
        if len(spans):
            yield Starts(base, spans[::SPAN_NUMBERS], base + consumed)
        buffer = buffer[consumed:]
        base += consumed


class EventScan:
    """Walks through one segment's events, some at a time.

    ``read`` yields the bytes between two offsets.
    """

    def __init__(self, name: str, read: Callable[[int, int], Iterator[Piece]], start: int) -> None:
        self._name = name
        self._read = read
        self.position = start
        self._end = start
        self._scanned: Iterator[Starts] = iter(())
        self._starts: Starts | None = None
        self._number = 0

    def advance(
        self, end: int, *, bytes_max: int, rows_max: int, at_least_one: bool
    ) -> tuple[int, int]:
        """Advance to ``end`` within both limits; return the position and the events passed.

        ``end`` is behind the position, between two events, and never less than last time. With
        ``at_least_one`` the first event may be longer than the limit.
        """
        limit = min(end, self.position + bytes_max)
        rows = 0
        while rows < rows_max and (starts := self._next_starts(end)) is not None:
            wanted = max(0, starts.count_until(limit) - self._number)
            if not wanted and at_least_one and not rows:
                wanted = 1
            taken = min(wanted, rows_max - rows)
            rows += taken
            self._number += taken
            self.position = starts.offset(self._number)
            if self._number < len(starts):
                break
        return self.position, rows

    def _next_starts(self, end: int) -> Starts | None:
        """Return the events at the position; None at the end."""
        while self._starts is None or self._number == len(self._starts):
            self._starts = next(self._scanned, None)
            self._number = 0
            if self._starts is None:
                if self._end >= end:
                    return None
                self._scanned = scan_starts(
                    self._name, self._read(self.position, end), self.position
                )
                self._end = end
        return self._starts
