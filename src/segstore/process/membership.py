"""A segment store's membership in a cluster: its registration, and the containers that it hosts.

Owns: ``Membership``: the sessions with ZooKeeper, the registration of the host, and the changes of
the registry when the map of containers changes.

Invariants:
1. In each session, the store reads the map before it registers the host. So it hosts what the map
   assigns to it when controllers see it, and no container that another host got meanwhile. Held by
   ``test_the_map_is_looked_at_before_the_host_is_registered_in_each_session``. A damaged map
   changes nothing, and the host is registered all the same. Held by
   ``test_a_damaged_map_does_not_keep_a_new_store_from_registering``.
2. When the map assigns a container to this host, the store hosts it; when the map assigns it to
   another host, the store stops it. Held by ``test_containers_are_what_the_map_says``.
3. While ZooKeeper cannot be reached, no container is stopped. If another store has opened the log
   of a container meanwhile, that log fences this store. Held by
   ``test_containers_go_on_without_a_session_and_are_looked_at_in_the_next``.
4. When a session ends, only the registration ends with it. In the next session the store reads the
   map and registers again. Held by
   ``test_containers_go_on_without_a_session_and_are_looked_at_in_the_next``.
5. When a host leaves the cluster, it removes its registration first, and serves each container
   until the map assigns that to another host. Held by
   ``test_a_host_that_leaves_serves_until_others_have_its_containers``. Then it still answers for
   ``FAREWELL_SECONDS``, because a client that gets ``WrongHost`` asks a controller for the new
   address, and one that gets no connection does not. Held by
   ``test_who_writes_to_a_store_that_ends_is_told_to_ask_where_the_container_is``.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Final

import structlog
import trio

from pravega_cluster.following import RETRY_SECONDS, OpenSession, follow, live_in_sessions
from pravega_cluster.nodes import VersionedMap, find_paths, read_hosts, read_map
from pravega_cluster.records import ClusterRecordError, Host
from pravega_cluster.registration import keep_registered, unregister
from segstore.process.config import ClusterSettings
from segstore.process.registry import ContainerRegistry
from zookeeper_client.api import OnChange, SessionLostError, ZooKeeper, ZooKeeperError
from zookeeper_client.kazoo_session import open_zookeeper
from zookeeper_client.steady import SteadyZooKeeper

RESTART_SECONDS_MAX: Final = 10.0
"""Maximum pause, in seconds, before a container that failed is tried again."""
FAREWELL_SECONDS: Final = 2.0
"""Time, in seconds, for which a host still answers after other hosts have taken its containers. A
client that lost its connection connects again after 1, 10, 100 and 1,000 ms, and then only after
10 s."""
LEFT_LOOK_SECONDS: Final = 0.2
"""Interval, in seconds, at which a host that leaves checks whether others have its containers."""

logger = structlog.get_logger(__name__)


class Membership:
    """The membership of one host. ``run`` has to run for longer than the containers."""

    def __init__(
        self,
        cluster: str,
        host: Host,
        open_session: OpenSession,
        *,
        hand_over_seconds_max: float = 30.0,
    ) -> None:
        self.host = host
        self.zookeeper = SteadyZooKeeper()
        self.looked = trio.Event()
        """An event that is set when the map was read for the first time."""
        self.restart_seconds_max = RESTART_SECONDS_MAX
        self._hand_over_seconds_max = hand_over_seconds_max
        self._paths = find_paths(cluster)
        self._open_session = open_session
        self._registry: ContainerRegistry | None = None
        self._began = trio.Event()
        self._serves = trio.Event()
        self._leaves = trio.Event()
        self._assigned: frozenset[int] = frozenset()
        self._controllers: frozenset[Host] = frozenset()

    @property
    def root(self) -> str:
        """Return the root of the cluster in ZooKeeper."""
        return self._paths.root

    def controllers(self) -> list[tuple[str, int]]:
        """Return the addresses of the controllers that have registered."""
        return [host.address for host in sorted(self._controllers)]

    async def run(self) -> None:
        """Keep a session with ZooKeeper, and open another whenever one is lost, until cancelled."""
        await live_in_sessions(self._open_session, self._live)

    async def begin(self, registry: ContainerRegistry) -> None:
        """Host the containers that the map assigns to this host in a registry that runs; return
        when the map was read for the first time."""
        self._registry = registry
        registry.on_stopped = self._apply
        self._began.set()
        await self.looked.wait()

    def mark_serving(self) -> None:
        """Register the host, because it accepts connections now."""
        self._serves.set()

    async def wait_assigned(self, container_id: int) -> None:
        """Read the map until it assigns the container to this host."""
        while True:
            try:
                found = await read_map(self.zookeeper, self._paths)
            except (ZooKeeperError, ClusterRecordError) as error:
                logger.warning("a container waits", container=container_id, error=str(error))
            else:
                if found is not None and container_id in self._numbers(found):
                    return
            await trio.sleep(RETRY_SECONDS)

    async def hand_over(self) -> None:
        """Remove the registration, wait until other hosts have the containers, and then wait for
        ``FAREWELL_SECONDS``.

        Waits for other hosts at most ``hand_over_seconds_max``, and not at all if there is no other
        host that could take the containers.
        """
        assert self._registry is not None
        had_containers = bool(self._registry.hosted_numbers())
        self._leaves.set()
        with trio.move_on_after(self._hand_over_seconds_max):
            while self._registry.hosted_numbers():
                if not await self._can_be_replaced():
                    break
                await trio.sleep(LEFT_LOOK_SECONDS)
        left = len(self._registry.hosted_numbers())
        logger.info("containers are handed over", left=left)
        if had_containers and not left:
            await trio.sleep(FAREWELL_SECONDS)

    async def _can_be_replaced(self) -> bool:
        """Return whether the cluster has another host, and a controller that can change the map."""
        try:
            hosts = await read_hosts(self.zookeeper, self._paths.hosts)
            leaders = await self.zookeeper.children(self._paths.leader)
        except ZooKeeperError:
            return False
        return bool(hosts - {self.host} and leaders)

    async def _live(self, session: ZooKeeper) -> None:
        with self.zookeeper.using(session):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_end_with, session)
                await self._began.wait()
                looked = trio.Event()

                def use(found: VersionedMap | None) -> None:
                    self._use(found)
                    looked.set()

                nursery.start_soon(follow, session, partial(self._read_map, session), use)
                look = partial(read_hosts, session, self._paths.controllers)
                nursery.start_soon(follow, session, look, self._record_controllers)
                await self._serves.wait()
                await looked.wait()
                if not self._leaves.is_set():
                    async with trio.open_nursery() as registering:
                        registering.start_soon(
                            keep_registered, session, self._paths.hosts, self.host
                        )
                        await self._leaves.wait()
                        registering.cancel_scope.cancel()
                await unregister(session, self._paths.hosts, self.host)

    async def _read_map(self, session: ZooKeeper, on_change: OnChange) -> VersionedMap | None:
        """Read the map; return None if it is missing or damaged."""
        try:
            return await read_map(session, self._paths, on_change)
        except ClusterRecordError as error:
            logger.error("the map of containers cannot be used", error=str(error))
            return None

    def _use(self, found: VersionedMap | None) -> None:
        if found is not None:
            self._assigned = self._numbers(found)
            self._apply()
        self.looked.set()

    def _record_controllers(self, found: frozenset[Host]) -> None:
        self._controllers = found

    def _numbers(self, found: VersionedMap) -> frozenset[int]:
        return found.containers.get(self.host, frozenset())

    def _apply(self) -> None:
        """Host the assigned containers in the registry, and release the others. A container that is
        still being stopped is hosted again when it has stopped."""
        registry = self._registry
        assert registry is not None
        strange = {number for number in self._assigned if number >= registry.container_count}
        if strange:
            logger.error("the map has containers that this store does not know", numbers=strange)
        for number in registry.numbers() - self._assigned:
            logger.info("container is another host's", container=number)
            registry.release(number)
        for number in sorted(self._assigned - registry.hosted_numbers() - strange):
            logger.info("container is this host's", container=number)
            registry.host(number)


async def _end_with(session: ZooKeeper) -> None:
    """Wait until the session has ended, and raise ``SessionLostError``."""
    await session.lost.wait()
    raise SessionLostError("the session with ZooKeeper has ended")


def make_membership(settings: ClusterSettings, address: tuple[str, int]) -> Membership:
    """Return a membership with the published address, or with ``address`` if none is published."""
    open_session = partial(_open_session, settings)
    return Membership(
        settings.name,
        Host(*(settings.published or address)),
        open_session,
        hand_over_seconds_max=settings.hand_over_seconds_max,
    )


def _open_session(
    settings: ClusterSettings, nursery: trio.Nursery
) -> AbstractAsyncContextManager[ZooKeeper]:
    return open_zookeeper(
        settings.zookeeper,
        nursery,
        session_seconds=settings.session_seconds,
        tls=settings.zookeeper_tls,
    )
