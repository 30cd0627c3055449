"""A chunk storage whose listings hide chunks for a while, as a replica does that lags behind.

Owns: ``HidingChunkStorage``. What is hidden from listings is still read by its name.
"""

from __future__ import annotations

from segstore.tiers.api import ChunkInfo
from segstore.tiers.memory import MemoryChunkStorage


class HidingChunkStorage(MemoryChunkStorage):
    """Lists only chunks with the names in ``listed``, unless that is None.

    A chunk that was deleted after ``names`` had told of it, and was made again, is another one: it
    is hidden, too.
    """

    def __init__(self) -> None:
        super().__init__()
        self.listed: frozenset[str] | None = None
        self._deleted: set[str] = set()

    async def names(self) -> frozenset[str]:
        """Return the names of all chunks, hidden or not."""
        self._deleted.clear()
        return frozenset(each.name for each in await super().list_chunks(""))

    async def delete(self, name: str) -> None:
        """Delete a chunk."""
        await super().delete(name)
        self._deleted.add(name)

    async def list_chunks(self, prefix: str) -> list[ChunkInfo]:
        """List the chunks with that prefix that are not hidden."""
        found = await super().list_chunks(prefix)
        if self.listed is None:
            return found
        shown = self.listed - self._deleted
        return [each for each in found if each.name in shown]
