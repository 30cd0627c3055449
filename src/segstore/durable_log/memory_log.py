"""Committed operations that are not in tier 2 yet, in log order.

Owns: the queue in memory between the operation processor and the storage writer.

Invariants:
1. It holds only operations that change tier 2. The bytes of appends stay in the read index; an
   entry here only tells their range.
2. Neighbouring appends to one segment are one entry, so the queue grows with the number of changes
   from one segment to another, and not with the number of appends.
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
    """A range of new bytes of one segment, with the sequence number of its first operation."""

    __slots__ = ("end", "first_sequence_number", "offset", "segment_id")

    def __init__(self, segment_id: int, offset: int, end: int, sequence_number: int) -> None:
        self.segment_id = segment_id
        self.offset = offset
        self.end = end
        self.first_sequence_number = sequence_number


StorageOperation = AppendedRange | MergeOperation | TruncateOperation | DeleteOperation


def first_sequence_number(operation: StorageOperation) -> int:
    """Return the sequence number from which on the log is needed for this operation."""
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
        """Add bytes of committed appends; ``sequence_number`` is that of the first append."""
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
