"""Has the paths of a cluster's nodes in ZooKeeper, and reads these nodes.

Owns: the paths below a cluster's root ``/pravega/<name>``, ``read_hosts``, ``read_map`` and
``read_container_count``.

    <root>/cluster/hosts/<ip>:<port>:                      ephemeral, a running segment store
    <root>/cluster/controllers/<ip>:<port>:<endpoint>      ephemeral, a running controller
    <root>/cluster/segmentContainerHostMapping             the containers of each host
    <root>/cluster/faulthandlerleader/                     the queue for its writer: see ``latch``
    <root>/segstore/identity                               the stores' record of the cluster
"""

from __future__ import annotations

import tomllib
from typing import NamedTuple

import structlog

from pravega_cluster.records import (
    ClusterRecordError,
    ContainerMap,
    Host,
    decode_map,
    parse_node_name,
)
from zookeeper_client.api import NoNodeError, OnChange, ZooKeeper, ensure_path

MAP_NAME = "segmentContainerHostMapping"

log = structlog.get_logger(__name__)


class ClusterPaths(NamedTuple):
    """The paths of one cluster's nodes."""

    root: str

    @property
    def cluster(self) -> str:
        return f"{self.root}/cluster"

    @property
    def hosts(self) -> str:
        return f"{self.cluster}/hosts"

    @property
    def controllers(self) -> str:
        return f"{self.cluster}/controllers"

    @property
    def container_map(self) -> str:
        return f"{self.cluster}/{MAP_NAME}"

    @property
    def identity(self) -> str:
        return f"{self.root}/segstore/identity"

    @property
    def leader(self) -> str:
        return f"{self.cluster}/faulthandlerleader"


class VersionedMap(NamedTuple):
    """A map of containers, and the version of its node."""

    containers: ContainerMap
    version: int


def find_paths(cluster: str) -> ClusterPaths:
    """Return the paths of the cluster with this name."""
    if not cluster or "/" in cluster or "\0" in cluster or cluster in (".", ".."):
        raise ClusterRecordError(f"{cluster!r} cannot be the name of a cluster")
    return ClusterPaths(f"/pravega/{cluster}")


async def read_hosts(
    zookeeper: ZooKeeper, path: str, on_change: OnChange | None = None
) -> frozenset[Host]:
    """Return the hosts that are registered below a path. Other names are logged and skipped."""
    try:
        names = await zookeeper.children(path, on_change)
    except NoNodeError:
        await ensure_path(zookeeper, path)
        names = await zookeeper.children(path, on_change)
    found = set()
    for name in names:
        try:
            found.add(parse_node_name(name))
        except ClusterRecordError as error:
            log.warning("strange node among the hosts", path=path, reason=str(error))
    return frozenset(found)


async def read_map(
    zookeeper: ZooKeeper, paths: ClusterPaths, on_change: OnChange | None = None
) -> VersionedMap | None:
    """Return the map of containers; None if there is none yet. Then ``on_change`` is called when it
    is made.

    Raises ``ClusterRecordError`` if the map is damaged.
    """
    while True:
        try:
            data, version = await zookeeper.get(paths.container_map, on_change)
        except NoNodeError:
            try:
                names = await zookeeper.children(paths.cluster, on_change)
            except NoNodeError:
                await ensure_path(zookeeper, paths.cluster)
                continue
            if MAP_NAME in names:
                continue
            return None
        return VersionedMap(decode_map(data), version)


async def read_container_count(
    zookeeper: ZooKeeper, paths: ClusterPaths, on_change: OnChange | None = None
) -> int | None:
    """Return how many containers the cluster has; None if no store has recorded it yet.

    Raises ``ClusterRecordError`` if the record is damaged.
    """
    try:
        data, _ = await zookeeper.get(paths.identity, on_change)
    except NoNodeError:
        return None
    try:
        count = tomllib.loads(data.decode())["container_count"]
    except (ValueError, KeyError) as error:
        raise ClusterRecordError(f"the identity of the cluster is damaged: {error!r}") from error
    if not isinstance(count, int):
        raise ClusterRecordError(f"the cluster cannot have {count!r} containers")
    return count
