"""The present state of a cluster: the members that are registered, answer, and serve.

Owns: ``look_at_cluster`` and the values that it returns. It changes nothing.

A member is asked, because ZooKeeper alone is no proof: a segment store that was killed stays
registered until its session ends, and one that got a container may still recover it. A bookie that
is not registered now is known by its cookie, which it has until it is decommissioned.

A secured cluster is asked by TLS. Its segment stores tell what they serve for a token, which one of
the controllers gives to the user who asks.

Invariants:
1. When a member speaks TLS and is asked without, is not trusted, or does not know who asks, its
   state is unknown, with the reason. Held by ``test_a_secured_cluster_is_looked_at_by_a_user``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from bookkeeper_client.connections.liveness import ask_bookie
from bookkeeper_client.errors import BookKeeperError
from bookkeeper_client.registry import BookieRegistry
from pravega_admin.errors import COMMAND_LINE
from pravega_admin.inspection.server_checks import ask_controller, ask_segment_store
from pravega_cluster.nodes import (
    ClusterPaths,
    find_paths,
    read_container_count,
    read_hosts,
    read_map,
)
from pravega_cluster.records import ContainerMap, Host
from pravega_wire.names import CONTAINER_METADATA_PREFIX
from segstore_client.access.settings import ClientAccess
from segstore_client.access.tokens import StoreAccess
from segstore_client.addresses import format_host_port
from segstore_client.delays import ask_delays
from segstore_client.errors import (
    NoPermissionError,
    NotFoundError,
    PravegaError,
    UntrustedServerError,
)
from zookeeper_client.api import NoNodeError, ZooKeeper

if TYPE_CHECKING:
    from segstore_client.access.credentials import Credentials
    from segstore_client.access.tls import ClientTls

SEGMENT_STORE: Final = "segment store"
CONTROLLER: Final = "controller"
BOOKIE: Final = "bookie"
SERVES: Final = "serves"
SILENT: Final = "does not answer"
UNKNOWN: Final = "unknown"
GONE: Final = "gone"
LEAVES: Final = "leaves"
READ_ONLY: Final = "read-only"


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
    delays: str = ""
    """The reason why requests to the segment store wait, in words."""
    mistake: str = ""
    """The reason why the state is unknown: TLS, or a missing right to ask for it."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state of a cluster at one time."""

    members: tuple[Member, ...]
    container_count: int | None
    """Number of containers; None until the first segment store has recorded it."""

    def count(self, kind: str, *states: str) -> int:
        """Return how many members of a kind are in one of the states."""
        return sum(each.kind == kind and each.state in states for each in self.members)

    @property
    def absent_bookies(self) -> list[str]:
        """Return the bookies of the cluster that do not answer, or are not even registered."""
        states = (SILENT, GONE)
        return [
            each.address for each in self.members if each.kind == BOOKIE and each.state in states
        ]

    @property
    def mistakes(self) -> list[str]:
        """Return the reasons why states are unknown, each once."""
        return list(dict.fromkeys(each.mistake for each in self.members if each.mistake))

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
            (BOOKIE, bookies, SERVES),
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
        return [*found, *self.mistakes] if found else found


async def look_at_cluster(
    zookeeper: ZooKeeper,
    name: str,
    *,
    ledgers_root: str | None = None,
    seconds_max: float,
    tls: ClientTls | None = None,
    credentials: Credentials | None = None,
) -> ClusterState:
    """Return the state of a cluster; each process has so many seconds to answer.

    With ``tls`` segment stores and controllers are asked by TLS, with ``credentials`` as a user.
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
    bookies = await _find_bookies(zookeeper, paths, ledgers_root, seconds_max)
    token, refusal = "", ""
    if credentials is not None and stores and controllers:
        try:
            token = await trio.to_thread.run_sync(
                _get_token, sorted(controllers), tls, credentials, seconds_max
            )
        except PravegaError as error:
            refusal = str(error)
    members: list[Member] = []
    ask_store = partial(_ask_store, seconds_max=seconds_max, tls=tls, token=token, refusal=refusal)

    async def add(ask: Callable[[], Member]) -> None:
        members.append(await trio.to_thread.run_sync(ask))

    async with trio.open_nursery() as nursery:
        for host in stores | given.keys():
            containers = tuple(sorted(given.get(host, ())))
            is_there = host in stores
            nursery.start_soon(add, partial(ask_store, host, containers, is_there))
        for host in controllers:
            nursery.start_soon(add, partial(_ask_controller, host, seconds_max, tls))
    kinds = (SEGMENT_STORE, CONTROLLER)
    members.sort(key=lambda member: (kinds.index(member.kind), member.address))
    return ClusterState((*members, *bookies), count)


def _get_token(
    controllers: Sequence[Host],
    tls: ClientTls | None,
    credentials: Credentials,
    seconds_max: float,
) -> str:
    """Return a token to ask segment stores which containers they serve."""
    from segstore_client.controller.controller_client import ControllerClient, Purpose

    hosts = ",".join(format_host_port(each.ip, each.port) for each in controllers)
    address = hosts if tls is None else f"tls://{hosts}"
    access = ClientAccess(credentials, words=COMMAND_LINE)
    if tls is not None:
        access = replace(access, tls=tls)
    scope, stream = CONTAINER_METADATA_PREFIX.split("/")[:2]
    with ControllerClient(address, patience=seconds_max, access=access) as client:
        return client.delegation_token(scope, stream, Purpose.READ)


def _ask_store(
    host: Host,
    containers: tuple[int, ...],
    is_registered: bool,
    *,
    seconds_max: float,
    tls: ClientTls | None,
    token: str,
    refusal: str,
) -> Member:
    address = f"{host.ip}:{host.port}"
    try:
        served = ask_segment_store(
            host.ip,
            host.port,
            containers=containers,
            seconds_max=seconds_max,
            tls=tls,
            token=token,
        )
    except NoPermissionError as error:
        # A missing token is not a reason that the store gave.
        return Member(SEGMENT_STORE, address, UNKNOWN, containers, mistake=refusal or str(error))
    except UntrustedServerError as error:
        return Member(SEGMENT_STORE, address, UNKNOWN, containers, mistake=str(error))
    except PravegaError:
        return Member(SEGMENT_STORE, address, SILENT if is_registered else GONE, containers)
    # A store that ends serves each container until another has it.
    state = SERVES if is_registered else LEAVES
    access = StoreAccess(tls=tls, words=COMMAND_LINE)
    delays = ask_delays(host.ip, host.port, seconds_max=seconds_max, access=access) or ""
    return Member(SEGMENT_STORE, address, state, containers, served, delays)


def _ask_controller(host: Host, seconds_max: float, tls: ClientTls | None) -> Member:
    address = f"{host.ip}:{host.port}"
    try:
        ask_controller(host.ip, host.port, seconds_max=seconds_max, tls=tls)
    except UntrustedServerError as error:
        return Member(CONTROLLER, address, UNKNOWN, mistake=str(error))
    except PravegaError:
        return Member(CONTROLLER, address, SILENT)
    return Member(CONTROLLER, address, SERVES)


async def _find_bookies(
    zookeeper: ZooKeeper, paths: ClusterPaths, root: str | None, seconds_max: float
) -> list[Member]:
    """Return all bookies of the cluster in order, each as it answers."""
    registry = BookieRegistry(zookeeper, root or f"{paths.root}/bookkeeper/ledgers")
    writable, read_only = await registry.find_writable(), await registry.find_read_only()
    members = {
        name: Member(BOOKIE, name, GONE)
        for name in sorted({*writable, *read_only, *await registry.find_known()})
    }

    async def ask(name: str, state: str) -> None:
        try:
            with trio.fail_after(seconds_max):
                await ask_bookie(*await registry.find_address(name))
        except (OSError, trio.TooSlowError, BookKeeperError):
            state = SILENT
        members[name] = Member(BOOKIE, name, state)

    async with trio.open_nursery() as nursery:
        for names, state in ((writable, SERVES), (read_only, READ_ONLY)):
            for name in names:
                nursery.start_soon(ask, name, state)
    return list(members.values())
