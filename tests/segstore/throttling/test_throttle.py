"""All throttlers of a container make one delay."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from segstore.throttling.throttle import (
    SAMPLE_BYTES,
    SAMPLE_CALLS,
    SAMPLE_SECONDS,
    CacheReading,
    Throttle,
    ThrottlePolicy,
)

POLICY = ThrottlePolicy(log_bytes_max=1000, operations_max=2000, attributes_dirty_max=4000)


@dataclass
class Store:
    cache: int = 0
    log: int = 0
    operations: int = 0
    dirty: int = 0
    reserve: int = 0

    def throttle(self, policy: ThrottlePolicy = POLICY) -> Throttle:
        return Throttle(
            policy,
            cache=CacheReading(lambda: self.cache, 80, 90),
            log_bytes=lambda: self.log,
            reserve_percent=lambda: self.reserve,
            operation_count=lambda: self.operations,
            dirty_count=lambda: self.dirty,
        )


stores = st.builds(
    Store,
    st.integers(0, 100),
    st.integers(0, 1200),
    st.integers(0, 2400),
    st.integers(0, 4800),
    st.integers(0, 110),
)


@given(stores, stores)
def test_more_of_anything_never_makes_the_delay_shorter(one: Store, other: Store) -> None:
    both = Store(
        max(one.cache, other.cache),
        max(one.log, other.log),
        max(one.operations, other.operations),
        max(one.dirty, other.dirty),
        max(one.reserve, other.reserve),
    )
    longest = max(one.throttle().delay_seconds(0), other.throttle().delay_seconds(0))
    assert both.throttle().delay_seconds(0) == longest


@given(stores)
def test_the_snapshot_says_what_the_delay_is_made_of(store: Store) -> None:
    throttle = store.throttle()
    snapshot = throttle.snapshot()
    assert snapshot.seconds == throttle.delay_seconds(0) == snapshot.strongest.seconds
    values = [gauge.value for gauge in snapshot.gauges]
    assert values == [store.cache, store.log, store.reserve, store.operations, store.dirty]
    for gauge in snapshot.gauges[1:]:
        assert (gauge.seconds == inf) == (gauge.value >= gauge.bound)
        assert (gauge.seconds > 0) == (gauge.value > gauge.begins)


def test_a_full_cache_delays_as_long_as_possible_and_leaves_the_stop_to_its_room() -> None:
    assert Store(cache=95).throttle().delay_seconds(0) == POLICY.delay_seconds_max
    assert Store(cache=85).throttle().delay_seconds(0) == pytest.approx(0.5)


def test_system_segments_stop_beyond_the_bounds() -> None:
    for store, stops in ((Store(log=1000), False), (Store(log=1100), True), (Store(), False)):
        throttle = store.throttle()
        throttle.delay_seconds(0)
        assert throttle.system_stops is stops


def test_what_is_not_the_cache_is_looked_at_now_and_then() -> None:
    store = Store()
    throttle = store.throttle()
    assert throttle.delay_seconds(10) == 0
    store.operations, store.cache = 2000, 85
    assert throttle.delay_seconds(10) == pytest.approx(0.5), "the cache is looked at always"
    assert throttle.delay_seconds(10 + SAMPLE_SECONDS) == inf
    store.operations = 0
    delays = [throttle.delay_seconds(10 + SAMPLE_SECONDS) for _ in range(SAMPLE_CALLS)]
    assert delays[0] == inf
    assert delays[-1] == pytest.approx(0.5), "even when no time goes by"
    store.log = 1000
    throttle.record_submitted(SAMPLE_BYTES)
    assert throttle.delay_seconds(10 + SAMPLE_SECONDS) == inf


def test_dirty_attributes_are_told_apart() -> None:
    for store, delays in ((Store(dirty=3500), True), (Store(log=900), False)):
        throttle = store.throttle()
        throttle.delay_seconds(0)
        assert throttle.dirty_attributes_delay is delays


def test_the_batching_delay_follows_recent_writes_when_it_is_configured() -> None:
    throttle = Store().throttle(ThrottlePolicy(batching_seconds_max=0.05))
    assert throttle.is_batching
    assert throttle.batching_seconds() == 0
    throttle.record_write(length=2**19, seconds=0.02)
    assert throttle.batching_seconds() == pytest.approx(0.01)
    assert throttle.snapshot().batching_seconds == throttle.batching_seconds()
    assert not Store().throttle().is_batching


def test_of_the_journals_reserve_system_segments_get_more_than_users() -> None:
    waits = []
    for reserve in (0, 1, 25, 74, 75):
        throttle = Store(reserve=reserve).throttle()
        seconds = throttle.delay_seconds(0)
        waits.append((0 < seconds < inf, seconds == inf, throttle.system_stops))
    assert waits == [
        (False, False, False),
        (True, False, False),
        (False, True, False),
        (False, True, False),
        (False, True, True),
    ]
