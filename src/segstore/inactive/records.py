"""The records of a container's inactive segments, by name.

Owns: finding the offset of a name's record, and reading the record.

Invariants:
1. When a segment becomes active, changes and becomes inactive again while its record is read, the
   newer record is returned. Held by
   ``test_the_info_of_a_segment_that_changes_meanwhile_is_never_older_than_the_call``.
2. After a crash, each inactive segment has its latest record. Held by
   ``test_a_crash_loses_and_brings_back_nothing``.

The records are the bytes of one segment of the container. Their offsets are attributes of this
segment, by the hashes of the names. So both are flushed, checkpointed and recovered as those of any
other segment.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from segstore.api import read_and_wait
from segstore.attributes.attribute_indexes import AttributeIndexes
from segstore.durable_log.update_transaction import NO_RECORD
from segstore.errors import ContainerOfflineError, SegmentStoreError, StorageError
from segstore.model.attributes import NULL_ATTRIBUTE_VALUE, AttributeId
from segstore.model.metadata import ContainerMetadata, SegmentMetadata
from segstore.model.segment_record import (
    HEADER_BYTES,
    RecordDamagedError,
    SegmentRecord,
    decode_record,
    record_end,
    record_key,
)
from segstore.read_index.read_index import ReadIndex

FIRST_READ_BYTES: Final = 512
"""Length, in bytes, of the first read of a record; nearly every record is shorter."""


class SegmentRecords:
    """The records of one container's inactive segments."""

    def __init__(
        self, metadata: ContainerMetadata, indexes: AttributeIndexes, read_index: ReadIndex
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._read_index = read_index

    def offset_now(self, name: str) -> int | None:
        """Return the offset of a name's record, ``NO_RECORD`` if there is none, and None if tier 2
        has to be read."""
        records = self._metadata.records
        if records is None:
            return NO_RECORD
        key = record_key(name)
        value = records.attributes.get(key)
        if value is None:
            if not records.attribute_memory.is_indexed:
                return NO_RECORD
            found = self._indexes.find_now(records, key)
            if found is None:
                return None
            value = found
        return NO_RECORD if value == NULL_ATTRIBUTE_VALUE else value

    async def load_offsets(self, names: Iterable[str]) -> list[AttributeId]:
        """Load the offsets of these names' records into memory, so that ``offset_now`` returns
        them.

        They stay in memory until the result is passed to ``release``. Raises ``StorageError``.
        """
        records = self._metadata.records
        if records is None:
            return []
        return await self._indexes.load(records, [record_key(name) for name in names])

    def release(self, loaded: list[AttributeId]) -> None:
        """Allow loaded offsets to be evicted from memory."""
        if self._metadata.records is not None and loaded:
            self._metadata.attribute_cache.add(self._metadata.records.attribute_memory, loaded)

    async def read(self, offset: int) -> tuple[SegmentRecord, int]:
        """Return the record that begins at ``offset``, and its length in bytes.

        Raises ``StorageError``, and ``ContainerOfflineError`` when the container has stopped.
        """
        records = self._metadata.records
        assert records is not None, "there are no records"
        data = await self._read(records, offset, FIRST_READ_BYTES)
        try:
            while len(data) < HEADER_BYTES or record_end(data, 0) > len(data):
                wanted = FIRST_READ_BYTES
                if len(data) >= HEADER_BYTES:
                    wanted = record_end(data, 0) - len(data)
                data += await self._read(records, offset + len(data), wanted)
            return decode_record(data, 0)
        except RecordDamagedError as error:
            raise StorageError(f"{records.name} is damaged at byte {offset}: {error}") from error

    async def read_bytes(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes of records from ``offset``, or fewer if the records end before.
        Raises like ``read``."""
        records = self._metadata.records
        assert records is not None, "there are no records"
        data = b""
        while len(data) < min(length, records.length - offset):
            data += await self._read(records, offset + len(data), length - len(data))
        return data

    async def _read(self, records: SegmentMetadata, offset: int, length: int) -> bytes:
        if not records.start_offset <= offset < records.length:
            raise StorageError(f"{records.name} is damaged: it has no byte {offset}")
        try:
            result = await read_and_wait(
                lambda complete: self._read_index.read_nowait(
                    records, offset=offset, length_max=length, on_complete=complete
                )
            )
        except (StorageError, ContainerOfflineError):
            raise
        except SegmentStoreError as error:
            raise StorageError(str(error)) from error
        if not result.data and result.at_tail:
            raise ContainerOfflineError(f"the container of {records.name} has stopped")
        if not result.data:
            raise StorageError(f"{records.name} cannot be read any more")
        return bytes(result.data)
