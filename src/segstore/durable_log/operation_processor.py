"""Makes queued operations durable, and lets them take effect.

Owns: the operation queue of a container, the data frame being filled, and the frames in flight.

Invariants:
1. Operations become durable, take effect and complete in queue order.
2. A frame leaves when it is full, when the log has nothing of this container in flight, or when
   fewer and shorter frames are in flight than the log makes durable at the same time: under load
   frames fill up while the log is busy, without load an operation leaves at once.
3. Bytes in flight are bounded; beyond the bound operations wait in the queue.
4. A failed log write fails everything in flight and queued, and ends ``run`` with the error.
5. While the throttle or the cache holds writes back, operations that free memory and those of
   system segments go on, unless another operation on the same segment waits before them.
6. An operation that waits for attributes is held together with all later operations on its segment,
   and they return to the front of the queue in the same order.
7. While ``run`` only waits for work, the queue is processed at the end of the reactor's step that
   filled it (``runtime.reactor``); anything that has to wait is left to ``run``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from itertools import takewhile
from math import inf
from typing import Final

import trio

from _fast.log.operation_pipeline import accept_appends, commit_appends
from segstore.cache.manager import ROOM_RETRY_SECONDS, CacheManager, block_bytes
from segstore.durable_log.committed_state import CommittedState
from segstore.durable_log.data_frame import DataFrame, FramePool
from segstore.durable_log.overtaking import Overtakers, segment_names
from segstore.durable_log.prefetch import AttributePrefetcher
from segstore.durable_log.priorities import Priority, is_own_record, priority_of
from segstore.durable_log.update_transaction import (
    AttributesNotLoadedError,
    PendingState,
    UpdateTransaction,
)
from segstore.errors import ContainerOfflineError, DataLogError, SegmentError
from segstore.model.operations import (
    AppendOperation,
    BarrierOperation,
    CheckpointOperation,
    MapOperation,
    MergeOperation,
    Operation,
    RefusedOperation,
    SealOperation,
    TruncateOperation,
)
from segstore.runtime.reactor import DeferredWork, current_reactor
from segstore.throttling.throttle import Throttle
from segstore.tiers.api import DurableDataLog, LogAddress

IN_FLIGHT_BYTES_MAX: Final = 16 * 1024 * 1024
"""Maximum of bytes in frames that are not durable yet."""
OVERLAPPING_BYTES_MAX: Final = 128 * 1024
"""With so many bytes in flight a frame waits to be full, even where entries overlap: this is the
throughput at which an entry's own cost matters more than its wait."""
CHECKPOINT_LOG_BYTES: Final = 64 * 1024 * 1024
"""Number of bytes of log after which a checkpoint is written, so that recovery reads little more.
"""
BATCH_BLOCK_BYTES: Final = 1024 * 1024
"""Maximum of cache room for the appends that are accepted at once."""
GRANT_BYTES: Final = BATCH_BLOCK_BYTES
"""Bytes of users' writes that pass after each delay of the throttle."""
OPERATION_GRANT_BYTES: Final = 512
"""Minimum that one operation counts against a grant, in bytes."""


class OperationProcessor:
    """One per container; ``enqueue`` from anywhere in the event loop, ``run`` in one task."""

    def __init__(
        self,
        log: DurableDataLog,
        state: CommittedState,
        pending: PendingState,
        cache_manager: CacheManager,
        throttle: Throttle,
        request_flush: Callable[[], None],
        prefetcher: AttributePrefetcher,
        on_checkpoint: Callable[[int, LogAddress], None],
    ) -> None:
        self._log = log
        self._overlapping_entries = log.overlapping_entries
        self._state = state
        self._pending = pending
        self._cache_manager = cache_manager
        self._throttle = throttle
        self._request_flush = request_flush
        self._prefetcher = prefetcher
        prefetcher.requeue = self._enqueue_first
        self._queue: deque[Operation] = deque()
        self._overtakers = Overtakers(self._queue)
        self._delayed_since: float | None = None
        self._resume_at = 0.0
        self._submitted_at: deque[float] = deque()
        self._work = DeferredWork(
            current_reactor(), _leave_to_task if throttle.is_batching else self._advance
        )
        self._frames = FramePool()
        self._frame = self._frames.get()
        self._transaction = UpdateTransaction()
        self._in_flight: deque[tuple[UpdateTransaction, DataFrame, memoryview]] = deque()
        self._in_flight_bytes = 0
        self._bytes_since_checkpoint = 0
        self._checkpoint_waiting = False
        self._checkpoint_address: dict[int, LogAddress] = {}
        self._failure: DataLogError | None = None
        self._closed = False
        self._on_checkpoint = on_checkpoint

    def enqueue(self, operation: Operation) -> None:
        """Queue an operation; it completes when it is durable or refused."""
        if self._closed:
            operation.on_complete(ContainerOfflineError("the container is stopping"), -1)
            return
        self._queue.append(operation)
        self._work.request()

    def enqueue_first(self, operation: Operation) -> None:
        """Queue an operation that does not wait for others: the container's own small ones."""
        if self._closed:
            operation.on_complete(ContainerOfflineError("the container is stopping"), -1)
            return
        self._enqueue_first([operation])

    def _enqueue_first(self, operations: list[Operation]) -> None:
        self._queue.extendleft(reversed(operations))
        self._overtakers.reset()
        self._work.request()

    def request_checkpoint(self) -> None:
        """Write a checkpoint as soon as nothing is in flight."""
        self._checkpoint_waiting = True
        self._work.wake()

    async def run(self) -> None:
        """Process operations until cancelled or the log fails."""
        while True:
            await self._work.wait()
            if self._throttle.is_batching:
                await self._wait_for_more()
            while self._advance():
                if not await self._wait_for_room():
                    break
            if self._failure is not None:
                raise self._failure

    def close(self, reason: str) -> None:
        """Refuse all operations that are queued or in flight, and later ones. Idempotent."""
        self._closed = True
        error = ContainerOfflineError(reason)
        transactions = [*(transaction for transaction, _, _ in self._in_flight), self._transaction]
        abandoned = [operation for each in transactions for operation in each.unanswered]
        self._cache_manager.in_flight_bytes -= sum(each.block_bytes for each in transactions)
        abandoned += self._prefetcher.remove_all()
        abandoned += self._queue
        self._in_flight.clear()
        self._transaction = UpdateTransaction()
        self._queue.clear()
        with ExitStack() as answers:  # one that fails does not prevent the others
            for operation in reversed(abandoned):
                answers.callback(operation.on_complete, error, -1)

    def _advance(self) -> bool:
        """Put queued operations into frames; return whether some are held back, for which ``run``
        has to wait."""
        if self._failure is not None or self._work.defect is not None or self._closed:
            return False
        if self._checkpoint_waiting:
            if self._in_flight:
                return False
            if not self._frame.is_empty:
                self._submit()
                return False
            self._put_checkpoint()
        queue = self._queue
        is_held_back = bool(queue) and not self._process_head(self._grant())
        if is_held_back:
            self._process_passing()
        if not self._frame.is_empty and (not self._in_flight or self._may_overlap()):
            self._submit()
        return is_held_back

    def _may_overlap(self) -> bool:
        """Return whether a frame that is not full becomes durable sooner when it leaves beside
        those in flight."""
        return (
            len(self._in_flight) < self._overlapping_entries
            and self._in_flight_bytes < OVERLAPPING_BYTES_MAX
        )

    def _process_head(self, grant: float) -> bool:
        """Process operations from the head of the queue; returns False when the next has to wait.

        ``grant`` is the number of bytes of users' writes that may pass; infinite without a delay.
        """
        queue = self._queue
        while queue and self._in_flight_bytes < IN_FLIGHT_BYTES_MAX:
            operation = queue[0]
            priority = priority_of(operation) if grant < inf else Priority.USER
            if priority is Priority.USER:
                waits = grant <= 0
            else:
                waits = priority is Priority.SYSTEM and self._throttle.system_stops
            if waits:
                return False
            if priority is Priority.USER and (taken := self._accept_appends(grant)):
                grant -= taken
                continue
            if not self._has_room(operation):
                return False
            self._overtakers.removed_head((queue.popleft(),))
            self._process_with_room(operation)
            if priority is Priority.USER:
                grant -= max(OPERATION_GRANT_BYTES, block_bytes(operation.payload_bytes))
        return True

    def _has_room(self, operation: Operation) -> bool:
        if not operation.payload_bytes:
            return True
        return self._cache_manager.has_room(
            block_bytes(operation.payload_bytes),
            system=priority_of(operation) is Priority.SYSTEM,
        )

    def _process_with_room(self, operation: Operation) -> None:
        payload_bytes = block_bytes(operation.payload_bytes)
        self._process(operation)
        if operation.sequence_number >= 0:
            self._transaction.block_bytes += payload_bytes
            self._cache_manager.in_flight_bytes += payload_bytes

    def _accept_appends(self, grant: float) -> float:
        """Accept many appends from the head of the queue at once; return the part of the grant
        that they use. Returns 0 if the first operation has to be processed alone.
        """
        queue, first = self._queue, self._queue[0]
        if type(first) is not AppendOperation:
            return 0
        if self._prefetcher.held_count:
            return 0  # some may have to wait behind held operations
        wanted = min(BATCH_BLOCK_BYTES, len(queue) * block_bytes(first.length or 1))
        if grant < wanted:
            wanted = max(int(grant), block_bytes(first.length or 1))
        if not self._cache_manager.has_room(wanted):
            return 0
        transaction = self._transaction
        count = len(transaction.operations)
        before = tuple(queue) if self._overtakers.has_seen else ()
        taken = accept_appends(queue, self._pending, self._frame, transaction.operations, wanted)
        if before:
            left = queue[0] if queue else None
            self._overtakers.removed_head(
                takewhile(lambda operation: operation is not left, before)
            )
        transaction.block_bytes += taken
        self._cache_manager.in_flight_bytes += taken
        return max(taken, OPERATION_GRANT_BYTES * (len(transaction.operations) - count))

    def _grant(self) -> float:
        """Return how many bytes of users' writes may pass now; infinite without a delay."""
        now = trio.current_time()
        seconds = self._throttle.delay_seconds(now)
        if seconds <= 0:
            self._delayed_since = None
            return inf
        if self._delayed_since is None:
            self._delayed_since = now
        self._resume_at = self._delayed_since + seconds
        if now < self._resume_at:
            return 0
        self._delayed_since = now
        self._resume_at = now + seconds
        return GRANT_BYTES

    def _process_passing(self) -> None:
        """Process operations that may pass the ones which are held back."""
        lowest = Priority.RELIEF
        if not self._throttle.system_stops and self._cache_manager.has_room(
            block_bytes(1), system=True
        ):
            lowest = Priority.SYSTEM
        without_room: list[Operation] = []
        names: set[str] = set()
        passing = self._overtakers.remove_passing(lowest=lowest)
        self._queue.extendleft(reversed(passing))
        try:
            for _ in passing:
                operation = self._queue.popleft()
                in_order = is_own_record(operation) or names.isdisjoint(segment_names(operation))
                if in_order and self._has_room(operation):
                    self._process_with_room(operation)
                else:
                    without_room.append(operation)
                    names.update(segment_names(operation))
        finally:
            if without_room:
                self._enqueue_first(without_room)

    async def _wait_for_room(self) -> bool:
        """Wait a moment for the storage writer to make room; return whether to go on."""
        self._request_flush()
        # The whole queue was looked at: only new operations may end the wait early.
        self._work.forget_wake()
        seconds = self._resume_at - trio.current_time()
        if not 0 < seconds < ROOM_RETRY_SECONDS:
            seconds = ROOM_RETRY_SECONDS
        with trio.move_on_after(seconds):
            await self._work.wait_for_request()
        return self._failure is None

    async def _wait_for_more(self) -> None:
        """Wait for more operations to fill the next frame, if a batching delay is configured."""
        if self._checkpoint_waiting or not self._queue or self._in_flight:
            return
        seconds = self._throttle.batching_seconds()
        if seconds > 0:
            await trio.sleep(seconds)

    def _process(self, operation: Operation) -> None:
        try:
            barrier = self._place(operation)
        except Exception:
            self._queue.appendleft(operation)  # closing answers it
            raise
        if barrier is not None:
            self._pass_barrier(barrier)

    def _place(self, operation: Operation) -> BarrierOperation | None:
        """Hold or accept an operation; returns a barrier for it when it is one, or was refused."""
        if self._prefetcher.held_count and self._prefetcher.must_wait(operation):
            self._prefetcher.hold(operation)
            return None
        if isinstance(operation, BarrierOperation):
            return operation
        try:
            self._pending.accept(operation)
        except AttributesNotLoadedError:
            self._prefetcher.hold(operation)
            return None
        except SegmentError as error:
            return RefusedOperation(operation, error)
        self._put(operation)
        return None

    def _pass_barrier(self, barrier: BarrierOperation) -> None:
        if self._transaction.operations:
            self._transaction.operations.append(barrier)
        elif self._in_flight:
            self._in_flight[-1][0].operations.append(barrier)
        else:
            barrier.on_complete(None, 0)

    def _put(self, operation: Operation) -> list[LogAddress]:
        """Encode into the current frame; return the addresses of frames that it filled."""
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

    def _submit(self) -> LogAddress:
        """Append the current frame to the log, with the operations that end in it."""
        data = self._frame.seal()
        in_flight = self._transaction, self._frame, data
        self._transaction, self._frame = UpdateTransaction(), self._frames.get()
        self._in_flight.append(in_flight)
        self._in_flight_bytes += len(data)
        self._bytes_since_checkpoint += len(data)
        self._throttle.record_submitted(len(data))
        if self._throttle.is_batching:
            self._submitted_at.append(trio.current_time())
        return self._log.append_nowait((data,), self._frame_completed)

    def _frame_completed(self, error: DataLogError | None) -> None:
        """Apply the first frame in flight, which is durable, or fail the container."""
        if self._closed or self._work.defect is not None:
            return
        if error is not None:
            self._failure = error
            self._work.wake()
            return
        transaction, frame, data = self._in_flight.popleft()
        self._in_flight_bytes -= len(data)
        if self._submitted_at:
            seconds = trio.current_time() - self._submitted_at.popleft()
            self._throttle.record_write(length=len(data), seconds=seconds)
        data.release()
        self._frames.recycle(frame)
        self._cache_manager.in_flight_bytes -= transaction.block_bytes
        transaction.block_bytes = 0
        try:
            self._commit(transaction)
        # The error belongs to this container: the log may have to call others, too.
        except Exception as defect:
            # ``close`` answers the remaining operations.
            self._in_flight.appendleft((transaction, frame, data))
            self._work.fail(defect)
            return
        if self._bytes_since_checkpoint >= CHECKPOINT_LOG_BYTES:
            self._checkpoint_waiting = True
        if self._queue or self._checkpoint_waiting or not self._frame.is_empty:
            self._work.request()

    def _commit(self, transaction: UpdateTransaction) -> None:
        state, pending = self._state, self._pending
        operations = transaction.operations
        position = 0
        while True:
            position = commit_appends(
                operations,
                position,
                state.metadata,
                state.memory_log,
                state.read_index,
                pending,
                state.now_ms(),
            )
            if position == len(operations):
                return
            operation = operations[position]
            transaction.answered_count = position
            position += 1
            if operation.sequence_number >= 0:
                state.apply(operation)
            if isinstance(operation, CheckpointOperation):
                address = self._checkpoint_address.pop(operation.sequence_number)
                self._on_checkpoint(operation.sequence_number, address)
            elif not isinstance(operation, BarrierOperation):
                pending.committed(operation)
            transaction.answered_count = position
            operation.on_complete(None, completion_number(operation))


def _leave_to_task() -> bool:
    """Do nothing: with a batching delay, ``run`` waits for more before it processes the queue."""
    return True


def completion_number(operation: Operation) -> int:
    """Return the number that the caller of an operation gets."""
    if isinstance(operation, AppendOperation | MergeOperation):
        return operation.offset + operation.length
    if isinstance(operation, SealOperation):
        return operation.length
    if isinstance(operation, TruncateOperation):
        return operation.offset
    if isinstance(operation, MapOperation):
        return operation.segment_id
    return 0
