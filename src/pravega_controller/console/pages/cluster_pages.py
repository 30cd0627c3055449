"""The page of the servers: segment stores, containers with their backlog and throttle, tiers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from pravega_controller.console.routes import HtmlPage, PageAnswer, PageRequest, page
from pravega_controller.console.store_numbers import (
    StoresSeen,
    quantile,
    reasons_for_care,
    track_stores,
)
from pravega_metrics import store_metrics as metrics
from pravega_metrics.metrics import Distribution
from pravega_wire import controller_pb2 as pb

CONTAINERS_MAX: Final = 500
"""Maximum number of containers in the table."""


@dataclass(frozen=True, slots=True)
class ContainerRow:
    """A container, where it is, and what waits in it."""

    number: int
    store: str
    state: str
    unflushed: float
    held: float
    delay: float
    delay_reason: str
    segments: float
    recovery: float | None


@dataclass(frozen=True, slots=True)
class CallRow:
    """Calls of tier 2 of one kind and result, since the stores started."""

    call: str
    result: str
    count: int
    median: float | None
    slow: float | None


@dataclass(frozen=True, slots=True)
class DiskRow:
    """A file system that a store writes to."""

    store: str
    path: str
    used: float
    free: float


@page("GET", "/cluster")
async def show_cluster(request: PageRequest) -> PageAnswer:
    """Show the servers."""
    return HtmlPage("cluster.html", await _look(request))


@page("GET", "/cluster/live")
async def show_cluster_again(request: PageRequest) -> PageAnswer:
    """Show what changes on the page of the servers."""
    return HtmlPage("cluster_live.html", await _look(request))


async def _look(request: PageRequest) -> dict[str, Any]:
    await request.calls.permit("listScopes", pb.ScopesRequest())
    controller = request.calls.controller
    seen = (await track_stores(request.looks, controller).look())[-1].seen
    rows = container_rows(seen)
    return {
        "reasons": reasons_for_care(seen),
        "stores": {
            store: None if families is None else sum(row.store == store for row in rows)
            for store, families in seen.stores.items()
        },
        "controllers": sorted(f"{each.host}:{each.port}" for each in controller.members.living()),
        "containers": rows[:CONTAINERS_MAX],
        "container_count": len(rows),
        "calls": call_rows(seen),
        "disks": disk_rows(seen),
        "cache": {
            labels[0]: seen.total(metrics.CACHE_BYTES.name, *labels)
            for _, labels, _ in seen.readings(metrics.CACHE_BYTES.name)
        },
    }


def _by_container(seen: StoresSeen, name: str) -> Mapping[tuple[str, str], float]:
    return {
        (store, labels[0]): reading
        for store, labels, reading in seen.readings(name)
        if not isinstance(reading, Distribution)
    }


def container_rows(seen: StoresSeen) -> list[ContainerRow]:
    """Return the containers of all stores, by number; those that slow writers down first."""
    unflushed = _by_container(seen, metrics.UNFLUSHED_BYTES.name)
    held = _by_container(seen, metrics.LOG_HELD_BYTES.name)
    active = _by_container(seen, metrics.ACTIVE_SEGMENTS.name)
    recovery = _by_container(seen, metrics.RECOVERY_SECONDS.name)
    delays: dict[tuple[str, str], tuple[float, str]] = {}
    for store, (container, reason), reading in seen.readings(metrics.THROTTLE_SECONDS.name):
        if not isinstance(reading, Distribution):
            known = delays.get((store, container), (0.0, ""))
            delays[store, container] = max(known, (reading, reason if reading > 0 else ""))
    rows = []
    for store, (container, state), reading in seen.readings(metrics.CONTAINER_STATES.name):
        if reading:
            key = store, container
            delay, reason = delays.get(key, (0.0, ""))
            rows.append(
                ContainerRow(
                    int(container),
                    store,
                    state,
                    unflushed.get(key, 0.0),
                    held.get(key, 0.0),
                    delay,
                    reason,
                    active.get(key, 0.0),
                    recovery.get(key),
                )
            )
    return sorted(rows, key=lambda row: (-row.delay, row.number, row.store))


def call_rows(seen: StoresSeen) -> list[CallRow]:
    """Return the calls of tier 2 over all stores."""
    counts: dict[tuple[str, str], dict[int, int]] = {}
    for _, (call, result), reading in seen.readings(metrics.TIER2_SECONDS.name):
        if isinstance(reading, Distribution):
            buckets = counts.setdefault((call, result), {})
            for bound, count in reading.counts:
                buckets[bound] = buckets.get(bound, 0) + count
    return [
        CallRow(call, result, sum(each.values()), quantile(each, 0.5), quantile(each, 0.99))
        for (call, result), each in sorted(counts.items())
        if each
    ]


def disk_rows(seen: StoresSeen) -> list[DiskRow]:
    """Return the file systems of all stores."""
    found: dict[tuple[str, str], dict[str, float]] = {}
    for store, (path, kind), reading in seen.readings(metrics.DISK_BYTES.name):
        if not isinstance(reading, Distribution):
            found.setdefault((store, path), {})[kind] = reading
    return [
        DiskRow(store, path, each.get("used", 0.0), each.get("free", 0.0))
        for (store, path), each in sorted(found.items())
    ]
