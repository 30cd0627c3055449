"""Gathers changes of attributes and writes them to the segments' indexes.

Owns: when a segment's changed attributes go to its index, and how the log learns of it.

Invariants:
1. However often an attribute changes between two flushes, its latest value is written once.
2. The log learns where an index is only when that is durable in tier 2, and the index is truncated
   only when the log has learned it: after a crash every root pointer leads to a whole tree.
3. Until then the changes are dirty, and every checkpoint has them: the log need not be kept for
   them.
4. The log is not waited for when it stands still: it may have to be truncated first. No index is
   written until it has the places of those that were.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Final

import trio

from segstore.attributes.attribute_index import AttributeIndex
from segstore.attributes.attribute_indexes import AttributeIndexes
from segstore.errors import NoSuchSegmentError, StorageError
from segstore.model.attributes import (
    ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO,
    ATTRIBUTE_SEGMENT_ROOT_POINTER,
    AttributeId,
)
from segstore.model.metadata import ContainerMetadata, SegmentMetadata
from segstore.model.operations import AttributeValues
from segstore.runtime.parallel import work_together

# The original's threshold.
FLUSH_COUNT: Final = 200
UPDATE_COUNT_MAX: Final = 1000
"""One update of an index has about this many attributes: it may rewrite as many pages."""

TOGETHER_MAX: Final = 64
"""So many segments' indexes are written before the log is waited for."""
WRITES_TOGETHER_MAX: Final = 16
"""So many of them at once; one with many changes alone."""
LOG_SECONDS_MAX: Final = 1.0
"""The log is waited for so long; then the storage writer does the rest of its work before."""
FEW_DIRTY: Final = 8192
"""Up to so many changes of a container are kept for longer: they are in every checkpoint, and an
index of its own for each of many segments costs a synced file."""

Wait = Callable[[], Awaitable[object]]
Record = Callable[[SegmentMetadata, AttributeValues], Wait]
"""Queues internal attributes of a segment for the log; what it returns waits until it has them."""


class AttributeAggregator:
    """All segments' way to their indexes. Used by the storage writer's task alone."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        indexes: AttributeIndexes,
        record: Record,
        *,
        flush_seconds: float,
        flush_seconds_few: float,
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._record = record
        self._flush_seconds = flush_seconds
        self._flush_seconds_few = flush_seconds_few
        self._dirty_since: dict[int, float] = {}
        self._in_use = ExitStack()
        self._unsettled: deque[tuple[SegmentMetadata, AttributeIndex, Wait]] = deque()
        """What was written, and the log may not have the places of."""

    @property
    def is_settled(self) -> bool:
        """Whether the log has the places of all that was written."""
        return not self._unsettled

    async def flush(self, now: float, *, everything: bool) -> bool:
        """Write the changes of ``TOGETHER_MAX`` segments where it is time to, or everywhere;
        returns whether it is time at more.

        A segment whose index fails does not keep others from theirs. Raises ``StorageError`` at
        the end when there was one.
        """
        failures: list[StorageError] = []
        end = 0
        due: list[SegmentMetadata] = []
        if await self._settle(failures):
            due = self._due(now, everything=everything)
            end = len(due) if everything else min(len(due), TOGETHER_MAX)
            for start in range(0, end, TOGETHER_MAX):
                await self._write_together(due[start : start + TOGETHER_MAX], failures)
                if not await self._settle(failures):
                    break
        if failures:
            raise failures[0]
        return end < len(due) or not self.is_settled

    async def _settle(self, failures: list[StorageError]) -> bool:
        """Let the log have the places of what was written, and cut off what lies before; returns
        whether that is done."""
        deadline = trio.current_time() + LOG_SECONDS_MAX
        while self._unsettled:
            segment, index, wait = self._unsettled[0]
            with trio.move_on_at(deadline) as patience, suppress(NoSuchSegmentError):
                await wait()
            if patience.cancelled_caught:
                return False
            try:
                if not segment.is_gone:
                    await index.truncate()
            except NoSuchSegmentError:
                pass  # deleted or merged meanwhile, and its index with it
            except StorageError as error:
                failures.append(error)
            self._unsettled.popleft()
        self._in_use.close()
        return True

    async def _write_together(
        self, segments: Sequence[SegmentMetadata], failures: list[StorageError]
    ) -> None:
        """Write several indexes, and let the log know."""
        with ExitStack() as stack:

            async def write(segment: SegmentMetadata) -> None:
                index = stack.enter_context(self._indexes.use(segment))
                try:
                    await self._write(segment, index)
                except StorageError as error:
                    failures.append(error)

            many = [each for each in segments if _has_many(each)]
            few = [each for each in segments if not _has_many(each)]
            await work_together(few, write, tasks_max=WRITES_TOGETHER_MAX)
            for segment in many:
                await write(segment)
            self._in_use.push(stack.pop_all())

    def _due(self, now: float, *, everything: bool) -> list[SegmentMetadata]:
        unpersisted = self._metadata.unpersisted
        self._dirty_since = {number: self._dirty_since.get(number, now) for number in unpersisted}
        is_few = self._metadata.dirty_count <= FEW_DIRTY
        seconds = self._flush_seconds_few if is_few else self._flush_seconds
        due = [
            segment
            for number, segment in unpersisted.items()
            if everything or _has_many(segment) or now - self._dirty_since[number] >= seconds
        ]
        # Those that were just tried in vain come after the others.
        due.sort(key=lambda segment: self._dirty_since[segment.segment_id])
        return due

    async def _write(
        self,
        segment: SegmentMetadata,
        index: AttributeIndex,
    ) -> None:
        """Write what is dirty now, in updates of bounded size, and let the log know."""
        memory = segment.attribute_memory
        changes = memory.unpersisted()
        self._dirty_since.pop(segment.segment_id, None)
        if not changes:
            self._metadata.note_persisted(segment, {}, 0)
        places: AttributeValues = {}
        try:
            while changes and not segment.is_gone:
                batch = _first_batch(changes)
                persisted = await index.write(
                    {attribute_id: memory.values[attribute_id] for _, attribute_id in batch},
                    sequence_number=batch[-1][0],
                )
                if persisted.sequence_number == batch[-1][0]:
                    del changes[: len(batch)]
                if persisted.root_pointer is None:
                    # Only what was never there was removed.
                    self._metadata.note_persisted(segment, {}, persisted.sequence_number)
                    continue
                places = {
                    ATTRIBUTE_SEGMENT_ROOT_POINTER: persisted.root_pointer,
                    ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO: persisted.sequence_number,
                }
        finally:
            # Of the last tree alone: it is what the index is truncated to, and records do not wait
            # for each other.
            if places:
                self._unsettled.append((segment, index, self._record(segment, places)))


def _has_many(segment: SegmentMetadata) -> bool:
    return len(segment.attribute_memory.dirty) >= FLUSH_COUNT


def _first_batch(changes: list[tuple[int, AttributeId]]) -> list[tuple[int, AttributeId]]:
    """The oldest changes; those of one operation are not taken apart."""
    count = min(UPDATE_COUNT_MAX, len(changes))
    last = changes[count - 1][0]
    while count < len(changes) and changes[count][0] == last:
        count += 1
    return changes[:count]
