"""What may go before operations that are held back in a queue.

Owns: ``Overtakers``, which finds it. It remembers how far it has looked, so that a queue that grows
at its end and is taken from at its head is looked through once.

Invariants:
1. An operation overtakes none on its own segments, unless it is the container's own record: the
   storage writer waits for that, and what it would stand behind may wait for the storage writer.
2. An operation that concerns all segments (a barrier without a name) overtakes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice

from segstore.durable_log.priorities import Priority, is_own_record, priority_of
from segstore.model.operations import MergeOperation, Operation, RefusedOperation


def segment_names(operation: Operation) -> tuple[str, ...]:
    """The segments on which an operation keeps its place among others."""
    if isinstance(operation, MergeOperation):
        return operation.name, operation.source_name
    if isinstance(operation, RefusedOperation):
        return segment_names(operation.refused)
    return (operation.name,)


class Overtakers:
    """Looks through one queue; tell it what was ``taken``, ``reset`` it when more has changed."""

    def __init__(self, queue: deque[Operation]) -> None:
        self._queue = queue
        self._seen = 0
        self._lowest = Priority.SYSTEM
        self._waiting: dict[str, int] = {}
        """How many operations that were seen wait on a segment."""
        self._behind: set[str] = set()
        """The segments with an operation that would pass, if others did not wait before it."""

    @property
    def has_seen(self) -> bool:
        """Whether some of the queue need not be looked at again."""
        return self._seen > 0

    def reset(self) -> None:
        """Forget what was seen."""
        if self._seen:
            self._seen = 0
            self._waiting.clear()
            self._behind.clear()

    def taken(self, operations: Iterable[Operation]) -> None:
        """These were the head of the queue, and are not in it any more."""
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
            would_pass = priority_of(operation) >= lowest
            if would_pass and self._may_pass(operation):
                passing.append(operation)
            else:
                staying.append(operation)
                self._note(operation, would_pass=would_pass)
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

    def _note(self, operation: Operation, *, would_pass: bool) -> None:
        names = segment_names(operation)
        for name in names:
            self._waiting[name] = self._waiting.get(name, 0) + 1
        if would_pass:
            self._behind.update(names)
