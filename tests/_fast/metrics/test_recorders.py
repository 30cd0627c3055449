"""Counters and histograms against the values that were recorded."""

from __future__ import annotations

import threading
from collections import Counter as Counts

from hypothesis import example, given
from hypothesis import strategies as st

from _fast.metrics.recorders import Counter, Histogram, now_ns

VALUE_MAX = 2**48 - 1


def bound_of(value: int) -> int:
    histogram = Histogram()
    histogram.record(value)
    [(bound, count)] = histogram.counts()
    assert count == 1
    return bound


@given(value=st.integers(0, 48).flatmap(lambda bits: st.integers(0, 2**bits - 1)))
@example(value=0)
@example(value=7)
@example(value=8)
@example(value=VALUE_MAX)
def test_the_bound_of_a_bucket_is_at_most_an_eighth_above_its_values(value: int) -> None:
    bound = bound_of(value)
    assert value <= bound <= value + value / 8
    # The bound itself is in the bucket, the next value in another one.
    assert bound_of(bound) == bound
    assert bound == VALUE_MAX or bound_of(bound + 1) > bound


@given(values=st.lists(st.integers(-(2**62), 2**62)))
def test_values_beyond_the_buckets_are_counted_in_the_outer_ones(values: list[int]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.record(value)
    near = [min(max(value, 0), VALUE_MAX) for value in values]
    assert histogram.sum == sum(near)
    assert histogram.counts() == sorted(Counts(map(bound_of, near)).items())


def test_each_power_of_two_is_a_border_of_buckets() -> None:
    for power in range(48):
        assert bound_of(2**power - 1) == 2**power - 1


def test_a_counter_adds_and_is_set() -> None:
    counter = Counter()
    counter.add(3)
    counter.add(4)
    assert counter.value == 7
    counter.value = 2
    counter.add(-1)
    assert counter.value == 1


def test_times_are_recorded_from_a_beginning() -> None:
    histogram, began = Histogram(), now_ns()
    histogram.record_since(began - 5_000_000_000)
    assert 5_000_000_000 <= histogram.sum < 65_000_000_000
    assert now_ns() >= began


def test_threads_lose_no_recordings() -> None:
    counter, histogram = Counter(), Histogram()

    def record() -> None:
        for _ in range(20_000):
            counter.add(1)
            histogram.record(1)

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 80_000
    assert histogram.counts() == [(1, 80_000)]
