"""Collects the unflushed operations of one segment and writes them to tier 2 in order.

Owns: the queue of one segment's operations that tier 2 lacks.

Invariants:
1. When the process crashes at any time and operations are written again from the log, tier 2 has
   each operation once and in log order. Held by
   ``test_a_container_that_crashes_equals_the_model_after_recovery``.
2. ``storage_length`` grows only when the bytes are durable in tier 2. Held by
   ``test_a_segment_that_tier_2_takes_again_lets_the_log_go``.
3. When a write fails, its operation stays in the queue, so the log keeps it, and the write is
   repeated. Held by ``test_a_write_of_merged_segments_that_fails_is_repeated``.
4. When short segments are merged before tier 2 has any of their bytes, one write puts the bytes of
   all of them directly into the target. Held by
   ``test_short_segments_that_are_merged_soon_get_no_chunks_and_one_write``.
5. When tier 2 is full, a truncation or deletion still frees chunks: it is done before anything of
   the segment is written (docs/adr/0370). Held by ``test_what_frees_space_needs_none``.
6. Bytes of a stream's segment before its start offset are never written. Held by
   ``test_bytes_before_a_truncation_are_never_written``.
7. When a table is truncated, tier 2 has the copies of the live entries first, unless it is full: so
   it has each entry even if the log is lost. Held by
   ``test_tier_2_has_the_copies_of_a_compaction_before_the_truncation``,
   ``test_tier_2_has_the_copies_before_a_truncation_that_comes_during_a_flush`` and
   ``test_tier_2_has_the_copies_before_the_truncation_also_after_a_crash``.
8. When a write of several chunks fails, what some of them have counts as stored, and the next
   attempt begins after it. Held by
   ``test_a_write_of_many_chunks_that_fails_often_ends_and_reads_none_of_them``.

Tier 2 has 160 bytes of a stream's segment. Then come an append of 100 bytes, one of 50, a
truncation at 280, and an append of 50. The queue and its flush:

    AppendedRange 160 to 310       two appends in sequence are one range
    TruncateOperation 280
    AppendedRange 310 to 360

    1. truncate tier 2 at 280; storage_length = 280
    2. write 30 bytes at 280; storage_length = 310   (bytes 160 to 280 are never written)
    3. write 50 bytes at 310; storage_length = 360
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from pravega_wire.names import is_transient_segment
from segstore.attributes.attribute_indexes import AttributeIndexes
from segstore.chunks.api import SegmentStorage
from segstore.durable_log.memory_log import (
    AppendedRange,
    StorageOperation,
    first_sequence_number,
)
from segstore.errors import StorageFullError
from segstore.model.attributes import SegmentType
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
        self._freed_to = 0
        self._ordered_start: int | None = None
        """Of a table whose truncations are done in their order: the last one that was done."""
        self.must_flush = False
        self.frees_space = False
        """True if a truncation or the deletion of the segment waits."""

    @property
    def is_empty(self) -> bool:
        """Return whether tier 2 has all operations of the segment."""
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
                # Appends to other segments may lie between the two in the log. Together they are
                # one write to tier 2.
                last.end = operation.end
                return
        else:
            self.must_flush = True
        if isinstance(operation, DeleteOperation):
            self.discard_bytes()
        self.frees_space |= isinstance(operation, DeleteOperation | TruncateOperation)
        self._operations.append(operation)

    def discard_bytes(self) -> None:
        """Remove the unflushed operations, except for merges, of a segment that is deleted, or
        whose bytes the target of its merge has."""
        self._operations = deque(
            entry for entry in self._operations if isinstance(entry, MergeOperation)
        )
        self.pending_bytes = 0

    async def flush(self, flush_source: Callable[[int, bool], Awaitable[None]]) -> None:
        """Write all queued operations. After an error, the remaining ones stay queued.

        ``flush_source`` is called with the id of a merged segment, and with True if the target has
        its bytes already; it flushes that segment.
        """
        self._ordered_start = await self._start_in_order()
        await self._free_truncated()
        try:
            await self._write_operations(flush_source)
        except StorageFullError:
            if self._ordered_start is None or not self.frees_space:
                raise
            self._ordered_start = None
            await self._free_truncated()
            await self._write_operations(flush_source)
        self.pending_bytes = 0
        self.must_flush = self.frees_space = False

    async def _start_in_order(self) -> int | None:
        """Return 0 for a table, which is truncated only when a queued truncation is done; None if
        truncations need no order, as those of streams.

        The segment's start offset may already be that of a truncation that is not queued yet.
        """
        segment = self._segment()
        if segment is None or not segment.segment_type & SegmentType.TABLE:
            return None
        # A recovery counts bytes before the start offset as stored that neither tier has.
        stored = await self._storage.stored_length(segment.storage_name)
        return 0 if stored >= segment.storage_length else None

    async def _write_operations(self, flush_source: Callable[[int, bool], Awaitable[None]]) -> None:
        while self._operations:
            operation = self._operations[0]
            if isinstance(operation, AppendedRange):
                await self._write(operation)
            elif isinstance(operation, TruncateOperation):
                if self._ordered_start is not None:
                    self._ordered_start = operation.offset
                await self._free_truncated()
            elif isinstance(operation, MergeOperation):
                if not self._is_in_place(operation):
                    await self._write_sources()
                await self._merge(operation, flush_source)
            elif isinstance(operation, DeleteOperation):
                name = storage_name(operation.name, operation.segment_id)
                await self._storage.delete(name)
                # The attributes of transient segments are never stored.
                if not is_transient_segment(operation.name):
                    await self._indexes.delete(operation.segment_id, name)
            # A deletion that was queued meanwhile may have removed the operation.
            if self._operations and self._operations[0] is operation:
                self._operations.popleft()

    async def _free_truncated(self) -> None:
        """Truncate the segment in tier 2 at its start offset, a table at the last one that is in
        order. Bytes before it count as stored, so that they are not written."""
        segment = self._segment()
        if segment is None:
            return
        start = segment.start_offset if self._ordered_start is None else self._ordered_start
        if start <= segment.storage_length and not (self.frees_space and start > self._freed_to):
            return
        await self._storage.truncate(segment.storage_name, offset=start)
        self._freed_to = start
        segment.storage_length = max(segment.storage_length, start)
        self._read_index.record_segment_flushed(segment)
        self._read_index.truncate(segment)

    def _segment(self) -> SegmentMetadata | None:
        return self._metadata.segments.get(self.segment_id)

    async def _write(self, appended: AppendedRange) -> None:
        while (segment := self._segment()) is not None:
            if appended.offset > segment.storage_length:
                # A recovery has found none of the bytes between, and has truncated them.
                self._ordered_start = None
            await self._free_truncated()
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
            await self._write_chunks(segment, offset, parts)

    async def _write_chunks(
        self, segment: SegmentMetadata, offset: int, parts: Sequence[bytes]
    ) -> None:
        """Write bytes of a segment, and count what each chunk has as stored at once.

        A write of many chunks may take long, and the cache gets room meanwhile. A repetition reads
        all that does not count: if that grew at each attempt, no attempt might succeed.
        """

        def record(stored: int) -> None:
            segment.storage_length = max(segment.storage_length, stored)
            self._read_index.record_segment_flushed(segment)

        await self._storage.write(
            segment.storage_name,
            offset=offset,
            data=parts,
            rollover_bytes=segment.rollover_bytes,
            on_stored=record,
        )

    def _is_in_place(self, operation: MergeOperation) -> bool:
        """Return whether tier 2 has the merged bytes under the target's name, or the target is
        gone."""
        target = self._segment()
        return target is None or operation.offset + operation.length <= target.storage_length

    async def _write_sources(self) -> None:
        """Write the bytes of the next merges' sources into the target with one write, as far as the
        sources are short and tier 2 has none of their bytes."""
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
                # The target may have a part of the first source from an earlier attempt.
                data = await self._read_short(source, end - operation.offset, operation.length)
                if not data:
                    break
                parts += data
                end = merged_end
            sources.append(source)
        if end == start:
            return
        await self._write_chunks(target, start, parts)
        if self._segment() is not target:  # The target was deleted meanwhile.
            return
        # Nothing may be awaited here: a read of a source would look in tier 2, which does not have
        # the bytes under the source's name.
        for source in sources:
            source.storage_length = source.length
            self._read_index.merge_stored(target, source)

    async def _read_short(self, source: SegmentMetadata, start: int, end: int) -> list[bytes]:
        """Return the bytes of a source from ``start`` to ``end``, in parts.

        The list is empty if the source is longer than ``short_source_bytes_max``, or if some of the
        bytes belong to a segment that was merged into the source.
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
        self, operation: MergeOperation, flush_source: Callable[[int, bool], Awaitable[None]]
    ) -> None:
        source = self._metadata.segments.get(operation.source_id)
        if source is None:
            return
        target = self._segment()
        end = operation.offset + operation.length
        if target is not None:
            # When the target has the bytes already, this only empties the source's queue.
            await flush_source(operation.source_id, self._is_in_place(operation))
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
        # This comes last. If the target is gone, the source is still unflushed. When the deletion
        # above fails, a flush of the source, which needs its bytes, may come before the next
        # attempt.
        self._read_index.delete(source)
        self._metadata.forget(operation.source_id)
