"""Activates inactive segments, and finds the records of those that stay inactive.

Owns: which segments are being loaded.

Invariants:
1. A segment is loaded once at a time, however many want it.
2. It is active when the log has the operation that says so: a recovery from a checkpoint before it
   meets that operation before any other on the segment.
3. A record that is not the name's any more when the operation's turn comes makes nothing active.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import NamedTuple

import trio

from segstore.api import Waiter
from segstore.durable_log.update_transaction import NO_RECORD
from segstore.errors import SegmentError, SegmentStoreError, StorageError
from segstore.inactive.records import SegmentRecords
from segstore.model.attributes import AttributeId
from segstore.model.metadata import ContainerMetadata
from segstore.model.operations import ActivateOperation, BarrierOperation, Operation
from segstore.model.segment_record import SegmentRecord


class _HeldRecord(NamedTuple):
    """The record of an inactive segment, and where it is in the segment of records."""

    record: SegmentRecord
    offset: int
    record_bytes: int


class _Load:
    """One segment's way to memory."""

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = trio.Event()
        self.error: SegmentStoreError | None = None


class Activation:
    """Activates segments. ``enqueue_first`` queues an operation before all others."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        records: SegmentRecords,
        enqueue_first: Callable[[Operation], None],
    ) -> None:
        self._metadata = metadata
        self._records = records
        self._enqueue_first = enqueue_first
        self._loads: dict[str, _Load] = {}

    def is_active(self, name: str) -> bool:
        """Return whether the segment is in memory and not about to leave it."""
        segment = self._metadata.by_name.get(name)
        return segment is not None and not segment.leaving

    def is_absent(self, name: str) -> bool:
        """Return whether it is known that no segment has the name."""
        return name not in self._metadata.by_name and self._records.offset_now(name) == NO_RECORD

    async def load_offsets(self, names: Iterable[str]) -> list[AttributeId]:
        """See ``SegmentRecords``."""
        return await self._records.load_offsets(names)

    def release(self, loaded: list[AttributeId]) -> None:
        """See ``SegmentRecords``."""
        self._records.release(loaded)

    async def activate(self, name: str, *, unused: bool = False) -> None:
        """Bring a segment into memory; return also when no segment has the name.

        ``unused`` means that no caller asked for the segment: it may become inactive again at once.
        Raises ``StorageError`` and ``ContainerOfflineError``.
        """
        while not self.is_active(name) and not self.is_absent(name):
            load = self._loads.get(name)
            if load is None:
                await self._load(name, unused)
            else:
                await load.done.wait()
                if load.error is not None:
                    raise load.error

    async def find_record(self, name: str) -> SegmentRecord | None:
        """Return the record of an inactive segment, which stays inactive; None if the segment is
        active, or if no segment has the name.

        Raises ``StorageError`` and ``ContainerOfflineError``.
        """
        while not self.is_active(name) and not self.is_absent(name):
            async with self._hold_record(name) as held:
                if held is not None:
                    return held.record
        return None

    @asynccontextmanager
    async def _hold_record(self, name: str) -> AsyncIterator[_HeldRecord | None]:
        """Yield the record of a name, or None if the segment left, came back or ended meanwhile.

        The record's offset stays in memory until the block ends.
        """
        if name in self._metadata.by_name:
            # It is leaving: its record is durable when everything in flight is.
            await self._wait(BarrierOperation(""))
            yield None
            return
        loaded = await self._records.load_offsets([name])
        try:
            yield await self._read_record(name)
        finally:
            self._records.release(loaded)

    async def _read_record(self, name: str) -> _HeldRecord | None:
        offset = self._records.offset_now(name)
        if offset is None or offset == NO_RECORD or name in self._metadata.by_name:
            return None
        try:
            record, record_bytes = await self._records.read(offset)
        except StorageError:
            if self._is_record_at(name, offset):
                raise
            return None
        if not self._is_record_at(name, offset):
            return None
        return _HeldRecord(record, offset, record_bytes)

    def _is_record_at(self, name: str, offset: int) -> bool:
        """Return whether the segment is inactive and its record begins at the offset."""
        return name not in self._metadata.by_name and self._records.offset_now(name) == offset

    async def _load(self, name: str, unused: bool) -> None:
        load = self._loads[name] = _Load()
        try:
            await self._try(name, unused)
        except SegmentStoreError as error:
            load.error = error
            raise
        finally:
            del self._loads[name]
            load.done.set()

    async def _try(self, name: str, unused: bool) -> None:
        """Try once to activate a segment, which another operation may have done already."""
        async with self._hold_record(name) as held:
            if held is None:
                return
            operation = ActivateOperation(
                held.record, offset=held.offset, record_bytes=held.record_bytes
            )
            operation.unused = unused
            try:
                await self._wait(operation)
            except SegmentError:
                return  # it is active by now, or has another record, or none

    async def _wait(self, operation: Operation) -> None:
        waiter = Waiter()
        operation.on_complete = waiter.complete
        self._enqueue_first(operation)
        await waiter.wait()
