"""A controller's membership in a cluster: its work in ZooKeeper for as long as it lives.

Owns: ``run_membership``: the controller's registration, its placement by the map of containers, and
its turns as the leader that keeps the map.

All of this is repeated in each session. Requests continue without a session: the placement keeps
the last map, and a store that does not have a container says so. The members' heartbeats decide
which controllers live, see ``members``; the registration is for other processes.

Stores record once for all how many containers the cluster has. A controller that was started with
another number ends, because it would look for segments in the wrong containers.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from random import Random

import structlog
import trio

from pravega_cluster.following import OpenSession, follow, live_in_sessions
from pravega_cluster.monitor import ContainerMonitor
from pravega_cluster.nodes import VersionedMap, find_paths, read_container_count, read_map
from pravega_cluster.records import Host
from pravega_cluster.registration import keep_registered
from pravega_controller.config import ConfigurationError, ControllerConfig
from pravega_controller.store_client.placement import MapPlacement
from pravega_controller.store_client.segment_client import SegmentClient
from zookeeper_client.api import OnChange, ZooKeeper

log = structlog.get_logger(__name__)


async def run_membership(
    config: ControllerConfig,
    placement: MapPlacement,
    segments: SegmentClient,
    *,
    serves: trio.Event,
    open_session: OpenSession | None,
    random: Random,
) -> None:
    """Run this controller as a member of the cluster, forever; register it once it ``serves``."""
    paths = find_paths(config.cluster)
    # The endpoint identifies this process, so it differs from that of an earlier controller.
    endpoint = f"{random.getrandbits(128):032x}"
    own = Host(config.published_address or config.host, config.port, endpoint)

    def use(found: VersionedMap | None) -> None:
        if found is not None:
            placement.update(found.containers)
            segments.forget_other_stores({host.address for host in found.containers})

    async def register(zookeeper: ZooKeeper) -> None:
        await serves.wait()
        await keep_registered(zookeeper, paths.controllers, own)

    async def follow_map(zookeeper: ZooKeeper) -> None:
        async def read(on_change: OnChange) -> VersionedMap | None:
            return await read_map(zookeeper, paths, on_change)

        await follow(zookeeper, read, use)

    async def follow_count(zookeeper: ZooKeeper) -> None:
        async def read(on_change: OnChange) -> int | None:
            return await read_container_count(zookeeper, paths, on_change)

        def check(count: int | None) -> None:
            if count not in (None, config.container_count):
                raise ConfigurationError(
                    f"cluster {config.cluster} has {count} containers,"
                    f" not {config.container_count}: say --container-count {count}"
                )

        await follow(zookeeper, read, check)

    async def live(zookeeper: ZooKeeper) -> None:
        monitor = ContainerMonitor(
            zookeeper,
            paths,
            container_count=config.container_count,
            pause_seconds_min=config.rebalance_seconds_min,
            random=random,
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(register, zookeeper)
            nursery.start_soon(follow_map, zookeeper)
            nursery.start_soon(follow_count, zookeeper)
            nursery.start_soon(monitor.run)

    await live_in_sessions(open_session or partial(_open_real_session, config), live)


@asynccontextmanager
async def _open_real_session(
    config: ControllerConfig, nursery: trio.Nursery
) -> AsyncIterator[ZooKeeper]:
    # Import kazoo only here: a controller that is in no cluster starts faster without it.
    from zookeeper_client.kazoo_session import open_zookeeper

    assert config.zookeeper is not None
    async with open_zookeeper(
        config.zookeeper,
        nursery,
        session_seconds=config.session_seconds,
        tls=config.zookeeper_tls,
    ) as session:
        yield session
