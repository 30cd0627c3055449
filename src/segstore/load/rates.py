"""The rates of one segment, and what they mean for its stream's scaling policy.

Owns: ``SegmentRates``: averages over four windows, and when a segment is too busy or too idle.
Nothing here looks at a clock.

A rate is an average in which what was ``t`` seconds ago weighs ``exp(-t / window)``. The shortest
window notices a rush at once, the longest only what lasts.

Invariants:
1. A segment is too busy or too idle only after the cool-down, and never while it is muted.
2. It is too idle only when it is known for the longest window: a new segment is not idle.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from segstore.api import SegmentSample

FIXED: Final = 0
KILOBYTES_PER_SECOND: Final = 1
"""The scale type of a segment whose target is in kilobytes per second; for events per second it is
2."""

UP_FACTORS: Final = (5.0, 2.0, 1.0)
"""Factors by which a segment's rate must exceed its target in the first windows, one for each, to
be split."""
IDLE_SHARE: Final = 0.5
"""Share of the target that the rate of an idle segment stays below in the longest window."""
SPLITS_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class RateTimes:
    """Times of measuring, in seconds."""

    windows: tuple[float, float, float, float]
    cooldown: float
    mute: float
    expiry: float


class Advice(NamedTuple):
    """A segment should be split into ``splits``, or, with 0 of them, merged with others."""

    splits: int
    silent: bool = False

    @property
    def is_up(self) -> bool:
        return self.splits > 0


class SegmentRates:
    """The samples of one segment."""

    __slots__ = (
        "_down_muted_until",
        "_expiry_told",
        "_known_since",
        "_rates",
        "_times",
        "_up_muted_until",
        "_used_at",
        "last",
    )
    last: SegmentSample

    def __init__(self, sample: SegmentSample, now: float, times: RateTimes) -> None:
        self._times = times
        self.last = sample
        self._known_since = self._used_at = now
        self._up_muted_until = self._down_muted_until = now + times.mute
        self._rates: list[float] | None = None
        self._expiry_told = False

    @property
    def rates(self) -> Sequence[float]:
        """Return the averages per second, in the policy's unit; zeros before the first use."""
        return self._rates or [0.0] * len(self._times.windows)

    @property
    def segment_id(self) -> int:
        return self.last.segment_id

    @property
    def is_told_silent(self) -> bool:
        """Return whether it was told, since the last use, that nothing more will be."""
        return self._expiry_told

    def observe(self, sample: SegmentSample, now: float, weights: Sequence[float]) -> None:
        """Add what happened since the last sample to the averages; ``weights`` are those of that
        time."""
        last = self.last
        used = sample.length != last.length or sample.event_count != last.event_count
        if sample.scale_type != last.scale_type:
            self._rates = None
        if not used and self._rates is None:
            self.last = sample
            return
        if sample.scale_type == KILOBYTES_PER_SECOND:
            amount = (sample.length - last.length) / 1024
        else:
            amount = float(sample.event_count - last.event_count)
        self.last = sample
        if used:
            self._used_at = now
            self._expiry_told = False
        self.pass_time(weights, max(amount, 0.0))

    def pass_time(self, weights: Sequence[float], amount: float = 0.0) -> None:
        """Add a sample's time and what happened in it to the averages.

        ``weights`` has the time itself first, then what it weighs in each window.
        """
        rate = amount / weights[0]
        if self._rates is None:
            if amount:
                self._rates = [rate] * len(self._times.windows)
            return
        self._rates = [
            old + weight * (rate - old)
            for old, weight in zip(self._rates, weights[1:], strict=True)
        ]

    def advise(self, now: float) -> Advice | None:
        """Return what the policy asks for now, or None; the advice stays the same until it is
        delivered."""
        target = self.last.target_rate
        if target <= 0:
            return None
        age = now - self._known_since
        if age < self._times.cooldown:
            return None
        rates, windows = self.rates, self._times.windows
        if now >= self._up_muted_until and any(
            rate > factor * target and age > window
            for rate, factor, window in zip(rates, UP_FACTORS, windows, strict=False)
        ):
            return Advice(max(SPLITS_MIN, int(max(rates[:3]) / target)))
        if now - self._used_at >= self._times.expiry:
            return None if self._expiry_told else Advice(0, silent=True)
        if (
            now >= self._down_muted_until
            and age > windows[3]
            and all(rate < target for rate in rates[:3])
            and rates[3] < IDLE_SHARE * target
        ):
            return Advice(0)
        return None

    def record_delivery(self, advice: Advice, now: float) -> None:
        """Mute further advice of the kind for a while: controllers have received this one."""
        self._down_muted_until = now + self._times.mute
        if advice.is_up:
            self._up_muted_until = now + self._times.mute
        elif advice.silent:
            self._expiry_told = True


def weights_of(seconds: float, windows: Sequence[float]) -> tuple[float, ...]:
    """Return the time between two samples, and its weight in an average over each window."""
    return (seconds, *(-math.expm1(-seconds / window) for window in windows))
