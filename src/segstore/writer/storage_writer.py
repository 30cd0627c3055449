"""Writes a container's committed operations to tier 2, and truncates the log when tier 2 has them.

Owns: the segment aggregators of one container, and the checkpoints at which the log may be
truncated. ``flush_policy`` has all sizes and times, ``flush_timing`` decides which segments are
due, ``failing_segments`` decides when a segment whose flush failed is tried again.

Invariants:
1. While tier 2 lacks an operation, the log keeps it. The log is truncated only at a checkpoint
   before which tier 2 has every operation. Held by
   ``test_a_log_that_is_truncated_past_what_tier_2_has_is_found``.
2. While tier 2 fails, appends continue, and what they wrote reaches tier 2 once when it works
   again. Held by ``test_a_segment_that_tier_2_takes_again_lets_the_log_go``.
3. When chunks are missing or have another length than this writer left, the writer ends with the
   error after ``strange_attempts_max`` attempts, because only a recovery asks tier 2 again how much
   it has. Held by
   ``test_a_segment_whose_chunks_are_strange_asks_for_a_recovery_although_others_are_fine``.
4. When another store took tier 2 over, or tier 2 was emptied, the log is not truncated: it may have
   the only copy of bytes. Held by ``test_an_owner_that_lost_tier_2_keeps_its_log_and_ends``.

The log of a container has operations 4 (append of 100 bytes to segment a), 5 (60 bytes to b),
6 (50 bytes to a), 7 (checkpoint) and 8 (10 bytes to a).

    flush; tier 2 refuses b     writes 160 bytes of a; the lowest unflushed operation is 5,
                                so the log is not truncated
    flush; tier 2 takes b       writes 60 bytes of b; nothing is unflushed, so the log is truncated
                                at checkpoint 7, and a recovery would replay 7 and 8
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection
from math import inf

import structlog
import trio

from segstore.attributes.attribute_indexes import AttributeIndexes
from segstore.chunks.api import SegmentStorage
from segstore.durable_log.memory_log import MemoryLog
from segstore.errors import (
    PermanentError,
    StorageAbsentError,
    StorageError,
    StorageFullError,
)
from segstore.model.metadata import ContainerMetadata
from segstore.model.operations import MergeOperation
from segstore.read_index.read_index import ReadIndex
from segstore.runtime.clock import next_look
from segstore.runtime.parallel import run_parallel
from segstore.tiers.api import DurableDataLog, LogAddress
from segstore.writer.attribute_aggregator import AttributeAggregator, Record
from segstore.writer.failing_segments import FailingSegments, is_strange
from segstore.writer.flush_policy import FlushPolicy
from segstore.writer.flush_timing import FlushTiming
from segstore.writer.segment_aggregator import SegmentAggregator

logger = structlog.get_logger(__name__)


class StorageWriter:
    """The storage writer of one container. ``run`` is a task of its own."""

    def __init__(
        self,
        metadata: ContainerMetadata,
        memory_log: MemoryLog,
        read_index: ReadIndex,
        storage: SegmentStorage,
        indexes: AttributeIndexes,
        log: DurableDataLog,
        request_checkpoint: Callable[[], None],
        record: Record,
        *,
        policy: FlushPolicy,
        held_share: Callable[[], float],
        log_is_scarce: Callable[[], bool] = lambda: False,
        confirm_owner: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._confirm_owner = confirm_owner
        self._metadata = metadata
        self._memory_log = memory_log
        self._read_index = read_index
        self._storage = storage
        self._indexes = indexes
        self._attributes = AttributeAggregator(metadata, indexes, record, policy)
        self._log = log
        self._request_checkpoint = request_checkpoint
        self._log_is_scarce = log_is_scarce
        self._policy = policy
        self._timing = FlushTiming(held_share, policy)
        self._aggregators: dict[int, SegmentAggregator] = {}
        self._failing = FailingSegments(
            metadata.container_id, self._name_of, lambda: log.held_bytes, policy
        )
        self._checkpoints: deque[tuple[int, LogAddress]] = deque()
        self._failure: StorageError | None = None
        """Error of the last round of ``run``."""
        self._wanted = trio.Event()
        self._flush_all = self._flush_attributes = False
        self._held_at_truncation = -1
        self._checkpointed = -1
        """Sequence number of the last durable checkpoint."""
        self._is_cut = False
        self._checkpoint_wanted_at = -inf
        self._taken_count = 0
        self._copied_at = trio.current_time()
        self._copied_operation = 0
        self._lock = trio.Lock()

    @property
    def operation_count(self) -> int:
        """Return the number of unflushed operations, including those that are being flushed."""
        return self._taken_count + len(self._memory_log)

    @property
    def failing_segments(self) -> dict[str, StorageError]:
        """Return the last error of each segment that tier 2 refuses, by the segment's name."""
        return {
            self._name_of(segment_id): failure.error
            for segment_id, failure in self._failing.failures.items()
        }

    @property
    def failure(self) -> StorageError | None:
        """Return an error with which flushes fail at present, or None. ``StorageFullError`` comes
        before other errors."""
        errors = [failure.error for failure in self._failing.failures.values()]
        if self._failure is not None:
            errors.append(self._failure)
        return min(errors, key=lambda error: not isinstance(error, StorageFullError), default=None)

    def unflushed_segments(self) -> set[int]:
        """Return the ids of the segments with operations that tier 2 lacks. Attributes do not
        count."""
        unflushed = set(self._aggregators)
        for operation in self._memory_log.operations():
            unflushed.add(operation.segment_id)
            if isinstance(operation, MergeOperation):
                unflushed.add(operation.source_id)
        return unflushed

    def request_flush(self, *, attributes: bool = False) -> None:
        """Make ``run`` flush everything now, because the cache or tier 1 is full.

        Attributes are flushed only if ``attributes`` is set.
        """
        self._flush_all = True
        self._flush_attributes |= attributes
        self._wanted.set()

    def add_checkpoint(self, sequence_number: int, address: LogAddress) -> None:
        """Add a durable checkpoint. The log is truncated at its address when tier 2 has all
        operations before it."""
        self._checkpoints.append((sequence_number, address))
        self._checkpointed = sequence_number
        self._wanted.set()

    async def run(self) -> None:
        """Flush until cancelled.

        Raises ``StorageError`` when chunks are not as this writer left them (invariant 3), and
        ``PermanentError`` or ``StorageAbsentError`` at the first failure of this kind.
        """
        strange_count = 0
        while True:
            with trio.move_on_at(self._next_poll()):
                await self._wanted.wait()
            self._wanted = trio.Event()
            self._shorten_long_log()
            flush_all, self._flush_all = self._flush_all, False
            attributes, self._flush_attributes = self._flush_attributes, False
            try:
                await self.flush_once(everything=flush_all, all_attributes=attributes)
                strange_count, self._failure = 0, None
            except StorageError as error:
                self._failure = error
                strange_count = strange_count + 1 if is_strange(error) else 0
                if isinstance(error, PermanentError | StorageAbsentError):
                    raise
                is_changed = strange_count == self._policy.strange_attempts_max
                if is_changed or self._failing.hopeless is not None:
                    raise
                logger.warning(
                    "storage writer tries again",
                    container=self._metadata.container_id,
                    error=str(error),
                )
                self._flush_all |= flush_all
                self._flush_attributes |= attributes
                await trio.sleep(self._policy.retry_seconds)

    def _next_poll(self) -> float:
        if self.operation_count or self._checkpoints:
            return trio.current_time() + self._policy.poll_seconds
        return next_look(self._policy.idle_poll_seconds)

    def _shorten_long_log(self) -> None:
        """Make the next round flush everything, and request a checkpoint, if this container keeps
        more than ``held_bytes_max`` of tier 1 from being freed, or if tier 1 is almost full.

        Containers share the files of tier 1, so one old entry of this container may keep many bytes
        of others. The checkpoint is requested before the flush, because it could not be written
        once tier 1 is full. With many unflushed segments, tier 2 always lacks some operations of
        the last seconds. Then several checkpoints follow each other, and the log is truncated at
        the last one before which tier 2 has everything.
        """
        policy, held_bytes = self._policy, self._log.held_bytes
        self._timing.log_is_long = held_bytes > 2 * policy.held_bytes_max
        has_grown = held_bytes > self._held_at_truncation
        is_scarce = self._log_is_scarce() and has_grown
        if held_bytes <= policy.held_bytes_max and not is_scarce:
            return
        now = trio.current_time()
        is_rested = now - self._checkpoint_wanted_at >= policy.checkpoint_seconds
        if len(self._aggregators) <= policy.few_segments:
            self._flush_all = True
            wanted = not self._checkpoints and (is_rested or (has_grown and not is_scarce))
        else:
            wanted = len(self._checkpoints) < policy.checkpoints_max and is_rested
        if wanted:
            self._checkpoint_wanted_at = now
            self._request_useful_checkpoint()

    def _request_useful_checkpoint(self) -> None:
        """Request a checkpoint if that can free space in tier 1.

        It cannot if no operation has followed the last checkpoint and tier 1 still writes to the
        same file: then one file, or one checkpoint, is longer than the limit.
        """
        is_elsewhere = self._log.held_bytes > self._held_at_truncation
        if is_elsewhere or self._metadata.sequence_number > self._checkpointed:
            self._request_checkpoint()

    async def flush(self) -> None:
        """Flush everything that was committed before the call, or raise ``StorageError``."""
        await self.flush_once(everything=True, all_attributes=True, tolerate_failures=False)
        while not self._attributes.is_settled:  # The bounded wait for the log has ended too early.
            await self.flush_once(everything=True, all_attributes=True, tolerate_failures=False)

    async def make_room(self) -> None:
        """Flush all bytes that a recovery has replayed so far.

        Raises ``StorageError``. One for which ``is_strange`` is true is raised only if each segment
        was tried and no other error occurred; a later operation in the log may explain it, so it
        does not prove that tier 2 was changed.
        """
        failing: Collection[int] = ()
        async with self._lock:
            try:
                while failure := await self._flush_operations(
                    everything=True, tolerate_failures=False
                ):
                    errors = [each.error for each in self._failing.failures.values()]
                    if other := next((each for each in errors if not is_strange(each)), None):
                        raise other
                    if self._failing.failures.keys() <= set(failing):
                        raise failure
                    failing = list(self._failing.failures)
            finally:
                self._failing.forget_others(())

    async def flush_once(
        self, *, everything: bool, all_attributes: bool, tolerate_failures: bool = True
    ) -> None:
        """Flush the segments that are due, or all, then truncate the log and flush attributes.

        Raises ``StorageError`` when no segment could be flushed; without ``tolerate_failures`` also
        when one could not.
        """
        async with self._lock:
            try:
                failure = await self._flush_operations(
                    everything=everything, tolerate_failures=tolerate_failures
                )
                await self._truncate_log()
                if failure is not None:
                    raise failure
            finally:
                if not self._attributes_wait(all_attributes) and await self._attributes.flush(
                    trio.current_time(), everything=all_attributes
                ):
                    self._flush_attributes |= all_attributes
                    self._wanted.set()

    def _attributes_wait(self, all_attributes: bool) -> bool:
        """Return whether attributes wait for the next round.

        A few attributes wait while more segments are due: attributes do not fill the cache, and
        each checkpoint contains them.
        """
        return (
            self._is_cut
            and not all_attributes
            and self._attributes.is_settled
            and self._metadata.dirty_count <= self._policy.few_dirty_attributes
        )

    async def _flush_operations(
        self, *, everything: bool, tolerate_failures: bool
    ) -> StorageError | None:
        self._distribute_operations()
        now = trio.current_time()
        due = self._failing.order(
            self._timing.due(self._aggregators, now, everything=everything),
            now if tolerate_failures else None,
        )
        self._is_cut = tolerate_failures and self._limit_round(due)
        if self._is_cut:
            self._wanted.set()
            if everything:
                self._timing.make_everything_due(now)
        for aggregator in due:
            self._read_index.record_flush_begun(aggregator.segment_id)
        try:
            failed, succeeded = await self._flush_due(due)
            if failed and not (tolerate_failures and succeeded):
                return self._failing.failures[failed[0]].error
            return self._failing.hopeless
        finally:
            self._aggregators = {
                segment_id: aggregator
                for segment_id, aggregator in self._aggregators.items()
                if not aggregator.is_empty
            }
            self._failing.forget_others(self._aggregators.keys())
            self._taken_count = sum(each.operation_count for each in self._aggregators.values())
            self._read_index.record_flushed()

    async def _flush_due(self, due: list[SegmentAggregator]) -> tuple[list[int], bool]:
        """Flush segments, the short ones at the same time. Return the ids of those that failed, and
        whether any succeeded.

        Until the first success, segments are tried one by one. After ``first_failures_max``
        failures the others are not tried: tier 2 probably fails for all, and each failure may take
        long.
        """
        failed: list[int] = []
        succeeded = False
        remaining = iter(due)
        while not succeeded and len(failed) < self._policy.first_failures_max:
            aggregator = next(remaining, None)
            if aggregator is None:
                break
            succeeded = await self._flush_one(aggregator, failed)
        if succeeded:
            short: list[SegmentAggregator] = []
            others: list[SegmentAggregator] = []
            for aggregator in remaining:
                (short if self._is_short(aggregator) else others).append(aggregator)

            async def flush_short(aggregator: SegmentAggregator) -> None:
                await self._flush_one(aggregator, failed)

            await run_parallel(short, flush_short, tasks_max=self._policy.short_flushes_max)
            for aggregator in others:
                await self._flush_one(aggregator, failed)
        self._failing.pause(failed, trio.current_time())
        return failed, succeeded

    async def _flush_one(self, aggregator: SegmentAggregator, failed: list[int]) -> bool:
        """Flush one segment and return True; on a failure add its id to ``failed``."""
        try:
            await aggregator.flush(self._flush_source)
        except StorageError as error:
            self._failing.record_failure(aggregator.segment_id, error)
            failed.append(aggregator.segment_id)
            return False
        self._failing.record_success(aggregator.segment_id)
        return True

    def _name_of(self, segment_id: int) -> str:
        segment = self._metadata.segments.get(segment_id)
        return f"of id {segment_id}" if segment is None else segment.name

    def _distribute_operations(self) -> None:
        """Move all operations from the memory log to the aggregators of their segments."""
        now = trio.current_time()
        operations = self._memory_log.remove_all()
        self._taken_count += len(operations)
        for operation in operations:
            self._aggregator(operation.segment_id, now).add(operation, now)

    def _aggregator(self, segment_id: int, now: float) -> SegmentAggregator:
        aggregator = self._aggregators.get(segment_id)
        if aggregator is None:
            aggregator = SegmentAggregator(
                segment_id,
                self._metadata,
                self._read_index,
                self._storage,
                self._indexes,
                now,
                self._policy,
            )
            self._aggregators[segment_id] = aggregator
        return aggregator

    def _limit_round(self, due: list[SegmentAggregator]) -> bool:
        """Remove from ``due`` the segments that are too many for one round. Return whether there
        were too many.

        Failing segments, which are at the end of the list, stay in it.
        """
        policy = self._policy
        failing = self._failing.failures
        sound_count = len(due) - sum(each.segment_id in failing for each in due)
        count_max = max(policy.round_flushes_max, len(self._aggregators) // policy.rounds_max)
        del due[count_max:sound_count]
        return sound_count > count_max

    async def _flush_source(self, segment_id: int, is_stored: bool) -> None:
        """Flush a merged segment. If the target has its bytes (``is_stored``), flush only the
        merges into it."""
        aggregator = self._aggregators.get(segment_id)
        if aggregator is not None:
            if is_stored:
                aggregator.discard_bytes()
            await aggregator.flush(self._flush_source)

    def _lowest_unflushed(self) -> int:
        """Return the sequence number below which tier 2 has every operation."""
        numbers = [
            number
            for aggregator in self._aggregators.values()
            if (number := aggregator.first_sequence_number()) is not None
        ]
        if (number := self._memory_log.first_sequence_number()) is not None:
            numbers.append(number)
        return min(numbers, default=self._metadata.sequence_number + 1)

    async def copy_metadata(self) -> None:
        """Copy the container's metadata to tier 2 if they have changed since the last copy.

        A ``StorageError`` is logged, not raised: the log has the metadata, too.
        """
        sequence_number = self._metadata.sequence_number
        if sequence_number == self._copied_operation or not self._metadata.segments:
            return
        self._copied_at = trio.current_time()
        try:
            snapshot = self._metadata.encode(sequence_number)
            await self._storage.keep_container(snapshot, sequence_number)
            self._copied_operation = sequence_number
        except StorageError as error:
            logger.warning(
                "metadata are copied to tier 2 later",
                container=self._metadata.container_id,
                error=str(error),
            )

    async def _truncate_log(self) -> None:
        lowest = self._lowest_unflushed()
        passed = sum(number < lowest for number, _ in self._checkpoints)
        address = self._checkpoints[passed - 1][1] if passed else None
        if address is not None:
            if self._confirm_owner is not None:
                await self._confirm_owner()
            for _ in range(passed):
                self._checkpoints.popleft()
            await self._log.truncate(address)
            self._held_at_truncation = self._log.held_bytes
        elif (
            not self._aggregators
            and not self._memory_log
            and not self._checkpoints
            and self._log.bytes_since_truncation > self._policy.idle_checkpoint_bytes
        ):
            self._request_useful_checkpoint()
        is_settled = not self._aggregators and not self._memory_log
        if (address is not None or is_settled) and (
            trio.current_time() - self._copied_at >= self._policy.metadata_copy_seconds
        ):
            await self.copy_metadata()

    def _is_short(self, aggregator: SegmentAggregator) -> bool:
        """Return whether at most ``short_bytes_max`` appended bytes are unflushed, and no other
        operation."""
        is_few = aggregator.pending_bytes <= self._policy.short_bytes_max
        return is_few and not aggregator.must_flush
