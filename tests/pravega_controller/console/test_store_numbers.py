"""Tests of the numbers of segment stores that follow from their metrics."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace

from pravega_controller.console.looks import Look
from pravega_controller.console.store_numbers import (
    StoresSeen,
    busiest_streams,
    quantile,
    reasons_for_care,
    see_stores,
    traffic_of,
)
from pravega_controller.controller import Controller
from pravega_controller.testing.memory_segment_store import MemorySegmentStore
from pravega_metrics import store_metrics as metrics
from pravega_metrics.metrics import OTHER, Distribution, Family
from pravega_metrics.readings import encode_readings

MS = 1_000_000


def seen(*families: Family, **others: None) -> StoresSeen:
    return StoresSeen({"a:1": {each.metric.name: each for each in families}, **others})


def looks(*each: StoresSeen) -> list[Look[StoresSeen]]:
    return [Look(2.0 * number, one) for number, one in enumerate(each)]


def appended(bytes_: int, events: int, **counts: int) -> StoresSeen:
    buckets = tuple((int(bound[1:]) * MS, count) for bound, count in counts.items())
    return seen(
        metrics.APPEND_BYTES.family({(): bytes_}),
        metrics.APPEND_EVENTS.family({(): events}),
        metrics.APPEND_SECONDS.family({(): Distribution(0, buckets)}),
    )


def test_traffic_is_what_came_between_two_looks() -> None:
    traffic = traffic_of(
        looks(appended(1000, 10, b2=50, b500=3), appended(5000, 30, b2=140, b8=9, b500=4))
    )
    assert (traffic.append_bytes, traffic.append_events) == (2000.0, 10.0)
    assert (traffic.append_median, traffic.append_slow) == (0.002, 0.008)
    alone = traffic_of(looks(appended(1000, 10, b2=50)))
    assert (alone.append_bytes, alone.append_median) == (None, None)
    restarted = traffic_of(looks(appended(1000, 10, b2=50), appended(10, 1, b2=1)))
    assert (restarted.append_bytes, restarted.append_slow) == (None, None)


def test_a_quantile_is_the_bound_of_its_bucket() -> None:
    assert quantile({}, 0.5) is None
    assert quantile({MS: 1, 4 * MS: 98, 9 * MS: 1}, 0.99) == 0.004
    assert quantile({MS: 1, 4 * MS: 98, 9 * MS: 1}, 1.0) == 0.009


def test_the_busiest_streams_are_first_and_those_of_the_system_are_left_out() -> None:
    def at(*values: int) -> StoresSeen:
        keys = (("s", "a"), ("s", "b"), ("s", "_RGg"), (OTHER, OTHER), ("s", "idle"))
        told = dict(zip(keys, values, strict=True))
        return seen(
            metrics.STREAM_BYTES.family(told),
            metrics.STREAM_EVENTS.family({key: value // 10 for key, value in told.items()}),
        )

    found = busiest_streams(looks(at(0, 0, 0, 0, 7), at(100, 400, 900, 900, 7)), 10)
    assert [(each.stream, each.bytes, each.events) for each in found] == [
        ("b", 200.0, 20.0),
        ("a", 50.0, 5.0),
    ]
    assert busiest_streams(looks(at(0, 0, 0, 0, 0)), 10) == []


def test_what_needs_care_is_told_in_words() -> None:
    states = {("0", "online"): 1, ("0", "failed"): 0, ("1", "failed"): 1, ("1", "online"): 0}
    told = reasons_for_care(
        seen(
            metrics.CONTAINER_STATES.family(states),
            metrics.THROTTLE_SECONDS.family(
                {
                    ("0", "tier 2"): 0.1,
                    ("0", "cache"): 0.0,
                    ("1", "log"): 1.0,
                    ("2", "tier 2"): 0.2,
                }
            ),
            metrics.DELAYS.family({(): 1}),
            metrics.DISK_BYTES.family({("/d", "used"): 95, ("/d", "free"): 5}),
            **{"b:2": None},
        )
    )
    assert told == [
        "Segment store b:2 does not answer.",
        "Container 1 of a:1 is failed.",
        "Requests to a:1 wait: its log says why.",
        "Containers 0, 2 of a:1 slow writers down: tier 2.",
        "Container 1 of a:1 slows writers down: log.",
        "The disk of /d at a:1 is 95% full.",
    ]
    assert reasons_for_care(seen(metrics.DELAYS.family({(): 0}))) == []
    known = replace(seen(metrics.DELAYS.family({(): 1})), delays={"a:1": "tier 2 is read-only"})
    assert reasons_for_care(known) == ["Requests to a:1 wait: tier 2 is read-only."]


async def test_what_requests_to_a_store_wait_for_is_asked_when_some_do(
    open_on_memory: Callable[..., AbstractAsyncContextManager[Controller]],
    memory_store: MemorySegmentStore,
) -> None:
    memory_store.delays = ("tier 2 in /srv/tier2 cannot be written", "the journal is full")
    async with open_on_memory() as controller:
        for count in (0, 2):
            memory_store.readings = encode_readings([metrics.DELAYS.family({(): count})])
            found = await see_stores(controller)
            assert list(found.delays.values()) == ["; ".join(memory_store.delays)] * bool(count)
        [told] = reasons_for_care(found)
        assert told.endswith("wait: tier 2 in /srv/tier2 cannot be written; the journal is full.")
