"""Deletes chunks that no segment has any more, some time after that became durable.

Owns: ``collect_garbage``, the task that does it, and ``collect_now``.

Invariants:
1. A chunk is deleted only after the change that condemned it is durable, then a delay has passed,
   so that earlier reads end, and then it was checked that no owner had claimed a later epoch.
2. A condemned chunk is in the chunk metadata until it is deleted: a crash forgets none.
3. A chunk that cannot be deleted does not block others: each deletion is recorded.
4. A chunk with a lease stays until the lease ends; it is looked at again after a delay.
"""

from __future__ import annotations

from typing import Final

import structlog
import trio

from segstore.chunks.leases import ChunkLeases, LeaseMarks
from segstore.chunks.records import Collected
from segstore.chunks.system_journal import SystemJournal
from segstore.errors import FencedOutError, StorageError
from segstore.runtime.parallel import run_parallel
from segstore.tiers.api import ChunkStorage

GARBAGE_DELAY_SECONDS: Final = 60.0
COLLECTED_TOGETHER_MAX: Final = 100
PARALLEL_DELETES_MAX: Final = 4
FAILURES_MAX: Final = 8
"""Maximum count of failed deletions before the remaining chunks are left for the next time."""
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
    # The recovery or the first flush opens the metadata; here it is not urgent.
    with trio.move_on_after(delay_seconds):
        await journal.opened.wait()
    while True:
        try:
            await journal.ready()
            await journal.wait_for_garbage()
            condemned = list(journal.metadata.condemned)
            await trio.sleep(delay_seconds)
            if condemned:
                await marks.outlive()
            await _collect(chunks, journal, leases, condemned)
        except FencedOutError as error:
            logger.warning("chunks are left to a later owner", error=str(error))
            await trio.sleep_forever()
        except StorageError as error:
            logger.warning("chunks are deleted later", error=str(error))
            await trio.sleep(ERROR_SLEEP_SECONDS)


async def collect_now(chunks: ChunkStorage, journal: SystemJournal, leases: ChunkLeases) -> None:
    """Delete condemned chunks without a delay."""
    await _collect(chunks, journal, leases, list(journal.metadata.condemned))
    if journal.metadata.condemned:  # by what was found in system chunks
        await _collect(chunks, journal, leases, list(journal.metadata.condemned))


async def _collect(
    chunks: ChunkStorage, journal: SystemJournal, leases: ChunkLeases, condemned: list[str]
) -> None:
    failures: list[StorageError] = []
    await journal.confirm_ownership()
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
    """Delete chunks; return the names of the deleted ones. Stops after many failures."""
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
