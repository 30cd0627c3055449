"""What the read index asks of the cache.

Owns: the ``CacheStorage`` protocol.

Invariants:
1. An entry is known by its address; appending to an entry may not move other entries.
2. ``used_bytes`` is what counts against ``capacity_bytes``; keeping below it is the caller's duty,
   done by eviction and by holding writers back, never by losing data.
"""

from __future__ import annotations

from typing import Protocol

from segstore.tiers.api import Buffer


class CacheStorage(Protocol):
    """Bytes by address."""

    @property
    def capacity_bytes(self) -> int:
        """The bound of ``used_bytes``."""
        ...

    @property
    def used_bytes(self) -> int:
        """Bytes of memory held by entries."""
        ...

    def insert(self, data: Buffer) -> int:
        """Copy ``data`` into a new entry and return its address."""
        ...

    def append(self, address: int, data: Buffer) -> int:
        """Extend an entry in place; returns its address from now on."""
        ...

    def get(self, address: int, position: int, length: int) -> bytes:
        """Copy ``length`` bytes out of an entry, from ``position`` on."""
        ...

    def delete(self, address: int) -> None:
        """Free an entry."""
        ...
