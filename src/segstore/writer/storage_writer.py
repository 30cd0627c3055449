"""Writes a container's committed operations to tier 2, and truncates the log behind them.

Owns: the segment aggregators of one container, and the checkpoints at which the log may be
truncated. ``flush_policy`` has all sizes and times, ``flush_timing`` decides what is due,
``failing_segments`` which segments pause because tier 2 refuses them.

Invariants:
1. The log is truncated only at a checkpoint, and only when tier 2 has every operation before it.
   Attributes are the exception: the checkpoint contains the ones that their indexes lack.
2. A failing tier 2 stops nothing: the writer tries again, the log keeps the data, and writers are
   held back when the cache is full. A segment that fails alone keeps the log, but blocks no other
   segment.
3. If tier 2 is not as this writer left it, the writer ends after some attempts: only a recovery
   asks again how much tier 2 has.
4. The log is truncated only after a check that this store still owns tier 2. If somebody replaced
   tier 2 or took it over, bytes may be missing there that only the log has.
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
from segstore.errors import PermanentError, StorageError
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
        self._policy = policy
        self._timing = FlushTiming(held_share, policy)
        self._aggregators: dict[int, SegmentAggregator] = {}
        self._failing = FailingSegments(
            metadata.container_id, self._name_of, lambda: log.held_bytes, policy
        )
        self._checkpoints: deque[tuple[int, LogAddress]] = deque()
        self._wanted = trio.Event()
        self._flush_all = self._flush_attributes = False
        self._is_cut = False
        self._checkpoint_wanted_at = -inf
        self._taken_count = 0
        self._copied_at = trio.current_time()
        self._copied_operation = 0
        self._lock = trio.Lock()

    @property
    def operation_count(self) -> int:
        """Return the number of unflushed operations, with the ones whose flush is under way."""
        return self._taken_count + len(self._memory_log)

    @property
    def failing_segments(self) -> dict[str, StorageError]:
        """Return the last error of each segment that tier 2 refuses, by the segment's name."""
        return {
            self._name_of(segment_id): failure.error
            for segment_id, failure in self._failing.failures.items()
        }

    def unflushed_segments(self) -> set[int]:
        """Return the ids of the segments that tier 2 does not have completely.

        Attributes do not count.
        """
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
        """Add a durable checkpoint. The log is truncated there when tier 2 has all before it."""
        self._checkpoints.append((sequence_number, address))
        self._wanted.set()

    async def run(self) -> None:
        """Flush until cancelled.

        Raises ``StorageError`` when tier 2 is not as this writer left it, ``PermanentError`` at
        once.
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
                await self._flush(everything=flush_all, all_attributes=attributes)
                strange_count = 0
            except StorageError as error:
                strange_count = strange_count + 1 if is_strange(error) else 0
                if isinstance(error, PermanentError):
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
        """Flush and request a checkpoint when the container holds much of tier 1.

        Containers share the files of tier 1: one old entry of this container may hold many bytes of
        others. The checkpoint is requested before the flush, because it could not be written once
        tier 1 is full. With many unflushed segments tier 2 always lacks some operations of the last
        seconds, so several checkpoints follow each other, and the log is truncated at the first
        before which tier 2 has everything.
        """
        policy, held_bytes = self._policy, self._log.held_bytes
        self._timing.log_is_long = held_bytes > 2 * policy.held_bytes_max
        if held_bytes <= policy.held_bytes_max:
            return
        now = trio.current_time()
        if len(self._aggregators) <= policy.few_segments:
            self._flush_all = True
            wanted = not self._checkpoints
        else:
            wanted = (
                len(self._checkpoints) < policy.checkpoints_max
                and now - self._checkpoint_wanted_at >= policy.checkpoint_seconds
            )
        if wanted:
            self._checkpoint_wanted_at = now
            self._request_checkpoint()

    async def flush(self) -> None:
        """Flush everything that was committed before the call, or raise ``StorageError``."""
        await self._flush(everything=True, all_attributes=True, tolerate_failures=False)
        while not self._attributes.is_settled:  # the log was slow, and the wait for it is bounded
            await self._flush(everything=True, all_attributes=True, tolerate_failures=False)

    async def make_room(self) -> None:
        """Flush all bytes that were replayed, while the log is still being read.

        Raises ``StorageError``. A strange one (``is_strange``) is raised only when every segment
        was tried and there was no other error. It need not mean that tier 2 was changed: a later
        operation in the log may explain it.
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

    async def _flush(
        self, *, everything: bool, all_attributes: bool, tolerate_failures: bool = True
    ) -> None:
        """Flush what is due, or everything, then truncate the log and flush attributes.

        Raises ``StorageError`` when nothing could be written; without ``tolerate_failures`` also
        when a part could not.
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

        A few attributes wait while more bytes are due: unlike bytes they do not fill the cache, and
        every checkpoint contains them.
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
        """Flush segments, short flushes in parallel.

        Returns the ids of the segments that failed, and whether any flush succeeded. Until the
        first success the segments are tried one by one, and after ``first_failures_max`` failures
        the others are not tried: tier 2 probably fails for all, and each failure may take long.
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
        """Remove from ``due`` what is too much for one round; return whether there was too much.

        Failing segments, which come last, are not removed.
        """
        policy = self._policy
        failing = self._failing.failures
        sound_count = len(due) - sum(each.segment_id in failing for each in due)
        count_max = max(policy.round_flushes_max, len(self._aggregators) // policy.rounds_max)
        del due[count_max:sound_count]
        return sound_count > count_max

    async def _flush_source(self, segment_id: int) -> None:
        aggregator = self._aggregators.get(segment_id)
        if aggregator is not None:
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

        After a failure the next copy is made later: the log has the metadata.
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
        elif (
            not self._aggregators
            and not self._memory_log
            and not self._checkpoints
            and self._log.bytes_since_truncation > self._policy.idle_checkpoint_bytes
        ):
            self._request_checkpoint()
        is_settled = not self._aggregators and not self._memory_log
        if (address is not None or is_settled) and (
            trio.current_time() - self._copied_at >= self._policy.metadata_copy_seconds
        ):
            await self.copy_metadata()

    def _is_short(self, aggregator: SegmentAggregator) -> bool:
        """Return whether only a few appended bytes are unflushed, and no other operation."""
        is_few = aggregator.pending_bytes <= self._policy.short_bytes_max
        return is_few and not aggregator.must_flush
