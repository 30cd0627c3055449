"""The rates of one segment, and the decision whether to split it or to merge it with others.

Owns: ``SegmentRates``: averages over four windows, and the conditions under which a segment is too
busy or too idle. Times are arguments; no clock is read.

A rate is an average in which the events of ``t`` seconds ago have the weight ``exp(-t / window)``.
So the average over the shortest window follows a sudden change at once, and the one over the
longest only a lasting change.

Invariants:
1. Before the cool-down after its first sample, a segment is neither too busy nor too idle. Held by
   ``test_nothing_is_advised_before_the_cool_down``.
2. After an event was sent to controllers, the same event is not sent again for a while. Held by
   ``test_what_was_told_is_not_told_again_for_a_while``.
3. A segment is too idle only when it was measured for the longest window: a new one is not idle.
   Held by ``test_a_slow_segment_is_to_be_merged_once_it_is_known_for_the_longest_window``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from segstore.api import SegmentSample

FIXED: Final = 0
KILOBYTES_PER_SECOND: Final = 1
"""The scale type of a segment whose target rate is in kilobytes per second. Scale type 2 means
events per second."""

UP_FACTORS: Final = (5.0, 2.0, 1.0)
"""Factors by which the rate must exceed the target to split a segment, one for each of the first
windows; one window is enough."""
IDLE_SHARE: Final = 0.5
"""Share of the target: a segment is idle while its rate in the longest window is below it."""
SPLITS_MIN: Final = 2


@dataclass(frozen=True, slots=True)
class RateTimes:
    """The times of the measurement, in seconds."""

    windows: tuple[float, float, float, float]
    cooldown: float
    mute: float
    expiry: float


class Advice(NamedTuple):
    """The advice to split a segment into ``splits`` segments or, if that is 0, to merge it with
    others."""

    splits: int
    silent: bool = False

    @property
    def is_up(self) -> bool:
        return self.splits > 0


class SegmentRates:
    """The rates of one segment, from its samples."""

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
        """Return whether controllers were told, since the segment's last use, that it is silent."""
        return self._expiry_told

    def observe(self, sample: SegmentSample, now: float, weights: Sequence[float]) -> None:
        """Add the bytes or events since the last sample to the averages; ``weights`` are those of
        the time between the two (``weights_of``)."""
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
        """Add the time since the last sample, with ``amount`` bytes or events in it, to the
        averages.

        ``weights`` is the result of ``weights_of`` for this time.
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
        """Return the advice by the scaling policy now, or None. An advice that was not delivered is
        returned again."""
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
        """Record that controllers have received an advice; it is not given again for a while."""
        self._down_muted_until = now + self._times.mute
        if advice.is_up:
            self._up_muted_until = now + self._times.mute
        elif advice.silent:
            self._expiry_told = True


def weights_of(seconds: float, windows: Sequence[float]) -> tuple[float, ...]:
    """Return the time between two samples, in seconds, followed by its weight in each window."""
    return (seconds, *(-math.expm1(-seconds / window) for window in windows))
