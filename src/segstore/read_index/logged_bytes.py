"""Bytes of segments that a recovery left in the log.

Owns: reading these bytes from the log, and comparing them with the checksums that the recovery
computed.

Invariants:
1. When the log was damaged after the recovery, a read raises ``DataLogCorruptError`` instead of
   returning the damaged bytes. Held by ``test_damage_behind_a_recovery_is_told_and_never_read``.
"""

from __future__ import annotations

from _fast.crc import crc32c
from segstore.errors import DataLogCorruptError
from segstore.read_index.segment_index import SegmentReadIndex
from segstore.tiers.api import DurableDataLog, LogPart


class LoggedBytes:
    """Reads the bytes of one container's segments from its log."""

    def __init__(self, log: DurableDataLog) -> None:
        self._log = log

    async def read(self, index: SegmentReadIndex, offset: int, end: int) -> bytes:
        """Return the bytes from ``offset`` to ``end``, or as many of the first ones as the log has.

        Raises ``DataLogError``.
        """
        pieces = index.logged.find(offset, end) if index.logged is not None else []
        if not pieces:
            return b""
        parts = [LogPart(position, start, length) for _, length, position, start, _ in pieces]
        found = await self._log.read_parts(parts)
        for (place, _, position, start, sum_), data in zip(pieces, found, strict=True):
            if crc32c(data) != sum_:
                raise DataLogCorruptError(
                    f"entry {position} of the log is damaged behind byte {start}: it has the bytes"
                    f" of {index.segment.name} from {place} on"
                )
        first = pieces[0][0]
        data = found[0] if len(found) == 1 else b"".join(found)
        if offset == first and len(data) <= end - offset:
            return data
        return data[offset - first : end - first]
