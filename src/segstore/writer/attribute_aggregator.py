"""Writes changed attributes to the segments' indexes.

Owns: when a segment's changed attributes are written to its index in tier 2, and the operation that
records the index's root pointer in the log. A changed attribute is *dirty* until its index has it.

Invariants:
1. When an attribute changes many times between two flushes, only its latest value is written. Held
   by ``test_only_the_latest_value_is_written``.
2. After a crash at any time, the root pointer in the log leads to a complete tree. The log gets the
   pointer only when the tree is durable, and the old tree is truncated only when the log has the
   pointer to the new one. Held by
   ``test_no_tree_is_cut_off_before_the_log_has_the_place_of_the_one_that_took_its_place``.
3. When an index lacks changes, each checkpoint contains them, so the log can be truncated before
   they are written to the index. Held by
   ``test_a_checkpoint_has_core_and_dirty_attributes_and_no_clean_ones``.
4. When the log has no room for a root pointer until it is truncated, the wait for it ends after
   ``log_wait_seconds``, and the flush of bytes, which lets the log be truncated, continues. Held by
   ``test_a_log_that_is_full_until_it_is_truncated_is_not_waited_for``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress

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
from segstore.runtime.parallel import run_parallel
from segstore.writer.flush_policy import FlushPolicy

Wait = Callable[[], Awaitable[object]]
Record = Callable[[SegmentMetadata, AttributeValues], Wait]
"""Queues core attributes of a segment for the log; the returned function waits until they are
durable."""


class AttributeAggregator:
    """Flushes the attributes of one container. Only the storage writer's task uses it."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        indexes: AttributeIndexes,
        record: Record,
        policy: FlushPolicy,
    ) -> None:
        self._metadata = metadata
        self._indexes = indexes
        self._record = record
        self._policy = policy
        self._dirty_since: dict[int, float] = {}
        self._in_use = ExitStack()
        self._unsettled: deque[tuple[SegmentMetadata, AttributeIndex, Wait]] = deque()
        """Indexes that were written, and whose root pointers the log may not have yet."""

    @property
    def is_settled(self) -> bool:
        """Return whether the log has the root pointers of all written indexes."""
        return not self._unsettled

    async def flush(self, now: float, *, everything: bool) -> bool:
        """Write the indexes of at most ``attribute_indexes_max`` segments that are due, or with
        ``everything`` of all changed segments. Return whether more are due.

        When an index fails, the others are still written; then the first ``StorageError`` is
        raised.
        """
        count_max = self._policy.attribute_indexes_max
        failures: list[StorageError] = []
        end = 0
        due: list[SegmentMetadata] = []
        if await self._settle(failures):
            due = self._due(now, everything=everything)
            end = len(due) if everything else min(len(due), count_max)
            for start in range(0, end, count_max):
                await self._write_indexes(due[start : start + count_max], failures)
                if not await self._settle(failures):
                    break
        if failures:
            raise failures[0]
        return end < len(due) or not self.is_settled

    async def _settle(self, failures: list[StorageError]) -> bool:
        """Wait until the log has the root pointers of the written indexes, then truncate the
        indexes behind which these lie.

        Return whether all are done; False when the log took longer than ``log_wait_seconds``.
        """
        deadline = trio.current_time() + self._policy.log_wait_seconds
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
                pass  # The segment was deleted or merged meanwhile, and its index with it.
            except StorageError as error:
                failures.append(error)
            self._unsettled.popleft()
        self._in_use.close()
        return True

    async def _write_indexes(
        self, segments: Sequence[SegmentMetadata], failures: list[StorageError]
    ) -> None:
        """Write the indexes of several segments, and queue their root pointers for the log."""
        with ExitStack() as stack:

            async def write(segment: SegmentMetadata) -> None:
                index = stack.enter_context(self._indexes.use(segment))
                try:
                    await self._write(segment, index)
                except StorageError as error:
                    failures.append(error)

            many = [each for each in segments if self._has_many(each)]
            few = [each for each in segments if not self._has_many(each)]
            await run_parallel(few, write, tasks_max=self._policy.attribute_writes_max)
            for segment in many:
                await write(segment)
            self._in_use.push(stack.pop_all())

    def _due(self, now: float, *, everything: bool) -> list[SegmentMetadata]:
        policy = self._policy
        unpersisted = self._metadata.unpersisted
        self._dirty_since = {number: self._dirty_since.get(number, now) for number in unpersisted}
        is_few = self._metadata.dirty_count <= policy.few_dirty_attributes
        seconds = policy.attribute_flush_seconds_few if is_few else policy.attribute_flush_seconds
        due = [
            segment
            for number, segment in unpersisted.items()
            if everything or self._has_many(segment) or now - self._dirty_since[number] >= seconds
        ]
        # A segment whose write has just failed counts as dirty since now, so it comes last.
        due.sort(key=lambda segment: self._dirty_since[segment.segment_id])
        return due

    async def _write(
        self,
        segment: SegmentMetadata,
        index: AttributeIndex,
    ) -> None:
        """Write the attributes that are dirty now, in updates of bounded size, and queue the root
        pointer of the new tree for the log."""
        memory = segment.attribute_memory
        changes = memory.unpersisted()
        self._dirty_since.pop(segment.segment_id, None)
        if not changes:
            self._metadata.mark_persisted(segment, {}, 0)
        places: AttributeValues = {}
        try:
            while changes and not segment.is_gone:
                batch = self._first_batch(changes)
                persisted = await index.write(
                    {attribute_id: memory.values[attribute_id] for _, attribute_id in batch},
                    sequence_number=batch[-1][0],
                )
                if persisted.sequence_number == batch[-1][0]:
                    del changes[: len(batch)]
                if persisted.root_pointer is None:
                    # The index has not changed: only attributes that it never had were removed.
                    self._metadata.mark_persisted(segment, {}, persisted.sequence_number)
                    continue
                places = {
                    ATTRIBUTE_SEGMENT_ROOT_POINTER: persisted.root_pointer,
                    ATTRIBUTE_SEGMENT_PERSIST_SEQ_NO: persisted.sequence_number,
                }
        finally:
            # One record of the last root pointer is enough, because each tree is complete.
            if places:
                self._unsettled.append((segment, index, self._record(segment, places)))

    def _has_many(self, segment: SegmentMetadata) -> bool:
        return len(segment.attribute_memory.dirty) >= self._policy.attribute_flush_count

    def _first_batch(self, changes: list[tuple[int, AttributeId]]) -> list[tuple[int, AttributeId]]:
        """Return the oldest changes, about ``attribute_update_count``. Changes of one operation are
        in one batch."""
        count = min(self._policy.attribute_update_count, len(changes))
        last = changes[count - 1][0]
        while count < len(changes) and changes[count][0] == last:
            count += 1
        return changes[:count]
