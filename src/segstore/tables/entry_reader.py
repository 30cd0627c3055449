"""Reading the entries of a table segment in the order in which they lie there.

Owns: the cut of a segment's bytes into whole entries.

Invariants:
1. Reads end where the reader was told to: an entry that does not fit there is damage.
2. At most one entry and one read are held in memory.
"""

from __future__ import annotations

from segstore.api import SegmentContainer
from segstore.errors import ContainerOfflineError
from segstore.tables.entries import StoredEntry, TableDataError, parse_entries


class EntryReader:
    """Reads the entries from ``start`` to ``end``, both at a border of entries."""

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
        """The next entries, at least one; none at the end.

        Raises ``SegmentTruncatedError`` when they are gone, ``TableDataError`` for damage.
        """
        entries: list[StoredEntry] = []
        while not entries and self._position + len(self._rest) < self._end:
            offset = self._position + len(self._rest)
            result = await self._container.read(
                self._segment, offset=offset, length_max=min(self._read_bytes, self._end - offset)
            )
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
