"""Leases on chunks, for readers that read tier 2 themselves.

Owns: ``ChunkLeases``, which has the chunks that must not be deleted and the times until then, and
``LeaseMarks``, by which an owner finds out that earlier owners gave leases.

Invariants:
1. While a reader has a lease on a chunk, the chunk is not deleted, even when its segment is
   truncated or deleted. Held by ``test_deletion_of_chunks_waits_for_leases`` and
   ``test_chunks_of_a_truncated_segment_are_held_too``.
2. When the deletion of a chunk has begun, a lease on it is refused. Held by
   ``test_chunks_that_are_unknown_or_being_deleted_are_not_held``.
3. When an owner that gave leases crashes, the leases stay valid: it wrote a mark before its first
   lease, and a later owner that finds the mark deletes no chunk for ``LEASE_SECONDS_MAX``, the
   longest time of a lease. Held by ``test_a_lease_lasts_through_a_crash_of_its_owner``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import trio

from segstore.errors import InvalidRequestError
from segstore.tiers.api import ChunkStorage

LEASE_SECONDS_MAX: Final = 600.0
HELD_NAMES_MAX: Final = 100_000
"""Maximum number of chunk names in all leases of one owner, which are in memory. Readers that read
over the wire need no lease."""


class LeaseMarks:
    """The marks of a container's owners in tier 2, which say that they gave leases;
    docs/formats/chunk-metadata.md has their names."""

    def __init__(self, chunks: ChunkStorage, container_id: int, epoch: Callable[[], int]) -> None:
        self._chunks = chunks
        self._prefix = f"_system/chunks-{container_id}$leases-"
        self._epoch = epoch
        self._is_made = self._has_outlived = False
        self._lock = trio.Lock()

    async def make(self) -> None:
        """Write this owner's mark, if it has none. It is durable on return."""
        if not self._is_made:
            async with self._lock:
                await self._chunks.write(self._own(), offset=0, data=[b"leases were given\n"])
                self._is_made = True

    async def outlive(self) -> None:
        """Wait until all leases of earlier owners have ended, and delete their marks. Raises
        ``StorageError``."""
        if self._has_outlived:
            return
        listed = await self._chunks.list_chunks(self._prefix)
        earlier = [each.name for each in listed if each.name < self._own()]
        if earlier:
            await trio.sleep(LEASE_SECONDS_MAX)
            for name in earlier:
                await self._chunks.delete(name)
        self._has_outlived = True

    def _own(self) -> str:
        return f"{self._prefix}{self._epoch():010d}"


@dataclass(slots=True)
class _Lease:
    ends: float
    names: set[str]


class ChunkLeases:
    """The leases on one owner's chunks. No method waits. Times are of the event loop's clock."""

    def __init__(self) -> None:
        self._leases: dict[bytes, _Lease] = {}
        self._leaving: set[str] = set()

    def hold(self, lease_id: bytes, names: Collection[str], seconds: float) -> None:
        """Let a lease last for ``seconds`` from now on, and add these chunks to it.

        Raises ``InvalidRequestError`` when readers hold too many chunks.
        """
        self._drop_ended()
        lease = self._leases.get(lease_id) or _Lease(0.0, set())
        held = sum(len(each.names) for each in self._leases.values())
        if held + len(set(names) - lease.names) > HELD_NAMES_MAX:
            raise InvalidRequestError("", f"readers hold {held} chunks: no more can be held")
        lease.ends = trio.current_time() + min(seconds, LEASE_SECONDS_MAX)
        lease.names.update(names)
        self._leases[lease_id] = lease

    def end(self, lease_id: bytes) -> None:
        """End a lease, if there is one with this id."""
        self._leases.pop(lease_id, None)

    def may_hold(self, names: Iterable[str], known: Collection[str]) -> bool:
        """Return whether a lease on these chunks is possible: each of them is in a lease already,
        or is in ``known`` and is not being deleted."""
        self._drop_ended()
        held = self._held()
        return all(name in held or (name in known and name not in self._leaving) for name in names)

    @contextmanager
    def deleting(self, names: Sequence[str]) -> Iterator[list[str]]:
        """Yield the chunks without a lease. Inside the block, none of them can get one."""
        self._drop_ended()
        held = self._held()
        free = [name for name in names if name not in held]
        self._leaving.update(free)
        try:
            yield free
        finally:
            self._leaving.difference_update(free)

    def _held(self) -> set[str]:
        return {name for lease in self._leases.values() for name in lease.names}

    def _drop_ended(self) -> None:
        now = trio.current_time()
        self._leases = {key: each for key, each in self._leases.items() if each.ends > now}
