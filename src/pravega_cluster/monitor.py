"""Changes the map of containers when hosts come or go, on the controller that leads.

Owns: ``ContainerMonitor``, which decides when the map is balanced again, and writes it.

The leader reads the hosts and the map, and writes the map that ``balance_containers`` returns.
After a change it first waits: at least ``GATHER_SECONDS``, in which a restarted host registers
again and further new hosts appear, and until ``pause_seconds_min`` after its last write. Before the
first map of a cluster it waits ``FIRST_GATHER_SECONDS``, in which the other hosts register, too.

Example: 8 containers on the hosts 1, 2 and 3. Host 2 dies; 0.5 seconds later the leader writes the
second map. Host 4 joins; 0.5 seconds later, or ``pause_seconds_min`` after that write, it writes
the third::

    1: 0 3 6      2: 1 4 7    3: 2 5
    1: 0 3 4 6                3: 1 2 5 7              only 1, 4 and 7 have moved
    1: 0 3 4                  3: 1 2 5      4: 6 7    only 6 and 7 have moved

Invariants:
1. When another leader has written the map since this one read it, this one writes nothing. Held by
   ``test_a_leader_that_slept_writes_nothing_on_a_map_of_the_next``.
2. When this process does not lead any more, it does not write the map. Held by
   ``test_a_leader_whose_node_is_gone_writes_no_more``.
3. When no host is registered, the map stays as it is, so that hosts that come back have the same
   containers. Held by ``test_without_hosts_the_map_stays``.
4. When a host is back within ``GATHER_SECONDS``, it keeps its containers. Held by
   ``test_a_host_that_is_back_at_once_keeps_its_containers``.
5. When answers of ZooKeeper get lost, the map always has each container once, and matches the hosts
   in the end. Held by ``test_the_map_follows_the_hosts_among_losses``.
6. When the map is damaged, it is not overwritten. Held by
   ``test_a_damaged_map_is_not_written_over``.
7. The hosts of a new cluster share its first map. Held by
   ``test_hosts_of_a_new_cluster_share_its_first_map``.
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
FIRST_GATHER_SECONDS = 2.0
"""Hosts that start together on a busy machine register within this time. If one of them had all
containers at first, most of them would move ``pause_seconds_min`` later, when clients use them."""
MISSING = -1
"""Version that stands for a map that does not exist yet."""

log = structlog.get_logger(__name__)


class _Plan(NamedTuple):
    """A planned change: the present map, its version, and the balanced map."""

    current: ContainerMap
    version: int
    wanted: ContainerMap


class ContainerMonitor:
    """Keeps the map balanced while this process leads, in one session."""

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
        """Keep the map balanced whenever this process leads. Raises ``SessionLostError``."""
        while True:
            latch = LeaderLatch(self._zookeeper, self._paths.leader, random=self._random)
            await latch.wait_to_lead()
            log.info("leads: keeps the map of containers")
            await self._lead(latch)
            log.warning("leads no more")

    async def _lead(self, latch: LeaderLatch) -> None:
        """Keep the map balanced until another process leads."""
        while True:
            changed = trio.Event()
            seconds = LOOK_SECONDS
            try:
                plan = await self._plan(latch, changed.set)
                if plan is None:
                    return
                if plan.wanted != plan.current:
                    await self._pause(is_first=plan.version == MISSING)
                    # Plan again, because hosts may have changed during the pause.
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

    async def _pause(self, *, is_first: bool) -> None:
        due = self._wrote_at + self._pause_seconds_min - trio.current_time()
        gather = FIRST_GATHER_SECONDS if is_first else GATHER_SECONDS
        await wait_for_change(self._zookeeper, trio.Event(), max(gather, due))

    async def _write(self, plan: _Plan) -> None:
        """Write the map, unless another process has written it since it was read."""
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
