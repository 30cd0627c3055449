"""Applies durable operations to a container.

Owns: the order in which a durable operation changes metadata, read index and memory log. A recovery
applies operations by the same code as a running container, so both come to the same state.

Invariants:
1. When the sequence number of an operation does not follow that of the last one, a recovery fails
   with ``DataLogCorruptError``. Held by ``test_an_operation_that_is_missing_in_the_log_is_damage``.
2. When an append completes a waiting read, the segment's length already includes the new bytes.
   Held by ``test_a_read_that_is_woken_by_data_sees_their_length``.
"""

from __future__ import annotations

from collections.abc import Callable

from segstore.durable_log.memory_log import MemoryLog
from segstore.model.metadata import ContainerMetadata, SegmentMetadata
from segstore.model.operations import (
    AppendOperation,
    CheckpointOperation,
    DeleteOperation,
    EvictOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
)
from segstore.read_index.read_index import ReadIndex


class CommittedState:
    """Applies durable operations to a container's parts."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        read_index: ReadIndex,
        memory_log: MemoryLog,
        now_ms: Callable[[], int],
        *,
        on_evicted: Callable[[SegmentMetadata], None] = lambda segment: None,
    ) -> None:
        self.metadata = metadata
        self.read_index = read_index
        self.memory_log = memory_log
        self.now_ms = now_ms
        self._on_evicted = on_evicted

    def apply(self, operation: Operation) -> None:
        """Apply one durable operation."""
        metadata = self.metadata
        if isinstance(operation, CheckpointOperation):
            metadata.sequence_number = operation.sequence_number
            return
        if isinstance(operation, EvictOperation):
            self._evict(operation)
            return
        segment = metadata.segments.get(operation.segment_id)
        metadata.apply(operation, self.now_ms())
        self.memory_log.add(operation)
        if segment is None:
            return
        if isinstance(operation, AppendOperation):
            # During a recovery, tier 2 may have the bytes already; then the cache need not.
            if operation.offset + operation.length > segment.storage_length:
                self.read_index.append(segment, operation.offset, operation.data)
            # The cache has copied the bytes: free the memory of the request.
            operation.data = b""
        elif isinstance(operation, SealOperation):
            self.read_index.seal(segment)
        elif isinstance(operation, MergeOperation):
            source = metadata.segments[operation.source_id]
            self.read_index.merge(segment, source, operation.offset)
        elif isinstance(operation, TruncateOperation):
            self.read_index.truncate(segment)
        elif isinstance(operation, DeleteOperation):
            self.read_index.delete(segment)

    def _evict(self, operation: EvictOperation) -> None:
        metadata = self.metadata
        leaving = [metadata.segments[record.segment_id] for record, _, _ in operation.records]
        metadata.apply(operation, self.now_ms())
        offset, end = operation.offset, operation.offset + len(operation.data)
        self.memory_log.add_range(operation.segment_id, offset, end, operation.sequence_number)
        records = metadata.segments[operation.segment_id]
        if end > records.storage_length:
            self.read_index.append(records, offset, operation.data)
        operation.data = b""
        for segment in leaving:
            self.read_index.delete(segment)
            self._on_evicted(segment)
