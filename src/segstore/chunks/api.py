"""Segments as tier 2 keeps them.

Owns: the ``SegmentStorage`` protocol between the container and the chunk layer.

Invariants:
1. Container metadata (names, start offsets, seals) is authoritative elsewhere; here are bytes and
   how many of them are stored.
2. Every operation can be repeated after a crash with the same arguments and the same outcome.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from segstore.chunks.scan_plan import ScanPlan
from segstore.tiers.api import Buffer


class SegmentStorage(Protocol):
    """Byte ranges of segments in tier 2, addressed by segment name and offset."""

    async def stored_length(self, segment: str, *, certain: int | None = None) -> int:
        """Return the offset up to which the segment's bytes are stored; 0 when none are.

        A recovery, which asks first, passes in ``certain`` the offset up to which bytes must be
        stored, because the log has dropped them. Bytes behind that offset need not be counted.
        """
        ...

    async def recovered(
        self,
        *,
        last_operation: int,
        next_segment_id: int,
        needed: Mapping[str, int],
        ends: Mapping[str, int],
    ) -> None:
        """End the recovery's questions about lengths, and compare tier 2 with the log.

        The log ends with ``last_operation``, and the next segment gets the id ``next_segment_id``.
        The log lacks the segments' bytes up to the offsets in ``needed``, and by it segments end at
        ``ends``. Raises ``LogBehindError`` when the log once had more, and ``StorageDamagedError``
        when needed bytes are not stored; later, in ``run``, if tier 2 cannot be asked now.
        """
        ...

    async def keep_container(self, snapshot: bytes, sequence_number: int) -> None:
        """Store a copy of the container's snapshot, durable on return, in place of the last one.

        Only ``segstore recover`` reads it, when the log is lost.
        """
        ...

    async def close(self, *, last_operation: int) -> None:
        """Record, for the next owner, what tier 2 must have; the owner ends in order. Never raises
        ``StorageError``."""
        ...

    async def write(
        self, segment: str, *, offset: int, data: Sequence[Buffer], rollover_bytes: int
    ) -> None:
        """Store ``data`` at ``offset``, durable on return.

        ``offset`` may not lie beyond ``stored_length``, except that the first write of a segment
        may start anywhere (its head was truncated before it was ever flushed). ``rollover_bytes``
        bounds a chunk (0: the default).
        """
        ...

    async def read(self, segment: str, *, offset: int, length: int) -> Buffer:
        """Read up to ``length`` bytes (at least one) that are stored at ``offset``.

        Raises ``ChunkDamagedError`` when they differ from what was written. ``ChunkStorage.read``
        tells who owns their memory.
        """
        ...

    async def plan_scan(
        self, segment: str, *, start: int, end: int, lease_id: bytes, lease_seconds: float
    ) -> ScanPlan | None:
        """Return where in tier 2 the segment's bytes from ``start`` to ``end`` are.

        These chunks are not deleted for ``lease_seconds``, at most ``LEASE_SECONDS_MAX``, whatever
        happens to the segment. Returns None when others cannot read this tier 2. Raises
        ``InvalidRequestError`` when too many chunks are held.
        """
        ...

    async def hold_chunks(
        self, segment: str | None, *, lease_id: bytes, names: Sequence[str], lease_seconds: float
    ) -> bool:
        """Extend a lease on chunks to ``lease_seconds`` from now on, or end it with 0.

        False when one of them may be gone. A lease that this owner does not know begins if all
        chunks are held by others, or are the ``segment``'s, or wait to be deleted.
        """
        ...

    async def truncate(self, segment: str, *, offset: int) -> None:
        """Free the space before ``offset`` where whole chunks can go; offsets do not shift."""
        ...

    async def concat(
        self, target: str, *, offset: int, source: str, length: int, rollover_bytes: int
    ) -> None:
        """Store the first ``length`` bytes of ``source`` at ``offset`` of ``target``.

        Nothing but ``delete`` may follow for the source.
        """
        ...

    async def delete(self, segment: str, *, merged_into: str | None = None) -> None:
        """Forget the segment; deleting a missing one is fine.

        Its bytes are stored in the segment into which it was merged.
        """
        ...

    async def settle(self) -> None:
        """Record, after the last write, what a later owner would have to find out."""
        ...

    async def run(self) -> None:
        """Delete chunks and record checksums, which no caller waits for, until cancelled."""
        ...
