"""Finds the beginnings of events in bytes of a segment, by walking from event to event.

Owns: ``scan_starts``, and ``EventScan``, which remembers its position. The end of a batch with a
limit must lie between two events. So the driver reads the segment, and finds the last event that is
within the limit. Take events of 2, 3 and 1 bytes, 30 bytes with their headers, and batches of 15
and 20 bytes:

    >>> data = frame_events([b"ab", b"cde", b"f"])  # they begin at 0, 10 and 21
    >>> scan = EventScan("s/t/0", lambda start, end: iter([(start, data[start:end])]), 0)
    >>> scan.advance(30, bytes_max=15, rows_max=9, at_least_one=True)  # the second one ends at 21
    (10, 1)
    >>> scan.advance(30, bytes_max=20, rows_max=9, at_least_one=True)
    (30, 2)

Invariants:
1. When a batch has limits, a scan stops at the last boundary between two events within them.
   Held by ``test_batches_are_as_long_as_their_limits_allow``.
2. When several batches follow each other, each byte of the segment is read once.
   Held by ``test_batches_are_as_long_as_their_limits_allow``.
3. When a batch is much shorter than the segment, a scan reads no more than one piece ahead.
   Held by ``test_a_short_batch_reads_one_piece_of_a_long_segment``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from _fast.wire.events import EventError, scan_events
from pravega_spark.reading.event_batches import HEADER_BYTES
from pravega_spark.reading.segments import Piece
from segstore_client.errors import PravegaError

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
        """Return the offset at which an event begins; for number ``len(self)``, the end of all."""
        if number == len(self.positions):
            return self.after
        return self.base + self.positions[number] - HEADER_BYTES

    def count_until(self, offset: int) -> int:
        """Return how many of the events end at an offset or before."""
        if self.after <= offset:
            return len(self.positions)
        # Count the events that begin at the offset or before, less the one that ends after it.
        return max(0, bisect_right(self.positions, offset - self.base + HEADER_BYTES) - 1)


def scan_starts(name: str, pieces: Iterable[Piece], start: int) -> Iterator[Starts]:
    """Yield the events in the bytes of a segment, after each piece. Errors have its ``name``.

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
    """Walks from event to event through one segment, for one batch after the other.

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
        """Advance to ``end``, or as far as the limits allow.

        Returns the new position and the number of events before it. ``end`` lies between two
        events, after the position, and at or after the ``end`` of the last call. With
        ``at_least_one`` the first event may exceed the limits.
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
        """Return the events from which the scan continues; None if it has reached ``end``."""
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
