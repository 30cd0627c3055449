"""Computes the delay of a container's writers from all values that grow while tier 2 is slow.

Owns: the bounds of these values, and the delay that keeps them within the bounds.

Invariants:
1. The delay is the longest one of all measured values. Held by
   ``test_more_of_anything_never_makes_the_delay_shorter``.
2. When a value reaches its bound, users' writes stop; writes to system segments continue up to
   ``system_share`` of the bound. Held by ``test_system_segments_stop_beyond_the_bounds``.
3. When the journal's reserve is used, users' writes stop first, then those to system segments; the
   rest of the reserve is for operations that free space. Held by
   ``test_of_the_journals_reserve_system_segments_get_more_than_users``.
4. Values other than the cache's are measured again after ``SAMPLE_SECONDS``, ``SAMPLE_CALLS`` calls
   or ``SAMPLE_BYTES``, so a bound may be exceeded by the writes between two samples. Held by
   ``test_what_is_not_the_cache_is_looked_at_now_and_then``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from segstore.throttling.calculators import Ramp, RecentWrites, batching_seconds

SAMPLE_SECONDS: Final = 0.05
SAMPLE_CALLS: Final = 16
SAMPLE_BYTES: Final = 1024 * 1024
WRITE_BYTES_MAX: Final = 1024 * 1024
"""Length of a full data frame, in bytes. The batching delay is the longer, the less of it recent
writes used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlePolicy:
    """The bounds of one container, except for those of the cache, which ``CachePolicy`` has."""

    delay_seconds_max: float = 1.0
    """Maximum delay before a batch of writes, in seconds. The original's are 25 s, but for many
    more operations in a batch."""
    begin_share: float = 0.75
    """Share of each bound from which on writers are delayed."""
    system_share: float = 1.1
    """Multiple of each bound at which writes to system segments stop, too."""
    log_bytes_max: int = 6 * 1024**3
    """Maximum number of bytes in tier 1, of all containers that share it, that are not
    truncated."""
    reserve_percent_max: int = 25
    """Percentage of the journal's reserve at which users' writes stop."""
    reserve_percent_system_max: int = 75
    """Percentage of the journal's reserve at which writes to system segments, such as the
    controller's records, stop. The rest is for operations that free space."""
    operations_max: int = 250_000
    """Maximum number of operations that tier 2 lacks; each takes about 150 bytes of memory."""
    attributes_dirty_max: int = 131_072
    """Maximum number of changed attributes that tier 2 lacks; each takes about 250 bytes of memory,
    and 26 bytes of each checkpoint."""
    batching_seconds_max: float = 0.0
    """Maximum wait, in seconds, for more operations in a data frame; 0 for none."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """One measured value, its bounds, and its delay; ``seconds`` is infinite at the bound."""

    name: str
    value: int
    begins: int
    bound: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ThrottleSnapshot:
    """The measured values and delays of a container at one moment."""

    gauges: tuple[Gauge, ...]
    batching_seconds: float

    @property
    def seconds(self) -> float:
        """Return the delay of users' writes; infinite when they are stopped."""
        return max(gauge.seconds for gauge in self.gauges)

    @property
    def strongest(self) -> Gauge:
        """Return the value with the longest delay."""
        return max(self.gauges, key=lambda gauge: gauge.seconds)


Reading = Callable[[], int]


@dataclass(frozen=True, slots=True)
class CacheReading:
    """A function that returns the bytes of the cache that cannot be evicted, and the range in which
    they slow writers down."""

    held_bytes: Reading
    begins: int
    bound: int


class Throttle:
    """The throttle of one container. ``now`` is the time of a monotonic clock, in seconds."""

    def __init__(
        self,
        policy: ThrottlePolicy,
        *,
        cache: CacheReading,
        log_bytes: Reading,
        reserve_percent: Reading,
        operation_count: Reading,
        dirty_count: Reading,
    ) -> None:
        self._policy = policy
        self._cache = cache
        self._cache_ramp = Ramp(cache.begins, cache.bound, policy.delay_seconds_max)
        # Writers are delayed as soon as any of the reserve is used.
        reserve = Ramp(0.0, policy.reserve_percent_max, policy.delay_seconds_max)
        self._sampled = (
            ("log bytes", log_bytes, *self._ramp(policy.log_bytes_max)),
            (
                "percent of the journal's reserve",
                reserve_percent,
                reserve,
                float(policy.reserve_percent_system_max),
            ),
            ("operations", operation_count, *self._ramp(policy.operations_max)),
            ("dirty attributes", dirty_count, *self._ramp(policy.attributes_dirty_max)),
        )
        self._writes = RecentWrites()
        self._sampled_seconds = 0.0
        self._system_stops = False
        self._dirty_delays = False
        self._sample_at = -inf
        self._calls_left = 0
        self.is_batching = policy.batching_seconds_max > 0
        """True if writes have to be noted."""

    def delay_seconds(self, now: float) -> float:
        """Return how long users' writes must wait before the next batch, in seconds; infinite at a
        bound.

        The cache never makes it infinite: the operation processor asks the cache for room for each
        write.
        """
        self._calls_left -= 1
        if now >= self._sample_at or self._calls_left <= 0:
            self._sample(now)
        held_bytes = self._cache.held_bytes()
        if held_bytes <= self._cache.begins:
            return self._sampled_seconds
        return max(self._cache_ramp.seconds(held_bytes), self._sampled_seconds)

    @property
    def system_stops(self) -> bool:
        """Return whether writes to system segments have to wait, too, by the last sample."""
        return self._system_stops

    @property
    def dirty_attributes_delay(self) -> bool:
        """Return whether the number of changed attributes slows writers down, by the last
        sample."""
        return self._dirty_delays

    def record_submitted(self, length: int) -> None:
        """Record that a data frame of ``length`` bytes was sent to tier 1."""
        self._calls_left -= length * SAMPLE_CALLS // SAMPLE_BYTES

    def record_write(self, *, length: int, seconds: float) -> None:
        """Record that a data frame became durable in tier 1."""
        self._writes.add(length=length, seconds=seconds)

    def batching_seconds(self) -> float:
        """Return how long to wait for more operations, in seconds; 0 unless a batching delay is
        configured."""
        return batching_seconds(
            recent_latency_seconds=self._writes.latency_seconds,
            average_write_bytes=self._writes.write_bytes,
            write_bytes_max=WRITE_BYTES_MAX,
            seconds_max=self._policy.batching_seconds_max,
        )

    def snapshot(self) -> ThrottleSnapshot:
        """Return all values and their delays now."""
        cache = self._cache
        held_bytes = cache.held_bytes()
        seconds = self._cache_ramp.seconds(held_bytes)
        gauges = [Gauge("cache bytes", held_bytes, cache.begins, cache.bound, seconds)]
        for name, read, ramp, _ in self._sampled:
            value = read()
            begins, bound = int(ramp.begins), int(ramp.bound)
            gauges.append(Gauge(name, value, begins, bound, ramp.seconds_or_stop(value)))
        return ThrottleSnapshot(tuple(gauges), self.batching_seconds())

    def _ramp(self, bound: int) -> tuple[Ramp, float]:
        """Return the ramp of users' writes for a bound, and the value at which writes to system
        segments stop."""
        policy = self._policy
        ramp = Ramp(policy.begin_share * bound, bound, policy.delay_seconds_max)
        return ramp, bound * policy.system_share

    def _sample(self, now: float) -> None:
        self._sample_at = now + SAMPLE_SECONDS
        self._calls_left = SAMPLE_CALLS
        delays: list[float] = []
        self._system_stops = False
        for _, read, ramp, system_bound in self._sampled:
            value = read()
            delays.append(0.0 if value <= ramp.begins else ramp.seconds_or_stop(value))
            self._system_stops |= value >= system_bound
        self._sampled_seconds = max(delays)
        self._dirty_delays = delays[-1] > 0
