"""Reads the entries of a table segment, in order or one by one.

Owns: how a segment's bytes are cut into whole entries.

Invariants:
1. When the last entry does not end where the reader was told to end, the read raises
   ``TableDataError``. Held by ``test_an_entry_beyond_the_end_of_a_read_is_damage``.
2. When a range of the segment was lost, the reader continues with the entry after the range. Held
   by ``test_a_table_keeps_its_entries_on_both_sides_of_a_gap``.
3. When many entries are read together, at most ``HEADS_TOGETHER_MAX`` reads are under way. Held by
   ``test_entries_that_are_read_together_take_a_bounded_number_of_reads``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Final

import trio

from segstore.api import ReadHandle, ReadResult, SegmentContainer
from segstore.errors import (
    BytesLostError,
    ContainerOfflineError,
    NoSuchSegmentError,
    SegmentStoreError,
    SegmentTruncatedError,
)
from segstore.tables.entries import (
    EntryHead,
    StoredEntry,
    TableDataError,
    parse_entries,
    parse_head,
)

HEADS_TOGETHER_MAX: Final = 64
HEAD_BYTES: Final = 2048
"""Length, in bytes, of the first read of an entry; most entries are not longer."""


class EntryReader:
    """Reads the entries from ``start`` to ``end``; an entry begins at ``start``, and one ends at
    ``end``."""

    def __init__(
        self, container: SegmentContainer, segment: str, *, start: int, end: int, read_bytes: int
    ) -> None:
        self._container = container
        self._segment = segment
        self._position = start
        self._end = end
        self._read_bytes = read_bytes
        self._rest = b""

    async def read(self) -> list[StoredEntry]:
        """Return the next entries; an empty list means the end.

        Raises ``SegmentTruncatedError`` when the entries were truncated, and ``TableDataError``
        when they are malformed.
        """
        entries: list[StoredEntry] = []
        while not entries and self._position + len(self._rest) < self._end:
            offset = self._position + len(self._rest)
            if offset >= self._container.segment_info(self._segment).length:
                # The segment has become shorter: another one has its name now.
                raise NoSuchSegmentError(self._segment)
            length = min(self._read_bytes, self._end - offset)
            try:
                result = await self._container.read(self._segment, offset=offset, length_max=length)
            except BytesLostError as error:
                if self._rest:
                    raise TableDataError(self._segment, offset=self._position) from error
                self._position = min(error.lost_end, self._end)
                continue
            if not result.data:
                raise ContainerOfflineError(f"{self._segment}: the container has stopped")
            data = self._rest + result.data
            entries = list(parse_entries(self._segment, data, offset=self._position))
            used = sum(entry.length for entry in entries)
            self._position += used
            self._rest = data[used:]
        if self._rest and not entries:
            raise TableDataError(self._segment, offset=self._position)
        return entries


async def read_heads(
    container: SegmentContainer, segment: str, offsets: Iterable[int]
) -> dict[int, EntryHead]:
    """Return the entries that begin at these offsets, by offset. Truncated entries are left out.

    Values that do not fit in ``HEAD_BYTES`` are not read. Raises ``TableDataError`` when an entry
    is malformed.
    """
    heads: dict[int, EntryHead] = {}
    ordered = sorted(offsets)
    for start in range(0, len(ordered), HEADS_TOGETHER_MAX):
        end = container.segment_info(segment).length
        places = [
            (offset, min(HEAD_BYTES, end - offset))
            for offset in ordered[start : start + HEADS_TOGETHER_MAX]
        ]
        for offset, length in places:
            if length <= 0:
                raise TableDataError(segment, offset=offset)
        for (offset, _), data in zip(
            places, await _read_all(container, segment, places), strict=True
        ):
            if data is not None and (head := await _head(container, segment, offset, data)):
                heads[offset] = head
    return heads


async def _head(
    container: SegmentContainer, segment: str, offset: int, data: bytes
) -> EntryHead | None:
    """Return the entry whose first bytes are ``data``, and read more if the key does not end there.
    Return None if the entry was truncated meanwhile."""
    while isinstance(head := parse_head(segment, data, offset=offset), int):
        position = offset + len(data)
        length = offset + head - position
        if position + length > container.segment_info(segment).length:
            raise TableDataError(segment, offset=offset)
        [more] = await _read_all(container, segment, [(position, length)])
        if more is None:
            return None
        data += more
    return head


async def _read_all(
    container: SegmentContainer, segment: str, places: Sequence[tuple[int, int]]
) -> list[bytes | None]:
    """Read at the same time from each (offset, length in bytes). Return at least one byte for each,
    or None where the segment is truncated."""
    found: list[bytes | None] = [None] * len(places)
    failures: list[SegmentStoreError] = []
    done = trio.Event()
    missing = len(places)

    def complete(number: int, error: SegmentStoreError | None, result: ReadResult | None) -> None:
        nonlocal missing
        if result is not None:
            found[number] = bytes(result.data)
            if not result.data:
                failures.append(ContainerOfflineError(f"{segment}: the container has stopped"))
        elif error is not None and not isinstance(error, SegmentTruncatedError):
            failures.append(error)
        missing -= 1
        if not missing:
            done.set()

    handles: list[ReadHandle] = []
    try:
        for number, (offset, length) in enumerate(places):
            handle = container.read_nowait(
                segment, offset=offset, length_max=length, on_complete=partial(complete, number)
            )
            if handle is not None:
                handles.append(handle)
        await done.wait()
    finally:
        for handle in handles:
            handle.cancel()
    if failures:
        raise failures[0]
    return found
