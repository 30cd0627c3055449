"""Adds new chunks of many segments to the chunk metadata with one write.

Owns: the additions that wait while the metadata are being written.

Invariants:
1. When several chunks are added while the metadata are being written, one write adds them all. Held
   by ``test_many_segments_first_chunks_are_few_writes_of_the_journal``.
2. When that write fails, ``add`` raises for each of the chunks. Held by
   ``test_all_whose_write_of_the_journal_failed_are_told``.
3. When a chunk does not fit to its segment, ``add`` raises for it, and the others are added. Held
   by ``test_a_chunk_that_does_not_fit_keeps_no_other_from_being_added``.
4. When a caller is cancelled while its addition waits, the chunk is not added. Held by
   ``test_who_gives_up_waiting_adds_nothing``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from segstore.chunks.records import AddChunk
from segstore.chunks.system_journal import SystemJournal
from segstore.errors import StorageError


@dataclass(slots=True, eq=False)
class _Addition:
    change: AddChunk
    error: StorageError | None = None


class Additions:
    """The additions of one container. A segment has at most one call of ``add`` at a time; other
    segments may have others at the same time."""

    def __init__(self, journal: SystemJournal) -> None:
        self._journal = journal
        self._waiting: list[_Addition] = []

    async def add(self, change: AddChunk) -> None:
        """Add a chunk to the durable metadata, together with all others that wait."""
        addition = _Addition(change)
        self._waiting.append(addition)
        try:
            async with self._journal.changing():
                if addition in self._waiting:
                    together, self._waiting = self._waiting, []
                    await self._commit(together)
        finally:
            if addition in self._waiting:
                self._waiting.remove(addition)
        if addition.error is not None:
            raise addition.error

    async def _commit(self, together: Sequence[_Addition]) -> None:
        try:
            await self._journal.commit(*(each.change for each in together))
        except StorageError as error:
            for each in together:
                each.error = error
            if self._journal.is_unfinished or len(together) == 1:
                return
        except BaseException:
            for each in together:
                each.error = StorageError(
                    f"it is unknown whether the metadata name {each.change.name}"
                )
            raise
        else:
            for each in together:
                each.error = None
            return
        # One of the changes does not fit, and nothing was written. So each change is written alone.
        # If a write is left unfinished, the changes after it get its error.
        for index, each in enumerate(together):
            await self._commit([each])
            if self._journal.is_unfinished:
                for later in together[index + 1 :]:
                    later.error = each.error
                return
