"""Moves a container's committed operations to tier 2 and lets the log go behind them.

Owns: the segment aggregators of one container and the checkpoints that the log may be truncated at;
``failing_segments`` tells which of them wait because tier 2 refuses them.

Invariants:
1. The log is truncated only at a checkpoint, and only when tier 2 has every operation before it.
   Attributes need not be there: what their indexes do not have is in the checkpoint.
2. A failing tier 2 stops nothing: the writer tries again, the log keeps the data, and writers are
   held back when the cache is full. A segment that fails alone keeps the log, and no other segment.
3. A tier 2 that is not what this writer left there ends it, after some attempts: only a recovery
   asks anew what is there.
4. The log is truncated only after a look at who owns tier 2: what somebody else replaced or took
   over meanwhile may lack what was written, and the log has it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Collection
from math import inf
from typing import Final

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
from segstore.runtime.parallel import work_together
from segstore.tiers.api import DurableDataLog, LogAddress
from segstore.writer.attribute_aggregator import FEW_DIRTY, AttributeAggregator, Record
from segstore.writer.failing_segments import STRANGE_ATTEMPTS_MAX, FailingSegments, is_strange
from segstore.writer.flush_timing import FEW_SEGMENTS, FLUSH_SECONDS, SHORT_BYTES_MAX, FlushTiming
from segstore.writer.segment_aggregator import SegmentAggregator

FLUSH_SECONDS_FEW_ATTRIBUTES: Final = 30.0
"""The original's time. Many attributes wait as long as the bytes of few segments."""
POLL_SECONDS: Final = 0.5
IDLE_POLL_SECONDS: Final = 1.0
ERROR_SLEEP_SECONDS: Final = 1.0
TOGETHER_MAX: Final = 32
ROUND_MAX: Final = 128
"""Flushes between two looks at what has come since, at the log and at attributes."""
ROUNDS_MAX: Final = 16
"""For what is owed at once: each round looks at all who owe something."""
FAILURES_MAX: Final = 4
"""So many segments in a row may fail before the rest waits for the next attempt."""
HELD_BYTES_MAX: Final = 256 * 1024 * 1024
"""When a container holds this much of a shared tier 1, it flushes everything and checkpoints; when
many segments owe something, it does not let them wait for more bytes at twice as much."""
CHECKPOINT_SECONDS: Final = 2.5
CHECKPOINTS_MAX: Final = 8
"""So many checkpoints wait for tier 2 meanwhile, and so long is it from one to the next."""
KEEP_SECONDS: Final = 60.0
"""At least from one copy of the container's metadata in tier 2 to the next."""
IDLE_CHECKPOINT_BYTES: Final = 4 * 1024 * 1024
"""When everything is flushed and the log is longer than this, a checkpoint lets it go."""

logger = structlog.get_logger(__name__)


class StorageWriter:
    """One per container; ``run`` in one task."""

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
        held_share: Callable[[], float],
        held_bytes_max: int = HELD_BYTES_MAX,
        confirm_owner: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        self._confirm_owner = confirm_owner
        self._metadata = metadata
        self._memory_log = memory_log
        self._read_index = read_index
        self._storage = storage
        self._indexes = indexes
        self._attributes = AttributeAggregator(
            metadata,
            indexes,
            record,
            flush_seconds=FLUSH_SECONDS,
            flush_seconds_few=FLUSH_SECONDS_FEW_ATTRIBUTES,
        )
        self._log = log
        self._request_checkpoint = request_checkpoint
        self._held_bytes_max = held_bytes_max
        self._timing = FlushTiming(held_share)
        self._aggregators: dict[int, SegmentAggregator] = {}
        self._failing = FailingSegments(
            metadata.container_id, self._name_of, lambda: log.held_bytes
        )
        self._checkpoints: deque[tuple[int, LogAddress]] = deque()
        self._wanted = trio.Event()
        self._flush_all = self._flush_attributes = False
        self._is_cut = False
        self._checkpoint_wanted_at = -inf
        self._taken_count = 0
        self._kept_at = trio.current_time()
        self._kept_operation = 0
        self._lock = trio.Lock()

    @property
    def operation_count(self) -> int:
        """How many operations tier 2 has not taken; while it takes some, these count still."""
        return self._taken_count + len(self._memory_log)

    @property
    def failing_segments(self) -> dict[str, StorageError]:
        """What the last attempt failed at, of the segments that tier 2 refuses."""
        return {
            self._name_of(segment_id): failure.error
            for segment_id, failure in self._failing.failures.items()
        }

    def owed_segments(self) -> set[int]:
        """The segments of which tier 2 lacks something, but for attributes."""
        owed = set(self._aggregators)
        for operation in self._memory_log.waiting():
            owed.add(operation.segment_id)
            if isinstance(operation, MergeOperation):
                owed.add(operation.source_id)
        return owed

    def request_flush(self, *, attributes: bool = False) -> None:
        """Write everything soon: what holds it is full. Attributes only when asked for."""
        self._flush_all = True
        self._flush_attributes |= attributes
        self._wanted.set()

    def add_checkpoint(self, sequence_number: int, address: LogAddress) -> None:
        """Note a durable checkpoint; the log is truncated there once tier 2 has caught up."""
        self._checkpoints.append((sequence_number, address))
        self._wanted.set()

    async def run(self) -> None:
        """Flush until cancelled, or until tier 2 is found to be another than it was left."""
        strange_count = 0
        while True:
            with trio.move_on_at(self._next_poll()):
                await self._wanted.wait()
            self._wanted = trio.Event()
            self._let_tier_1_go()
            flush_all, self._flush_all = self._flush_all, False
            attributes, self._flush_attributes = self._flush_attributes, False
            try:
                await self._flush(everything=flush_all, all_attributes=attributes)
                strange_count = 0
            except StorageError as error:
                strange_count = strange_count + 1 if is_strange(error) else 0
                if isinstance(error, PermanentError):
                    raise
                if strange_count == STRANGE_ATTEMPTS_MAX or self._failing.hopeless is not None:
                    raise
                logger.warning(
                    "storage writer tries again",
                    container=self._metadata.container_id,
                    error=str(error),
                )
                self._flush_all |= flush_all
                self._flush_attributes |= attributes
                await trio.sleep(ERROR_SLEEP_SECONDS)

    def _next_poll(self) -> float:
        if self.operation_count or self._checkpoints:
            return trio.current_time() + POLL_SECONDS
        return next_look(IDLE_POLL_SECONDS)

    def _let_tier_1_go(self) -> None:
        """Flush and checkpoint when the container holds much of tier 1, however little is its own.

        The checkpoint is asked for first: once tier 1 is full it could not be written any more.
        Where many segments take their turns, tier 2 lacks something of the last seconds always:
        checkpoints follow each other, and the first that it has all of lets the log go.
        """
        held_bytes = self._log.held_bytes
        self._timing.log_is_long = held_bytes > 2 * self._held_bytes_max
        if held_bytes <= self._held_bytes_max:
            return
        now = trio.current_time()
        if len(self._aggregators) <= FEW_SEGMENTS:
            self._flush_all = True
            wanted = not self._checkpoints
        else:
            wanted = (
                len(self._checkpoints) < CHECKPOINTS_MAX
                and now - self._checkpoint_wanted_at >= CHECKPOINT_SECONDS
            )
        if wanted:
            self._checkpoint_wanted_at = now
            self._request_checkpoint()

    async def flush(self) -> None:
        """Write everything that was committed before the call, else raise ``StorageError``."""
        await self._flush(everything=True, all_attributes=True, whatever_fails=False)
        while not self._attributes.is_settled:  # the log stands still, and was not waited for
            await self._flush(everything=True, all_attributes=True, whatever_fails=False)

    async def make_room(self) -> None:
        """Write all bytes that were replayed, while the log is still being read.

        Raises ``StorageError``: a strange one only when everything was tried, and nothing failed
        otherwise. It is no sign of another tier 2 yet: the log may tell further on why it is so.
        """
        failing: Collection[int] = ()
        async with self._lock:
            try:
                while failure := await self._flush_operations(
                    everything=True, whatever_fails=False
                ):
                    errors = [each.error for each in self._failing.failures.values()]
                    if other := next((each for each in errors if not is_strange(each)), None):
                        raise other
                    if self._failing.failures.keys() <= set(failing):
                        raise failure
                    failing = list(self._failing.failures)
            finally:
                self._failing.keep(())

    async def _flush(
        self, *, everything: bool, all_attributes: bool, whatever_fails: bool = True
    ) -> None:
        """Write what is due, or everything; attributes neither fill the cache nor hold the log: few
        of them wait while bytes do.

        Raises ``StorageError`` when nothing could be written, or, unless it may go on
        ``whatever_fails``, when something could not.
        """
        async with self._lock:
            try:
                failure = await self._flush_operations(
                    everything=everything, whatever_fails=whatever_fails
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
        """Whether more bytes are due, and attributes are few: every checkpoint has these."""
        return (
            self._is_cut
            and not all_attributes
            and self._attributes.is_settled
            and self._metadata.dirty_count <= FEW_DIRTY
        )

    async def _flush_operations(
        self, *, everything: bool, whatever_fails: bool
    ) -> StorageError | None:
        self._take_operations()
        now = trio.current_time()
        due = self._failing.in_turn(
            self._timing.due(self._aggregators, now, everything=everything),
            now if whatever_fails else None,
        )
        self._is_cut = whatever_fails and self._cut(due)
        if self._is_cut:
            self._wanted.set()
            if everything:
                self._timing.want_everything(now)
        for aggregator in due:
            self._read_index.note_storing(aggregator.segment_id)
        try:
            failed, succeeded = await self._flush_in_turn(due)
            if failed and not (whatever_fails and succeeded):
                return self._failing.failures[failed[0]].error
            return self._failing.hopeless
        finally:
            self._aggregators = {
                segment_id: aggregator
                for segment_id, aggregator in self._aggregators.items()
                if not aggregator.is_empty
            }
            self._failing.keep(self._aggregators.keys())
            self._taken_count = sum(each.operation_count for each in self._aggregators.values())
            self._read_index.note_stored()

    async def _flush_in_turn(self, due: list[SegmentAggregator]) -> tuple[list[int], bool]:
        """Write what segments owe, short writes together; returns the ids of those that failed, and
        whether any succeeded.

        Until one succeeds they go one by one, and end when the first ``FAILURES_MAX`` fail: tier 2
        fails for all then, and slowly maybe.
        """
        failed: list[int] = []
        succeeded = False
        in_turn = iter(due)
        while not succeeded and len(failed) < FAILURES_MAX:
            aggregator = next(in_turn, None)
            if aggregator is None:
                break
            succeeded = await self._flush_one(aggregator, failed)
        if succeeded:
            short: list[SegmentAggregator] = []
            others: list[SegmentAggregator] = []
            for aggregator in in_turn:
                (short if _is_short(aggregator) else others).append(aggregator)

            async def flush_short(aggregator: SegmentAggregator) -> None:
                await self._flush_one(aggregator, failed)

            await work_together(short, flush_short, tasks_max=TOGETHER_MAX)
            for aggregator in others:
                await self._flush_one(aggregator, failed)
        self._failing.pause(failed, trio.current_time())
        return failed, succeeded

    async def _flush_one(self, aggregator: SegmentAggregator, failed: list[int]) -> bool:
        """Whether what it owes could be written; else it is among the failed."""
        try:
            await aggregator.flush(self._flush_source)
        except StorageError as error:
            self._failing.note_failure(aggregator.segment_id, error)
            failed.append(aggregator.segment_id)
            return False
        self._failing.note_success(aggregator.segment_id)
        return True

    def _name_of(self, segment_id: int) -> str:
        segment = self._metadata.segments.get(segment_id)
        return f"of id {segment_id}" if segment is None else segment.name

    def _take_operations(self) -> None:
        now = trio.current_time()
        operations = self._memory_log.take()
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
            )
            self._aggregators[segment_id] = aggregator
        return aggregator

    def _cut(self, due: list[SegmentAggregator]) -> bool:
        """Leave what is too much for one round to the next, but none of those that fail: they come
        behind all others. Returns whether there was too much."""
        failing = self._failing.failures
        sound_count = len(due) - sum(each.segment_id in failing for each in due)
        count_max = max(ROUND_MAX, len(self._aggregators) // ROUNDS_MAX)
        del due[count_max:sound_count]
        return sound_count > count_max

    async def _flush_source(self, segment_id: int) -> None:
        aggregator = self._aggregators.get(segment_id)
        if aggregator is not None:
            await aggregator.flush(self._flush_source)

    def _lowest_unflushed(self) -> int:
        """Tier 2 has every operation below this sequence number."""
        numbers = [
            number
            for aggregator in self._aggregators.values()
            if (number := aggregator.first_sequence_number()) is not None
        ]
        if (number := self._memory_log.first_sequence_number()) is not None:
            numbers.append(number)
        return min(numbers, default=self._metadata.sequence_number + 1)

    async def keep_container(self) -> None:
        """Keep a copy of the container's metadata in tier 2, if they have changed since the last.

        The log has them: a copy that fails is made another time.
        """
        sequence_number = self._metadata.sequence_number
        if sequence_number == self._kept_operation or not self._metadata.segments:
            return
        self._kept_at = trio.current_time()
        try:
            snapshot = self._metadata.encode(sequence_number)
            await self._storage.keep_container(snapshot, sequence_number)
            self._kept_operation = sequence_number
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
            and self._log.bytes_since_truncation > IDLE_CHECKPOINT_BYTES
        ):
            self._request_checkpoint()
        is_settled = not self._aggregators and not self._memory_log
        if (address is not None or is_settled) and (
            trio.current_time() - self._kept_at >= KEEP_SECONDS
        ):
            await self.keep_container()


def _is_short(aggregator: SegmentAggregator) -> bool:
    """Whether it owes a few appended bytes, and nothing that concerns other segments."""
    return not aggregator.must_flush and aggregator.pending_bytes <= SHORT_BYTES_MAX
