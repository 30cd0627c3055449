"""What may go before operations that are held back in a queue.

Owns: ``Overtakers``, which finds it. It remembers how far it has looked, so that a queue that only
grows at its end is looked through once.

Invariants:
1. An operation overtakes none on its own segments, with one exception: a truncation of what is
   there already goes before appends and changes of attributes, which it does not touch.
2. An operation that concerns all segments (a barrier without a name) overtakes nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from segstore.operations import (
    AppendOperation,
    MergeOperation,
    Operation,
    TruncateOperation,
    UpdateAttributesOperation,
)
from segstore.throttling.priorities import Priority, priority_of

CanTruncate = Callable[[TruncateOperation], bool]
"""Whether the truncation is valid whatever is held back."""


class Overtakers:
    """Looks through one queue; ``reset`` when anything but its end has changed."""

    def __init__(self, queue: deque[Operation], can_truncate: CanTruncate) -> None:
        self._queue = queue
        self._can_truncate = can_truncate
        self._seen = 0
        self._lowest = Priority.SYSTEM
        self._written: set[str] = set()
        """Segments of which only appends and changes of attributes wait."""
        self._fixed: set[str] = set()
        """Segments of which anything else waits."""

    def reset(self) -> None:
        """Forget what was seen: the head of the queue is another."""
        if self._seen:
            self._seen = 0
            self._written.clear()
            self._fixed.clear()

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
        name = operation.name
        if not name or name in self._fixed:
            return False
        if isinstance(operation, MergeOperation):
            source = operation.source_name
            return not (name in self._written or source in self._written or source in self._fixed)
        if name not in self._written:
            return True
        return isinstance(operation, TruncateOperation) and self._can_truncate(operation)

    def _note(self, operation: Operation) -> None:
        if isinstance(operation, AppendOperation | UpdateAttributesOperation):
            self._written.add(operation.name)
            return
        self._fixed.add(operation.name)
        if isinstance(operation, MergeOperation):
            self._fixed.add(operation.source_name)
