"""Turns queued operations into durable ones.

Owns: the operation queue of a container, the data frame being filled, and the frames in flight.

Invariants:
1. Operations become durable, take effect and complete in queue order.
2. A frame leaves when it is full, or when the log has nothing of this container in flight: under
   load frames fill up while the log is busy, without load an operation leaves at once.
3. Bytes in flight are bounded; beyond the bound operations wait in the queue.
4. A failed log write fails everything in flight and queued, and ends ``run`` with the error.
5. What waits for attributes to be loaded is put aside with all later operations on its segment, and
   comes back to the front of the queue in the same order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Final

import trio

from _fast.operation_pipeline import accept_appends, commit_appends
from segstore.attributes.prefetch import AttributePrefetcher
from segstore.cache.manager import ROOM_RETRY_SECONDS, CacheManager, block_bytes
from segstore.durable_log.committed_state import CommittedState
from segstore.durable_log.data_frame import DataFrame, FramePool
from segstore.durable_log.update_transaction import (
    AttributesNotLoadedError,
    PendingState,
    UpdateTransaction,
)
from segstore.errors import (
    ContainerOfflineError,
    DataLogError,
    SegmentError,
    SegmentStoreError,
)
from segstore.operations import (
    AppendOperation,
    BarrierOperation,
    CheckpointOperation,
    MapOperation,
    MergeOperation,
    Operation,
    SealOperation,
    TruncateOperation,
)
from segstore.tiers.api import DurableDataLog, LogAddress

IN_FLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024
CHECKPOINT_LOG_BYTES: Final = 64 * 1024 * 1024
"""A checkpoint is written after this many bytes of log, so that recovery reads little more."""
BATCH_BLOCK_BYTES: Final = 1024 * 1024
"""Appends are accepted many at a time; the cache is asked once for up to so much room."""


class OperationProcessor:
    """One per container; ``enqueue`` from anywhere in the event loop, ``run`` in one task."""

    def __init__(
        self,
        log: DurableDataLog,
        state: CommittedState,
        pending: PendingState,
        cache_manager: CacheManager,
        request_flush: Callable[[], None],
        prefetcher: AttributePrefetcher,
    ) -> None:
        self._log = log
        self._state = state
        self._pending = pending
        self._cache_manager = cache_manager
        self._request_flush = request_flush
        self._prefetcher = prefetcher
        prefetcher.give_back = self._enqueue_first
        self._queue: deque[Operation] = deque()
        self._work = trio.Event()
        self._frames = FramePool()
        self._frame = self._frames.take()
        self._transaction = UpdateTransaction()
        self._in_flight: deque[tuple[UpdateTransaction, DataFrame, memoryview]] = deque()
        self._in_flight_bytes = 0
        self._in_flight_block_bytes = 0
        self._bytes_since_checkpoint = 0
        self._checkpoint_waiting = False
        self._checkpoint_address: dict[int, LogAddress] = {}
        self._failure: DataLogError | None = None
        self._closed = False
        self.on_checkpoint: Callable[[int, LogAddress], None] = lambda number, address: None

    @property
    def queued_count(self) -> int:
        """How many operations wait to be put into a frame."""
        return len(self._queue)

    def enqueue(self, operation: Operation) -> None:
        """Queue an operation; it completes when it is durable or refused."""
        if self._closed:
            operation.on_complete(ContainerOfflineError("the container is stopping"), -1)
            return
        self._queue.append(operation)
        self._work.set()

    def enqueue_first(self, operation: Operation) -> None:
        """Queue an operation that does not wait for others: the container's own small ones."""
        if self._closed:
            operation.on_complete(ContainerOfflineError("the container is stopping"), -1)
            return
        self._enqueue_first([operation])

    def _enqueue_first(self, operations: list[Operation]) -> None:
        self._queue.extendleft(reversed(operations))
        self._work.set()

    def request_checkpoint(self) -> None:
        """Write a checkpoint as soon as nothing is in flight."""
        self._checkpoint_waiting = True
        self._work.set()

    async def run(self) -> None:
        """Process operations until cancelled or the log fails."""
        while True:
            await self._work.wait()
            self._work = trio.Event()
            await self._pause()
            while self._advance():
                if not await self._wait_for_room():
                    break
            if self._failure is not None:
                raise self._failure

    def close(self, reason: str) -> None:
        """Refuse everything that is queued or in flight, and all that comes later. Idempotent."""
        self._closed = True
        error = ContainerOfflineError(reason)
        abandoned = [op for transaction, _, _ in self._in_flight for op in transaction.operations]
        abandoned += self._transaction.operations
        abandoned += self._prefetcher.take_all()
        abandoned += self._queue
        self._in_flight.clear()
        self._transaction = UpdateTransaction()
        self._queue.clear()
        for operation in abandoned:
            operation.on_complete(error, -1)

    def _advance(self) -> bool:
        """Put operations into frames; returns whether it stopped for want of cache room."""
        if self._failure is not None or self._closed:
            return False
        if self._checkpoint_waiting:
            if self._frame.is_empty and not self._in_flight:
                self._put_checkpoint()
            else:
                self._submit_if_idle()
                return False
        queue = self._queue
        while queue and self._in_flight_bytes < IN_FLIGHT_BYTES_MAX:
            if self._accept_appends():
                continue
            operation = queue[0]
            payload_bytes = block_bytes(operation.payload_bytes)
            if payload_bytes and not self._cache_manager.has_room(
                self._in_flight_block_bytes + payload_bytes
            ):
                self._submit_if_idle()
                return True
            queue.popleft()
            self._process(operation)
            if operation.sequence_number >= 0:
                self._transaction.block_bytes += payload_bytes
                self._in_flight_block_bytes += payload_bytes
        self._submit_if_idle()
        return False

    def _accept_appends(self) -> bool:
        """Take the appends at the head of the queue that go the usual way; whether any did."""
        queue, first = self._queue, self._queue[0]
        if type(first) is not AppendOperation:
            return False
        if self._prefetcher.held_count:
            return False  # some may have to wait behind what is held
        wanted = min(BATCH_BLOCK_BYTES, len(queue) * block_bytes(first.length or 1))
        if not self._cache_manager.has_room(self._in_flight_block_bytes + wanted):
            return False
        transaction = self._transaction
        count = len(transaction.operations)
        taken = accept_appends(queue, self._pending, self._frame, transaction.operations, wanted)
        transaction.block_bytes += taken
        self._in_flight_block_bytes += taken
        return len(transaction.operations) > count

    async def _pause(self) -> None:
        """Slow writers down while tier 2 lags, before the cache is full and they have to stop."""
        began = trio.current_time()
        while self._queue and self._queue[0].payload_bytes and self._failure is None:
            until = began + self._cache_manager.throttle_seconds()
            now = trio.current_time()
            if now >= until:
                break
            self._request_flush()
            self._submit_if_idle()
            await trio.sleep_until(min(until, now + ROOM_RETRY_SECONDS))

    async def _wait_for_room(self) -> bool:
        """Give the storage writer time to make evictable what fills the cache."""
        self._request_flush()
        # What was queued up to now has been looked at: only news may end the wait early.
        self._work = trio.Event()
        with trio.move_on_after(ROOM_RETRY_SECONDS):
            await self._work.wait()
        return self._failure is None

    def _process(self, operation: Operation) -> None:
        if self._prefetcher.held_count and self._prefetcher.must_wait(operation):
            self._prefetcher.hold(operation)
            return
        if isinstance(operation, BarrierOperation):
            self._pass_barrier(operation)
            return
        try:
            self._pending.accept(operation)
        except AttributesNotLoadedError:
            self._prefetcher.hold(operation)
            return
        except SegmentError as error:
            self._refuse(operation, error)
            return
        self._put(operation)

    def _refuse(self, operation: Operation, error: SegmentError) -> None:
        """Answer with the error once everything before the operation is answered."""

        def answer(barrier_error: SegmentStoreError | None, number: int) -> None:
            operation.on_complete(barrier_error or error, -1)

        self._pass_barrier(BarrierOperation("", answer))

    def _pass_barrier(self, barrier: BarrierOperation) -> None:
        if self._transaction.operations:
            self._transaction.operations.append(barrier)
        elif self._in_flight:
            self._in_flight[-1][0].operations.append(barrier)
        else:
            barrier.on_complete(None, 0)

    def _put(self, operation: Operation) -> list[LogAddress]:
        """Encode into the current frame; returns the addresses of frames that it filled."""
        addresses = [] if operation.put_into(self._frame) else self._put_parts(operation)
        self._transaction.operations.append(operation)
        return addresses

    def _put_parts(self, operation: Operation) -> list[LogAddress]:
        """Spread an operation over frames; all but the last are full and leave."""
        head, body = operation.encode()
        record_bytes = len(head) + len(body)
        addresses = []
        position = self._frame.put_part(head, body, 0)
        while position < record_bytes:
            addresses.append(self._submit())
            position = self._frame.put_part(head, body, position)
        return addresses

    def _put_checkpoint(self) -> None:
        """Open an empty frame with a checkpoint; nothing is in flight, so the state is complete."""
        self._checkpoint_waiting = False
        self._bytes_since_checkpoint = 0
        checkpoint = CheckpointOperation()
        checkpoint.sequence_number = self._pending.next_sequence_number()
        checkpoint.snapshot = self._state.metadata.snapshot(checkpoint.sequence_number)
        addresses = self._put(checkpoint) or [self._submit()]
        self._checkpoint_address[checkpoint.sequence_number] = addresses[0]

    def _submit_if_idle(self) -> None:
        if not self._in_flight and not self._frame.is_empty:
            self._submit()

    def _submit(self) -> LogAddress:
        """Hand the current frame and the operations that end in it to the log."""
        frame, self._frame = self._frame, self._frames.take()
        transaction, self._transaction = self._transaction, UpdateTransaction()
        data = frame.seal()
        self._in_flight.append((transaction, frame, data))
        self._in_flight_bytes += len(data)
        self._bytes_since_checkpoint += len(data)
        return self._log.append_nowait((data,), self._on_durable)

    def _on_durable(self, error: DataLogError | None) -> None:
        if self._closed:
            return
        if error is not None:
            self._failure = error
            self._work.set()
            return
        transaction, frame, data = self._in_flight.popleft()
        self._in_flight_bytes -= len(data)
        data.release()
        self._frames.give_back(frame)
        self._in_flight_block_bytes -= transaction.block_bytes
        self._commit(transaction)
        if self._bytes_since_checkpoint >= CHECKPOINT_LOG_BYTES:
            self._checkpoint_waiting = True
        if self._queue or self._checkpoint_waiting or not self._frame.is_empty:
            self._work.set()

    def _commit(self, transaction: UpdateTransaction) -> None:
        apply, committed = self._state.apply, self._pending.committed
        operations = transaction.operations
        position = 0
        while (position := self._commit_appends(operations, position)) < len(operations):
            operation = operations[position]
            position += 1
            if operation.sequence_number >= 0:
                apply(operation)
            if isinstance(operation, CheckpointOperation):
                address = self._checkpoint_address.pop(operation.sequence_number)
                self.on_checkpoint(operation.sequence_number, address)
            elif not isinstance(operation, BarrierOperation):
                committed(operation)
            operation.on_complete(None, completion_number(operation))

    def _commit_appends(self, operations: list[Operation], position: int) -> int:
        state = self._state
        return commit_appends(
            operations,
            position,
            state.metadata,
            state.memory_log,
            state.read_index,
            self._pending,
            state.now_ms(),
        )


def completion_number(operation: Operation) -> int:
    """The number that the caller of an operation gets."""
    if isinstance(operation, AppendOperation | MergeOperation):
        return operation.offset + operation.length
    if isinstance(operation, SealOperation):
        return operation.length
    if isinstance(operation, TruncateOperation):
        return operation.offset
    if isinstance(operation, MapOperation):
        return operation.segment_id
    return 0
