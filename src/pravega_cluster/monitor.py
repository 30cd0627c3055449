"""The leader among the controllers keeps the map of containers as the living hosts need it.

Owns: ``ContainerMonitor``: when the map is balanced again, and how it is written.

The leader looks at hosts and map, and writes the map that ``balance_containers`` gives. It does so
at once after a change, but waits for ``GATHER_SECONDS`` first, in which a host that registers again
is back and others that come with it have come; and not earlier than ``pause_seconds_min`` after it
wrote the last time.

Invariants:
1. The map is written on condition of the version that was read after this process was found to
   lead, so of two that believe to lead only one writes upon a map that both have seen.
2. Without a host the map stays as it is: no host could serve any container, and hosts that come
   back continue with what they had.
3. While ZooKeeper cannot be reached nothing is concluded: calls wait or fail, and leadership goes
   with the session.
4. A map that is damaged is not written over.
"""

from __future__ import annotations

from random import Random
from typing import NamedTuple

import structlog
import trio

from pravega_cluster.balance import balance_containers
from pravega_cluster.following import LOOK_SECONDS, RETRY_SECONDS, wait_for_change
from pravega_cluster.latch import LeaderLatch
from pravega_cluster.nodes import ClusterPaths, VersionedMap, read_hosts, read_map
from pravega_cluster.records import ClusterRecordError, ContainerMap, encode_map
from zookeeper_client.api import (
    BadVersionError,
    NodeExistsError,
    OnChange,
    SessionLostError,
    ZooKeeper,
    ZooKeeperError,
)

GATHER_SECONDS = 0.5
MISSING = -1
"""Version of a map that does not exist."""

log = structlog.get_logger(__name__)


class _Plan(NamedTuple):
    """The map as it is, its version, and the map as it should be."""

    current: ContainerMap
    version: int
    wanted: ContainerMap


class ContainerMonitor:
    """Keeps the map while this process leads, in one session."""

    def __init__(
        self,
        zookeeper: ZooKeeper,
        paths: ClusterPaths,
        *,
        container_count: int,
        pause_seconds_min: float,
        random: Random,
    ) -> None:
        self._zookeeper = zookeeper
        self._paths = paths
        self._container_count = container_count
        self._pause_seconds_min = pause_seconds_min
        self._random = random
        self._wrote_at = -float("inf")

    async def run(self) -> None:
        """Keep the map whenever it is this process's turn to lead. Raises ``SessionLostError``."""
        while True:
            latch = LeaderLatch(self._zookeeper, self._paths.leader, random=self._random)
            await latch.wait_to_lead()
            log.info("leads: keeps the map of containers")
            await self._lead(latch)
            log.warning("leads no more")

    async def _lead(self, latch: LeaderLatch) -> None:
        """Keep the map until another process leads."""
        while True:
            changed = trio.Event()
            seconds = LOOK_SECONDS
            try:
                plan = await self._plan(latch, changed.set)
                if plan is None:
                    return
                if plan.wanted != plan.current:
                    await self._pause()
                    # What has come in the meantime counts, too.
                    if (plan := await self._plan(latch)) is None:
                        return
                    await self._write(plan)
            except SessionLostError:
                raise
            except (ZooKeeperError, ClusterRecordError) as error:
                log.warning("containers cannot be balanced now", reason=repr(error))
                seconds = RETRY_SECONDS
            await wait_for_change(self._zookeeper, changed, seconds)

    async def _plan(self, latch: LeaderLatch, on_change: OnChange | None = None) -> _Plan | None:
        """Return the map as it is and as it should be; None if another process leads."""
        if not await latch.leads():
            return None
        found = await read_map(self._zookeeper, self._paths, on_change)
        hosts = await read_hosts(self._zookeeper, self._paths.hosts, on_change)
        current, version = found or VersionedMap({}, MISSING)
        wanted = balance_containers(current, hosts, self._container_count) if hosts else current
        return _Plan(current, version, wanted)

    async def _pause(self) -> None:
        due = self._wrote_at + self._pause_seconds_min - trio.current_time()
        await wait_for_change(self._zookeeper, trio.Event(), max(GATHER_SECONDS, due))

    async def _write(self, plan: _Plan) -> None:
        """Write the map, unless another has done so since it was read."""
        if plan.wanted == plan.current:
            return
        self._wrote_at = trio.current_time()
        data = encode_map(plan.wanted)
        try:
            if plan.version == MISSING:
                await self._zookeeper.create(self._paths.container_map, data)
            else:
                await self._zookeeper.set(self._paths.container_map, data, plan.version)
        except (BadVersionError, NodeExistsError):
            log.warning("another has written the map of containers meanwhile")
            return
        sizes = {host.node_name: len(containers) for host, containers in plan.wanted.items()}
        log.info("gave containers to hosts", **sizes)
