"""Finds the operations that may overtake others which are held back in the queue.

Owns: ``Overtakers``. It remembers how far it has scanned the queue, so that each operation is
scanned once while the queue grows at its end and shrinks at its head.

Invariants:
1. An operation does not overtake an earlier one on the same segment, and an operation without a
   segment overtakes none; the exceptions follow. Held by
   ``test_nothing_overtakes_on_its_own_segments``.
2. While writes are stopped, a truncation, seal or deletion overtakes earlier writes to its segment,
   because these may wait for the space that it frees (docs/adr/0190). Held by
   ``test_what_frees_space_does_not_wait_behind_writes_that_wait_for_space`` and
   ``test_a_truncation_passes_what_waits_for_a_merge``. ``_PASSED`` has the kinds that each
   may overtake.
3. While writes are stopped, the creation of a segment that exists, which will be refused, does not
   hold back such operations. Held by
   ``test_a_creation_that_will_be_refused_holds_up_nothing_that_frees_space``.
4. The container's record of an attribute index overtakes operations on its segment: the storage
   writer waits for it, and they may wait for the storage writer. Held by
   ``test_the_containers_own_record_does_not_wait_behind_what_waits_for_the_storage_writer``.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Final

from segstore.durable_log.priorities import Priority, is_own_record, priority_of
from segstore.model.operations import (
    AppendOperation,
    BarrierOperation,
    DeleteOperation,
    MapOperation,
    MergeOperation,
    Operation,
    RefusedOperation,
    SealOperation,
    TruncateOperation,
    UpdateAttributesOperation,
)

_WRITES: Final = frozenset({AppendOperation, BarrierOperation, UpdateAttributesOperation})
_PASSED: Final[dict[type, frozenset[type]]] = {
    TruncateOperation: _WRITES | {MergeOperation, SealOperation, DeleteOperation},
    SealOperation: _WRITES,
    DeleteOperation: _WRITES,
    MapOperation: _WRITES,
}
"""The kinds of operations on the same segment that each kind overtakes while writes are stopped. A
seal or deletion does not overtake a merge: the merge would then be refused, and its caller would
take that for a sign that it was done before. So both may wait, and a truncation overtakes them: the
merge may wait for the space that it frees. A creation overtakes only if its segment exists."""


def segment_names(operation: Operation) -> tuple[str, ...]:
    """Return the names of the segments on which the operation must keep its order."""
    if isinstance(operation, MergeOperation):
        return operation.name, operation.source_name
    if isinstance(operation, RefusedOperation):
        return segment_names(operation.refused)
    return (operation.name,)


class Overtakers:
    """Scans one queue. ``segment_exists`` returns whether a segment has the name, after all
    accepted operations.

    Call ``removed_head`` after operations were removed from the head of the queue. Call ``reset``
    after any other change, except for additions at the end.
    """

    def __init__(self, queue: deque[Operation], segment_exists: Callable[[str], bool]) -> None:
        self._queue = queue
        self._segment_exists = segment_exists
        self.seen_count = 0
        """Number of operations at the head of the queue that were scanned already."""
        self._lowest = Priority.SYSTEM
        self._stopped = False
        self._waiting: dict[str, Counter[type]] = {}
        """Count of scanned operations that stayed in the queue, by segment name and kind."""
        self._behind: set[str] = set()
        """Names of segments with an operation that stayed in the queue only because it may not
        overtake another one."""

    def reset(self) -> None:
        """Forget which operations were scanned: the next scan begins at the head of the queue."""
        if self.seen_count:
            self.seen_count = 0
            self._waiting.clear()
            self._behind.clear()

    def removed_head(self, operations: Iterable[Operation]) -> None:
        """Record that these operations were removed from the head of the queue."""
        waiting = self._waiting
        for operation in operations:
            if not self.seen_count:
                return
            names = segment_names(operation)
            if not self._behind.isdisjoint(names):
                self.reset()
                return
            self.seen_count -= 1
            for name in names:
                kinds = waiting[name]
                kinds[type(operation)] -= 1
                if not kinds[type(operation)]:
                    del kinds[type(operation)]
                    if not kinds:
                        del waiting[name]

    def remove_passing(self, *, lowest: Priority, stopped: bool = False) -> list[Operation]:
        """Remove and return, in order, the operations of priority ``lowest`` or above that may
        overtake the others.

        Only operations that came since the last call are scanned. ``stopped`` is true while all
        writes of users wait.
        """
        queue = self._queue
        if lowest is not self._lowest or stopped is not self._stopped:
            self._lowest, self._stopped = lowest, stopped
            self.reset()
        if len(queue) <= self.seen_count:
            return []
        passing: list[Operation] = []
        staying: list[Operation] = []
        for operation in islice(queue, self.seen_count, None):
            would_pass = priority_of(operation) >= lowest or self._creates_in_vain(operation)
            if would_pass and self._may_pass(operation):
                passing.append(operation)
            else:
                staying.append(operation)
                self._record_waiting(operation, would_pass=would_pass)
        if passing:
            kept = list(islice(queue, self.seen_count)) + staying
            queue.clear()
            queue.extend(kept)
        self.seen_count = len(queue)
        return passing

    def _may_pass(self, operation: Operation) -> bool:
        if is_own_record(operation):
            return True
        if not operation.name:
            return False
        passed = self._passed_kinds(operation)
        waiting = self._waiting
        return all(
            name not in waiting or waiting[name].keys() <= passed
            for name in segment_names(operation)
        )

    def _passed_kinds(self, operation: Operation) -> frozenset[type]:
        if not self._stopped or (
            type(operation) is MapOperation and not self._creates_in_vain(operation)
        ):
            return frozenset()
        return _PASSED.get(type(operation), frozenset())

    def _creates_in_vain(self, operation: Operation) -> bool:
        """Return whether the operation creates a segment that exists, and others on this segment
        wait for it."""
        return (
            self._stopped
            and type(operation) is MapOperation
            and self._segment_exists(operation.name)
        )

    def _record_waiting(self, operation: Operation, *, would_pass: bool) -> None:
        names = segment_names(operation)
        for name in names:
            self._waiting.setdefault(name, Counter())[type(operation)] += 1
        if would_pass:
            self._behind.update(names)
