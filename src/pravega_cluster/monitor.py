"""Keeps the map of containers in step with the living hosts, on the controller that leads.

Owns: ``ContainerMonitor``: the time at which the map is balanced again, and its writing.

The leader reads hosts and map, and writes the map that ``balance_containers`` gives. It does so
soon after a change: it waits for ``GATHER_SECONDS``, in which a restarted host registers again and
other new hosts appear, and at least until ``pause_seconds_min`` after its last write.

Invariants:
1. The map is written on condition of the version that was read after this process was found to
   lead, so of two that believe to lead only one replaces a map that both have read.
2. Without a host the map stays as it is: no host could serve any container, and hosts that come
   back continue with the containers that they had.
3. While ZooKeeper is unreachable nothing is concluded: calls wait or fail, and leadership ends with
   the session.
4. A damaged map is not overwritten.
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
    """The present map, its version, and the balanced map."""

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
                    # Changes during the pause count, too.
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
        """Return the present and the balanced map; None if another process leads."""
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
