"""Deletes chunks that no segment needs, after a delay.

Owns: ``collect_garbage``, the task that deletes them, and ``collect_now``. The change that condemns
a chunk is durable before the delay begins.

Invariants:
1. When a chunk is condemned, it is deleted only after ``delay_seconds``, so that earlier reads of
   it can end. Held by ``test_garbage_goes_after_the_delay``. It does not wait for a second delay
   because others were condemned before it. Held by
   ``test_garbage_does_not_wait_for_that_of_the_next_delay``.
2. When a later owner has claimed the chunks, an earlier one deletes none: before each round it
   lists the claims. Held by ``test_an_owner_that_was_replaced_deletes_nothing`` and
   ``test_deleting_without_a_look_at_the_claims_would_be_found``.
3. When an owner crashes, the next owner finds the condemned chunks in the metadata and deletes
   them. Held by ``test_garbage_that_a_crash_left_is_collected_by_the_next_owner``.
4. While tier 2, or the journal on the same disk, has no space, chunks are deleted after
   ``HURRIED_DELAY_SECONDS``. Held by
   ``test_chunks_go_at_once_when_another_container_wants_their_space``.
5. When a chunk cannot be deleted, the others are deleted. Held by
   ``test_a_chunk_that_cannot_be_deleted_does_not_keep_the_others``.
6. When a reader has a lease on a chunk, the chunk is not deleted before the lease has ended. Held
   by ``test_deletion_of_chunks_waits_for_leases``.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Final

import structlog
import trio

from segstore.chunks.records import Collected
from segstore.chunks.system_journal import SystemJournal
from segstore.errors import FencedOutError, StorageError, StorageFullError
from segstore.ownership.leases import ChunkLeases, LeaseMarks
from segstore.ownership.states import Permission
from segstore.runtime.parallel import run_parallel
from segstore.tiers.api import ChunkStorage

GARBAGE_DELAY_SECONDS: Final = 60.0
ROUNDS_IN_DELAY_MAX: Final = 4
"""Maximum number of rounds while one delay passes: each lists the claims in tier 2."""
NOTES_IN_DELAY: Final = 12
"""Number of looks for newly condemned chunks while one delay passes. They are in memory."""
HURRIED_DELAY_SECONDS: Final = 1.0
"""Delay, in seconds, while there is no space. Reads that began before a deletion may then fail, and
are repeated."""
COLLECTED_TOGETHER_MAX: Final = 100
PARALLEL_DELETES_MAX: Final = 4
FAILURES_MAX: Final = 8
"""Number of failed deletions after which the other chunks are left for the next round."""
ERROR_SLEEP_SECONDS: Final = 5.0

logger = structlog.get_logger(__name__)


async def collect_garbage(
    chunks: ChunkStorage,
    journal: SystemJournal,
    leases: ChunkLeases,
    marks: LeaseMarks,
    delay_seconds: float,
) -> None:
    """Delete condemned chunks until cancelled or fenced out."""
    # Usually the recovery or the first flush opens the metadata. This task needs the metadata only
    # later.
    with trio.move_on_after(delay_seconds):
        await journal.opened.wait()
    ages = _Ages(journal, delay_seconds)
    while True:
        try:
            await journal.ready()
            await journal.wait_for_garbage()
            with suppress(StorageFullError):
                await journal.restore_reserve()
            ages.note()
            await trio.sleep(min(delay_seconds, HURRIED_DELAY_SECONDS))
            condemned = await ages.wait_until_due()
            if condemned:
                await marks.outlive()
            await _collect(chunks, journal, leases, condemned)
        except FencedOutError as error:
            logger.warning("chunks are left to a later owner", error=str(error))
            await trio.sleep_forever()
        except StorageError as error:
            logger.warning("chunks are deleted later", error=str(error))
            await trio.sleep(ERROR_SLEEP_SECONDS)


class _Ages:
    """The times at which condemned chunks were first seen."""

    def __init__(self, journal: SystemJournal, delay_seconds: float) -> None:
        self._journal = journal
        self._delay_seconds = delay_seconds
        self._since: dict[str, float] = {}
        self._obsolete_since: float | None = None
        """The time at which system chunks were first seen that no recovery reads; None for none."""
        self._next_round = trio.current_time()

    def note(self) -> None:
        """Note what is condemned now."""
        now, condemned = trio.current_time(), self._journal.metadata.condemned
        self._since = {name: self._since.get(name, now) for name in condemned}
        if not self._journal.has_obsolete_chunks:
            self._obsolete_since = None
        elif self._obsolete_since is None:
            self._obsolete_since = now

    async def wait_until_due(self) -> list[str]:
        """Return the condemned chunks whose delay is over, as soon as there are some; all of them
        while there is no space. Return none when only system chunks are due."""
        delay = self._delay_seconds
        while not self._journal.lack.is_present:
            self.note()
            now = trio.current_time()
            since = [*self._since.values()]
            since += [] if self._obsolete_since is None else [self._obsolete_since]
            due_at = max(self._next_round, min(since, default=now) + delay)
            if now >= due_at:
                break
            with trio.move_on_at(min(due_at, now + delay / NOTES_IN_DELAY)):
                await self._journal.lack.wait()
        now = trio.current_time()
        self._next_round = now + delay / ROUNDS_IN_DELAY_MAX
        if self._journal.lack.is_present:
            return list(self._journal.metadata.condemned)
        return [name for name, since in self._since.items() if now >= since + delay]


async def collect_now(chunks: ChunkStorage, journal: SystemJournal, leases: ChunkLeases) -> None:
    """Delete condemned chunks without a delay."""
    await _collect(chunks, journal, leases, list(journal.metadata.condemned))
    if journal.metadata.condemned:  # the first round found more of them in obsolete system chunks
        await _collect(chunks, journal, leases, list(journal.metadata.condemned))


async def _collect(
    chunks: ChunkStorage, journal: SystemJournal, leases: ChunkLeases, condemned: list[str]
) -> None:
    failures: list[StorageError] = []
    await journal.confirm_ownership()
    journal.claim.require(Permission.DELETE)
    for start in range(0, len(condemned), COLLECTED_TOGETHER_MAX):
        names = condemned[start : start + COLLECTED_TOGETHER_MAX]
        with leases.deleting(names) as free:
            if deleted := await _delete_all(chunks, free, failures):
                async with journal.changing():
                    await journal.commit(Collected(tuple(deleted)))
    if journal.has_obsolete_chunks:
        await journal.clean_up()
    if failures:
        raise failures[0]


async def _delete_all(
    chunks: ChunkStorage, names: list[str], failures: list[StorageError]
) -> list[str]:
    """Delete chunks; return the names of those that were deleted. Stops after ``FAILURES_MAX``
    failures, which it adds to ``failures``."""
    deleted: list[str] = []

    async def delete(name: str) -> None:
        try:
            if len(failures) < FAILURES_MAX:
                await chunks.delete(name)
                deleted.append(name)
        except StorageError as error:
            failures.append(error)

    await run_parallel(names, delete, tasks_max=PARALLEL_DELETES_MAX)
    return deleted
