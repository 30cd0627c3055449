"""The journal without threads and without a real disk, for simulations.

Owns: ``open_simulated_journal``, and ``PipelinedRunner``, which runs the writer as its thread does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import TypeVar

import trio

from _fast.log.replay import DIGEST_FORMAT, digest_frame
from _fast.native_io.journal_thread import OUTSTANDING_MAX
from segstore.tiers.journal import Journal, JournalSettings, open_journal
from segstore.tiers.journal.contents import NotedContents
from segstore.tiers.journal.runner import InlineRunner, OnBatch, WriterRunner
from segstore.tiers.journal.writer import BatchWriter, PreparedBatch
from support.simulated.simulated_disk import SimulatedDisk

T = TypeVar("T")


async def run_in_place(function: Callable[[], T]) -> T:
    """Run a blocking function in the event loop's thread."""
    await trio.lowlevel.checkpoint()
    return function()


def open_simulated_journal(
    disk: SimulatedDisk,
    settings: JournalSettings,
    *,
    random: Random | None = None,
    latency_seconds: Callable[[int], float] = lambda _: 0.0,
    notes: SimulatedDisk | None = None,
    runner: WriterRunner | None = None,
) -> AbstractAsyncContextManager[Journal]:
    """Open the journal that lies on ``disk``; ``random`` gives the salts of its files.

    Contents of complete files are noted on the disk ``notes``, if there is one. Batches are written
    one by one, with ``latency_seconds``, unless there is another ``runner``.
    """
    random = random or Random(0)
    contents = None
    if notes is not None:
        contents = NotedContents(notes, digest_frame, digest_format=DIGEST_FORMAT)
    return open_journal(
        Path(),
        settings,
        digest=digest_frame,
        contents=contents,
        disk=disk,
        runner=runner or InlineRunner(latency_seconds),
        run_blocking=run_in_place,
        new_salt=lambda: random.getrandbits(32),
    )


class PipelinedRunner(InlineRunner):
    """The writer as with its thread: batches are prepared while others are being written, those
    that are over are taken together, and what was not written is written again in its order.

    ``latency_seconds`` returns how long a batch of that many bytes takes until it is completed.
    """

    def __init__(self, latency_seconds: Callable[[int], float] = lambda _: 0.0) -> None:
        super().__init__(latency_seconds)
        self._waiting: deque[PreparedBatch] = deque()
        self._over: deque[tuple[PreparedBatch, OSError | None]] = deque()
        self._outstanding_count = 0
        self._submitted = trio.Event()
        self._halted = False

    async def run(
        self,
        writer: BatchWriter,
        settings: JournalSettings,
        on_batch: OnBatch,
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Write until stopped."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write, writer)
            task_status.started()
            while True:
                self._woken = trio.Event()
                self._process_written(writer, on_batch)
                self._submit(writer, on_batch)
                if self._stopping and not self._outstanding_count:
                    break
                with trio.move_on_after(self._patience(writer, settings)) as waiting:
                    await self._woken.wait()
                if waiting.cancelled_caught and writer.disk_full:
                    self._submit_again(writer)
                elif waiting.cancelled_caught:
                    writer.mark_end()
            nursery.cancel_scope.cancel()
        writer.mark_end(durably=True)

    def _patience(self, writer: BatchWriter, settings: JournalSettings) -> float:
        if self._outstanding_count:
            return float("inf")
        if writer.disk_full:
            return settings.no_space_retry_seconds
        return settings.mark_delay_seconds if writer.unmarked else float("inf")

    def _submit(self, writer: BatchWriter, on_batch: OnBatch) -> None:
        if writer.disk_full:
            return
        if writer.failure is not None and not self._outstanding_count:
            failed = writer.failed_batch()
            if failed is not None:
                on_batch(failed)
        while self._outstanding_count < OUTSTANDING_MAX:
            batch = writer.prepare_next()
            if batch is None:
                return
            self._hand_over(batch)

    def _submit_again(self, writer: BatchWriter) -> None:
        """Submit all prepared batches again, in order, after the disk was full."""
        writer.no_space, self._halted = None, False
        for batch in writer._prepared:
            self._hand_over(batch)

    def _hand_over(self, batch: PreparedBatch) -> None:
        self._waiting.append(batch)
        self._outstanding_count += 1
        self._submitted.set()

    async def _write(self, writer: BatchWriter) -> None:
        """Write one batch after the other, as the journal thread does, and none after one that
        failed."""
        while True:
            while self._waiting and not self._halted:
                batch = self._waiting.popleft()
                error = writer.write(batch)
                self._halted = error is not None
                await trio.sleep(self._latency_seconds(batch.length))
                self._over.append((batch, error))
                self._woken.set()
            self._submitted = trio.Event()
            await self._submitted.wait()

    def _process_written(self, writer: BatchWriter, on_batch: OnBatch) -> None:
        while self._over:
            batch, error = self._over.popleft()
            self._outstanding_count -= 1
            if error is None:
                on_batch(writer.written(batch))
                continue
            self._waiting.clear()
            self._outstanding_count = 0
            failed = writer.not_written(batch, error)
            if failed is not None:
                on_batch(failed)
