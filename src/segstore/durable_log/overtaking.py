"""Finds the operations that may pass others which are held back in the queue.

Owns: ``Overtakers``. It remembers how far it has scanned, so that a queue that grows at its end and
shrinks at its head is scanned once.

Invariants:
1. An operation passes no other on its own segments. The exception is the container's own record of
   an attribute index: the storage writer waits for it, and the operations before it may wait for
   the storage writer.
2. An operation on all segments (a barrier without a name) passes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from segstore.durable_log.priorities import Priority, is_own_record, priority_of
from segstore.model.operations import MergeOperation, Operation, RefusedOperation


def segment_names(operation: Operation) -> tuple[str, ...]:
    """Return the names of the segments on which the operation must keep its order."""
    if isinstance(operation, MergeOperation):
        return operation.name, operation.source_name
    if isinstance(operation, RefusedOperation):
        return segment_names(operation.refused)
    return (operation.name,)


class Overtakers:
    """Scans one queue.

    Call ``removed_head`` after operations were removed from the head of the queue, ``reset`` after
    any other change but additions at its end.
    """

    def __init__(self, queue: deque[Operation]) -> None:
        self._queue = queue
        self._seen = 0
        self._lowest = Priority.SYSTEM
        self._waiting: dict[str, int] = {}
        """Count of scanned operations that wait, by segment name."""
        self._behind: set[str] = set()
        """Names of segments with an operation that waits only because of others before it."""

    @property
    def has_seen(self) -> bool:
        """Return whether a part of the queue was scanned already."""
        return self._seen > 0

    def reset(self) -> None:
        """Forget the scan: the next one begins at the head."""
        if self._seen:
            self._seen = 0
            self._waiting.clear()
            self._behind.clear()

    def removed_head(self, operations: Iterable[Operation]) -> None:
        """Record that these operations were removed from the head of the queue."""
        waiting = self._waiting
        for operation in operations:
            if not self._seen:
                return
            names = segment_names(operation)
            if not self._behind.isdisjoint(names):
                self.reset()
                return
            self._seen -= 1
            for name in names:
                waiting[name] -= 1
                if not waiting[name]:
                    del waiting[name]

    def remove_passing(self, *, lowest: Priority) -> list[Operation]:
        """Remove and return, in order, the operations of priority ``lowest`` or above that may
        pass.

        Only operations that came since the last call are scanned.
        """
        queue = self._queue
        if lowest is not self._lowest:
            self._lowest = lowest
            self.reset()
        if len(queue) <= self._seen:
            return []
        passing: list[Operation] = []
        staying: list[Operation] = []
        for operation in islice(queue, self._seen, None):
            would_pass = priority_of(operation) >= lowest
            if would_pass and self._may_pass(operation):
                passing.append(operation)
            else:
                staying.append(operation)
                self._record_waiting(operation, would_pass=would_pass)
        if passing:
            kept = list(islice(queue, self._seen)) + staying
            queue.clear()
            queue.extend(kept)
        self._seen = len(queue)
        return passing

    def _may_pass(self, operation: Operation) -> bool:
        if is_own_record(operation):
            return True
        return bool(operation.name) and self._waiting.keys().isdisjoint(segment_names(operation))

    def _record_waiting(self, operation: Operation, *, would_pass: bool) -> None:
        names = segment_names(operation)
        for name in names:
            self._waiting[name] = self._waiting.get(name, 0) + 1
        if would_pass:
            self._behind.update(names)
