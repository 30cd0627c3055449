"""Keeps the cache below its bound: decides what is evicted, and whether writers must wait.

Owns: the utilisation targets, the clock of generations, and the pace of eviction.

Invariants:
1. Only bytes that tier 2 has are evicted: nothing else is ever listed for eviction.
2. Above the target, history that was read is evicted first, then other history except for a small
   share, then the oldest generation, and so on. That share does not count towards the target: reads
   of history never evict what was appended.
3. One call evicts a bounded number of entries and looks at no others, so the event loop is never
   blocked for long. New data pay with the eviction of twice their size.
4. Writers are slowed down from ``throttle_bytes`` on and stop at ``writer_limit_bytes``, so that
   ``used_bytes`` stays below the capacity. Bytes in flight, of all containers, count in whole
   blocks, as if every append began an entry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from _fast.cache.read_index import Generations
from _fast.cache.streaming_cache import BLOCK_LENGTH, StreamingCache
from segstore.cache.history import HistoryBlocks

ROOM_RETRY_SECONDS: Final = 0.02
"""Interval between attempts to get room, which depends on tier 2."""
EVICTIONS_PER_CALL: Final = 256
"""Maximum count of entries that one step of background eviction drops: well below a millisecond."""
EVICTIONS_PER_CALL_MIN: Final = 16
"""Count of entries that even the smallest append may drop, beyond those that make room for it."""


HISTORY_BLOCKS_BYTES_MIN: Final = 32 * 1024 * 1024
"""Minimum of the bound on lent memory that is kept for reads of history."""


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Shares and times of the cache, the original's where it has the same. Utilisations are shares
    of the capacity."""

    target_utilization: float = 0.75
    max_utilization: float = 0.90
    eviction_margin: float = 0.05
    """Share of the capacity by which an eviction goes below the target, so that it does not run for
    every append."""
    throttle_margin: float = 0.05
    """Share of the capacity above the target from which on writers are slowed down."""
    system_margin: float = 0.05
    """Share of the capacity that system segments may use beyond the maximum."""
    history_share: float = 1 / 16
    """Share that history may use beyond the target, so that reads find what was read ahead. It is
    less than the distance from the target to the maximum."""
    generation_seconds: float = 1.0
    age_seconds_max: float = 1800.0
    """Maximum time without use: older entries are evicted even from an empty cache."""


class CacheManager:
    """One per process, shared by the read indexes of all its containers."""

    def __init__(self, cache: StreamingCache, policy: CachePolicy | None = None) -> None:
        self.cache = cache
        self.policy = policy = policy or CachePolicy()
        self.generations = Generations(cache)
        capacity = cache.capacity_bytes
        self._target_bytes = int(capacity * policy.target_utilization)
        self._low_bytes = int(capacity * (policy.target_utilization - policy.eviction_margin))
        self.throttle_bytes = int(capacity * (policy.target_utilization + policy.throttle_margin))
        self._history_bytes = int(capacity * policy.history_share)
        self.history_blocks = HistoryBlocks(max(self._history_bytes, HISTORY_BLOCKS_BYTES_MIN))
        self._age_max = int(policy.age_seconds_max / policy.generation_seconds)
        self._ticks: int | None = None
        self._draining = False
        self.in_flight_bytes = 0
        """Number of bytes that the containers have accepted and not yet added to the cache: they
        add and subtract them."""
        self.writer_limit_bytes = int(capacity * policy.max_utilization)
        self._system_limit_bytes = int(capacity * (policy.max_utilization + policy.system_margin))
        cache.on_full = self._make_room

    @property
    def is_above_target(self) -> bool:
        """Return whether something has to be evicted."""
        return self._counted_bytes() > self._target_bytes

    def advance(self, now: float) -> None:
        """Begin the generations that are due at ``now``, in seconds of any steady clock."""
        self.history_blocks.advance(now)
        ticks = int(now / self.policy.generation_seconds)
        if self._ticks is not None and ticks > self._ticks:
            self.generations.advance(min(ticks - self._ticks, 2 * self._age_max))
        self._ticks = ticks if self._ticks is None else max(ticks, self._ticks)

    def evict_some(self) -> bool:
        """Evict some entries that are too old or too many; return whether there are more."""
        generations = self.generations
        count = 0
        if generations.current > self._age_max:
            oldest = generations.current - self._age_max
            count = generations.expire(oldest, count_max=EVICTIONS_PER_CALL)
        if self._draining or self.is_above_target:
            evicted = self._evict_older(self._low_bytes, EVICTIONS_PER_CALL)
            count = max(count, evicted)
            self._draining = evicted == EVICTIONS_PER_CALL
        return count == EVICTIONS_PER_CALL

    @property
    def held_bytes(self) -> int:
        """Return how many bytes cannot be evicted because tier 2 does not have them. They slow
        writers down."""
        return self.cache.used_bytes - self.generations.evictable_bytes

    def has_room(self, block_bytes: int, *, system: bool = False) -> bool:
        """Return whether new data that take ``block_bytes`` fit beside what is in flight; evicts
        for it.

        ``system`` segments have a little more room than others.
        """
        cache = self.cache
        block_bytes += self.in_flight_bytes
        if cache.used_bytes + block_bytes <= self._target_bytes:
            return True
        used = self._counted_bytes()
        count_max = EVICTIONS_PER_CALL_MIN + 2 * block_bytes // BLOCK_LENGTH
        if used + block_bytes > self._target_bytes:
            self._evict_older(max(self._low_bytes, used - 2 * block_bytes), count_max)
        limit = self._system_limit_bytes if system else self.writer_limit_bytes
        room = limit - block_bytes
        if cache.used_bytes > room >= 0:
            # Evict entries of the present generation, too, rather than let writers wait.
            self.generations.evict(used_bytes_max=room, count_max=count_max)
        return cache.used_bytes <= room

    def has_history_room(self, block_bytes: int) -> bool:
        """Return whether data from tier 2 that take ``block_bytes`` may come in. Only history is
        evicted for it."""
        generations = self.generations
        room = self._target_bytes - block_bytes
        if self.cache.used_bytes <= room:
            return True
        share = self._history_bytes - block_bytes
        generations.evict(
            used_bytes_max=max(0, room),
            count_max=EVICTIONS_PER_CALL,
            generation_end=0,
            history_bytes_min=max(0, share),
        )
        used = self.cache.used_bytes
        if used <= room:
            return True
        return generations.history_bytes <= share and used + block_bytes <= self.writer_limit_bytes

    def _counted_bytes(self) -> int:
        """Return how many bytes count towards the target."""
        return self.cache.used_bytes - min(self.generations.history_bytes, self._history_bytes)

    def _evict_older(self, counted_bytes_max: int, count_max: int) -> int:
        """Evict entries that were not used in this generation."""
        uncounted = min(self.generations.history_bytes, self._history_bytes)
        return self.generations.evict(
            used_bytes_max=counted_bytes_max + uncounted,
            count_max=count_max,
            generation_end=self.generations.current,
            history_bytes_min=self._history_bytes,
        )

    def _make_room(self) -> bool:
        """Evict entries because the cache is full in the midst of an operation; return whether any
        went."""
        evicted = self.generations.evict(
            used_bytes_max=self._low_bytes, count_max=4 * EVICTIONS_PER_CALL
        )
        return evicted > 0


def block_bytes(length: int) -> int:
    """Return how many bytes of the cache ``length`` bytes of new data use at most."""
    return (length + BLOCK_LENGTH - 1) // BLOCK_LENGTH * BLOCK_LENGTH
