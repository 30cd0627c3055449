"""Committed operations that tier 2 has not taken yet, in log order.

Owns: the in-memory operation log between the operation processor and the storage writer.

Invariants:
1. Holds only operations that change tier 2; bytes of appends stay in the read index, here is just
   which range is new.
2. Neighbouring appends to one segment are one entry, so the log grows with the number of segment
   switches and not with the number of appends.
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
    """Bytes of one segment that are new, and the first operation that brought some of them."""

    __slots__ = ("end", "first_sequence_number", "offset", "segment_id")

    def __init__(self, segment_id: int, offset: int, end: int, sequence_number: int) -> None:
        self.segment_id = segment_id
        self.offset = offset
        self.end = end
        self.first_sequence_number = sequence_number


StorageOperation = AppendedRange | MergeOperation | TruncateOperation | DeleteOperation


def first_sequence_number(operation: StorageOperation) -> int:
    """The number below which the log is not needed for this operation."""
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
        """Take in a committed operation, if it concerns tier 2 at all."""
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
        """Take in bytes of committed appends; the number is that of the first of them."""
        if offset == end:
            return
        last = self._operations[-1] if self._operations else None
        if type(last) is AppendedRange and last.segment_id == segment_id and last.end == offset:
            last.end = end
            return
        self._operations.append(AppendedRange(segment_id, offset, end, sequence_number))

    def waiting(self) -> Iterable[StorageOperation]:
        """Everything, in order; to be looked at without waiting."""
        return self._operations

    def take(self) -> list[StorageOperation]:
        """Remove and return everything, in order."""
        operations = list(self._operations)
        self._operations.clear()
        return operations

    def first_sequence_number(self) -> int | None:
        """The lowest sequence number still in the log."""
        return first_sequence_number(self._operations[0]) if self._operations else None
