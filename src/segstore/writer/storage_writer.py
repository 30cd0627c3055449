"""Moves a container's committed operations to tier 2 and lets the log go behind them.

Owns: the segment aggregators of one container and the checkpoints that the log may be truncated at.

Invariants:
1. The log is truncated only at a checkpoint, and only when tier 2 has every operation before it.
   Attributes need not be there: what their indexes do not have is in the checkpoint.
2. A failing tier 2 stops nothing: the writer tries again, the log keeps the data, and writers are
   held back when the cache is full.
3. A tier 2 that is not what this writer left there ends it, after some attempts: only a recovery
   asks anew what is there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import structlog
import trio

from segstore.attributes.attribute_indexes import AttributeIndexes
from segstore.durable_log.memory_log import MemoryLog
from segstore.errors import ChunkNotFoundError, InvalidChunkOffsetError, StorageError
from segstore.metadata import ContainerMetadata
from segstore.read_index.read_index import ReadIndex
from segstore.storage.api import SegmentStorage
from segstore.tiers.api import DurableDataLog, LogAddress
from segstore.writer.attribute_aggregator import AttributeAggregator, Record
from segstore.writer.segment_aggregator import SegmentAggregator

# The original's writer: flush at 4 MiB; its 30 s are 5 s here, so that a restart replays less.
FLUSH_BYTES: Final = 4 * 1024 * 1024
FLUSH_SECONDS: Final = 5.0
POLL_SECONDS: Final = 0.5
ERROR_SLEEP_SECONDS: Final = 1.0
STRANGE_ATTEMPTS_MAX: Final = 5
"""So many attempts in a row may find chunks missing, or of other lengths."""
HELD_BYTES_MAX: Final = 256 * 1024 * 1024
"""When a container holds this much of a shared tier 1, it flushes everything and checkpoints."""
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
        held_bytes_max: int = HELD_BYTES_MAX,
    ) -> None:
        self._metadata = metadata
        self._memory_log = memory_log
        self._read_index = read_index
        self._storage = storage
        self._indexes = indexes
        self._attributes = AttributeAggregator(
            metadata, indexes, record, flush_seconds=FLUSH_SECONDS
        )
        self._log = log
        self._request_checkpoint = request_checkpoint
        self._held_bytes_max = held_bytes_max
        self._aggregators: dict[int, SegmentAggregator] = {}
        self._checkpoints: deque[tuple[int, LogAddress]] = deque()
        self._wanted = trio.Event()
        self._flush_all = self._flush_attributes = False
        self._taken_count = 0
        self._lock = trio.Lock()

    @property
    def operation_count(self) -> int:
        """How many operations tier 2 has not taken; while it takes some, these count still."""
        return self._taken_count + len(self._memory_log)

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
            with trio.move_on_after(POLL_SECONDS):
                await self._wanted.wait()
            self._wanted = trio.Event()
            self._let_tier_1_go()
            flush_all, self._flush_all = self._flush_all, False
            attributes, self._flush_attributes = self._flush_attributes, False
            try:
                await self._flush(everything=flush_all, all_attributes=attributes)
                strange_count = 0
            except StorageError as error:
                strange = isinstance(error, ChunkNotFoundError | InvalidChunkOffsetError)
                strange_count = strange_count + 1 if strange else 0
                if strange_count == STRANGE_ATTEMPTS_MAX:
                    raise
                logger.warning(
                    "storage writer tries again",
                    container=self._metadata.container_id,
                    error=str(error),
                )
                self._flush_all |= flush_all
                self._flush_attributes |= attributes
                await trio.sleep(ERROR_SLEEP_SECONDS)

    def _let_tier_1_go(self) -> None:
        """Flush and checkpoint when the container holds much of tier 1, however little is its own.

        The checkpoint is asked for first: once tier 1 is full it could not be written any more.
        """
        if self._log.held_bytes > self._held_bytes_max:
            self._flush_all = True
            if not self._checkpoints:
                self._request_checkpoint()

    async def flush(self) -> None:
        """Write everything that was committed before the call."""
        await self._flush(everything=True, all_attributes=True)

    async def make_room(self) -> None:
        """Write all bytes that were replayed, while the log is still being read."""
        async with self._lock:
            await self._flush_operations(everything=True)

    async def _flush(self, *, everything: bool, all_attributes: bool) -> None:
        """Write what is due, or everything; attributes neither fill the cache nor hold the log."""
        async with self._lock:
            try:
                await self._flush_operations(everything=everything)
                await self._truncate_log()
            finally:
                await self._attributes.flush(trio.current_time(), everything=all_attributes)

    async def _flush_operations(self, *, everything: bool) -> None:
        self._take_operations()
        due = [
            aggregator
            for aggregator in self._aggregators.values()
            if everything or self._is_due(aggregator)
        ]
        try:
            for aggregator in due:
                await aggregator.flush(self._flush_source)
        finally:
            self._aggregators = {
                segment_id: aggregator
                for segment_id, aggregator in self._aggregators.items()
                if not aggregator.is_empty
            }
            self._taken_count = sum(each.operation_count for each in self._aggregators.values())
        self._read_index.note_stored()

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

    def _is_due(self, aggregator: SegmentAggregator) -> bool:
        return (
            aggregator.must_flush
            or aggregator.pending_bytes >= FLUSH_BYTES
            or trio.current_time() - aggregator.oldest >= FLUSH_SECONDS
        )

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

    async def _truncate_log(self) -> None:
        lowest = self._lowest_unflushed()
        address = None
        while self._checkpoints and self._checkpoints[0][0] < lowest:
            _, address = self._checkpoints.popleft()
        if address is not None:
            await self._log.truncate(address)
        elif (
            not self._aggregators
            and not self._memory_log
            and not self._checkpoints
            and self._log.bytes_since_truncation > IDLE_CHECKPOINT_BYTES
        ):
            self._request_checkpoint()
