"""Owners of chunks for tests that have no log which would give them their epochs.

Owns: ``next_owner``.

Invariants:
1. Of two owners the later one has the greater epoch, whatever chunks they are of.
"""

from __future__ import annotations

from itertools import count

from segstore.chunks.chunked import ChunkedSegmentStorage
from segstore.tiers.api import ChunkStorage

_epochs = count(1)


def next_owner(
    chunks: ChunkStorage,
    *,
    container_id: int = 0,
    garbage_delay_seconds: float = 60.0,
    boot_id: str | None = None,
) -> ChunkedSegmentStorage:
    """Return the segments in ``chunks``, for an owner who comes after all others."""
    epoch = next(_epochs)
    return ChunkedSegmentStorage(
        chunks,
        epoch=lambda: epoch,
        container_id=container_id,
        garbage_delay_seconds=garbage_delay_seconds,
        boot_id=boot_id,
    )
