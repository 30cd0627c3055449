"""Keeps the cache below its bound: decides what goes, and whether writers must wait.

Owns: the utilisation targets and the eviction of read index entries.

Invariants:
1. Only bytes that are in tier 2 already are evicted.
2. Eviction takes the entries that were used longest ago first.
3. Writers wait from ``writer_limit_bytes`` on, so that ``used_bytes`` stays below the capacity.
   What is in flight counts in whole blocks, as if every append began an entry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Final, Protocol

from _fast.cache import BLOCK_LENGTH, StreamingCache

# The original's cache policy: target and maximum utilisation of the capacity.
TARGET_UTILIZATION: Final = 0.75
MAX_UTILIZATION: Final = 0.90
# Eviction goes this far below the target, so that it does not run for every append.
EVICTION_MARGIN: Final = 0.05


class Evictable(Protocol):
    """A cached entry as its read index offers it."""

    last_used: float
    length: int


class CacheClient(Protocol):
    """A read index: offers what may go, and lets it go."""

    def evictable_entries(self) -> Iterable[tuple[Evictable, Callable[[], None]]]:
        """Every cached entry that is wholly in tier 2, with the call that drops it."""
        ...


class CacheManager:
    """One per process, shared by the read indexes of all its containers."""

    def __init__(self, cache: StreamingCache) -> None:
        self.cache = cache
        cache.on_full = self._evict
        self._clients: list[CacheClient] = []
        self._target_bytes = int(cache.capacity_bytes * TARGET_UTILIZATION)
        self._low_bytes = int(cache.capacity_bytes * (TARGET_UTILIZATION - EVICTION_MARGIN))
        self._exhausted = False
        self.writer_limit_bytes = int(cache.capacity_bytes * MAX_UTILIZATION)
        self.evicted_bytes = 0

    def register(self, client: CacheClient) -> None:
        """Let a read index take part in eviction."""
        self._clients.append(client)

    def unregister(self, client: CacheClient) -> None:
        """Forget a read index that is closed."""
        self._clients.remove(client)

    def note_stored(self) -> None:
        """More bytes are in tier 2: eviction may find something again."""
        self._exhausted = False

    def evict_if_needed(self) -> None:
        """Bring the utilisation back below the target, as far as tier 2 allows."""
        if self.cache.used_bytes > self._target_bytes and not self._exhausted:
            self._evict()

    def has_room(self, block_bytes: int) -> bool:
        """Whether new data that takes ``block_bytes`` of blocks may come in now."""
        if self.cache.used_bytes + block_bytes <= self._target_bytes:
            return True
        self.evict_if_needed()
        return self.cache.used_bytes + block_bytes <= self.writer_limit_bytes

    def _evict(self) -> bool:
        """Drop entries down to the low mark; returns whether any went."""
        candidates = [pair for client in self._clients for pair in client.evictable_entries()]
        candidates.sort(key=lambda pair: pair[0].last_used)
        before = self.evicted_bytes
        for entry, drop in candidates:
            if self.cache.used_bytes <= self._low_bytes:
                break
            self.evicted_bytes += entry.length
            drop()
        # Until tier 2 has more, another look at every entry would find nothing either.
        self._exhausted = self.cache.used_bytes > self._target_bytes
        return self.evicted_bytes > before


def block_bytes(length: int) -> int:
    """The most that ``length`` bytes of new data take of the cache."""
    return (length + BLOCK_LENGTH - 1) // BLOCK_LENGTH * BLOCK_LENGTH
