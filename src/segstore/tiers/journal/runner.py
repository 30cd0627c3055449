"""Brings the writer's batches to the disk: by a thread, or in place where a simulation has none.

Owns: the ``WriterRunner`` protocol, ``ThreadRunner`` and ``InlineRunner``; when they run.

Invariants:
1. Finished batches are handed to ``on_batch`` in order, in the event loop's thread.
2. One step of the reactor completes all batches that are finished by then, and submits what is
   queued when it ends.
3. A wake-up is never lost: what was queued before ``wake`` is seen by the step after it.
4. A batch is written only when all before it were written whole and durably; what was not is
   written again, first and in full, or fails with everything after it.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol

import trio

from _fast.native_io.journal_thread import OUTSTANDING_MAX, JournalThread
from segstore.runtime.reactor import DeferredWork, current_reactor
from segstore.tiers.direct_io import NOT_SUPPORTED_ERRNOS
from segstore.tiers.journal.settings import JournalSettings
from segstore.tiers.journal.writer import BatchWriter, PreparedBatch, WrittenBatch

OnBatch = Callable[[WrittenBatch], None]
Helper = Callable[..., Awaitable[None]]
"""Reports as started with a scope, and runs until that is cancelled."""


class WriterRunner(Protocol):
    """Calls the writer's steps."""

    def wake(self) -> None:
        """Wake the writer: there is something to write, or a file to write into. Call it in the
        event loop."""
        ...

    async def run(
        self,
        writer: BatchWriter,
        settings: JournalSettings,
        on_batch: OnBatch,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Run the writer. After ``stop``: write what can be written, mark the journal's end durably
        and return."""
        ...

    def stop(self) -> None:
        """Make ``run`` return."""
        ...


@asynccontextmanager
async def running(
    write: Callable[..., Awaitable[None]], helpers: Sequence[Helper], stop: Callable[[], None]
) -> AsyncIterator[None]:
    """Run in the block ``write``, until ``stop`` lets it return, and ``helpers``, up to that.

    A block that is cancelled keeps that to itself.
    """
    async with trio.open_nursery() as nursery:
        scopes: list[trio.CancelScope] = []
        is_open = False
        # It ends only when told to, which is possible only after it has started.
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
    """The writes in a thread that never takes the interpreter's lock; an eventfd brings the
    results back. It runs the event loop's reactor, as long as it runs itself.

    What that thread cannot write (to a disk that is no ``LocalDisk``, or a write that was cut
    short) is written again, as a whole, by one of trio's threads before anything goes on.
    """

    def __init__(self) -> None:
        self._submitted: deque[PreparedBatch] = deque()
        self._unwritten: deque[tuple[PreparedBatch, int]] = deque()
        self._outstanding_max = OUTSTANDING_MAX
        self._stopping = False
        self._marking = False
        self._begun = trio.Event()
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

    async def run(
        self,
        writer: BatchWriter,
        settings: JournalSettings,
        on_batch: OnBatch,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Start the thread and hand over its batches until stopped, and only then."""
        event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._writer, self._on_batch = writer, on_batch
        self._thread = thread = JournalThread(event_fd, settings.interval_seconds_min)
        if settings.interval_seconds_min:
            # A second one would be closed an interval earlier, and written no sooner.
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
        """Complete the batches that the thread has finished, and submit what is queued."""
        # The eventfd is not read: each write to it is an event of its own.
        try:
            for written in self._thread.fetch_results():
                batch = self._submitted.popleft()
                if written == batch.write_length:
                    self._on_batch(self._writer.written(batch))
                else:
                    self._unwritten.append((batch, written))
            if self._unwritten:
                self._unwritten = deque(sorted(self._unwritten, key=_number))
                self._work.wake()
            elif self._stopping:
                self._work.wake()
            elif self._submitted:
                # The disk is busy: what containers add in this step goes along.
                self._work.request()
            else:
                self._submit()
        # It is the journal's, not the task's in which the step is made.
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
        """Submit queued batches to the thread as long as it accepts some; return whether ``run`` is
        needed."""
        writer = self._writer
        if writer.failure is not None and not self._submitted:
            self._fail_all()
        if self._unwritten or self._marking:
            return bool(self._unwritten) or self._stopping
        while len(self._submitted) < self._outstanding_max:
            batch = writer.prepare_next()
            if batch is None:
                break
            self._submission_count += 1
            self._begun.set()
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
                generation=batch.file.generation,
                salt=batch.file.header.salt,
                number=batch.number,
                durable_number=batch.number - 1,
            )
            self._submitted.append(batch)
        return self._stopping

    def _fail_all(self) -> None:
        self._unwritten.clear()
        failed = self._writer.failed_batch()
        if failed is not None:
            self._on_batch(failed)

    async def _write_again(self) -> None:
        """Write the batches that the thread could not write, in order, until the disk is full."""
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
        """Mark the journal's end when nothing was begun for a while."""
        while True:
            await self._begun.wait()
            self._begun = trio.Event()
            count = -1
            while count != self._submission_count or self._submitted or self._unwritten:
                count = self._submission_count
                await trio.sleep(delay_seconds)
            if self._writer.unmarked and not self._stopping:
                await self._mark()

    async def _mark(self) -> None:
        """Write the mark of the journal's end. Nothing is submitted meanwhile: the next batch
        overwrites it."""
        self._marking = True
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(self._writer.mark_end)
        self._marking = False
        self._work.wake()


def _number(unwritten: tuple[PreparedBatch, int]) -> int:
    return unwritten[0].number


def _error_of(result: int) -> OSError | None:
    """Return why a batch may not be written again; None when it may."""
    error = -result
    if error <= 0 or error in NOT_SUPPORTED_ERRNOS:
        return None
    return OSError(error, os.strerror(error))


class InlineRunner:
    """Runs the writer in a task of the event loop, for simulations: no threads, no real time.

    ``latency_seconds`` returns how long a batch of that many bytes takes.
    """

    def __init__(self, latency_seconds: Callable[[int], float] = lambda _: 0.0) -> None:
        self._latency_seconds = latency_seconds
        self._woken = trio.Event()
        self._stopping = False

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
        """Do the writer's step, with a pause between the write and its effect."""
        batch = writer.prepare()
        if batch is None:
            return writer.failed_batch() if writer.failure is not None else None
        error = writer.write(batch)
        await trio.sleep(self._latency_seconds(batch.length))
        return writer.written(batch) if error is None else writer.not_written(batch, error)
