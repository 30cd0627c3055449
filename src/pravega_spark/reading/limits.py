"""Divides the limits of a streaming query's batches among segments.

Owns: ``Turns``. Each segment gets a share of a batch that is proportional to its unread bytes, so
that segments with one history advance through it side by side: with event time, what one segment
reads does not make the events of another late. A share is at least one event. Where a limit does
not suffice for that, segments take turns, those first that have waited longest.

Invariants:
1. When a limit of rows is less than the number of segments, each segment is read once in as many
   batches as the limit needs for all of them. Held by ``test_no_segment_waits_for_a_second_turn``.
2. When segments have one history, no event is read later than one batch's share of it.
   Held by ``test_segments_with_one_history_advance_side_by_side``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol


class Take(Protocol):
    """Takes events of a segment into the batch, as many as both limits allow."""

    def __call__(
        self, segment: int, *, bytes_max: int, rows_max: int, at_least_one: bool
    ) -> tuple[int, int]:
        """Return the bytes and the number of the events taken.

        With ``at_least_one`` the first event may exceed the limits.
        """
        ...


class Turns:
    """Remembers what segments are owed. One object serves a query while it runs."""

    def __init__(self) -> None:
        self._waited: dict[int, int] = {}
        """Number of batches for which a segment has had unread events and has not been read."""
        self._owed: dict[int, float] = {}
        """Rows, or bytes, by which earlier batches took less of a segment than its share."""

    def divide(
        self, unread: Mapping[int, int], *, byte_limit: int, row_limit: int, take: Take
    ) -> None:
        """Take events of a batch: at least one, and no more than the limits; 0 means no limit.

        ``unread`` has the number of unread bytes of each segment with unread events.
        """
        total = sum(unread.values())
        limit = row_limit or byte_limit
        exact = {segment: limit * length / total for segment, length in unread.items()}
        due = {segment: share + self._owed.get(segment, 0.0) for segment, share in exact.items()}
        batch = _Batch(take, bytes_left=byte_limit or total, rows_left=row_limit or total)
        order = sorted(unread, key=lambda each: (-self._waited.get(each, 0), unread[each], each))
        for number, segment in enumerate(order):
            share = int(due[segment])
            if row_limit:
                # Leave a row for each of the segments after this one.
                free = batch.rows_left - (len(order) - number - 1)
                batch.take(segment, rows=max(1, min(share, free)))
            else:
                batch.take(segment, size=share)
                if segment not in batch.rows:
                    batch.take(segment, rows=1)
        # Some segments need less than their share, and rounding leaves a rest. Both go to the
        # segments that have received least of their shares.
        order.sort(key=lambda each: batch.amount(each, is_rows=bool(row_limit)) - due[each])
        for segment in order:
            part = unread[segment] / total
            total -= unread[segment]
            if row_limit:
                batch.take(segment, rows=math.ceil(batch.rows_left * part))
            else:
                batch.take(segment, size=math.ceil(batch.bytes_left * part))
        self._waited = {
            segment: self._waited.get(segment, 0) + 1
            for segment in order
            if segment not in batch.rows
        }
        self._owed = {}
        for segment, most in exact.items():
            owed = due[segment] - batch.amount(segment, is_rows=bool(row_limit))
            self._owed[segment] = max(-most, min(owed, most))


class _Batch:
    """A batch that is being filled, and the room that its limits leave."""

    def __init__(self, take: Take, *, bytes_left: int, rows_left: int) -> None:
        self._take = take
        self.bytes_left = bytes_left
        self.rows_left = rows_left
        self.rows: dict[int, int] = {}
        self._bytes: dict[int, int] = {}

    def take(self, segment: int, *, size: int | None = None, rows: int | None = None) -> None:
        """Take this many bytes or rows of a segment, if the limits allow them."""
        bytes_max = self.bytes_left if size is None else min(size, self.bytes_left)
        rows_max = self.rows_left if rows is None else min(rows, self.rows_left)
        is_first = not self.rows
        if rows_max < 1 or (bytes_max < 1 and not is_first):
            return
        size, rows = self._take(
            segment, bytes_max=bytes_max, rows_max=rows_max, at_least_one=is_first
        )
        if rows:
            self.bytes_left -= size
            self.rows_left -= rows
            self.rows[segment] = self.rows.get(segment, 0) + rows
            self._bytes[segment] = self._bytes.get(segment, 0) + size

    def amount(self, segment: int, *, is_rows: bool) -> int:
        """Return the rows, or the bytes, that were taken of a segment."""
        return (self.rows if is_rows else self._bytes).get(segment, 0)
