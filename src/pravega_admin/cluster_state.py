"""The present state of a cluster: the members that are registered, answer, and serve.

Owns: ``look_at_cluster`` and the values that it returns. It changes nothing.

A member is asked, because ZooKeeper alone is no proof: a segment store that was killed stays
registered until its session ends, and one that got a container may still recover it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from pravega_admin.server_checks import ask_controller, ask_segment_store
from pravega_blocking.errors import NotFoundError, PravegaError
from pravega_cluster.nodes import (
    ClusterPaths,
    find_paths,
    read_container_count,
    read_hosts,
    read_map,
)
from pravega_cluster.records import ContainerMap, Host
from zookeeper_client.api import NoNodeError, ZooKeeper

SEGMENT_STORE: Final = "segment store"
CONTROLLER: Final = "controller"
BOOKIE: Final = "bookie"
SERVES: Final = "serves"
SILENT: Final = "does not answer"
GONE: Final = "gone"
LEAVES: Final = "leaves"
REGISTERED: Final = "registered"
READ_ONLY: Final = "read-only"
READ_ONLY_NODE: Final = "readonly"


@dataclass(frozen=True, slots=True)
class Member:
    """A process of the cluster."""

    kind: str
    address: str
    state: str
    containers: tuple[int, ...] = ()
    """Containers that the map assigns to the segment store."""
    served: frozenset[int] = frozenset()
    """Assigned containers that the segment store serves."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of a cluster at one time."""

    members: tuple[Member, ...]
    container_count: int | None
    """None before the first segment store has recorded it."""

    def count(self, kind: str, *states: str) -> int:
        """Return how many members of a kind are in one of the states."""
        return sum(each.kind == kind and each.state in states for each in self.members)

    @property
    def unserved(self) -> tuple[int, ...]:
        """Return the containers that no segment store serves now."""
        served = frozenset[int]().union(*(each.served for each in self.members))
        return tuple(each for each in range(self.container_count or 0) if each not in served)

    def missing(self, *, stores: int = 1, controllers: int = 1, bookies: int = 0) -> list[str]:
        """Return the reasons why the cluster is not whole, in words; empty when it is.

        It is whole when the wanted number of each kind serves, all containers are served, and each
        segment store has some, if there are enough.
        """
        found = []
        for kind, wanted, state in (
            (SEGMENT_STORE, stores, SERVES),
            (CONTROLLER, controllers, SERVES),
            (BOOKIE, bookies, REGISTERED),
        ):
            if (count := self.count(kind, state)) < wanted:
                found.append(f"{count} of {wanted} {kind}s: {state}")
        if self.container_count is None:
            found.append("no segment store has ever served")
        elif unserved := self.unserved:
            found.append(f"containers that no store serves: {', '.join(map(str, unserved))}")
        idle = [
            each.address
            for each in self.members
            if each.kind == SEGMENT_STORE and each.state == SERVES and not each.containers
        ]
        if idle and (self.container_count or 0) >= self.count(SEGMENT_STORE, SERVES):
            found.append(f"segment stores without containers: {', '.join(idle)}")
        return found


async def look_at_cluster(
    zookeeper: ZooKeeper, name: str, *, ledgers_root: str | None = None, seconds_max: float
) -> ClusterState:
    """Return the state of a cluster; each process has so many seconds to answer.

    Raises ``NotFoundError`` when ZooKeeper has no cluster of this name, and the errors of calls to
    ZooKeeper.
    """
    paths = find_paths(name)
    try:
        await zookeeper.children(paths.root)
    except NoNodeError as error:
        raise NotFoundError(f"there is no cluster {name} in this ZooKeeper") from error
    count = await read_container_count(zookeeper, paths)
    found = await read_map(zookeeper, paths)
    given: ContainerMap = found.containers if found is not None else {}
    stores = await read_hosts(zookeeper, paths.hosts)
    controllers = await read_hosts(zookeeper, paths.controllers)
    bookies = await _read_bookies(zookeeper, paths, ledgers_root)
    members: list[Member] = []

    async def add(ask: Callable[[], Member]) -> None:
        members.append(await trio.to_thread.run_sync(ask))

    async with trio.open_nursery() as nursery:
        for host in stores | given.keys():
            containers = tuple(sorted(given.get(host, ())))
            is_there = host in stores
            nursery.start_soon(add, partial(_ask_store, host, containers, is_there, seconds_max))
        for host in controllers:
            nursery.start_soon(add, partial(_ask_controller, host, seconds_max))
    kinds = (SEGMENT_STORE, CONTROLLER)
    members.sort(key=lambda member: (kinds.index(member.kind), member.address))
    return ClusterState((*members, *bookies), count)


def _ask_store(
    host: Host, containers: tuple[int, ...], is_registered: bool, seconds_max: float
) -> Member:
    address = f"{host.ip}:{host.port}"
    try:
        served = ask_segment_store(
            host.ip, host.port, containers=containers, seconds_max=seconds_max
        )
    except PravegaError:
        return Member(SEGMENT_STORE, address, SILENT if is_registered else GONE, containers)
    # A store that ends serves each container until another has it.
    return Member(SEGMENT_STORE, address, SERVES if is_registered else LEAVES, containers, served)


def _ask_controller(host: Host, seconds_max: float) -> Member:
    address = f"{host.ip}:{host.port}"
    try:
        ask_controller(host.ip, host.port, seconds_max=seconds_max)
    except PravegaError:
        return Member(CONTROLLER, address, SILENT)
    return Member(CONTROLLER, address, SERVES)


async def _read_bookies(
    zookeeper: ZooKeeper, paths: ClusterPaths, root: str | None
) -> list[Member]:
    """Return the bookies that have registered, with those that take no writes."""
    available = f"{root or f'{paths.root}/bookkeeper/ledgers'}/available"
    found = []
    for path, state in (
        (available, REGISTERED),
        (f"{available}/{READ_ONLY_NODE}", READ_ONLY),
    ):
        try:
            names = await zookeeper.children(path)
        except NoNodeError:
            names = []
        found += [Member(BOOKIE, name, state) for name in names if name != READ_ONLY_NODE]
    return found
