"""The configuration of a controller.

Owns: the fields, their defaults, and the checks of their values. Each setting is declared only
here, as the settings of a segment store are in their module.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from pravega_controller.authority import WILDCARDS
from pravega_security.identity_provider.bearer_settings import BearerSettings
from pravega_security.tls import TlsSettings
from zookeeper_client.tls_settings import ZooKeeperTlsSettings

DEFAULT_PORT = 9090
DEFAULT_CLUSTER = "pravega-cluster"
DEFAULT_SEGMENT_STORE_PORT = 12345
TOKEN_SECONDS_MIN = 10
"""Minimum life of a token, in seconds: clients ask for another one 5 s before it ends."""
TOKEN_SECONDS_MAX = 7 * 86_400


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

    host: Annotated[str, Meta(extra={"option": "--host", "metavar": "ADDRESS"})] = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[
        int,
        Meta(
            ge=1,
            le=65535,
            extra={
                "option": "--port",
                "original": "controller.service.rpc.listener.port controller.service.port"
                " CONTROLLER_SERVER_PORT",
            },
        ),
    ] = DEFAULT_PORT
    """Port to listen on."""
    http_port: Annotated[
        int,
        Meta(
            ge=0,
            le=65535,
            extra={
                "option": "--http-port",
                "original": "controller.service.rest.listener.port controller.service.restPort"
                " REST_SERVER_PORT",
            },
        ),
    ] = 0
    """Port of REST and health, at the same address; 0 for none."""
    segment_stores: Annotated[
        tuple[tuple[str, int], ...], Meta(extra={"option": "--segment-store"})
    ] = (("127.0.0.1", DEFAULT_SEGMENT_STORE_PORT),)
    """Addresses of the segment stores."""
    container_count: Annotated[
        int,
        Meta(
            ge=1,
            extra={
                "option": "--container-count",
                "original": "controller.container.count controller.containerCount CONTAINER_COUNT",
            },
        ),
    ] = 4
    """Number of containers of the whole store, the same in all its servers. It never changes."""
    container_stores: Annotated[tuple[int, ...] | None, Meta(extra={"option": ""})] = None
    """The store of each container, by its index in ``segment_stores``."""
    published_address: Annotated[
        str | None,
        Meta(
            extra={
                "option": "--published-address",
                "metavar": "ADDRESS",
                "original": "controller.service.rpc.published.host.nameOrIp"
                " controller.service.publishedRPCHost CONTROLLER_RPC_PUBLISHED_HOST",
            }
        ),
    ] = None
    """The host to which clients are sent, for controller and segment stores alike; in a cluster,
    for this controller alone."""
    zookeeper: Annotated[
        str | None,
        Meta(
            extra={
                "option": "--zookeeper",
                "original": "controller.zk.connect.uri controller.zkURL ZK_URL",
            }
        ),
    ] = None
    """The ZooKeeper servers of the cluster: ``host:port,host:port``."""
    cluster: Annotated[
        str,
        Meta(
            extra={
                "option": "--cluster",
                "original": "controller.cluster.name controller.service.cluster CLUSTER_NAME",
            }
        ),
    ] = DEFAULT_CLUSTER
    """The name of the cluster: its nodes are below ``/pravega/<name>``."""
    session_seconds: Annotated[
        float,
        Meta(
            gt=0,
            extra={
                "original": "controller.zk.connect.session.timeout.milliseconds"
                " controller.sessionTimeoutMillis ZK_SESSION_TIMEOUT_MS",
                "value": "seconds_of_milliseconds",
            },
        ),
    ] = 10.0
    """Time-out, in seconds, of the session with ZooKeeper. Servers bound it: by default 4 to 40."""
    rebalance_seconds_min: Annotated[
        float,
        Meta(
            ge=0,
            extra={
                "original": "controller.rebalance.interval.seconds.min"
                " controller.minRebalanceIntervalSeconds CLUSTER_MIN_REBALANCE_INTERVAL"
            },
        ),
    ] = 10.0
    """Minimum time, in seconds, between two changes of the map of containers."""
    place: Annotated[str, Meta(extra={"option": ""})] = ""
    """Name under which only one controller of the store runs at a time: the next one to start there
    knows that the one before is dead. By default it is the machine's name and the port."""
    store_tls: bool = False
    """True if segment stores are reached by TLS."""
    store_ca: Path | None = None
    """File with the certificates of CAs, as PEM, which segment stores must have a certificate of,
    for the host under which they are reached. The CAs of the system when None."""
    startup_seconds_max: Annotated[float, Meta(ge=0)] = 60.0
    """Maximum time, in seconds, that the start waits for the segment stores to answer."""
    reply_seconds_max: Annotated[float, Meta(gt=0)] = 20.0
    """Maximum time, in seconds, of one request to a segment store."""
    retry_seconds_max: Annotated[float, Meta(ge=0)] = 30.0
    """Maximum time, in seconds, for which a request is repeated while its segment store is away."""
    drain_seconds: Annotated[float, Meta(ge=0)] = 5.0
    """Maximum time, in seconds, that calls under way may take once the controller stops."""
    heartbeat_seconds: Annotated[float, Meta(gt=0)] = 1.0
    """Interval, in seconds, of the controller's heartbeats; one that is silent for six intervals
    counts as dead. All controllers of a store have the same interval."""
    request_poll_seconds: Annotated[float, Meta(ge=0)] = 1.0
    """Interval, in seconds, at which requests of segment stores to scale are read; 0 for never."""
    scale_event_seconds_max: Annotated[float, Meta(gt=0)] = 600.0
    """Maximum age, in seconds, of a request to scale; older ones are dropped."""
    idle_segment_seconds: Annotated[float, Meta(gt=0)] = 600.0
    """Time, in seconds, for which a segment counts as idle after it was reported idle."""
    idle_sweep_seconds: Annotated[float, Meta(gt=0)] = 3600.0
    """Interval, in seconds, at which marks of deleted segments are removed."""
    watermark_period_seconds: Annotated[
        float,
        Meta(
            ge=0,
            extra={
                "original": "controller.watermarking.frequency.seconds"
                " controller.watermarking.frequencySeconds"
            },
        ),
    ] = 10.0
    """Pause, in seconds, between two rounds of watermarks; 0 for none."""
    retention_period_seconds: Annotated[
        float,
        Meta(
            ge=0,
            extra={
                "original": "controller.retention.frequency.minutes"
                " controller.retention.frequencyMinutes RETENTION_FREQUENCY_MINUTES",
                "value": "seconds_of_minutes",
            },
        ),
    ] = 1800.0
    """Period, in seconds, in which each stream with a retention policy is visited; 0: never."""
    history_period_seconds: Annotated[float, Meta(ge=0)] = 600.0
    """Interval, in seconds, of searches for epochs that can be dropped; 0 to keep all epochs."""
    history_seconds_min: Annotated[float, Meta(ge=0)] = 7 * 86_400.0
    """Minimum time, in seconds, for which epochs are kept that the head has left behind."""
    accounts: Path | None = None
    """File with the users, their passwords and their rights. When set, each call needs a user who
    may make it; when None everybody may call everything."""
    readers_change_groups: Annotated[
        bool,
        Meta(
            extra={
                "original": "controller.security.auth.readerGroupStreams"
                ".writesWithReadPermissions.enable"
            }
        ),
    ] = True
    """True if users who may read a scope may make, change and delete its reader groups."""
    audit_log: Path | None = None
    """File to which a line is written for each change, and for each call that is refused."""
    audit_log_bytes_max: Annotated[int, Meta(ge=1)] = 16 * 1024 * 1024
    """Number of bytes of the audit log after which another file is begun."""
    audit_logs_kept: Annotated[int, Meta(ge=0)] = 8
    """Number of earlier files of the audit log that are kept."""
    bearer: BearerSettings | None = None
    """Tokens of an identity provider that callers may log in with; None for none."""
    tls: TlsSettings | None = None
    """The certificate of the port. Without it, clients are served without TLS."""
    zookeeper_tls: ZooKeeperTlsSettings | None = None
    """TLS to the ZooKeeper servers; None to connect without."""
    token_keys: Path | None = None
    """File with the keys that sign delegation tokens, made by ``segstore token create``; the same
    keys in segment stores. When None clients get no tokens, and segment stores are sent none."""
    token_seconds: Annotated[
        int,
        Meta(
            ge=TOKEN_SECONDS_MIN,
            le=TOKEN_SECONDS_MAX,
            extra={
                "original": "controller.security.auth.delegationToken.ttl.seconds"
                " controller.auth.accessTokenTtlSeconds ACCESS_TOKEN_TTL_IN_SECONDS"
            },
        ),
    ] = 600
    """Time, in seconds, after which a delegation token expires; 10 to 604800. Clients get another
    one before that."""

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
        if not TOKEN_SECONDS_MIN <= self.token_seconds <= TOKEN_SECONDS_MAX:
            raise ConfigurationError(
                f"token_seconds must be from {TOKEN_SECONDS_MIN} to {TOKEN_SECONDS_MAX}"
            )
        if self.audit_log is not None and self.accounts is None and self.bearer is None:
            raise ConfigurationError(
                "audit_log has no effect without users: name their file in accounts, or an identity"
                " provider in bearer"
            )
        if self.store_ca is not None and not self.store_tls:
            raise ConfigurationError("store_ca has no effect without store_tls = true")
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
        # They import ZooKeeper's client, and help needs only declarations.
        from pravega_cluster.nodes import find_paths
        from pravega_cluster.records import ClusterRecordError

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
