"""Keeps the cache below its bound: decides which entries are evicted, and whether writers must
wait.

Owns: the utilisation targets, the generations, and the number of evictions in a call. A
*generation* is a second in which entries were used. Above the target, history that was read is
evicted first, then other history except for a small share, then the entries of the oldest
generation, and so on. That share of history does not count towards the target.

Invariants:
1. When the cache is full, bytes that tier 2 lacks are not evicted; writers have to wait. Held by
   ``test_what_tier_2_does_not_have_stays_and_writers_must_wait``.
2. Above the target, the entries of the oldest generations are evicted. Held by
   ``test_above_the_target_the_oldest_generations_go``.
3. When much history is read, no appended bytes are evicted for it. Held by
   ``test_history_never_pushes_out_what_was_appended``.
4. One call evicts a bounded number of entries and looks at no others, so that it does not keep the
   event loop from running. Held by ``test_one_call_evicts_a_bounded_number_of_entries``.
5. When bytes that cannot be evicted grow, writers are slowed down before they have to stop. Held by
   ``test_a_writer_slows_down_before_it_has_to_stop``.
6. Bytes that containers have accepted and not yet added to the cache count as used. Held by
   ``test_containers_leave_room_in_the_cache_for_what_others_have_in_flight``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from _fast.cache.read_index import Generations
from _fast.cache.streaming_cache import BLOCK_LENGTH, StreamingCache
from segstore.cache.history import HistoryBlocks

ROOM_RETRY_SECONDS: Final = 0.02
"""Interval, in seconds, between attempts to get room in the cache. Room comes when tier 2 has
stored more bytes."""
EVICTIONS_PER_CALL: Final = 256
"""Maximum count of entries that one step of background eviction drops, in much less than a
millisecond."""
EVICTIONS_PER_CALL_MIN: Final = 16
"""Maximum count of entries that an append may drop in addition to those that make room for it."""


HISTORY_BLOCKS_BYTES_MIN: Final = 32 * 1024 * 1024
"""Minimum size, in bytes, of the bound of history blocks."""


@dataclass(frozen=True, slots=True)
class CachePolicy:
    """Shares and times of the cache; where the original has the same values, they are equal.
    Utilisations are shares of the capacity."""

    target_utilization: float = 0.75
    max_utilization: float = 0.90
    eviction_margin: float = 0.05
    """Share of the capacity by which an eviction goes below the target, so that the next appends
    need none."""
    throttle_margin: float = 0.05
    """Writers are slowed down above the target and this share of the capacity."""
    system_margin: float = 0.05
    """Share of the capacity that system segments may use beyond the maximum."""
    history_share: float = 1 / 16
    """Share of the capacity that history may use beyond the target, so that bytes that were read
    ahead stay until they are read. It is less than the distance from the target to the maximum."""
    generation_seconds: float = 1.0
    age_seconds_max: float = 1800.0
    """Maximum time without use, in seconds: after it, entries are evicted even if the cache has
    room."""


class CacheManager:
    """The cache manager of one process, which the read indexes of all its containers share."""

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
        """Number of bytes, in whole blocks, that containers have accepted and not yet added to the
        cache. The containers add to it and subtract from it."""
        self.writer_limit_bytes = int(capacity * policy.max_utilization)
        self._system_limit_bytes = int(capacity * (policy.max_utilization + policy.system_margin))
        cache.on_full = self._make_room

    @property
    def is_above_target(self) -> bool:
        """Return whether entries have to be evicted."""
        return self._counted_bytes() > self._target_bytes

    def advance(self, now: float) -> None:
        """Begin the generations that are due at ``now``, the time of a monotonic clock, in
        seconds."""
        self.history_blocks.advance(now)
        ticks = int(now / self.policy.generation_seconds)
        if self._ticks is not None and ticks > self._ticks:
            self.generations.advance(min(ticks - self._ticks, 2 * self._age_max))
        self._ticks = ticks if self._ticks is None else max(ticks, self._ticks)

    def evict_some(self) -> bool:
        """Evict some entries that are too old, or above the target. Return whether more have to be
        evicted."""
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
        """Return how many bytes cannot be evicted because tier 2 lacks them. They slow writers
        down."""
        return self.cache.used_bytes - self.generations.evictable_bytes

    def has_room(self, block_bytes: int, *, system: bool = False) -> bool:
        """Return whether the cache has room for ``block_bytes`` of new data beside the bytes in
        flight, and evict entries for it.

        Data of ``system`` segments may use a little more of the cache than others.
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
            # Evict entries of the present generation, too, so that writers need not wait.
            self.generations.evict(used_bytes_max=room, count_max=count_max)
        return cache.used_bytes <= room

    def has_history_room(self, block_bytes: int) -> bool:
        """Return whether the cache has room for ``block_bytes`` of data from tier 2. Only history
        is evicted for it."""
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
        """Evict entries because the cache became full during an operation. Return whether any was
        evicted."""
        evicted = self.generations.evict(
            used_bytes_max=self._low_bytes, count_max=4 * EVICTIONS_PER_CALL
        )
        return evicted > 0


def block_bytes(length: int) -> int:
    """Return the size of ``length`` bytes of new data in whole blocks of the cache: the maximum
    that they use."""
    return (length + BLOCK_LENGTH - 1) // BLOCK_LENGTH * BLOCK_LENGTH
