"""Compacts the records of inactive segments when most of their bytes are obsolete.

Owns: the condition for a compaction, and its steps. A step activates the inactive segments whose
records are at the head, evicts them again, which writes new records at the end, and then truncates
the head. The log has the offsets of the new records before it has the truncation.

Invariants:
1. A compaction truncates the records at the head, and writes those that are still needed again at
   the end; all segments stay inactive and keep their state. Held by
   ``test_the_head_of_the_records_goes_and_nobody_sees_it``.
2. When the process crashes during a compaction, no record is lost and no deleted segment comes
   back. Held by ``test_a_crash_in_a_compaction_loses_and_brings_back_nothing``.
3. A segment that a client uses during the compaction stays active. Held by
   ``test_a_segment_that_is_used_meanwhile_stays_active``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from segstore.durable_log.update_transaction import NO_RECORD
from segstore.errors import StorageError
from segstore.inactive.activation import Activation
from segstore.inactive.records import SegmentRecords
from segstore.model.attributes import RECORDS_LIVE_BYTES
from segstore.model.metadata import ContainerMetadata
from segstore.model.operations import TruncateOperation
from segstore.model.segment_record import (
    HEADER_BYTES,
    RecordDamagedError,
    decode_record,
    record_end,
)

TOGETHER_MAX: Final = 64
"""Maximum count of segments that one operation evicts: while they are chosen, no other task
runs."""
BYTES_MIN: Final = 4 * 1024 * 1024
"""Minimum size, in bytes, of all records at which a compaction is done."""
STEP_BYTES: Final = 64 * 1024
"""Number of bytes of records that one step reads."""


class RecordCompaction:
    """Compacts the records of one container. The task that evicts segments calls ``step``."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        records: SegmentRecords,
        activation: Activation,
        evict: Callable[[list[int]], Awaitable[None]],
        wait: Callable[[TruncateOperation], Awaitable[int]],
        *,
        bytes_min: int = BYTES_MIN,
    ) -> None:
        self._metadata = metadata
        self._records = records
        self._activation = activation
        self._evict = evict
        self._wait = wait
        self._bytes_min = bytes_min

    @property
    def is_due(self) -> bool:
        """Return whether the records have at least the minimum size, and less than half of their
        bytes are those of inactive segments."""
        segment = self._metadata.records
        if segment is None:
            return False
        length = segment.length - segment.start_offset
        return length >= self._bytes_min and length > 2 * segment.attributes[RECORDS_LIVE_BYTES]

    async def step(self) -> bool:
        """Compact some records at the head. Return whether the head was truncated.

        Raises ``StorageError`` and ``ContainerOfflineError``.
        """
        segment = self._metadata.records
        assert segment is not None, "there are no records"
        names, end = await self._head(segment.start_offset, segment.length)
        loaded = await self._records.load_offsets(names)
        try:
            inactive = self._inactive_before(names, end)
            for start in range(0, len(inactive), TOGETHER_MAX):
                await self._write_anew(inactive[start : start + TOGETHER_MAX])
            # Segments that were used meanwhile stay active, so their records are obsolete, too.
            loaded += await self._records.load_offsets(names)
            if end == segment.start_offset or self._inactive_before(names, end):
                return False
        finally:
            self._records.release(loaded)
        truncation = TruncateOperation(segment.name, end)
        truncation.segment_id = segment.segment_id
        await self._wait(truncation)
        return True

    async def _head(self, begin: int, length: int) -> tuple[list[str], int]:
        """Return the names of the first records, and the offset where the last of these records
        ends."""
        data = await self._records.read_bytes(begin, min(STEP_BYTES, length - begin))
        names: list[str] = []
        position = 0
        try:
            while position < len(data):
                if len(data) - position < HEADER_BYTES or record_end(data, position) > len(data):
                    break  # ``data`` ends within this record.
                record, position = decode_record(data, position)
                names.append(record.name)
        except RecordDamagedError as error:
            raise StorageError(f"records are damaged at {begin + position}: {error}") from error
        return names, begin + position

    def _inactive_before(self, names: list[str], end: int) -> list[str]:
        """Return those of the names whose segments are inactive and have, or may have, their
        records before ``end``."""
        found: dict[str, None] = {}
        for name in names:
            if not self._activation.is_active(name):
                offset = self._records.offset_now(name)
                if offset is None or NO_RECORD < offset < end:
                    found[name] = None
        return list(found)

    async def _write_anew(self, names: list[str]) -> None:
        """Activate segments, and evict those that are not used meanwhile at once, which writes
        their records again."""
        failures: list[StorageError] = []

        async def activate(name: str) -> None:
            try:
                await self._activation.activate(name, unused=True)
            except StorageError as error:
                failures.append(error)

        async with trio.open_nursery() as nursery:
            for name in names:
                nursery.start_soon(activate, name)
        if failures:
            raise failures[0]
        by_name = self._metadata.by_name
        await self._evict([by_name[name].segment_id for name in names if name in by_name])
