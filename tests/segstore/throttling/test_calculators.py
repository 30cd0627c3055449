"""Delays grow with what they watch, and stay within their bounds."""

from __future__ import annotations

from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.throttling.calculators import Ramp, RecentWrites, batching_seconds

amounts = st.floats(min_value=0, max_value=1e15)
seconds = st.floats(min_value=0, max_value=100)


@st.composite
def ramps(draw: st.DrawFn) -> Ramp:
    begins = draw(st.integers(0, 10**12))
    return Ramp(begins, begins + draw(st.integers(1, 10**12)), draw(seconds))


@given(ramps(), amounts, amounts)
def test_a_ramp_never_falls(ramp: Ramp, one: float, other: float) -> None:
    lower, higher = sorted((one, other))
    assert 0 <= ramp.seconds(lower) <= ramp.seconds(higher) <= ramp.seconds_max
    assert ramp.seconds_or_stop(lower) <= ramp.seconds_or_stop(higher)


@given(ramps())
def test_a_ramp_begins_with_nothing_and_stops_at_its_bound(ramp: Ramp) -> None:
    assert ramp.seconds_or_stop(ramp.begins) == 0
    assert ramp.seconds(ramp.bound) == ramp.seconds_max
    assert ramp.seconds_or_stop(ramp.bound) == inf
    middle = (ramp.begins + ramp.bound) / 2
    assert ramp.seconds(middle) == pytest.approx(ramp.seconds_max / 2)


@pytest.mark.parametrize(("begins", "bound"), [(1, 1), (2, 1), (-1, 1)])
def test_a_ramp_that_does_not_rise_is_refused(begins: float, bound: float) -> None:
    with pytest.raises(ValueError, match="cannot grow"):
        Ramp(begins, bound, 1)


@given(seconds, seconds, amounts, amounts, seconds)
def test_the_batching_delay_grows_with_the_latency_and_falls_with_the_fill(
    latency: float, other_latency: float, size: float, other_size: float, seconds_max: float
) -> None:
    def delay(latency_seconds: float, write_bytes: float) -> float:
        return batching_seconds(
            recent_latency_seconds=latency_seconds,
            average_write_bytes=write_bytes,
            write_bytes_max=2**20,
            seconds_max=seconds_max,
        )

    low, high = sorted((latency, other_latency))
    small, large = sorted((size, other_size))
    assert 0 <= delay(low, small) <= delay(high, small) <= seconds_max
    assert delay(low, large) <= delay(low, small) <= low


def test_the_batching_delay_is_what_recent_writes_left_empty_of_the_recent_latency() -> None:
    figures = {"write_bytes_max": 1000, "seconds_max": 0.05}
    assert batching_seconds(
        recent_latency_seconds=0.02, average_write_bytes=250, **figures
    ) == pytest.approx(0.015)
    assert batching_seconds(recent_latency_seconds=9, average_write_bytes=0, **figures) == 0.05
    assert batching_seconds(recent_latency_seconds=9, average_write_bytes=1000, **figures) == 0


@given(st.lists(st.tuples(st.integers(0, 2**20), seconds), min_size=1))
def test_averages_stay_between_what_was_seen(writes: list[tuple[int, float]]) -> None:
    recent = RecentWrites()
    for length, duration in writes:
        recent.add(length=length, seconds=duration)
    lengths, durations = zip(*writes, strict=True)
    assert min(lengths) - 1e-6 <= recent.write_bytes <= max(lengths) + 1e-6
    assert min(durations) - 1e-6 <= recent.latency_seconds <= max(durations) + 1e-6
