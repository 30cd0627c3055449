"""The numbers of segment stores as the console shows them: totals, rates, latencies, containers.

Owns: ``StoresSeen``, what one look at all stores has found, and what is computed from looks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

import trio

from pravega_controller.console.looks import Look, Looks, Summary, Track, rate
from pravega_controller.controller import Controller
from pravega_controller.errors import StoreUnavailableError
from pravega_controller.http.metrics import Address, ask_stores, name_store
from pravega_metrics import store_metrics as metrics
from pravega_metrics.metrics import OTHER, Distribution, Family, Labels, Reading

NANOSECONDS: Final = 1_000_000_000

Counts = Mapping[int, int]
"""The number of values in each bucket of a histogram, by the greatest value of the bucket."""


@dataclass(frozen=True, slots=True)
class StoresSeen:
    """The families of each store by name of metric, and None for one that did not answer; and what
    requests to a store wait for, in words, by store."""

    stores: Mapping[str, Mapping[str, Family] | None]
    delays: Mapping[str, str] = field(default_factory=dict)

    def readings(self, name: str) -> Iterator[tuple[str, Labels, Reading]]:
        """Yield store, labels and reading of a metric."""
        for store, families in self.stores.items():
            if families is not None and name in families:
                for labels, reading in families[name].readings.items():
                    yield store, labels, reading

    def total(self, name: str, *labels: str) -> float:
        """Return the sum of a metric over all stores, of the readings with these labels."""
        return sum(
            reading
            for _, found, reading in self.readings(name)
            if not isinstance(reading, Distribution) and found[: len(labels)] == labels
        )

    def counts(self, name: str) -> dict[int, int]:
        """Return the buckets of a histogram over all stores and labels."""
        found: dict[int, int] = {}
        for _, _, reading in self.readings(name):
            if isinstance(reading, Distribution):
                for bound, count in reading.counts:
                    found[bound] = found.get(bound, 0) + count
        return found


async def see_stores(controller: Controller) -> StoresSeen:
    """Return what all stores tell now."""
    answers = await ask_stores(controller)
    seen = StoresSeen(
        {
            store: None
            if answer.families is None
            else {family.metric.name: family for family in answer.families}
            for store, answer in answers.items()
        }
    )
    waiting = {store for store, _, reading in seen.readings(metrics.DELAYS.name) if reading}
    delays: dict[str, str] = {}

    async def ask(address: Address) -> None:
        delays[name_store(address)] = await controller.segments.read_delays(address) or ""

    async with trio.open_nursery() as nursery:
        for address in controller.placement.containers_by_store():
            if name_store(address) in waiting:
                nursery.start_soon(ask, address)
    return replace(seen, delays=delays)


def track_stores(looks: Looks, controller: Controller) -> Track[StoresSeen]:
    """Return the track of all stores."""

    async def take() -> StoresSeen:
        return await see_stores(controller)

    return looks.track("stores", take, summarize)


@dataclass(frozen=True, slots=True)
class Traffic:
    """The work of all stores together, each second, and the quantiles of append's durations."""

    append_bytes: float | None
    append_events: float | None
    read_bytes: float | None
    append_median: float | None
    append_slow: float | None
    """The duration, in seconds, within which 99 of 100 appends were durable."""


def traffic_of(looks: list[Look[StoresSeen]]) -> Traffic:
    """Return the work between the first and the last look."""

    def of(name: str) -> float | None:
        return rate(looks, lambda seen: seen.total(name))

    name = metrics.APPEND_SECONDS.name
    counts = _grown(looks[0].seen.counts(name), looks[-1].seen.counts(name))
    return Traffic(
        of(metrics.APPEND_BYTES.name),
        of(metrics.APPEND_EVENTS.name),
        of(metrics.READ_BYTES.name),
        quantile(counts, 0.5),
        quantile(counts, 0.99),
    )


def summarize(looks: list[Look[StoresSeen]]) -> Summary:
    """Return the point of the overview's charts."""
    traffic = traffic_of(looks)
    return (
        traffic.append_bytes,
        traffic.read_bytes,
        traffic.append_events,
        traffic.append_median,
        traffic.append_slow,
    )


def _grown(earlier: Counts, later: Counts) -> dict[int, int]:
    """Return what buckets have more than earlier; nothing if one has less: it began again."""
    found = {bound: count - earlier.get(bound, 0) for bound, count in later.items()}
    return {} if any(count < 0 for count in found.values()) else found


def quantile(counts: Counts, part: float) -> float | None:
    """Return the duration, in seconds, that a part of the values does not exceed."""
    left = part * sum(counts.values())
    if not left:
        return None
    for bound in sorted(counts):
        left -= counts[bound]
        if left <= 0:
            return bound / NANOSECONDS
    return None


@dataclass(frozen=True, slots=True)
class BusyStream:
    """A stream with what is appended to it each second."""

    scope: str
    stream: str
    bytes: float
    events: float


def busiest_streams(looks: list[Look[StoresSeen]], count_max: int) -> list[BusyStream]:
    """Return the streams with the most bytes each second."""
    seconds = looks[-1].time - looks[0].time
    if seconds <= 0:
        return []
    growth = _growth_by_stream(looks, metrics.STREAM_BYTES.name)
    events = _growth_by_stream(looks, metrics.STREAM_EVENTS.name)
    found = [
        BusyStream(scope, stream, grown / seconds, events.get((scope, stream), 0.0) / seconds)
        for (scope, stream), grown in growth.items()
        if grown > 0 and not stream.startswith("_") and OTHER not in (scope, stream)
    ]
    return sorted(found, key=lambda each: -each.bytes)[:count_max]


def _growth_by_stream(looks: list[Look[StoresSeen]], name: str) -> dict[Labels, float]:
    found: dict[Labels, float] = {}
    for sign, look in ((-1, looks[0]), (1, looks[-1])):
        for _, labels, reading in look.seen.readings(name):
            if not isinstance(reading, Distribution):
                found[labels] = found.get(labels, 0.0) + sign * reading
    return found


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that is wrong with a store, or soon will be."""

    sentence: str
    store: str
    containers: frozenset[str] | None = None
    """The containers that it is about; None for all of the store."""
    stalls: bool = True
    """False if writers and readers do not notice it yet."""


def find_concerns(seen: StoresSeen) -> Iterator[Concern]:
    """Yield what is wrong with the stores."""
    for store, each in seen.stores.items():
        if each is None:
            yield Concern(f"Segment store {store} does not answer.", store)
    for store, (container, state), reading in seen.readings(metrics.CONTAINER_STATES.name):
        if reading and state != "online":
            sentence = f"Container {container} of {store} is {state}."
            yield Concern(sentence, store, frozenset({container}))
    for store, _, reading in seen.readings(metrics.DELAYS.name):
        if reading:
            why = seen.delays.get(store)
            yield Concern(f"Requests to {store} wait: {why or 'its log says why'}.", store)
    yield from _find_throttling(seen)
    yield from _find_full_disks(seen)


def _find_throttling(seen: StoresSeen) -> Iterator[Concern]:
    slow: dict[tuple[str, str], list[str]] = {}
    for store, (container, reason), reading in seen.readings(metrics.THROTTLE_SECONDS.name):
        if not isinstance(reading, Distribution) and reading > 0:
            slow.setdefault((store, reason), []).append(container)
    for (store, reason), containers in slow.items():
        who = f"Container {containers[0]} of {store} slows"
        if len(containers) > 1:
            who = f"Containers {', '.join(containers)} of {store} slow"
        yield Concern(f"{who} writers down: {reason}.", store, frozenset(containers))


def _find_full_disks(seen: StoresSeen) -> Iterator[Concern]:
    free = {
        (store, path): value
        for store, (path, kind), value in seen.readings(metrics.DISK_BYTES.name)
        if kind == "free" and not isinstance(value, Distribution)
    }
    for store, (path, kind), used in seen.readings(metrics.DISK_BYTES.name):
        if kind == "used" and not isinstance(used, Distribution):
            whole = used + free.get((store, path), 0.0)
            if whole and used / whole > 0.9:
                sentence = f"The disk of {path} at {store} is {used / whole:.0%} full."
                yield Concern(sentence, store, stalls=False)


def reasons_for_care(seen: StoresSeen) -> list[str]:
    """Return in words what is wrong with the stores, or soon will be."""
    return [each.sentence for each in find_concerns(seen)]


def reasons_of_segments(
    seen: StoresSeen, controller: Controller, segments: Iterable[str]
) -> list[str]:
    """Return in words why requests about these segments may wait or fail."""
    served: dict[str, set[str]] = {}
    found: list[str] = []
    for segment in segments:
        try:
            store = name_store(controller.placement.store_of(segment))
        except StoreUnavailableError as error:
            found.append(f"{str(error)[:1].upper()}{str(error)[1:]}.")
            continue
        served.setdefault(store, set()).add(str(controller.placement.container_of(segment)))
    found += [
        each.sentence
        for each in find_concerns(seen)
        if each.stalls
        and each.store in served
        and (each.containers is None or each.containers & served[each.store])
    ]
    return found
