"""The rates of a segment, and what its policy makes of them, beside a slow model."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.api import SegmentSample
from segstore.load.rates import Advice, RateTimes, SegmentRates, weights_of

TIMES = RateTimes((120.0, 300.0, 600.0, 1200.0), cooldown=600.0, mute=600.0, expiry=1200.0)
EVENTS, KILOBYTES = 2, 1


def sample(
    events: int = 0, length: int = 0, *, kind: int = EVENTS, target: int = 10
) -> SegmentSample:
    return SegmentSample("s/t/0", 1, kind, target, events, length, False, 0)


class Segment:
    """A segment that is looked at every five seconds."""

    def __init__(self, *, kind: int = EVENTS, target: int = 10) -> None:
        self.kind, self.target = kind, target
        self.now = 0.0
        self.events = self.length = 0
        self.rates = SegmentRates(sample(kind=kind, target=target), 0.0, TIMES)

    def run(
        self, seconds: float, *, rate: float, event_bytes: int = 100
    ) -> list[tuple[float, Advice]]:
        """Let events come for a while; return the advice, which is acknowledged at once."""
        advised = []
        for _ in range(int(seconds / 5)):
            self.now += 5
            self.events += round(5 * rate)
            self.length += round(5 * rate) * event_bytes
            now = sample(self.events, self.length, kind=self.kind, target=self.target)
            self.rates.observe(now, self.now, weights_of(5.0, TIMES.windows))
            if (advice := self.rates.advise(self.now)) is not None:
                advised.append((self.now, advice))
                self.rates.record_delivery(advice, self.now)
        return advised


def test_nothing_is_advised_before_the_cool_down() -> None:
    segment = Segment()
    assert segment.run(595, rate=10_000) == []
    assert segment.run(5, rate=10_000) == [(600, Advice(1000))]


@pytest.mark.parametrize(("rate", "splits"), [(11, 2), (25, 2), (37, 3), (1000, 100)])
def test_a_busy_segment_is_split_by_its_rate(rate: float, splits: int) -> None:
    [(_, advice)] = Segment().run(610, rate=rate)
    assert advice == Advice(splits)


def test_a_rush_is_seen_in_the_shortest_window() -> None:
    """At six times the target, the longer windows take minutes to see it, the first one does at
    5."""
    segment = Segment()
    assert segment.run(1000, rate=8) == []
    [(when, advice)] = segment.run(120, rate=200)
    assert advice.is_up
    assert when < 1040


def test_what_was_told_is_not_told_again_for_a_while() -> None:
    segment = Segment()
    told = segment.run(3600, rate=100)
    assert [when for when, _ in told] == [600, 1200, 1800, 2400, 3000, 3600]


def test_the_rate_at_its_target_is_neither_too_much_nor_too_little() -> None:
    assert Segment().run(7200, rate=10) == []
    assert Segment().run(7200, rate=5) == []


def test_a_slow_segment_is_to_be_merged_once_it_is_known_for_the_longest_window() -> None:
    told = Segment().run(1900, rate=2)
    assert [when for when, _ in told] == [1205, 1805]
    assert {advice for _, advice in told} == {Advice(0)}


def test_a_segment_without_any_write_is_silent_once() -> None:
    segment = Segment()
    assert segment.run(7200, rate=0) == [(1200, Advice(0, silent=True))]
    assert segment.rates.is_told_silent
    assert segment.run(5, rate=1)[-1][1] == Advice(0)
    assert not segment.rates.is_told_silent
    told = segment.run(7200, rate=0)
    assert told[-1][1].silent
    assert sum(advice.silent for _, advice in told) == 1


def test_kilobytes_are_counted_from_the_length() -> None:
    busy = Segment(kind=KILOBYTES, target=10)
    assert busy.run(610, rate=200, event_bytes=1024) == [(600, Advice(20))]
    assert Segment(kind=KILOBYTES, target=10).run(610, rate=200, event_bytes=10) == []


def test_another_unit_begins_anew_and_another_target_counts_at_once() -> None:
    segment = Segment()
    segment.run(590, rate=100)
    segment.kind = KILOBYTES
    segment.run(5, rate=0)
    assert list(segment.rates.rates) == [0.0] * 4
    segment = Segment()
    segment.run(590, rate=100)
    segment.target = 40
    assert segment.run(10, rate=100) == [(600, Advice(2))]


def test_a_policy_without_a_target_asks_for_nothing() -> None:
    assert Segment(target=0).run(3000, rate=100) == []


@given(
    st.lists(st.tuples(st.integers(0, 1000), st.sampled_from([1.0, 5.0, 7.5, 300.0])), max_size=60)
)
def test_rates_are_weighted_means_of_all_that_was_seen(steps: list[tuple[int, float]]) -> None:
    """The model adds up every sample's rate by the weight that its age leaves to it."""
    rates = SegmentRates(sample(), 0.0, TIMES)
    now, events = 0.0, 0
    seen: list[tuple[float, float]] = []
    for count, seconds in steps:
        now, events = now + seconds, events + count
        rates.observe(sample(events), now, weights_of(seconds, TIMES.windows))
        if seen or count:
            seen.append((now, count / seconds) if seen else (math.inf, count / seconds))
            if len(seen) == 1:
                first_at = now
    for window, rate in zip(TIMES.windows, rates.rates, strict=True):
        if not seen:
            assert rate == 0
            continue
        # The first rate counts for all the time before it.
        expected = seen[0][1] * math.exp(-(now - first_at) / window)
        begins = first_at
        for ends, each in seen[1:]:
            weight = math.exp(-(now - ends) / window) - math.exp(-(now - begins) / window)
            expected += each * weight
            begins = ends
        assert rate == pytest.approx(expected)
