"""Combines everything that slows a container's writers down to one delay.

Owns: the bounds of what grows while tier 2 falls behind, and the delay that keeps it within them.

Invariants:
1. The delay is the longest one that any throttler asks for; it may fall at any time.
2. Each throttler reaches its longest delay just below its bound, and stops writers at it. System
   segments are never delayed; they stop ``system_share`` beyond the bounds.
3. Values outside the cache are sampled every ``SAMPLE_SECONDS``, ``SAMPLE_CALLS`` calls and
   ``SAMPLE_BYTES``: a bound may be exceeded by what comes between two samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from typing import Final

from segstore.throttling.calculators import Ramp, RecentWrites, batching_seconds

SAMPLE_SECONDS: Final = 0.05
SAMPLE_CALLS: Final = 16
SAMPLE_BYTES: Final = 4 * 1024 * 1024
WRITE_BYTES_MAX: Final = 1024 * 1024
"""Length of a full data frame, with which the batching delay compares writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ThrottlePolicy:
    """The bounds of one container. The cache's are in its own policy."""

    delay_seconds_max: float = 1.0
    """Maximum delay before a batch of writes. The original's 25 s are for many more operations at
    once."""
    begin_share: float = 0.75
    """Share of each bound from which on writers are delayed."""
    system_share: float = 1.1
    """Share beyond each bound at which system segments stop, too."""
    log_bytes_max: int = 6 * 1024**3
    """Maximum of bytes in tier 1 that are not truncated, of all containers that share it."""
    operations_max: int = 250_000
    """Maximum number of operations that tier 2 does not have; each costs about 150 bytes."""
    attributes_dirty_max: int = 131_072
    """Maximum number of changed attributes that tier 2 does not have; each costs about 250 bytes,
    and 26 of every checkpoint."""
    batching_seconds_max: float = 0.0
    """Maximum wait, in seconds, for more to fill a data frame with; 0 for none."""


@dataclass(frozen=True, slots=True)
class Gauge:
    """The value that one throttler saw, and its delay; ``seconds`` is infinite at the bound."""

    name: str
    value: int
    begins: int
    bound: int
    seconds: float


@dataclass(frozen=True, slots=True)
class ThrottleSnapshot:
    """The throttlers of a container at one moment."""

    gauges: tuple[Gauge, ...]
    batching_seconds: float

    @property
    def seconds(self) -> float:
        """Return the delay of users' writes; infinite when they are stopped."""
        return max(gauge.seconds for gauge in self.gauges)

    @property
    def strongest(self) -> Gauge:
        """Return the name of the calculator that asks for the longest delay."""
        return max(self.gauges, key=lambda gauge: gauge.seconds)


Reading = Callable[[], int]


@dataclass(frozen=True, slots=True)
class CacheReading:
    """The bytes of the cache that cannot be evicted, and the range in which they slow writers
    down."""

    held_bytes: Reading
    begins: int
    bound: int


class Throttle:
    """The throttle of one container. ``now`` is in seconds of any steady clock."""

    def __init__(
        self,
        policy: ThrottlePolicy,
        *,
        cache: CacheReading,
        log_bytes: Reading,
        operation_count: Reading,
        dirty_count: Reading,
    ) -> None:
        self._policy = policy
        self._cache = cache
        self._cache_ramp = Ramp(cache.begins, cache.bound, policy.delay_seconds_max)
        self._sampled = (
            ("log bytes", log_bytes, self._ramp(policy.log_bytes_max)),
            ("operations", operation_count, self._ramp(policy.operations_max)),
            ("dirty attributes", dirty_count, self._ramp(policy.attributes_dirty_max)),
        )
        self._writes = RecentWrites()
        self._sampled_seconds = 0.0
        self._system_stops = False
        self._dirty_delays = False
        self._sample_at = -inf
        self._calls_left = 0

    def delay_seconds(self, now: float) -> float:
        """Return how long users' writes must wait before the next batch; infinite at a bound.

        The cache alone never stops writers here: new data ask it for room before they pass.
        """
        self._calls_left -= 1
        if now >= self._sample_at or self._calls_left <= 0:
            self._sample(now)
        seconds = self._cache_ramp.seconds(self._cache.held_bytes())
        return max(seconds, self._sampled_seconds)

    @property
    def system_stops(self) -> bool:
        """Return whether even system segments have to wait, by the last sample."""
        return self._system_stops

    @property
    def dirty_attributes_delay(self) -> bool:
        """Return whether dirty attributes slow writers down, by the last sample."""
        return self._dirty_delays

    def record_submitted(self, length: int) -> None:
        """Record that a data frame is on its way to tier 1."""
        self._calls_left -= length * SAMPLE_CALLS // SAMPLE_BYTES

    def record_write(self, *, length: int, seconds: float) -> None:
        """Record that a data frame became durable in tier 1."""
        self._writes.add(length=length, seconds=seconds)

    @property
    def is_batching(self) -> bool:
        """Return whether writes have to be noted."""
        return self._policy.batching_seconds_max > 0

    def batching_seconds(self) -> float:
        """Return how long to wait for more operations; 0 unless a batching delay is configured."""
        return batching_seconds(
            recent_latency_seconds=self._writes.latency_seconds,
            average_write_bytes=self._writes.write_bytes,
            write_bytes_max=WRITE_BYTES_MAX,
            seconds_max=self._policy.batching_seconds_max,
        )

    def snapshot(self) -> ThrottleSnapshot:
        """Return what each throttler sees and asks for now."""
        cache = self._cache
        held_bytes = cache.held_bytes()
        seconds = self._cache_ramp.seconds(held_bytes)
        gauges = [Gauge("cache bytes", held_bytes, cache.begins, cache.bound, seconds)]
        for name, read, ramp in self._sampled:
            value = read()
            begins, bound = int(ramp.begins), int(ramp.bound)
            gauges.append(Gauge(name, value, begins, bound, ramp.seconds_or_stop(value)))
        return ThrottleSnapshot(tuple(gauges), self.batching_seconds())

    def _ramp(self, bound: int) -> Ramp:
        policy = self._policy
        return Ramp(policy.begin_share * bound, bound, policy.delay_seconds_max)

    def _sample(self, now: float) -> None:
        self._sample_at = now + SAMPLE_SECONDS
        self._calls_left = SAMPLE_CALLS
        delays: list[float] = []
        self._system_stops = False
        for _, read, ramp in self._sampled:
            value = read()
            delays.append(ramp.seconds_or_stop(value))
            self._system_stops |= value >= ramp.bound * self._policy.system_share
        self._sampled_seconds = max(delays)
        self._dirty_delays = delays[-1] > 0
