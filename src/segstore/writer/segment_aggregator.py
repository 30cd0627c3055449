"""Collects the unflushed operations of one segment and writes them to tier 2 in order.

Owns: the queue of one segment's storage operations.

Invariants:
1. Operations reach tier 2 in log order, each exactly once: every step can be repeated after a crash
   with the same outcome.
2. ``storage_length`` grows only after the bytes are durable in tier 2.
3. An operation leaves the queue only when it is done, so the log is kept until then.
4. If a short segment is merged before tier 2 has any of its bytes, they are written once: directly
   into the target, together with the bytes of the following merges.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable

from pravega_wire.names import is_transient_segment
from segstore.attributes.attribute_indexes import AttributeIndexes
from segstore.chunks.api import SegmentStorage
from segstore.durable_log.memory_log import (
    AppendedRange,
    StorageOperation,
    first_sequence_number,
)
from segstore.model.metadata import ContainerMetadata, SegmentMetadata, storage_name
from segstore.model.operations import DeleteOperation, MergeOperation, TruncateOperation
from segstore.read_index.read_index import ReadIndex
from segstore.writer.flush_policy import FlushPolicy


class SegmentAggregator:
    """Flushes one segment. Only the storage writer's task uses it."""

    def __init__(
        self,
        segment_id: int,
        metadata: ContainerMetadata,
        read_index: ReadIndex,
        storage: SegmentStorage,
        indexes: AttributeIndexes,
        now: float,
        policy: FlushPolicy,
    ) -> None:
        self._policy = policy
        self.segment_id = segment_id
        self._metadata = metadata
        self._read_index = read_index
        self._storage = storage
        self._indexes = indexes
        self._operations: deque[StorageOperation] = deque()
        self.pending_bytes = 0
        self.oldest = now
        self.must_flush = False

    @property
    def is_empty(self) -> bool:
        """Return whether the segment is completely flushed."""
        return not self._operations

    @property
    def operation_count(self) -> int:
        """Return the number of unflushed operations."""
        return len(self._operations)

    def first_sequence_number(self) -> int | None:
        """Return the lowest sequence number of an unflushed operation; None when there is none."""
        return first_sequence_number(self._operations[0]) if self._operations else None

    def add(self, operation: StorageOperation, now: float) -> None:
        """Queue one operation of this segment."""
        if not self._operations:
            self.oldest = now
        if isinstance(operation, AppendedRange):
            self.pending_bytes += operation.end - operation.offset
            last = self._operations[-1] if self._operations else None
            if isinstance(last, AppendedRange) and last.end == operation.offset:
                # Other segments' appends lie between the two in the log; tier 2 gets one write.
                last.end = operation.end
                return
        else:
            self.must_flush = True
        if isinstance(operation, DeleteOperation):
            # Bytes that are not stored yet need not be: they cannot be read any more.
            self._operations = deque(
                entry for entry in self._operations if isinstance(entry, MergeOperation)
            )
            self.pending_bytes = 0
        self._operations.append(operation)

    async def flush(self, flush_source: Callable[[int], Awaitable[None]]) -> None:
        """Write all queued operations. After an error the remaining ones stay queued."""
        while self._operations:
            operation = self._operations[0]
            if isinstance(operation, AppendedRange):
                await self._write(operation)
            elif isinstance(operation, MergeOperation):
                if not self._is_in_place(operation):
                    await self._write_sources()
                await self._merge(operation, flush_source)
            elif isinstance(operation, TruncateOperation):
                await self._truncate(operation)
            else:
                name = storage_name(operation.name, operation.segment_id)
                await self._storage.delete(name)
                # The attributes of transient segments are never stored.
                if not is_transient_segment(operation.name):
                    await self._indexes.delete(operation.segment_id, name)
            # A deletion that was added meanwhile may have removed the operations before it.
            if self._operations and self._operations[0] is operation:
                self._operations.popleft()
        self.pending_bytes = 0
        self.must_flush = False

    def _segment(self) -> SegmentMetadata | None:
        return self._metadata.segments.get(self.segment_id)

    async def _write(self, appended: AppendedRange) -> None:
        while (segment := self._segment()) is not None:
            offset = max(appended.offset, segment.storage_length)
            if offset >= appended.end:
                return
            parts: list[bytes] = []
            position, end = offset, min(appended.end, offset + self._policy.write_bytes_max)
            while position < end:
                part = await self._read_index.unstored(
                    segment, offset=position, length=end - position
                )
                if not part:
                    if segment.deleted:
                        return
                    raise AssertionError(
                        f"{segment.name}: byte {position} is in neither cache nor tier 2"
                    )
                parts.append(part)
                position += len(part)
            await self._storage.write(
                segment.storage_name,
                offset=offset,
                data=parts,
                rollover_bytes=segment.rollover_bytes,
            )
            segment.storage_length = max(segment.storage_length, position)
            self._read_index.record_segment_flushed(segment)

    def _is_in_place(self, operation: MergeOperation) -> bool:
        """Return whether tier 2 has the merged bytes in the target already."""
        target = self._segment()
        return target is None or operation.offset + operation.length <= target.storage_length

    async def _write_sources(self) -> None:
        """Write the short sources of the next merges into the target, if tier 2 has none of
        them."""
        target = self._segment()
        if target is None:
            return
        start = end = target.storage_length
        parts: list[bytes] = []
        sources: list[SegmentMetadata] = []
        for operation in list(self._operations):
            if not isinstance(operation, MergeOperation):
                break
            source = self._metadata.segments.get(operation.source_id)
            merged_end = operation.offset + operation.length
            if (
                source is None
                or source.storage_length
                or merged_end - start > self._policy.write_bytes_max
            ):
                break
            if merged_end > end:
                # An earlier attempt may have written a part of the first source.
                data = await self._read_short(source, end - operation.offset, operation.length)
                if not data:
                    break
                parts += data
                end = merged_end
            sources.append(source)
        if end == start:
            return
        await self._storage.write(
            target.storage_name, offset=start, data=parts, rollover_bytes=target.rollover_bytes
        )
        if self._segment() is not target:  # it was deleted meanwhile
            return
        # Without an await in between: a read of a source would look for its bytes in tier 2.
        target.storage_length = max(target.storage_length, end)
        for source in sources:
            source.storage_length = source.length
            self._read_index.merge_stored(target, source)

    async def _read_short(self, source: SegmentMetadata, start: int, end: int) -> list[bytes]:
        """Return the bytes of a source from ``start`` to ``end``.

        Returns nothing if the source is long, or if some of its bytes belong to another segment
        that was merged into it.
        """
        parts: list[bytes] = []
        if start < 0 or end > self._policy.short_source_bytes_max:
            return parts
        while start < end:
            part = await self._read_index.unstored(source, offset=start, length=end - start)
            if not part:
                return []
            parts.append(part)
            start += len(part)
        return parts

    async def _merge(
        self, operation: MergeOperation, flush_source: Callable[[int], Awaitable[None]]
    ) -> None:
        source = self._metadata.segments.get(operation.source_id)
        if source is None:
            return
        target = self._segment()
        end = operation.offset + operation.length
        if target is not None:
            # Also when its bytes are in the target already: its queue becomes empty.
            await flush_source(operation.source_id)
        if target is not None and not self._is_in_place(operation):
            await self._storage.concat(
                target.storage_name,
                offset=operation.offset,
                source=source.storage_name,
                length=operation.length,
                rollover_bytes=target.rollover_bytes,
            )
            target.storage_length = max(target.storage_length, end)
        if target is not None:
            self._read_index.merge_stored(target, source)
        merged_into = None if target is None else target.storage_name
        await self._storage.delete(source.storage_name, merged_into=merged_into)
        if not source.is_transient:
            await self._indexes.delete(source.segment_id, source.storage_name)
        # If the target is gone, the source is still unflushed. When the deletion above fails, the
        # source may be written before the next attempt, which needs its bytes: so delete last.
        self._read_index.delete(source)
        self._metadata.forget(operation.source_id)

    async def _truncate(self, operation: TruncateOperation) -> None:
        segment = self._segment()
        if segment is not None:
            await self._storage.truncate(segment.storage_name, offset=operation.offset)
            self._read_index.truncate(segment)
