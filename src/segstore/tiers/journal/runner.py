"""Runs the batch writer: in its own thread, or in place where a simulation has no threads.

Owns: the ``WriterRunner`` protocol, ``ThreadRunner`` and ``InlineRunner``.

Invariants:
1. Finished batches are handed to ``on_batch`` in order, in the event loop's thread.
2. One wake-up of the event loop takes all batches that are finished by then.
3. A wake-up is never lost: what was queued before ``wake`` is seen by the step after it.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from queue import Empty, SimpleQueue
from typing import Protocol

import trio

from segstore.tiers.journal.settings import JournalSettings
from segstore.tiers.journal.writer import BatchWriter, WrittenBatch

OnBatch = Callable[[WrittenBatch], None]


class WriterRunner(Protocol):
    """Calls the writer's steps."""

    def wake(self) -> None:
        """Say that there is something to write, or a file to write into. From the event loop."""
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
        """Let ``run`` return."""
        ...


class ThreadRunner:
    """The writer in a thread; an eventfd brings the finished batches back."""

    def __init__(self, *, name: str = "journal-writer") -> None:
        self._name = name
        self._wakeups: SimpleQueue[None] = SimpleQueue()
        self._wake_count = 0
        self._awake = False
        self._stopping = False
        self._finished: deque[WrittenBatch] = deque()
        self._crash: BaseException | None = None
        self._done = False

    def wake(self) -> None:
        """Wake the thread unless it is awake."""
        self._wake_count += 1
        if not self._awake:
            self._awake = True
            self._wakeups.put(None)

    def stop(self) -> None:
        """Let the thread end."""
        self._stopping = True
        self.wake()

    async def run(
        self,
        writer: BatchWriter,
        settings: JournalSettings,
        on_batch: OnBatch,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Start the thread and hand over its batches until it ends."""
        event_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        thread = threading.Thread(
            target=self._run_thread, args=(writer, settings, event_fd), name=self._name
        )
        thread.start()
        try:
            task_status.started()
            while not self._done:
                await trio.lowlevel.wait_readable(event_fd)
                os.eventfd_read(event_fd)
                while self._finished:
                    on_batch(self._finished.popleft())
        finally:
            self.stop()
            thread.join()
            os.close(event_fd)
        if self._crash is not None:
            raise self._crash

    def _run_thread(self, writer: BatchWriter, settings: JournalSettings, event_fd: int) -> None:
        try:
            self._work(writer, settings, event_fd)
            writer.mark_end(durably=True)
        except BaseException as crash:
            self._crash = crash
        finally:
            self._done = True
            os.eventfd_write(event_fd, 1)

    def _work(self, writer: BatchWriter, settings: JournalSettings, event_fd: int) -> None:
        while True:
            wake_count = self._wake_count
            batch = writer.step()
            while batch is not None:
                self._finished.append(batch)
                os.eventfd_write(event_fd, 1)
                batch = writer.step()
            if self._stopping:
                return
            self._awake = False
            # Whoever called wake before this line may have seen the thread awake.
            if self._wake_count == wake_count:
                self._sleep(writer, settings)
            self._awake = True

    def _sleep(self, writer: BatchWriter, settings: JournalSettings) -> None:
        timeout = None
        if writer.disk_full:
            timeout = settings.no_space_retry_seconds
        elif writer.unmarked:
            timeout = settings.mark_delay_seconds
        try:
            self._wakeups.get(timeout=timeout)
        except Empty:
            if not writer.disk_full:
                writer.mark_end()


class InlineRunner:
    """The writer in a task of the event loop, for simulations: no threads, no real time.

    ``latency_seconds`` says how long a batch of that many bytes takes.
    """

    def __init__(self, latency_seconds: Callable[[int], float] = lambda _: 0.0) -> None:
        self._latency_seconds = latency_seconds
        self._woken = trio.Event()
        self._stopping = False

    def wake(self) -> None:
        """Wake the task."""
        self._woken.set()

    def stop(self) -> None:
        """Let the task end."""
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
        """The writer's step, with the time it takes between the write and its effect."""
        batch = writer.prepare()
        if batch is None:
            return writer.step()
        error = writer.write(batch)
        await trio.sleep(self._latency_seconds(batch.length))
        return writer.written(batch) if error is None else writer.not_written(batch, error)
