"""What may go before operations that are held back in a queue.

Owns: ``Overtakers``, which finds it. It remembers how far it has looked, so that a queue that only
grows at its end is looked through once.

Invariants:
1. An operation overtakes none on its own segments, unless it is the container's own record: the
   storage writer waits for that, and what it would stand behind may wait for the storage writer.
2. An operation that concerns all segments (a barrier without a name) overtakes nothing.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from segstore.operations import MergeOperation, Operation
from segstore.throttling.priorities import Priority, is_own_record, priority_of


def segment_names(operation: Operation) -> tuple[str, ...]:
    """The segments on which an operation keeps its place among others."""
    if isinstance(operation, MergeOperation):
        return operation.name, operation.source_name
    return (operation.name,)


class Overtakers:
    """Looks through one queue; ``reset`` when anything but its end has changed."""

    def __init__(self, queue: deque[Operation]) -> None:
        self._queue = queue
        self._seen = 0
        self._lowest = Priority.SYSTEM
        self._names: set[str] = set()
        """The segments on which something waits."""

    def reset(self) -> None:
        """Forget what was seen: the head of the queue is another."""
        if self._seen:
            self._seen = 0
            self._names.clear()

    def take(self, *, lowest: Priority) -> list[Operation]:
        """Remove and return what may pass of what has come since the last call, in order."""
        queue = self._queue
        if lowest is not self._lowest:
            self._lowest = lowest
            self.reset()
        if len(queue) <= self._seen:
            return []
        passing: list[Operation] = []
        staying: list[Operation] = []
        for operation in islice(queue, self._seen, None):
            if priority_of(operation) >= lowest and self._may_pass(operation):
                passing.append(operation)
            else:
                staying.append(operation)
                self._note(operation)
        if passing:
            kept = list(islice(queue, self._seen)) + staying
            queue.clear()
            queue.extend(kept)
        self._seen = len(queue)
        return passing

    def _may_pass(self, operation: Operation) -> bool:
        if is_own_record(operation):
            return True
        return bool(operation.name) and self._names.isdisjoint(segment_names(operation))

    def _note(self, operation: Operation) -> None:
        self._names.update(segment_names(operation))
