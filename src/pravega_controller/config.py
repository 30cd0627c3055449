"""The configuration of a controller.

Owns: the fields, their defaults, and the checks of their values.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from pravega_cluster.nodes import find_paths
from pravega_cluster.records import ClusterRecordError
from pravega_controller.authority import WILDCARDS

DEFAULT_PORT = 9090
DEFAULT_CLUSTER = "pravega-cluster"
DEFAULT_SEGMENT_STORE_PORT = 12345


class ConfigurationError(ValueError):
    """A controller cannot run with this configuration."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """A controller's configuration. Times are in seconds.

    With ``zookeeper`` the controller is a member of a cluster: ZooKeeper has the map of containers
    to segment stores, ``segment_stores`` has no effect, and clients are sent to the addresses that
    the stores publish.

    Without it, ``segment_stores`` are the addresses at which the controller itself reaches them;
    container ``c`` lives on the store at index ``container_stores[c]``, or, without that setting,
    at ``c % len(segment_stores)``. Clients are sent to the port of a segment's store, at
    ``published_address`` if that is set, else at the host at which they reached the controller.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    segment_stores: tuple[tuple[str, int], ...] = (("127.0.0.1", DEFAULT_SEGMENT_STORE_PORT),)
    container_count: int = 4
    container_stores: tuple[int, ...] | None = None
    """The store of each container, by its index in ``segment_stores``."""
    published_address: str | None = None
    """The host to which clients are sent, for controller and segment stores alike; in a cluster,
    for this controller alone."""
    zookeeper: str | None = None
    """The ZooKeeper servers of the cluster: ``host:port,host:port``."""
    cluster: str = DEFAULT_CLUSTER
    """The name of the cluster: its nodes are below ``/pravega/<name>``."""
    session_seconds: float = 10.0
    """Time-out, in seconds, of the session with ZooKeeper. Servers bound it: by default 4 to 40."""
    rebalance_seconds_min: float = 10.0
    """Minimum time, in seconds, between two changes of the map of containers."""
    place: str = ""
    """Name under which only one controller of the store runs at a time: the next one to start there
    knows that the one before is dead. By default it is the machine's name and the port."""
    startup_seconds_max: float = 60.0
    """Maximum time, in seconds, that the start waits for the segment stores to answer."""
    reply_seconds_max: float = 20.0
    """Maximum time, in seconds, of one request to a segment store."""
    retry_seconds_max: float = 30.0
    """Maximum time, in seconds, for which a request is repeated while its segment store is away."""
    drain_seconds: float = 5.0
    """Maximum time, in seconds, that calls under way may take once the controller stops."""
    heartbeat_seconds: float = 1.0
    """Interval, in seconds, of the controller's heartbeats; one that is silent for six intervals
    counts as dead. All controllers of a store have the same interval."""
    request_poll_seconds: float = 1.0
    """Interval, in seconds, at which requests of segment stores to scale are read; 0 for never."""
    scale_event_seconds_max: float = 600.0
    """Maximum age, in seconds, of a request to scale; older ones are dropped."""
    idle_segment_seconds: float = 600.0
    """Time, in seconds, for which a segment counts as idle after it was reported idle."""
    idle_sweep_seconds: float = 3600.0
    """Interval, in seconds, at which marks of deleted segments are removed."""
    watermark_period_seconds: float = 10.0
    """Pause, in seconds, between two rounds of watermarks; 0 for none."""
    retention_period_seconds: float = 1800.0
    """Period, in seconds, in which each stream with a retention policy is visited; 0: never."""
    history_period_seconds: float = 600.0
    """Interval, in seconds, of searches for epochs that can be dropped; 0 to keep all epochs."""
    history_seconds_min: float = 7 * 86_400.0
    """Minimum time, in seconds, for which epochs are kept that the head has left behind."""

    def __post_init__(self) -> None:
        if not self.segment_stores:
            raise ConfigurationError("a controller needs at least one segment store")
        if self.container_count < 1:
            raise ConfigurationError(f"a cluster cannot have {self.container_count} containers")
        stores = self.container_stores
        if stores is not None and (
            len(stores) != self.container_count
            or not all(0 <= each < len(self.segment_stores) for each in stores)
        ):
            raise ConfigurationError(
                f"container_stores must name one of {len(self.segment_stores)} segment stores for"
                f" each of {self.container_count} containers"
            )
        for host, port in (*self.segment_stores, (self.host, self.port)):
            if not host or not 0 <= port <= 65535:
                raise ConfigurationError(f"{host!r}:{port} is not an address")
        if self.published_address is not None and not self.published_address:
            raise ConfigurationError("the published address is empty")
        self._check_cluster()
        for name in (
            "request_poll_seconds",
            "watermark_period_seconds",
            "retention_period_seconds",
            "rebalance_seconds_min",
            "history_period_seconds",
            "history_seconds_min",
        ):
            # NaN is no time, and infinity never comes.
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name} must be 0 or more")
        for name in (
            "session_seconds",
            "heartbeat_seconds",
            "scale_event_seconds_max",
            "idle_segment_seconds",
            "idle_sweep_seconds",
        ):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} must be more than 0")

    def _check_cluster(self) -> None:
        if self.zookeeper is not None and not self.zookeeper:
            raise ConfigurationError("the address of ZooKeeper is empty")
        if self.zookeeper and self.published_address is None and self.host in WILDCARDS:
            raise ConfigurationError(
                f"a controller of a cluster that listens on {self.host} must publish an address"
                " that others reach: --published-address ADDRESS"
            )
        try:
            find_paths(self.cluster)
        except ClusterRecordError as error:
            raise ConfigurationError(str(error)) from error
