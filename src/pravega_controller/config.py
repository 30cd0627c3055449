"""What a controller is told when it starts.

Owns: the configuration's fields, their defaults, and what is refused.
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
    """The configuration cannot be served."""


@dataclass(frozen=True, slots=True)
class ControllerConfig:
    """A controller's configuration. Times are in seconds.

    With ``zookeeper`` the controller is one of a cluster: which segment store has which container
    is in ZooKeeper, and ``segment_stores`` is of no use. Clients are sent to what stores publish.

    Without it ``segment_stores`` are the addresses at which the controller itself reaches them;
    container ``c`` lives on the store at index ``container_stores[c]``, or ``c %
    len(segment_stores)`` when these are not given. Clients are sent to the
    port of a segment's store at the host they dialled the controller at, or at
    ``published_address`` if there is one.
    """

    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    segment_stores: tuple[tuple[str, int], ...] = (("127.0.0.1", DEFAULT_SEGMENT_STORE_PORT),)
    container_count: int = 4
    container_stores: tuple[int, ...] | None = None
    """The store of each container, by its index in ``segment_stores``."""
    published_address: str | None = None
    """The host that clients are sent to, for controller and segment stores alike; in a cluster, for
    this controller alone."""
    zookeeper: str | None = None
    """The ZooKeeper servers of the cluster: ``host:port,host:port``."""
    cluster: str = DEFAULT_CLUSTER
    """The name of the cluster: its nodes are below ``/pravega/<name>``."""
    session_seconds: float = 10.0
    """The time-out of the session with ZooKeeper. The servers bound it: by default 4 to 40."""
    rebalance_seconds_min: float = 10.0
    """Minimum time, in seconds, between two changes of the map of containers."""
    startup_seconds_max: float = 60.0
    """Maximum time, in seconds, that the start waits for the segment stores to answer."""
    reply_seconds_max: float = 20.0
    """Maximum time, in seconds, of one request to a segment store."""
    retry_seconds_max: float = 30.0
    """Maximum time, in seconds, for which a request is tried again while its segment store is
    away."""
    drain_seconds: float = 5.0
    """Maximum time, in seconds, for calls under way once the controller stops."""
    heartbeat_seconds: float = 1.0
    """Interval, in seconds, at which a controller shows that it lives; one that is silent for
    six intervals counts as dead. It is the same for all controllers of a store."""
    request_poll_seconds: float = 1.0
    """Interval, in seconds, of looks for requests of segment stores to scale; 0 for never."""
    scale_event_seconds_max: float = 600.0
    """Maximum age, in seconds, of a request to scale; older ones are dropped."""
    idle_segment_seconds: float = 600.0
    """Time, in seconds, for which a segment counts as idle after it was reported idle."""
    idle_sweep_seconds: float = 3600.0
    """Interval, in seconds, at which marks of deleted segments are removed."""
    watermark_period_seconds: float = 10.0
    """Pause, in seconds, between two rounds of watermarks; 0 for none."""
    retention_period_seconds: float = 1800.0
    """Period, in seconds, in which each stream with a retention policy is looked at once; 0 for
    never."""
    history_period_seconds: float = 600.0
    """Seconds between two searches for epochs that can be dropped; 0 to keep all epochs."""
    history_seconds_min: float = 7 * 86_400.0
    """Minimum of seconds for which epochs that the head has left behind are kept."""

    def __post_init__(self) -> None:
        if not self.segment_stores:
            raise ConfigurationError("a controller needs at least one segment store")
        if self.container_count < 1:
            raise ConfigurationError(f"there cannot be {self.container_count} containers")
        stores = self.container_stores
        if stores is not None and (
            len(stores) != self.container_count
            or not all(0 <= each < len(self.segment_stores) for each in stores)
        ):
            raise ConfigurationError(
                f"container_stores has to name one of {len(self.segment_stores)} segment stores for"
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
            # Neither is not a number a time, nor one that never comes.
            if not 0 <= getattr(self, name) < math.inf:
                raise ConfigurationError(f"{name} has to be 0 or more")
        for name in (
            "session_seconds",
            "heartbeat_seconds",
            "scale_event_seconds_max",
            "idle_segment_seconds",
            "idle_sweep_seconds",
        ):
            if not getattr(self, name) > 0:
                raise ConfigurationError(f"{name} has to be more than 0")

    def _check_cluster(self) -> None:
        if self.zookeeper is not None and not self.zookeeper:
            raise ConfigurationError("the address of ZooKeeper is empty")
        if self.zookeeper and self.published_address is None and self.host in WILDCARDS:
            raise ConfigurationError(
                f"a controller of a cluster that listens on {self.host} has to publish where others"
                " reach it: --published-address ADDRESS"
            )
        try:
            find_paths(self.cluster)
        except ClusterRecordError as error:
            raise ConfigurationError(str(error)) from error
