"""Keeps space in tier 2 for the metadata that a truncation or deletion has to write.

Owns: the reserve of one container: its chunks, which are deleted when metadata need their space,
and written again later.

Invariants:
1. When tier 2 is full, a truncation or deletion still writes its metadata, with the space of the
   reserve, and so chunks can be deleted. Held by ``test_what_frees_space_needs_none``.
2. When a part of the reserve was used, bytes of segments are refused until the reserve is whole
   again. Held by ``test_bytes_of_segments_do_not_take_the_space_of_a_reserve``.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import shake_128
from typing import Final

from segstore.errors import StorageFullError
from segstore.tiers.api import ChunkStorage

RESERVE_BYTES: Final = 1024 * 1024
"""Length, in bytes, of a container's reserve; it is longer when the container's snapshots are."""
PIECES: Final = 4
"""Number of chunks in a reserve. Each chunk that is deleted also frees a file, and the opening of a
container needs three: for its claim, its snapshot and its journal."""


class Reserve:
    """The reserve of one container: chunks whose names begin with ``prefix``. If ``reserve_bytes``
    is 0, the container has no reserve.
    """

    def __init__(self, chunks: ChunkStorage, prefix: str, reserve_bytes: int) -> None:
        self._chunks = chunks
        self._names = [f"{prefix}reserve-{number}" for number in range(PIECES)]
        self._piece_bytes_min = self._piece_bytes = reserve_bytes // PIECES
        self._lengths: dict[str, int] = {}

    @property
    def is_whole(self) -> bool:
        """Return whether all pieces of the reserve exist and are long enough."""
        lengths = self._lengths
        return all(lengths.get(name, 0) >= self._piece_bytes for name in self._names)

    def found(self, lengths: Mapping[str, int]) -> None:
        """Record the pieces that tier 2 has; ``lengths`` has all system chunks of a listing."""
        self._lengths = {name: lengths[name] for name in self._names if name in lengths}

    def record_snapshot(self, length: int) -> None:
        """Record the length of the last snapshot, because the next one will be about as long."""
        if self._piece_bytes_min:
            self._piece_bytes = max(self._piece_bytes_min, length // 2)

    async def spend(self) -> bool:
        """Delete a piece; return False when there is none. Raises ``StorageError``."""
        if not self._lengths:
            return False
        name = next(iter(self._lengths))
        await self._chunks.delete(name)
        self._lengths.pop(name, None)
        return True

    async def restore(self) -> None:
        """Write the pieces that are missing or too short. Raises ``StorageError``, and its subclass
        ``StorageFullError`` when there is no space for them."""
        length = self._piece_bytes
        for name in self._names:
            if self._lengths.get(name, 0) >= length:
                continue
            if self._lengths.pop(name, None) is not None:
                await self._chunks.delete(name)
            try:
                await self._chunks.write(name, offset=0, data=[_filler(name, length)])
            except StorageFullError:
                await self._chunks.delete(name)  # some tiers keep a part of a write that failed
                raise
            self._lengths[name] = length


def _filler(name: str, length: int) -> bytes:
    """Return bytes that no file system can compress."""
    return shake_128(name.encode()).digest(length)
