"""Writes the writer's batches to the disk: in a thread, or in place in a simulation, which has no
threads.

Owns: the ``WriterRunner`` protocol, ``ThreadRunner`` and ``InlineRunner``. A call of ``wake`` makes
the next step of the event loop look at the queue. One step calls the completions of all finished
batches; the entries that these calls append are submitted together when it ends.

Invariants:
1. When several batches are under way, ``on_batch`` is called for them in their order, in the event
   loop's thread. Held by ``test_what_the_thread_cannot_write_is_written_in_order_all_the_same``.
2. When the journal closes, all queued records are written first. Held by
   ``test_what_is_queued_when_the_journal_closes_is_durable``.
3. When a batch fails, the batches after it fail, too, and are not written. Held by
   ``test_a_batch_behind_one_that_failed_fails_too_and_is_not_written``.
4. When the disk is full, batches wait and are written whole and in order as soon as there is space.
   Held by ``test_what_meets_a_full_disk_waits_and_is_durable_in_order``.
5. While the disk does not answer a write, ``unanswered_seconds`` grows. Held by
   ``test_a_disk_that_does_not_answer_is_told_until_it_does``.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Final, Protocol

import trio

from _fast.metrics.recorders import now_ns
from _fast.native_io.journal_thread import OUTSTANDING_MAX, JournalThread
from pravega_metrics.store_metrics import JOURNAL_BATCH_BYTES, JOURNAL_SECONDS
from segstore.runtime.reactor import DeferredWork, current_reactor
from segstore.tiers.direct_io import NOT_SUPPORTED_ERRNOS
from segstore.tiers.journal.settings import JournalSettings
from segstore.tiers.journal.writer import BatchWriter, PreparedBatch, WrittenBatch

_SYNC: Final = JOURNAL_SECONDS.of()
_BATCH: Final = JOURNAL_BATCH_BYTES.of()

OnBatch = Callable[[WrittenBatch], None]
Helper = Callable[..., Awaitable[None]]
"""A task that reports its cancel scope when it has started, and runs until the scope is
cancelled."""


class WriterRunner(Protocol):
    """Runs the writer."""

    def wake(self) -> None:
        """Wake the writer, because a record was queued or a file is ready. Call it in the event
        loop's thread."""
        ...

    async def run(
        self,
        writer: BatchWriter,
        settings: JournalSettings,
        on_batch: OnBatch,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the writer until ``stop``. Then write what can be written, mark the journal's end
        durably and return."""
        ...

    def stop(self) -> None:
        """Make ``run`` return."""
        ...

    def unanswered_seconds(self) -> float:
        """Return for how long the disk has not answered the oldest write that it was given; 0 if it
        was given none."""
        ...


@asynccontextmanager
async def running(
    write: Callable[..., Awaitable[None]], helpers: Sequence[Helper], stop: Callable[[], None]
) -> AsyncIterator[None]:
    """Run ``write`` and ``helpers`` during the block. At its end cancel the helpers, call ``stop``
    and wait for ``write``.

    If the block is cancelled, ``write`` still runs to its end.
    """
    async with trio.open_nursery() as nursery:
        scopes: list[trio.CancelScope] = []
        is_open = False
        # ``write`` ends by ``stop`` only, which has no effect before it has started.
        with trio.CancelScope(shield=True):
            await nursery.start(write)
        try:
            for helper in helpers:
                scopes.append(await nursery.start(helper))
            is_open = True
            yield
        finally:
            for scope in scopes:
                scope.cancel()
            stop()
            nursery.cancel_scope.shield = is_open


class ThreadRunner:
    """Writes in a thread that never takes the interpreter's lock; an eventfd wakes the event loop
    for the results. It also runs the event loop's reactor.

    If that thread cannot write a batch (the disk is not a ``LocalDisk``, or a write was cut short),
    one of trio's threads writes the whole batch again before any other.
    """

    def __init__(self) -> None:
        self._submitted: deque[PreparedBatch] = deque()
        self._unwritten: deque[tuple[PreparedBatch, int]] = deque()
        self._outstanding_max = OUTSTANDING_MAX
        self._stopping = False
        self._marking = False
        self._begun: trio.Event | None = trio.Event()
        self._submission_count = 0
        self._reactor = current_reactor()
        self._work = DeferredWork(self._reactor, self._submit)
        self.wake = self._work.request
        """Looks at the queue at the end of this step of the reactor, or in the next one."""
        self._writer: BatchWriter
        self._thread: JournalThread
        self._on_batch: OnBatch

    def stop(self) -> None:
        """Make ``run`` return."""
        self._stopping = True
        self._work.wake()

    def unanswered_seconds(self) -> float:
        """See ``WriterRunner``."""
        return (now_ns() - self._submitted[0].submitted_ns) / 1e9 if self._submitted else 0.0

    async def run(
        self,
        writer: BatchWriter,
        settings: JournalSettings,
        on_batch: OnBatch,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Start the thread and submit batches to it until ``stop``. A cancellation does not end
        it."""
        event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._writer, self._on_batch = writer, on_batch
        self._thread = thread = JournalThread(event_fd, settings.interval_seconds_min)
        if settings.interval_seconds_min:
            # A second batch would take fewer records, and would not be written sooner.
            self._outstanding_max = 1
        try:
            with trio.CancelScope(shield=True):
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._reactor.run)
                    self._reactor.watch(event_fd, self._batches_written)
                    nursery.start_soon(self._mark_when_idle, settings.mark_delay_seconds)
                    task_status.started()
                    await self._write_until_stopped(settings.no_space_retry_seconds)
                    nursery.cancel_scope.cancel()
                await trio.to_thread.run_sync(partial(writer.mark_end, durably=True))
        finally:
            self._reactor.unwatch(event_fd)
            thread.stop()
            os.close(event_fd)

    def _batches_written(self, _: int) -> None:
        """Call the completions of the batches that the thread has written, and submit queued
        records."""
        # The eventfd need not be read: each write to it is a new event.
        queue = self._writer.queue
        try:
            for written in self._thread.fetch_results():
                batch = self._submitted.popleft()
                if written == batch.write_length:
                    _SYNC.record_since(batch.submitted_ns)
                    _BATCH.record(written)
                    self._on_batch(self._writer.written(batch))
                else:
                    self._unwritten.append((batch, written))
            if self._unwritten:
                self._unwritten = deque(sorted(self._unwritten, key=_number))
                self._work.wake()
            elif self._stopping:
                self._work.wake()
            elif self._submitted:
                # The disk is busy: wait for the entries that containers append in this step.
                self._work.request()
            elif queue.ordered or queue.control or self._writer.failure is not None:
                self._submit()
        # The defect must end the journal, not the task in whose step this function runs.
        except Exception as defect:
            self._work.fail(defect)

    async def _write_until_stopped(self, retry_seconds: float) -> None:
        writer = self._writer
        while True:
            if self._unwritten and not self._submitted and writer.failure is None:
                await self._write_again()
            self._submit()
            if self._stopping and not self._submitted and not self._marking:
                if not self._unwritten or writer.disk_full:
                    return
                continue
            if writer.disk_full:
                with trio.move_on_after(retry_seconds):
                    await self._work.wait()
            elif not self._unwritten or self._submitted:
                await self._work.wait()

    def _submit(self) -> bool:
        """Submit batches to the thread as long as it accepts some; return whether the task that
        runs ``_write_until_stopped`` has to act."""
        writer = self._writer
        if writer.failure is not None and not self._submitted:
            self._fail_all()
        if self._unwritten or self._marking:
            return bool(self._unwritten) or self._stopping
        queue = writer.queue
        while (queue.ordered or queue.control) and len(self._submitted) < self._outstanding_max:
            batch = writer.prepare_next()
            if batch is None:
                break
            self._submission_count += 1
            if self._begun is not None:
                self._begun.set()
                self._begun = None
            descriptor = batch.file.disk_file.writing_descriptor()
            if descriptor is None:
                self._unwritten.append((batch, 0))
                self._work.wake()
                return True
            self._thread.submit(
                batch.records,
                descriptor=descriptor,
                offset=batch.offset,
                length=batch.write_length,
                generation=batch.file.header.generation,
                salt=batch.file.header.salt,
                number=batch.number,
                durable_number=batch.number - 1,
            )
            batch.submitted_ns = now_ns()
            self._submitted.append(batch)
        return self._stopping

    def _fail_all(self) -> None:
        self._unwritten.clear()
        failed = self._writer.failed_batch()
        if failed is not None:
            self._on_batch(failed)

    async def _write_again(self) -> None:
        """Write, in order, the batches that the thread could not write; stop if the disk is
        full."""
        writer = self._writer
        while self._unwritten:
            batch, result = self._unwritten[0]
            error = _error_of(result)
            if error is None:
                error = await trio.to_thread.run_sync(writer.write, batch)
            if error is None:
                self._unwritten.popleft()
                self._on_batch(writer.written(batch))
                continue
            self._unwritten[0] = (batch, 0)
            failed = writer.not_written(batch, error)
            if failed is None:
                return
            self._unwritten.clear()
            self._on_batch(failed)
        self._thread.resume()

    async def _mark_when_idle(self, delay_seconds: float) -> None:
        """Mark the journal's end whenever no batch was begun for ``delay_seconds``."""
        while True:
            if self._begun is not None:
                await self._begun.wait()
            self._begun = trio.Event()
            count = -1
            while count != self._submission_count or self._submitted or self._unwritten:
                count = self._submission_count
                await trio.sleep(delay_seconds)
            if self._writer.unmarked and not self._stopping:
                await self._mark()

    async def _mark(self) -> None:
        """Write the mark of the journal's end. Nothing is submitted meanwhile, because the next
        batch overwrites the mark."""
        self._marking = True
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._writer.mark_end)
        self._marking = False
        self._work.wake()


def _number(unwritten: tuple[PreparedBatch, int]) -> int:
    return unwritten[0].number


def _error_of(result: int) -> OSError | None:
    """Return the error for which a batch may not be written again; None if it may be."""
    error = -result
    if error <= 0 or error in NOT_SUPPORTED_ERRNOS:
        return None
    return OSError(error, os.strerror(error))


class InlineRunner:
    """Runs the writer in a task of the event loop, for simulations: no threads, no real time.

    ``latency_seconds`` returns the time that a batch of this many bytes takes.
    """

    def __init__(self, latency_seconds: Callable[[int], float] = lambda _: 0.0) -> None:
        self._latency_seconds = latency_seconds
        self._woken = trio.Event()
        self._stopping = False
        self._began: float | None = None

    def unanswered_seconds(self) -> float:
        """See ``WriterRunner``."""
        return 0.0 if self._began is None else trio.current_time() - self._began

    def wake(self) -> None:
        """Wake the task."""
        self._woken.set()

    def stop(self) -> None:
        """End the task."""
        self._stopping = True
        self._woken.set()

    async def run(
        self,
        writer: BatchWriter,
        settings: JournalSettings,
        on_batch: OnBatch,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Write until stopped."""
        task_status.started()
        while True:
            batch = await self._step(writer)
            if batch is not None:
                on_batch(batch)
                continue
            if self._stopping:
                break
            timeout = float("inf")
            if writer.disk_full:
                timeout = settings.no_space_retry_seconds
            elif writer.unmarked:
                timeout = settings.mark_delay_seconds
            with trio.move_on_after(timeout) as waiting:
                await self._woken.wait()
            if waiting.cancelled_caught and not writer.disk_full:
                writer.mark_end()
            self._woken = trio.Event()
        writer.mark_end(durably=True)

    async def _step(self, writer: BatchWriter) -> WrittenBatch | None:
        """Write one batch, with a pause between the write and its completion."""
        batch = writer.prepare()
        if batch is None:
            return writer.failed_batch() if writer.failure is not None else None
        self._began = trio.current_time()
        error = writer.write(batch)
        await trio.sleep(self._latency_seconds(batch.length))
        self._began = None
        return writer.written(batch) if error is None else writer.not_written(batch, error)
