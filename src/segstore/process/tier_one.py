"""A journal that is opened again after it has failed.

Owns: ``KeptJournal``: the opening of a journal that is in use, and when the journal is opened
again.

Invariants:
1. When a journal failed, it is closed, opened again and read from its files before a container gets
   a log from it; the failed opening writes nothing more. Held by
   ``test_a_failing_journal_takes_its_containers_offline_and_no_others``.
2. When a journal fails, each of its containers fails by ``raise_when_failed``, and other journals
   of the process continue. Held by
   ``test_a_failing_journal_takes_its_containers_offline_and_no_others``.
3. While a journal cannot be opened, ``wait_open`` raises the reason. Held by
   ``test_a_journal_whose_disk_has_gone_is_waited_for_and_never_made_anew``. If the reason is
   damage, the error says so. Held by
   ``test_damage_in_one_journal_at_the_start_leaves_only_its_containers_offline``.
4. When one container finds that a journal is older than tier 2, no container of that journal is
   served, not even one of which tier 2 has nothing. Held by
   ``test_an_older_journal_is_refused_however_often_it_is_started``.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Never

import structlog
import trio

from segstore.errors import DataLogError, JournalDamagedError, LogBehindError, PermanentError
from segstore.tiers.journal import Journal

OpenJournal = Callable[[], AbstractAsyncContextManager[Journal]]

logger = structlog.get_logger(__name__)


class KeptJournal:
    """One journal of a process, which is opened again when it fails. Times are in seconds."""

    def __init__(
        self,
        number: int,
        open_journal: OpenJournal,
        *,
        restart_seconds_min: float,
        restart_seconds_max: float,
    ) -> None:
        self.number = number
        self._open_journal = open_journal
        self._restart_seconds_min = restart_seconds_min
        self._restart_seconds_max = restart_seconds_max
        self._journal: Journal | None = None
        self._tried = trio.Event()
        self._opening_failure: Exception | None = None
        self._scope = trio.CancelScope()
        self._is_later = False
        self._found_older = trio.Event()
        self._reason = ""
        self.failure_count = 0

    async def wait_open(self) -> Journal:
        """Wait until the journal can be used, and return it.

        Raises ``DataLogError`` when it cannot be used, and ``JournalDamagedError`` when the reason
        is damage.
        """
        self._refuse_older()
        while self._journal is None:
            if (failure := self._opening_failure) is not None:
                is_damaged = isinstance(failure, PermanentError)
                kind = JournalDamagedError if is_damaged else DataLogError
                raise kind(f"journal {self.number}: {failure}") from failure
            await self._tried.wait()
        return self._journal

    def record_older(self, error: LogBehindError) -> None:
        """Record that a container has found the journal to be older than tier 2."""
        self._reason = self._reason or str(error)
        self._found_older.set()

    async def raise_when_older(self) -> Never:
        """Wait until a container finds the journal to be older than tier 2, and raise that."""
        await self._found_older.wait()
        self._refuse_older()
        raise AssertionError

    def _refuse_older(self) -> None:
        if self._found_older.is_set():
            raise LogBehindError(self._reason)

    def stop(self) -> None:
        """Close the journal. Call this when no container needs it any more."""
        self._scope.cancel()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Keep the journal open until ``stop`` is called. A cancellation from outside ends this
        only before the journal was opened for the first time.

        Raises the error of the first opening.
        """
        await self._run(task_status)

    async def run_later(self) -> None:
        """Keep a journal open whose first opening has failed. It may fail again."""
        self._scope, self._is_later = trio.CancelScope(), True
        await trio.sleep(self._restart_seconds_min)
        await self._run(trio.TASK_STATUS_IGNORED)

    async def _run(self, task_status: trio.TaskStatus[None]) -> None:
        pause = self._restart_seconds_min
        with self._scope:
            while True:
                began = trio.current_time()
                error: Exception | None
                try:
                    error = await self._serve_until_failed(task_status)
                except (DataLogError, OSError) as failure:
                    self._record_attempt(failure)
                    if not (self._scope.shield or self._is_later):
                        raise
                    error = failure
                if trio.current_time() - began > self._restart_seconds_max:
                    pause = self._restart_seconds_min
                self.failure_count += 1
                logger.error(
                    "journal failed",
                    journal=self.number,
                    error=str(error),
                    restart_seconds=pause,
                )
                await trio.sleep(pause)
                pause = min(2 * pause, self._restart_seconds_max)

    async def _serve_until_failed(self, task_status: trio.TaskStatus[None]) -> DataLogError | None:
        async with self._open_journal() as journal:
            self._journal = journal
            self._record_attempt(None)
            if not self._scope.shield:
                # From here on a cancellation from outside does not close the journal, because
                # containers that are being closed need it. So this is the last moment at which a
                # start can be cancelled.
                await trio.lowlevel.checkpoint_if_cancelled()
                self._scope.shield = True
                task_status.started()
            try:
                await journal.failed.wait()
            finally:
                self._journal = None
        # A journal that is closed because of a cancellation does not raise it.
        await trio.lowlevel.checkpoint_if_cancelled()
        return journal.failure

    def _record_attempt(self, failure: Exception | None) -> None:
        self._opening_failure = failure
        self._tried.set()
        self._tried = trio.Event()


async def raise_when_failed(journal: Journal) -> Never:
    """Wait for the failure of a journal, and raise it."""
    await journal.failed.wait()
    assert journal.failure is not None
    raise journal.failure
