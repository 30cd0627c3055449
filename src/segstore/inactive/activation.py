"""Activates inactive segments, and finds the records of those that stay inactive.

Owns: the set of segments that are being loaded. A segment is *active* while its metadata are in
memory; otherwise the container's segment of records has a *record* of it. It becomes active by an
operation in the log, which a recovery replays before later operations on the segment.

Invariants:
1. When several callers need an inactive segment at the same time, it is loaded once. Held by
   ``test_several_who_want_a_segment_load_it_once``.
2. When a segment becomes active and the process crashes, a recovery finds it with all its changes.
   Held by ``test_a_crash_loses_and_brings_back_nothing``.
3. When the record that was read is not the segment's latest any more, it activates nothing. Held by
   ``test_a_record_of_an_earlier_time_makes_nothing_active``.
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
    """The record of an inactive segment, and its place in the segment of records."""

    record: SegmentRecord
    offset: int
    record_bytes: int


class _Load:
    """The load of one segment. ``done`` is set at its end; ``error`` is None unless it failed."""

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
        """Return whether the segment is in memory, and no eviction of it is under way."""
        segment = self._metadata.by_name.get(name)
        return segment is not None and not segment.leaving

    def is_absent(self, name: str) -> bool:
        """Return whether no segment has the name; False also if memory cannot tell."""
        return name not in self._metadata.by_name and self._records.offset_now(name) == NO_RECORD

    async def load_offsets(self, names: Iterable[str]) -> list[AttributeId]:
        """Load the offsets of records; see ``SegmentRecords.load_offsets``."""
        return await self._records.load_offsets(names)

    def release(self, loaded: list[AttributeId]) -> None:
        """Allow loaded offsets to be evicted from memory."""
        self._records.release(loaded)

    async def activate(self, name: str, *, unused: bool = False) -> None:
        """Load a segment into memory. Return also when no segment has the name.

        ``unused`` means that no client asked for the segment, so it may be evicted again at once.
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
        """Yield the record of a name, or None if the segment became inactive or active, or was
        deleted, during the read; the caller then tries again.

        The record's offset stays in memory until the block ends.
        """
        if name in self._metadata.by_name:
            # The segment's eviction is under way. The record is durable when everything in flight
            # is.
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
        """Return whether the segment is inactive and its latest record begins at ``offset``."""
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
        """Try once to activate a segment. Another operation may have activated or changed it."""
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
                return  # It is active now, or has another record, or was deleted.

    async def _wait(self, operation: Operation) -> None:
        waiter = Waiter()
        operation.on_complete = waiter.complete
        self._enqueue_first(operation)
        await waiter.wait()
