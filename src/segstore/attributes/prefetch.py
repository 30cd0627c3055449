"""Operations that wait for inactive segments, and for attributes which are only in the index.

Owns: the line of operations that the operation processor has put aside, in queue order, and the
reading of what they wait for. An operation that finds everything in memory never comes here.

Invariants:
1. The pipeline never waits for tier 2: it puts an operation aside that needs a segment or an
   attribute which is not in memory, and everything that comes later for the same segment, and goes
   on with others.
2. Operations on one segment keep their order: all that wait are given back together, in order, to
   the front of the queue.
3. What was loaded for an operation stays in memory until the operation has passed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final, Protocol

import trio

from segstore.attributes.attribute_indexes import AttributeIndexes
from segstore.attributes.updates import AttributeId
from segstore.durable_log.update_transaction import PendingState
from segstore.errors import (
    ContainerOfflineError,
    NoSuchSegmentError,
    SegmentStoreError,
    StorageError,
)
from segstore.metadata import ContainerMetadata, SegmentMetadata
from segstore.operations import ActivateOperation, BarrierOperation, MergeOperation, Operation
from segstore.throttling.overtaking import segment_names
from segstore.throttling.priorities import is_own_record

PARALLEL_SEGMENTS_MAX: Final = 8

GiveBack = Callable[[list[Operation]], None]


class _Wanted:
    """What the operations of a round need of one segment."""

    __slots__ = ("attribute_ids", "error", "loaded", "segment")

    def __init__(self, segment: SegmentMetadata) -> None:
        self.segment = segment
        self.attribute_ids: set[AttributeId] = set()
        self.loaded: list[AttributeId] = []
        self.error: SegmentStoreError | None = None


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
        self._held: list[Operation] = []
        self._names: set[str] = set()
        self._wanted = trio.Event()
        self._idle = trio.Event()
        self._idle.set()
        self.give_back: GiveBack = lambda operations: None

    @property
    def held_count(self) -> int:
        """How many operations wait."""
        return len(self._held)

    def must_wait(self, operation: Operation) -> bool:
        """Whether something waits that the operation may not overtake."""
        if type(operation) is ActivateOperation or is_own_record(operation):
            return False  # it is what the others wait for
        return operation.name in self._names or (
            isinstance(operation, MergeOperation) and operation.source_name in self._names
        )

    def is_waited_for(self, name: str) -> bool:
        """Whether something on the segment of that name waits."""
        return name in self._names

    def hold(self, operation: Operation) -> None:
        """Put an operation at the end of the line."""
        self._held.append(operation)
        self._names.add(operation.name)
        if isinstance(operation, MergeOperation):
            self._names.add(operation.source_name)
        self._wanted.set()
        if self._idle.is_set():
            self._idle = trio.Event()

    def take_all(self) -> list[Operation]:
        """Empty the line; what was in it is the caller's now, in order."""
        held, self._held = self._held, []
        self._names.clear()
        self._idle.set()
        return held

    async def wait_idle(self) -> None:
        """Return when nothing waits."""
        await self._idle.wait()

    async def run(self) -> None:
        """Load what is needed until cancelled."""
        places = trio.CapacityLimiter(PARALLEL_SEGMENTS_MAX)
        while True:
            await self._wanted.wait()
            self._wanted = trio.Event()
            if not self._held:
                continue
            failures, found = await self._load_segments(places)
            needs = self._needs()
            async with trio.open_nursery() as nursery:
                for wanted in {id(wanted): wanted for wanted in needs.values()}.values():
                    nursery.start_soon(self._load, wanted, places)
            self._give_all_back(needs, failures, found)

    async def _load_segments(
        self, places: trio.CapacityLimiter
    ) -> tuple[dict[str, SegmentStoreError], list[AttributeId]]:
        """Have the segments in memory that exist; returns those that failed, and what was found."""
        failures: dict[str, SegmentStoreError] = {}
        segments = self._segments
        names = {name for each in self._held for name in self._pending.missing_names(each)}
        if segments is None or not names:
            return failures, []
        try:
            found = await segments.load_offsets(names)
        except StorageError as error:
            return dict.fromkeys(names, error), []
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
        return failures, found

    def _needs(self) -> dict[Operation, _Wanted]:
        """The operations in the line that need something, and what of which segment."""
        needs: dict[Operation, _Wanted] = {}
        segments: dict[int, _Wanted] = {}
        for operation in self._held:
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

    def _give_all_back(
        self,
        needs: dict[Operation, _Wanted],
        failures: dict[str, SegmentStoreError],
        found: list[AttributeId],
    ) -> None:
        """Let the pipeline go on with all that wait; what came meanwhile may have to wait again."""
        operations: list[Operation] = []
        for operation in self.take_all():
            wanted = needs.get(operation)
            failure = None if wanted is None else wanted.error
            if failures and failure is None:
                failure = next(
                    (failures[each] for each in segment_names(operation) if each in failures), None
                )
            if failure is None:
                operations.append(operation)
            else:
                # It is refused where it stands in the order.
                refuse = partial(_refuse, operation, failure)
                operations.append(BarrierOperation("", refuse))
        loaded = [wanted for wanted in needs.values() if wanted.loaded]
        operations.append(BarrierOperation("", partial(self._let_go, loaded, found)))
        self.give_back(operations)

    def _let_go(
        self,
        loaded: list[_Wanted],
        found: list[AttributeId],
        error: SegmentStoreError | None,
        number: int,
    ) -> None:
        """What was loaded has been used, and may go like everything else."""
        if self._segments is not None:
            self._segments.let_go(found)
        for wanted in loaded:
            if not wanted.segment.is_gone:
                self._metadata.attribute_cache.add(wanted.segment.attribute_memory, wanted.loaded)


def _refuse(
    operation: Operation, failure: SegmentStoreError, error: SegmentStoreError | None, number: int
) -> None:
    operation.on_complete(error or failure, -1)
