"""The interface of segments in tier 2.

Owns: the ``SegmentStorage`` protocol between the container and the chunk layer. Tier 2 decides
which bytes of a segment are stored. The container's metadata, which are in the log, decide about
its name, its start offset and its seal.

Invariants:
1. When an operation is repeated after a crash with the same arguments, the result is the same. Held
   by ``test_a_repeated_write_changes_nothing``,
   ``test_a_concat_can_be_repeated_after_its_source_is_gone`` and ``TestChunked``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from segstore.chunks.scan_plan import ScanPlan
from segstore.tiers.api import Buffer


class SegmentStorage(Protocol):
    """Byte ranges of segments in tier 2, addressed by segment name and offset."""

    async def stored_length(self, segment: str, *, certain: int | None = None) -> int:
        """Return the offset up to which the segment's bytes are stored; 0 if it has none.

        A recovery passes ``certain``, the offset up to which the bytes must be stored because the
        log has dropped them. Bytes after that offset need not be counted.
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
        """End the recovery, and compare tier 2 with the log.

        The log ends with ``last_operation``, and the next segment gets the id ``next_segment_id``.
        ``needed`` has the offset of each segment up to which the log has dropped the bytes, and
        ``ends`` the offset at which the segment ends in the log. Raises ``LogBehindError`` when the
        log once had more, ``StorageDamagedError`` when needed bytes are not stored, and another
        ``StorageError`` when tier 2 does not answer.
        """
        ...

    async def keep_container(self, snapshot: bytes, sequence_number: int) -> None:
        """Replace the copy of the container's snapshot in tier 2. It is durable on return.

        Only ``segstore recover`` reads the copy, when the log is lost.
        """
        ...

    async def close(self, *, last_operation: int) -> None:
        """End this owner in order: record for the next owner which changes tier 2 must have. Never
        raises ``StorageError``."""
        ...

    async def write(
        self,
        segment: str,
        *,
        offset: int,
        data: Sequence[Buffer],
        rollover_bytes: int,
        on_stored: Callable[[int], None] | None = None,
    ) -> None:
        """Store ``data`` at ``offset``. It is durable on return.

        ``offset`` is at most ``stored_length``. Only the first write of a segment may start at any
        offset, because its beginning may have been truncated before the first flush.
        ``rollover_bytes`` is the maximum length of a chunk, 0 for the default. ``on_stored`` is
        called after each chunk with the offset up to which the segment's bytes are durable.
        """
        ...

    async def read(self, segment: str, *, offset: int, length: int) -> Buffer:
        """Read up to ``length`` bytes (at least one) that are stored at ``offset``.

        Raises ``ChunkDamagedError`` when they differ from those that were written. The rules of
        ``ChunkStorage.read`` apply to their memory.
        """
        ...

    async def plan_scan(
        self, segment: str, *, start: int, end: int, lease_id: bytes, lease_seconds: float
    ) -> ScanPlan | None:
        """Return the places in tier 2 of the segment's bytes from ``start`` to ``end``.

        Their chunks are not deleted for ``lease_seconds``, at most ``LEASE_SECONDS_MAX``, even if
        the segment is truncated or deleted. Returns None when other processes cannot read this tier
        2. Raises ``InvalidRequestError`` when too many chunks are in leases.
        """
        ...

    async def hold_chunks(
        self, segment: str | None, *, lease_id: bytes, names: Sequence[str], lease_seconds: float
    ) -> bool:
        """Let a lease on chunks last for ``lease_seconds`` from now on; 0 ends it.

        Returns False when one of the chunks may be deleted already. If this owner does not know the
        lease, it begins a new one, provided that each chunk is in another lease, belongs to
        ``segment``, or waits to be deleted.
        """
        ...

    async def truncate(self, segment: str, *, offset: int) -> None:
        """Drop the chunks that end at or before ``offset``. The offsets of other bytes stay.

        If the stored bytes end before ``offset``, the segment ends at ``offset`` from now on, and
        the bytes between are never stored.
        """
        ...

    async def concat(
        self, target: str, *, offset: int, source: str, length: int, rollover_bytes: int
    ) -> None:
        """Store the first ``length`` bytes of ``source`` at ``offset`` of ``target``.

        After this, the source may only be deleted.
        """
        ...

    async def delete(self, segment: str, *, merged_into: str | None = None) -> None:
        """Delete the segment, if it exists.

        ``merged_into`` is the segment that has its bytes now, if it was merged.
        """
        ...

    async def settle(self) -> None:
        """Record, after the last write, the lengths that a later owner would have to look up."""
        ...

    async def run(self) -> None:
        """Delete chunks and record checksums in the background, until cancelled."""
        ...
