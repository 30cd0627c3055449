"""Committed operations that tier 2 lacks, in log order.

Owns: the queue in memory between the operation processor and the storage writer. For an append it
has the range of the bytes; the read index has the bytes themselves.

Invariants:
1. Operations that do not change tier 2, such as a seal, and empty appends are not queued. Held by
   ``test_only_operations_that_change_tier_2_are_queued``.
2. Appends to one segment that follow each other in the log take one entry, which has the sequence
   number of the first. Held by ``test_appends_that_follow_each_other_take_one_entry``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from segstore.model.operations import (
    AppendOperation,
    DeleteOperation,
    MergeOperation,
    Operation,
    TruncateOperation,
)


class AppendedRange:
    """A range of appended bytes of one segment, with the sequence number of its first append."""

    __slots__ = ("end", "first_sequence_number", "offset", "segment_id")

    def __init__(self, segment_id: int, offset: int, end: int, sequence_number: int) -> None:
        self.segment_id = segment_id
        self.offset = offset
        self.end = end
        self.first_sequence_number = sequence_number


StorageOperation = AppendedRange | MergeOperation | TruncateOperation | DeleteOperation


def first_sequence_number(operation: StorageOperation) -> int:
    """Return the lowest sequence number that the log has to keep because of this operation."""
    if isinstance(operation, AppendedRange):
        return operation.first_sequence_number
    return operation.sequence_number


class MemoryLog:
    """A queue with one producer and one consumer in the same thread."""

    def __init__(self) -> None:
        self._operations: deque[StorageOperation] = deque()

    def __len__(self) -> int:
        return len(self._operations)

    def add(self, operation: Operation) -> None:
        """Add a committed operation if it changes tier 2."""
        if isinstance(operation, AppendOperation):
            self.add_range(
                operation.segment_id,
                operation.offset,
                operation.offset + operation.length,
                operation.sequence_number,
            )
        elif isinstance(operation, MergeOperation | TruncateOperation | DeleteOperation):
            self._operations.append(operation)

    def add_range(self, segment_id: int, offset: int, end: int, sequence_number: int) -> None:
        """Add the bytes from ``offset`` to ``end`` of a segment, which committed appends wrote;
        ``sequence_number`` is that of the first append."""
        if offset == end:
            return
        last = self._operations[-1] if self._operations else None
        if type(last) is AppendedRange and last.segment_id == segment_id and last.end == offset:
            last.end = end
            return
        self._operations.append(AppendedRange(segment_id, offset, end, sequence_number))

    def operations(self) -> Iterable[StorageOperation]:
        """Return all operations in order. The result is valid until the next await."""
        return self._operations

    def remove_all(self) -> list[StorageOperation]:
        """Remove and return all operations, in order."""
        operations = list(self._operations)
        self._operations.clear()
        return operations

    def first_sequence_number(self) -> int | None:
        """Return the lowest sequence number in the queue; None when it is empty."""
        return first_sequence_number(self._operations[0]) if self._operations else None
