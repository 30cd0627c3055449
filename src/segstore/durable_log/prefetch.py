"""Holds operations that wait for inactive segments, or for attributes that only an index has.

Owns: the lines of held operations, in queue order, and the loading of what they need. An operation
that finds everything in memory never comes here.

Invariants:
1. The pipeline never waits for tier 2. An operation that needs a segment or an attribute which is
   not in memory is held, and so are all later operations on the same segment; others go on.
2. Operations on one segment keep their order: they are in one line, and the whole line returns to
   the front of the queue at once. A merge joins the lines of its two segments.
3. Lines are loaded independently, except for the offsets of records, which are read for many names
   at a time.
4. What was loaded for an operation stays in memory until the operation has passed.
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
    """The attributes of one segment that a line of operations needs."""

    __slots__ = ("attribute_ids", "error", "loaded", "segment")

    def __init__(self, segment: SegmentMetadata) -> None:
        self.segment = segment
        self.attribute_ids: set[AttributeId] = set()
        self.loaded: list[AttributeId] = []
        self.error: SegmentStoreError | None = None


class _Offsets:
    """Offsets of records that were read for several lines; kept until all lines have passed."""

    __slots__ = ("error", "found", "lines")

    def __init__(self, lines: int = 1) -> None:
        self.lines = lines
        self.found: list[AttributeId] = []
        self.error: StorageError | None = None


class _Line:
    """Held operations in order, each with its place in the queue, and what they need."""

    __slots__ = ("failures", "loads", "needs", "offsets", "operations", "part_of", "wanted")

    def __init__(self) -> None:
        self.operations: list[tuple[int, Operation]] = []
        self.part_of: _Line | None = None
        # Count of loads that are under way, with those of lines that were joined to this one.
        self.loads = 1
        self.needs: dict[Operation, _Wanted] = {}
        # A need of two joined lines is here twice.
        self.wanted: list[_Wanted] = []
        self.failures: dict[str, SegmentStoreError] = {}
        self.offsets: list[_Offsets] = []

    def join(self, other: _Line) -> None:
        """Add another line's operations to this line: they wait for the needs of both."""
        other.part_of = self
        self.operations = sorted((*self.operations, *other.operations), key=itemgetter(0))
        self.loads += other.loads
        self.needs.update(other.needs)
        self.wanted += other.wanted
        self.failures.update(other.failures)
        self.offsets += other.offsets

    @property
    def whole(self) -> _Line:
        """Return the line that this one was joined to, or itself."""
        line = self
        while line.part_of is not None:
            line = line.part_of
        return line


class SegmentLoader(Protocol):
    """Brings inactive segments into memory. Names without a segment are ignored."""

    async def load_offsets(self, names: Iterable[str]) -> list[AttributeId]:
        """Load the offsets of these segments' records; ``release`` the result later."""
        ...

    def release(self, loaded: list[AttributeId]) -> None:
        """Allow loaded offsets to be evicted again."""
        ...

    async def activate(self, name: str) -> None:
        """Bring one segment into memory, if it exists."""
        ...


class AttributePrefetcher:
    """See the module. ``run`` is a task of the container."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        pending: PendingState,
        indexes: AttributeIndexes,
        segments: SegmentLoader,
    ) -> None:
        self._segments = segments
        self._metadata = metadata
        self._pending = pending
        self._indexes = indexes
        self._lines: dict[str, _Line] = {}
        self._new: list[_Line] = []
        self._unfound: list[_Line] = []
        self._is_finding = False
        self._held_count = 0
        self._place = 0
        self._wanted = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self.requeue: Requeue = lambda operations: None

    @property
    def held_count(self) -> int:
        """Return the number of held operations."""
        return self._held_count

    def must_wait(self, operation: Operation) -> bool:
        """Return whether an operation is held that this one may not pass."""
        if type(operation) is ActivateOperation or is_own_record(operation):
            return False  # the others wait for it
        return any(name in self._lines for name in segment_names(operation))

    def is_waited_for(self, name: str) -> bool:
        """Return whether an operation on the segment is held."""
        return name in self._lines

    def hold(self, operation: Operation) -> None:
        """Add an operation at the end of its line."""
        self._place += 1
        self._held_count += 1
        self._line_of(operation).operations.append((self._place, operation))
        if self._idle.is_set():
            self._idle = trio.Event()

    def _line_of(self, operation: Operation) -> _Line:
        """Return the line of the operation's segments; makes or joins lines as needed."""
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
        self._held_count -= len(removed)
        if not self._held_count:
            self._idle.set()
        return removed

    async def wait_idle(self) -> None:
        """Return when no operation is held."""
        await self._idle.wait()

    async def run(self) -> None:
        """Load what held operations need, until cancelled."""
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
        """Load the offsets of the records that new lines need, for many names at a time."""
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
        """Load what a line needs, then requeue it, unless it was joined to one that needs more."""
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
                pass  # the pipeline will refuse the operation when its turn comes
            except StorageError as error:
                wanted.error = error

    def _requeue(self, line: _Line) -> None:
        """Return a line to the queue. Operations that came meanwhile may have to wait again."""
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
        self.requeue(operations)

    def _release(self, line: _Line, error: SegmentStoreError | None, number: int) -> None:
        """Allow what was loaded for a line to be evicted: its operations have passed."""
        for offsets in line.offsets:
            offsets.lines -= 1
            if not offsets.lines:
                self._segments.release(offsets.found)
        for wanted in line.wanted:
            if wanted.loaded and not wanted.segment.is_gone:
                self._metadata.attribute_cache.add(wanted.segment.attribute_memory, wanted.loaded)
