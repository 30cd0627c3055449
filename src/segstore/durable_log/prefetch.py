"""Operations that wait for inactive segments, and for attributes which are only in the index.

Owns: the lines of operations that the operation processor has put aside, in queue order, and the
reading of what they wait for. An operation that finds everything in memory never comes here.

Invariants:
1. The pipeline never waits for tier 2: it puts an operation aside that needs a segment or an
   attribute which is not in memory, and everything that comes later for the same segment, and goes
   on with others.
2. Operations on one segment keep their order: they stand in one line, and all that stand in it are
   given back together, in order, to the front of the queue. A merge joins the lines of both.
3. No line waits for what another one reads, but for the offsets of records, which are found for
   many names at a time.
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

GiveBack = Callable[[list[Operation]], None]


class _Wanted:
    """What the operations of a line need of one segment."""

    __slots__ = ("attribute_ids", "error", "loaded", "segment")

    def __init__(self, segment: SegmentMetadata) -> None:
        self.segment = segment
        self.attribute_ids: set[AttributeId] = set()
        self.loaded: list[AttributeId] = []
        self.error: SegmentStoreError | None = None


class _Offsets:
    """What was found out for several lines, until all of them have passed."""

    __slots__ = ("error", "found", "lines")

    def __init__(self, lines: int = 1) -> None:
        self.lines = lines
        self.found: list[AttributeId] = []
        self.error: StorageError | None = None


class _Line:
    """Operations that keep their order, with their places in the queue, and what they need."""

    __slots__ = ("failures", "loads", "needs", "offsets", "operations", "part_of", "wanted")

    def __init__(self) -> None:
        self.operations: list[tuple[int, Operation]] = []
        self.part_of: _Line | None = None
        # How many lines that this one has come of are still being loaded for.
        self.loads = 1
        self.needs: dict[Operation, _Wanted] = {}
        # What two lines that were joined both needed for an operation is here twice.
        self.wanted: list[_Wanted] = []
        self.failures: dict[str, SegmentStoreError] = {}
        self.offsets: list[_Offsets] = []

    def join(self, other: _Line) -> None:
        """Take over another line's operations: from now on they wait for both."""
        other.part_of = self
        self.operations = sorted((*self.operations, *other.operations), key=itemgetter(0))
        self.loads += other.loads
        self.needs.update(other.needs)
        self.wanted += other.wanted
        self.failures.update(other.failures)
        self.offsets += other.offsets

    @property
    def whole(self) -> _Line:
        """The line that this one is a part of by now."""
        line = self
        while line.part_of is not None:
            line = line.part_of
        return line


class SegmentLoader(Protocol):
    """Brings inactive segments into memory, as far as there are segments of these names."""

    async def load_offsets(self, names: Iterable[str]) -> list[AttributeId]:
        """Find out which names are inactive segments'; what is returned is let go later."""
        ...

    def let_go(self, loaded: list[AttributeId]) -> None:
        """What was found out has been used."""
        ...

    async def activate(self, name: str) -> None:
        """Have one segment in memory, if it exists."""
        ...


class AttributePrefetcher:
    """See the module. ``run`` in one task of the container."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        pending: PendingState,
        indexes: AttributeIndexes,
        segments: SegmentLoader | None = None,
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
        self.give_back: GiveBack = lambda operations: None

    @property
    def held_count(self) -> int:
        """How many operations wait."""
        return self._held_count

    def must_wait(self, operation: Operation) -> bool:
        """Whether something waits that the operation may not overtake."""
        if type(operation) is ActivateOperation or is_own_record(operation):
            return False  # it is what the others wait for
        return any(name in self._lines for name in segment_names(operation))

    def is_waited_for(self, name: str) -> bool:
        """Whether something on the segment of that name waits."""
        return name in self._lines

    def hold(self, operation: Operation) -> None:
        """Put an operation at the end of its line."""
        self._place += 1
        self._held_count += 1
        self._line_of(operation).operations.append((self._place, operation))
        if self._idle.is_set():
            self._idle = trio.Event()

    def _line_of(self, operation: Operation) -> _Line:
        """The line in which an operation has to stand."""
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

    def take_all(self) -> list[Operation]:
        """Empty all lines; what was in them is the caller's now, in order."""
        lines = {id(line): line for line in self._lines.values()}
        return [
            operation
            for _, operation in sorted(
                (each for line in lines.values() for each in self._take(line)), key=itemgetter(0)
            )
        ]

    def _take(self, line: _Line) -> list[tuple[int, Operation]]:
        """Empty a line."""
        taken, line.operations = line.operations, []
        for _, operation in taken:
            for name in segment_names(operation):
                self._lines.pop(name, None)
        self._held_count -= len(taken)
        if not self._held_count:
            self._idle.set()
        return taken

    async def wait_idle(self) -> None:
        """Return when nothing waits."""
        await self._idle.wait()

    async def run(self) -> None:
        """Load what is needed until cancelled."""
        places = trio.CapacityLimiter(PARALLEL_SEGMENTS_MAX)
        async with trio.open_nursery() as nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                lines, self._new = self._new, []
                for line in lines:
                    if self._segments is not None and self._missing_names(line):
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
        """Find out which names of new lines are inactive segments', for many at a time."""
        assert self._segments is not None, "nothing is missing without them"
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
        """Load what a line needs, and give it back if it is not a part of one that needs more."""
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
            self._give_back(whole)

    async def _load_segments(
        self, line: _Line, offsets: _Offsets, places: trio.CapacityLimiter
    ) -> dict[str, SegmentStoreError]:
        """Have the segments in memory that exist; returns those that failed."""
        failures: dict[str, SegmentStoreError] = {}
        segments = self._segments
        names = self._missing_names(line)
        if segments is None or not names:
            return failures
        if offsets.error is not None:
            return dict.fromkeys(names, offsets.error)
        loader = segments

        async def activate(name: str) -> None:
            async with places:
                try:
                    await loader.activate(name)
                except (StorageError, ContainerOfflineError) as error:
                    failures[name] = error

        async with trio.open_nursery() as nursery:
            for name in names:
                if self._pending.may_be_inactive(name):
                    nursery.start_soon(activate, name)
        return failures

    def _needs(self, line: _Line) -> dict[Operation, _Wanted]:
        """The operations in the line that need something, and what of which segment."""
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
                pass  # the pipeline will find that out, in order
            except StorageError as error:
                wanted.error = error

    def _give_back(self, line: _Line) -> None:
        """Let the pipeline go on with a line; what came meanwhile may have to wait again."""
        operations: list[Operation] = []
        failures = line.failures
        for _, operation in self._take(line):
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
        operations.append(BarrierOperation("", partial(self._let_go, line)))
        self.give_back(operations)

    def _let_go(self, line: _Line, error: SegmentStoreError | None, number: int) -> None:
        """What was loaded has been used, and may go like everything else."""
        for offsets in line.offsets:
            offsets.lines -= 1
            if not offsets.lines and self._segments is not None:
                self._segments.let_go(offsets.found)
        for wanted in line.wanted:
            if wanted.loaded and not wanted.segment.is_gone:
                self._metadata.attribute_cache.add(wanted.segment.attribute_memory, wanted.loaded)
