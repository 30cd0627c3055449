"""Computes delays of writers from measured values.

Owns: the functions from a value to a delay. ``throttle`` measures the values.

Invariants:
1. When a value grows, its delay does not become shorter; it is never negative and never exceeds its
   maximum. Held by ``test_a_ramp_never_falls``.
2. At its bound, a ``Ramp`` stops writers. Held by
   ``test_a_ramp_begins_with_nothing_and_stops_at_its_bound``.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Ramp:
    """A delay that is 0 up to the value ``begins`` and grows linearly to ``seconds_max`` at
    ``bound``."""

    begins: float
    bound: float
    seconds_max: float

    def __post_init__(self) -> None:
        if not 0 <= self.begins < self.bound or self.seconds_max < 0:
            raise ValueError(f"delays cannot grow from {self.begins} to {self.bound}")

    def seconds(self, value: float) -> float:
        """Return the delay for ``value``, in seconds; at most ``seconds_max``."""
        if value <= self.begins:
            return 0.0
        share = (value - self.begins) / (self.bound - self.begins)
        return min(1.0, share) * self.seconds_max

    def seconds_or_stop(self, value: float) -> float:
        """Return the delay for ``value``, in seconds; infinite from ``bound`` on."""
        return inf if value >= self.bound else self.seconds(value)


def batching_seconds(
    *,
    recent_latency_seconds: float,
    average_write_bytes: float,
    write_bytes_max: float,
    seconds_max: float,
) -> float:
    """Return how long to wait for more operations before a write, in seconds, by the formula of the
    ingestion pipeline article.

    That is the recent latency of tier 1 times the empty share of recent writes. It is at most
    ``seconds_max``, so that a slow moment of tier 1 does not cause a long wait.
    """
    fill = min(1.0, max(0.0, average_write_bytes / write_bytes_max))
    return min(seconds_max, max(0.0, recent_latency_seconds) * (1.0 - fill))


@dataclass(slots=True)
class RecentWrites:
    """Moving averages of the lengths and latencies of writes to tier 1, mainly of the last
    ``1 / weight`` ones."""

    weight: float = 0.1
    latency_seconds: float = 0.0
    write_bytes: float = 0.0
    count: int = 0

    def add(self, *, length: int, seconds: float) -> None:
        """Add the measurement of one write."""
        weight = self.weight if self.count else 1.0
        self.count += 1
        self.latency_seconds += weight * (seconds - self.latency_seconds)
        self.write_bytes += weight * (length - self.write_bytes)
