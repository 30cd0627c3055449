"""Makes queued operations durable, and applies them when they are.

Owns: the operation queue of a container, the data frame that is being filled, and the frames in
flight, which are those that the log has not made durable yet. When a full cache or the throttle
holds operations back, ``overtaking`` finds those that may continue.

Invariants:
1. Operations become durable, take effect and complete in the order of the queue. Held by
   ``test_appends_take_effect_and_complete_in_call_order``.
2. While an operation is not durable, no read and no caller sees its effect. Held by
   ``test_nothing_shows_or_is_answered_before_its_frame_is_durable``.
3. While the log makes fewer frames durable than it can at the same time (``overlapping_entries``),
   an operation is sent at once; otherwise it waits for others in the same frame. Held by
   ``test_as_many_frames_overlap_as_the_log_has_time_for``. When ``OVERLAPPING_BYTES_MAX`` are in
   flight, it waits in any case. Held by ``test_frames_do_not_overlap_when_much_is_in_flight``.
4. When the log is slow, operations beyond ``in_flight_bytes_max`` wait in the queue. Held by
   ``test_bytes_in_flight_are_bounded``.
5. When a write of the log fails, all operations in flight and in the queue fail, in order, and
   ``run`` ends with the error. Held by
   ``test_a_failed_log_write_fails_everything_in_order_and_ends_the_container``.
6. While writers are stopped, operations that free memory and operations on system segments
   continue. Held by ``test_what_relieves_and_the_system_go_before_what_is_held_back``.
7. When operations wait for attributes or inactive segments, those on one segment keep their order.
   Held by ``test_operations_keep_their_order_whatever_they_wait_for``.
8. Operations that one step of the reactor queues are sent in one frame at the end of the step. Held
   by ``test_what_is_queued_in_one_step_leaves_in_one_frame``.

Six appends of 10 bytes to an empty segment; the log makes one frame durable at a time:

    5 appends are queued     one frame with all 5 is sent; nothing completes, the length is 0
    1 append is queued       it waits in the next frame, because one frame is in flight
    the frame is durable     the 5 appends complete with 10, 20, 30, 40, 50; the length is 50;
                             the next frame is sent
    that frame is durable    the last append completes with 60
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import ExitStack
from itertools import takewhile
from math import inf
from typing import Final

import trio

from _fast.cache.streaming_cache import BLOCK_LENGTH
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

OVERLAPPING_BYTES_MAX: Final = 128 * 1024
"""Number of bytes in flight at which a frame that is not full waits, even if the log could make it
durable at the same time: at this throughput, fewer and longer entries cost less."""
CHECKPOINT_LOG_BYTES: Final = 64 * 1024 * 1024
"""Number of bytes of log after which a checkpoint is written, so that recovery reads little more.
"""
BATCH_BLOCK_BYTES: Final = 1024 * 1024
"""Maximum size in the cache, in bytes of whole blocks, of appends that are accepted in one call."""
GRANT_BYTES: Final = BATCH_BLOCK_BYTES
"""Number of bytes of users' writes that are accepted after each delay of the throttle; they are
called a grant."""
OPERATION_GRANT_BYTES: Final = 512
"""Minimum number of bytes that each operation takes from a grant."""


class OperationProcessor:
    """The operation processor of one container. ``enqueue`` may be called by any task; ``run`` is
    one task."""

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
        self._in_flight_bytes_max = log.in_flight_bytes_max
        self._state = state
        self._pending = pending
        self._cache_manager = cache_manager
        self._throttle = throttle
        self._request_flush = request_flush
        self._prefetcher = prefetcher
        self._queue: deque[Operation] = deque()
        self._overtakers = Overtakers(self._queue, pending.exists_in_memory)
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
        self._now = trio.lowlevel.current_clock().current_time

    def enqueue(self, operation: Operation) -> None:
        """Queue an operation. Its ``on_complete`` is called when it is durable or refused."""
        if self._closed:
            operation.on_complete(ContainerOfflineError("the container is stopping"), -1)
            return
        self._queue.append(operation)
        self._work.request()

    def enqueue_first(self, operation: Operation) -> None:
        """Put an operation of the container itself at the head of the queue."""
        if self._closed:
            operation.on_complete(ContainerOfflineError("the container is stopping"), -1)
            return
        self.requeue([operation])

    def requeue(self, operations: list[Operation]) -> None:
        """Put operations at the head of the queue, in their order."""
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
        """Complete all operations that are queued or in flight, and later ones, with
        ``ContainerOfflineError``. A second call does nothing."""
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
        with ExitStack() as answers:  # When one call raises, the others are still made.
            for operation in reversed(abandoned):
                answers.callback(operation.on_complete, error, -1)

    def _advance(self) -> bool:
        """Put queued operations into frames. Return whether the throttle or the cache holds some
        back, so that ``run`` has to wait."""
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
        """Return whether the log can make a frame that is not full durable at the same time as
        those in flight."""
        return (
            len(self._in_flight) < self._overlapping_entries
            and self._in_flight_bytes < OVERLAPPING_BYTES_MAX
        )

    def _process_head(self, grant: float) -> bool:
        """Process operations from the head of the queue. Return False when the next one has to wait
        for the throttle or for room in the cache.

        ``grant`` is the number of bytes of users' writes that may be accepted; infinite without a
        delay.
        """
        queue = self._queue
        while queue and self._in_flight_bytes < self._in_flight_bytes_max:
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
        """Accept many appends from the head of the queue in one call. Return the number of bytes
        that they take from the grant; 0 if the first operation has to be processed alone."""
        queue, first = self._queue, self._queue[0]
        if type(first) is not AppendOperation:
            return 0
        if self._prefetcher.held_count:
            return 0  # some may have to wait behind held operations
        # This repeats ``block_bytes`` instead of calling it, because every append runs this line.
        needed = -(-(first.length or 1) // BLOCK_LENGTH) * BLOCK_LENGTH
        wanted = min(BATCH_BLOCK_BYTES, len(queue) * needed)
        if grant < wanted:
            wanted = max(int(grant), needed)
        if not self._cache_manager.has_room(wanted):
            return 0
        transaction = self._transaction
        count = len(transaction.operations)
        before = tuple(queue) if self._overtakers.seen_count else ()
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
        """Return how many bytes of users' writes may be accepted now; infinite without a delay."""
        now = self._now()
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
        """Process the operations that may overtake those which are held back."""
        lowest = Priority.RELIEF
        if not self._throttle.system_stops and self._cache_manager.has_room(
            block_bytes(1), system=True
        ):
            lowest = Priority.SYSTEM
        without_room: list[Operation] = []
        names: set[str] = set()
        is_stopped = self._resume_at == inf or not self._has_room(self._queue[0])
        passing = self._overtakers.remove_passing(lowest=lowest, stopped=is_stopped)
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
                self.requeue(without_room)

    async def _wait_for_room(self) -> bool:
        """Ask the storage writer for a flush, and wait for at most ``ROOM_RETRY_SECONDS``. Return
        False if the log has failed."""
        self._request_flush()
        # All queued operations were tried: only new ones may end the wait early.
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
            self._queue.appendleft(operation)  # ``close`` completes the operation.
            raise
        if barrier is not None:
            self._pass_barrier(barrier)

    def _place(self, operation: Operation) -> BarrierOperation | None:
        """Hold or accept an operation. If it is a barrier, return it; if it was refused, return a
        barrier that will complete it with the error in its turn."""
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
        """Encode an operation into the current frame. Return the addresses of the frames that it
        filled, which were sent."""
        addresses = [] if operation.put_into(self._frame) else self._put_parts(operation)
        self._transaction.operations.append(operation)
        return addresses

    def _put_parts(self, operation: Operation) -> list[LogAddress]:
        """Encode an operation into several frames. All but the last are full and are sent; return
        their addresses."""
        head, body = operation.encode()
        record_bytes = len(head) + len(body)
        addresses = []
        position = self._frame.put_part(head, body, 0)
        while position < record_bytes:
            addresses.append(self._submit())
            position = self._frame.put_part(head, body, position)
        return addresses

    def _put_checkpoint(self) -> None:
        """Put a checkpoint into the empty frame. Nothing is in flight, so the snapshot of the
        metadata is complete."""
        self._checkpoint_waiting = False
        self._bytes_since_checkpoint = 0
        checkpoint = CheckpointOperation()
        checkpoint.sequence_number = self._pending.next_sequence_number()
        checkpoint.snapshot = self._state.metadata.snapshot(checkpoint.sequence_number)
        addresses = self._put(checkpoint) or [self._submit()]
        self._checkpoint_address[checkpoint.sequence_number] = addresses[0]

    def _submit(self) -> LogAddress:
        """Append the current frame to the log, and begin another. Return its address."""
        data = self._frame.seal()
        in_flight = self._transaction, self._frame, data
        spare = self._frames.spare
        self._transaction = UpdateTransaction()
        self._frame = spare.pop() if spare else self._frames.get()
        self._in_flight.append(in_flight)
        self._in_flight_bytes += len(data)
        self._bytes_since_checkpoint += len(data)
        self._throttle.record_submitted(len(data))
        if self._throttle.is_batching:
            self._submitted_at.append(trio.current_time())
        return self._log.append_nowait((data,), self._frame_completed)

    def _frame_completed(self, error: DataLogError | None) -> None:
        """Apply the operations of the first frame in flight, which is durable. With ``error``, make
        ``run`` end."""
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
        # An error in this container must not reach the log, which calls other containers, too.
        except Exception as defect:
            # ``close`` completes the remaining operations.
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
    """Return True, so that ``run`` processes the queue: with a batching delay, it waits for more
    operations first."""
    return True


def completion_number(operation: Operation) -> int:
    """Return the number that ``on_complete`` gets: a length or offset in the segment, or the id of
    a new segment."""
    if isinstance(operation, AppendOperation | MergeOperation):
        return operation.offset + operation.length
    if isinstance(operation, SealOperation):
        return operation.length
    if isinstance(operation, TruncateOperation):
        return operation.offset
    if isinstance(operation, MapOperation):
        return operation.segment_id
    return 0
