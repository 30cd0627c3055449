"""Holds operations that wait for inactive segments, or for attributes that only an index has.

Owns: the lines of held operations, in queue order, and the loading of what they need. An operation
for which memory has everything is not held.

Invariants:
1. While an operation waits for a slow read of tier 2, operations on other segments continue. Held
   by ``test_one_slow_read_of_tier_2_does_not_hold_up_what_waits_for_others``.
2. Operations on one segment keep their order, whichever of them wait. Held by
   ``test_operations_keep_their_order_whatever_they_wait_for``.
3. A merge waits for held operations on both of its segments, and later operations on these wait for
   the merge. Held by
   ``test_a_merge_waits_for_both_segments_and_what_comes_later_for_the_merge``.
4. When a read fails, the operations that need it are refused, and no others. Held by
   ``test_a_failed_read_refuses_what_needs_it_and_nothing_else``.
5. When an operation was accepted or refused, the attributes that were loaded for it may be evicted
   again. Held by
   ``test_what_was_loaded_for_lines_that_a_refused_merge_joined_may_go_again``.

A *line* is the held operations of one segment, or of several segments which merges connect, in
queue order. A line is loaded independently of others, and all its operations return to the front of
the queue at once. Only the offsets of records of inactive segments are read for several lines at a
time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from operator import itemgetter
from typing import Final, Protocol

import trio

from segstore.attributes.attribute_indexes import AttributeIndexes
from segstore.durable_log.overtaking import segment_names
from segstore.durable_log.priorities import is_own_record
from segstore.durable_log.update_transaction import PendingState
from segstore.errors import (
    ContainerOfflineError,
    NoSuchSegmentError,
    SegmentStoreError,
    StorageError,
)
from segstore.model.attributes import AttributeId
from segstore.model.metadata import ContainerMetadata, SegmentMetadata
from segstore.model.operations import (
    ActivateOperation,
    BarrierOperation,
    Operation,
    RefusedOperation,
)

PARALLEL_SEGMENTS_MAX: Final = 8
"""Maximum count of segments that are loaded at the same time."""

Requeue = Callable[[list[Operation]], None]


class _Wanted:
    """The attributes of one segment that a line of operations needs, and the result of loading
    them."""

    __slots__ = ("attribute_ids", "error", "loaded", "segment")

    def __init__(self, segment: SegmentMetadata) -> None:
        self.segment = segment
        self.attribute_ids: set[AttributeId] = set()
        self.loaded: list[AttributeId] = []
        self.error: SegmentStoreError | None = None


class _Offsets:
    """Offsets of records that were read for several lines. They stay in memory until the operations
    of all these lines were accepted or refused."""

    __slots__ = ("error", "found", "lines")

    def __init__(self, lines: int = 1) -> None:
        self.lines = lines
        self.found: list[AttributeId] = []
        self.error: StorageError | None = None


class _Line:
    """Held operations in order, each with its place in the queue, and the attributes and segments
    that they need."""

    __slots__ = ("failures", "loads", "needs", "offsets", "operations", "part_of", "wanted")

    def __init__(self) -> None:
        self.operations: list[tuple[int, Operation]] = []
        self.part_of: _Line | None = None
        # Count of loads that are under way, including those of lines that joined this one.
        self.loads = 1
        self.needs: dict[Operation, _Wanted] = {}
        # If two joined lines need the same attributes, the list has two members for them.
        self.wanted: list[_Wanted] = []
        self.failures: dict[str, SegmentStoreError] = {}
        self.offsets: list[_Offsets] = []

    def join(self, other: _Line) -> None:
        """Add the operations of another line to this one; all of them wait until both are
        loaded."""
        other.part_of = self
        self.operations = sorted((*self.operations, *other.operations), key=itemgetter(0))
        self.loads += other.loads
        self.needs.update(other.needs)
        self.wanted += other.wanted
        self.failures.update(other.failures)
        self.offsets += other.offsets

    @property
    def whole(self) -> _Line:
        """Return the line that has this line's operations: itself, or the one that it joined."""
        line = self
        while line.part_of is not None:
            line = line.part_of
        return line


class SegmentLoader(Protocol):
    """Loads inactive segments into memory. Names that no segment has are ignored."""

    async def load_offsets(self, names: Iterable[str]) -> list[AttributeId]:
        """Load the offsets of these segments' records. The caller passes the result to ``release``
        when it needs them no more."""
        ...

    def release(self, loaded: list[AttributeId]) -> None:
        """Allow loaded offsets to be evicted again."""
        ...

    async def activate(self, name: str) -> None:
        """Load one segment into memory, if it exists."""
        ...


class AttributePrefetcher:
    """Holds the operations of one container that need something from tier 2. ``run`` is a task of
    the container. ``requeue`` puts operations back at the head of the queue."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        pending: PendingState,
        indexes: AttributeIndexes,
        segments: SegmentLoader,
        requeue: Requeue,
    ) -> None:
        self._return_to_queue = requeue
        self._segments = segments
        self._metadata = metadata
        self._pending = pending
        self._indexes = indexes
        self._lines: dict[str, _Line] = {}
        self._new: list[_Line] = []
        self._unfound: list[_Line] = []
        self._is_finding = False
        self.held_count = 0
        """Number of held operations."""
        self._place = 0
        self._wanted = trio.Event()
        self._idle = trio.Event()
        self._idle.set()

    def must_wait(self, operation: Operation) -> bool:
        """Return whether an operation is held that this one may not overtake."""
        if type(operation) is ActivateOperation or is_own_record(operation):
            return False  # Held operations may wait for this one.
        return any(name in self._lines for name in segment_names(operation))

    def is_waited_for(self, name: str) -> bool:
        """Return whether an operation on the segment is held."""
        return name in self._lines

    def hold(self, operation: Operation) -> None:
        """Hold an operation, at the end of its line."""
        self._place += 1
        self.held_count += 1
        self._line_of(operation).operations.append((self._place, operation))
        if self._idle.is_set():
            self._idle = trio.Event()

    def _line_of(self, operation: Operation) -> _Line:
        """Return the line of the operation's segments. Create it if there is none, and join the
        lines if the segments have two."""
        names = segment_names(operation)
        line: _Line | None = None
        for name in names:
            other = self._lines.get(name)
            if line is None:
                line = other
            elif other is not None and other is not line:
                line.join(other)
                for _, each in other.operations:
                    self._lines.update(dict.fromkeys(segment_names(each), line))
        if line is None:
            line = _Line()
            self._new.append(line)
            self._wanted.set()
        self._lines.update(dict.fromkeys(names, line))
        return line

    def remove_all(self) -> list[Operation]:
        """Remove and return all held operations, in order."""
        lines = {id(line): line for line in self._lines.values()}
        return [
            operation
            for _, operation in sorted(
                (each for line in lines.values() for each in self._remove_line(line)),
                key=itemgetter(0),
            )
        ]

    def _remove_line(self, line: _Line) -> list[tuple[int, Operation]]:
        """Remove and return the operations of one line."""
        removed, line.operations = line.operations, []
        for _, operation in removed:
            for name in segment_names(operation):
                self._lines.pop(name, None)
        self.held_count -= len(removed)
        if not self.held_count:
            self._idle.set()
        return removed

    async def wait_idle(self) -> None:
        """Return when no operation is held."""
        await self._idle.wait()

    async def run(self) -> None:
        """Load the segments and attributes that held operations need, until cancelled."""
        places = trio.CapacityLimiter(PARALLEL_SEGMENTS_MAX)
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                lines, self._new = self._new, []
                for line in lines:
                    if self._missing_names(line):
                        self._unfound.append(line)
                    else:
                        nursery.start_soon(self._load_line, line, _Offsets(), places)
                if self._unfound and not self._is_finding:
                    self._is_finding = True
                    nursery.start_soon(self._find_offsets, nursery, places)

    def _missing_names(self, line: _Line) -> set[str]:
        missing_names = self._pending.missing_names
        return {name for _, each in line.operations for name in missing_names(each)}

    async def _find_offsets(self, nursery: trio.Nursery, places: trio.CapacityLimiter) -> None:
        """Load the offsets of the records of the segments that new lines need, for all new lines at
        a time."""
        while self._unfound:
            lines, self._unfound = self._unfound, []
            offsets = _Offsets(len(lines))
            names = {name for line in lines for name in self._missing_names(line)}
            try:
                offsets.found = await self._segments.load_offsets(names)
            except StorageError as error:
                offsets.error = error
            for line in lines:
                nursery.start_soon(self._load_line, line, offsets, places)
        self._is_finding = False

    async def _load_line(
        self, line: _Line, offsets: _Offsets, places: trio.CapacityLimiter
    ) -> None:
        """Load the segments and attributes that a line needs. Then return its operations to the
        queue, unless it joined a line for which other loads are under way."""
        failures = await self._load_segments(line, offsets, places)
        needs = self._needs(line)
        several = list({id(wanted): wanted for wanted in needs.values()}.values())
        async with trio.open_nursery() as nursery:
            for wanted in several:
                nursery.start_soon(self._load, wanted, places)
        whole = line.whole
        whole.loads -= 1
        whole.failures.update(failures)
        whole.needs.update(needs)
        whole.wanted += several
        whole.offsets.append(offsets)
        if not whole.loads:
            self._requeue(whole)

    async def _load_segments(
        self, line: _Line, offsets: _Offsets, places: trio.CapacityLimiter
    ) -> dict[str, SegmentStoreError]:
        """Load the line's inactive segments; return the errors by name."""
        failures: dict[str, SegmentStoreError] = {}
        names = self._missing_names(line)
        if not names:
            return failures
        if offsets.error is not None:
            return dict.fromkeys(names, offsets.error)

        async def activate(name: str) -> None:
            async with places:
                try:
                    await self._segments.activate(name)
                except (StorageError, ContainerOfflineError) as error:
                    failures[name] = error

        async with trio.open_nursery() as nursery:
            for name in names:
                if self._pending.may_be_inactive(name):
                    nursery.start_soon(activate, name)
        return failures

    def _needs(self, line: _Line) -> dict[Operation, _Wanted]:
        """Return which attributes the operations of a line need."""
        needs: dict[Operation, _Wanted] = {}
        segments: dict[int, _Wanted] = {}
        for _, operation in line.operations:
            segment, attribute_ids = self._pending.missing_attributes(operation)
            if segment is not None and attribute_ids:
                wanted = segments.setdefault(segment.segment_id, _Wanted(segment))
                wanted.attribute_ids.update(attribute_ids)
                needs[operation] = wanted
        return needs

    async def _load(self, wanted: _Wanted, places: trio.CapacityLimiter) -> None:
        async with places:
            try:
                wanted.loaded = await self._indexes.load(wanted.segment, wanted.attribute_ids)
            except NoSuchSegmentError:
                pass  # The operation will be refused when it is tried again.
            except StorageError as error:
                wanted.error = error

    def _requeue(self, line: _Line) -> None:
        """Return the operations of a line to the queue; those whose loads failed will be refused.
        Operations that joined the line during the load may be held again."""
        operations: list[Operation] = []
        failures = line.failures
        for _, operation in self._remove_line(line):
            wanted = line.needs.get(operation)
            failure = None if wanted is None else wanted.error
            if failures and failure is None:
                failure = next(
                    (failures[each] for each in segment_names(operation) if each in failures), None
                )
            if failure is None:
                operations.append(operation)
            else:
                operations.append(RefusedOperation(operation, failure))
        operations.append(BarrierOperation("", partial(self._release, line)))
        self._return_to_queue(operations)

    def _release(self, line: _Line, error: SegmentStoreError | None, number: int) -> None:
        """Allow the attributes and offsets that were loaded for a line to be evicted, because its
        operations were accepted or refused."""
        for offsets in line.offsets:
            offsets.lines -= 1
            if not offsets.lines:
                self._segments.release(offsets.found)
        for wanted in line.wanted:
            if wanted.loaded and not wanted.segment.is_gone:
                self._metadata.attribute_cache.add(wanted.segment.attribute_memory, wanted.loaded)
