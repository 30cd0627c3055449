"""Computes delays of writers: pure functions of measured values.

Owns: the shapes of delays. The measuring and the waiting are elsewhere.

Invariants:
1. A delay never falls when the value it depends on grows, and is never negative.
2. No delay exceeds its maximum; at its bound a ``Ramp`` asks for more than any delay: to stop.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf


@dataclass(frozen=True, slots=True)
class Ramp:
    """No delay up to ``begins``, then linearly more, up to ``seconds_max`` at ``bound``."""

    begins: float
    bound: float
    seconds_max: float

    def __post_init__(self) -> None:
        if not 0 <= self.begins < self.bound or self.seconds_max < 0:
            raise ValueError(f"delays cannot grow from {self.begins} to {self.bound}")

    def seconds(self, value: float) -> float:
        """Return the delay that ``value`` asks for, in seconds; at most ``seconds_max``."""
        if value <= self.begins:
            return 0.0
        share = (value - self.begins) / (self.bound - self.begins)
        return min(1.0, share) * self.seconds_max

    def seconds_or_stop(self, value: float) -> float:
        """Return the delay in seconds, which is infinite from ``bound`` on."""
        return inf if value >= self.bound else self.seconds(value)


def batching_seconds(
    *,
    recent_latency_seconds: float,
    average_write_bytes: float,
    write_bytes_max: float,
    seconds_max: float,
) -> float:
    """Return how long to wait for more to write, by the formula of the ingestion pipeline article.

    That is the recent latency of tier 1 times the share of recent writes that was empty; at most
    ``seconds_max``, so that a short delay of tier 1 does not become a longer one here.
    """
    fill = min(1.0, max(0.0, average_write_bytes / write_bytes_max))
    return min(seconds_max, max(0.0, recent_latency_seconds) * (1.0 - fill))


@dataclass(slots=True)
class RecentWrites:
    """Moving averages over writes to tier 1; the last ``1 / weight`` of them count most."""

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
