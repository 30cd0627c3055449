"""New chunks of many segments become known in one write.

Owns: what waits to be added to the chunk metadata while they are being written.

Invariants:
1. ``add`` returns when its chunk is in durable metadata, and raises when that is not certain.
2. A chunk that does not fit where it shall go keeps no other from being added.
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
    """The new chunks of one container. Calls may come at any time, but one at a time for each
    segment."""

    def __init__(self, journal: SystemJournal) -> None:
        self._journal = journal
        self._waiting: list[_Addition] = []

    async def add(self, change: AddChunk) -> None:
        """Make a chunk known, together with all that came since the last write began."""
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
        # One of them does not fit, and nothing was written: each has failed until it is its turn.
        for index, each in enumerate(together):
            await self._commit([each])
            if self._journal.is_unfinished:
                for later in together[index + 1 :]:
                    later.error = each.error
                return
