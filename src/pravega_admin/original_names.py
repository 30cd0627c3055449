"""Translates the original's names for settings, for servers that replace its images.

Owns: ``NAMES``, the one table of these names, and ``translate``.

The original's images read variables of the environment, and properties in ``JAVA_OPTS``
(``-Dname=value``); its start scripts make properties of the variables. Both become options and
settings of segstore if the variable ``SEGSTORE_ORIGINAL_NAMES`` is set, see ``original_defaults``.

Invariants:
1. Two names for one setting must agree: else ``UsageError``. The original silently chooses one.
2. Settings that would silently weaken a server are refused: TLS and authorization that are switched
   on, and places for data that do not exist here.
3. Names of the original that have no effect here are returned, to be reported once.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qs, urlsplit

from pravega_admin.supervisor.child_protocol import CONTROLLER, SEGMENT_STORE
from pravega_blocking.errors import UsageError

STANDALONE: Final = "standalone"
EVERY_ADDRESS: Final = "0.0.0.0"
JAVA_OPTIONS: Final = "JAVA_OPTS"
TRUE: Final = frozenset({"true", "yes", "1"})
FALSE: Final = frozenset({"false", "no", "0"})

NAME_SPACES: Final = frozenset(
    {
        "attributeindex",
        "autoScale",
        "azure",
        "bookkeeper",
        "containers",
        "controller",
        "durablelog",
        "extendeds3",
        "filesystem",
        "gcp",
        "hdfs",
        "metrics",
        "pravega",
        "pravegaservice",
        "readindex",
        "s3",
        "singlenode",
        "storage",
        "storageextra",
        "tables",
        "writer",
    }
)
"""The first parts of the original's properties."""
VARIABLES_WITHOUT_EFFECT: Final = frozenset(
    {
        "ACCESS_TOKEN_TTL_IN_SECONDS",
        "ASYNC_TASK_POOL_SIZE",
        "BUCKET_COUNT",
        "COMPLETED_TXN_TTL_IN_HOURS",
        "HOST_MONITOR_ENABLE",
        "K8_EXTERNAL_ACCESS",
        "MAX_LEASE_VALUE",
        "MIN_LEASE_VALUE",
        "REPLY_WITH_STACK_TRACE_ON_ERROR",
        "REQUEST_TRACING_ENABLED",
        "REST_KEYSTORE_FILE_PATH",
        "REST_KEYSTORE_PASSWORD_FILE_PATH",
        "REST_SERVER_IP",
        "REST_SERVER_PORT",
        "RETENTION_THREAD_POOL_SIZE",
        "SERVICE_HOST_IP",
        "SERVICE_HOST_PORT",
        "STORAGE_THREAD_POOL_SIZE",
        "TLS_CERT_FILE",
        "TLS_KEY_FILE",
        "TLS_PROTOCOL_VERSION",
        "TLS_TRUST_STORE",
        "TOKEN_SIGNING_KEY",
        "USER_PASSWORD_FILE",
        "WAIT_FOR",
        "ZK_MAX_RETRIES",
        "ZK_RETRY_SLEEP_MS",
        "ZK_TRUSTSTORE_FILE_PATH",
        "ZK_TRUSTSTORE_PASSWORD_FILE_PATH",
        "HDFS_URL",
        "HDFS_ROOT",
    }
)
"""Names that the images read and that have no effect here: servers wait for each other anyway."""


def _text(value: str) -> str:
    return value


def _number(value: str) -> int:
    if not (value.isascii() and value.removeprefix("-").isdecimal()):
        raise ValueError("is not a whole number")
    return int(value)


def _seconds_of_milliseconds(value: str) -> float:
    return _number(value) / 1000


def _seconds(value: str) -> float:
    return float(_number(value))


def _seconds_of_minutes(value: str) -> float:
    return _number(value) * 60.0


def _flag(value: str) -> bool:
    if value.lower() not in TRUE | FALSE:
        raise ValueError("is neither true nor false")
    return value.lower() in TRUE


def _must_be_off(what: str) -> Callable[[str], None]:
    def read(value: str) -> None:
        if _flag(value):
            raise ValueError(f"cannot be met: there is no {what} yet")

    return read


def _must_be_bookkeeper(value: str) -> None:
    if value.upper() != "BOOKKEEPER":
        raise ValueError("cannot be met: the logs of a cluster are on bookies")


def _storage_kind(value: str) -> str:
    if value.upper() not in ("FILESYSTEM", "HDFS", "S3", "EXTENDEDS3"):
        raise ValueError("is no FILESYSTEM, HDFS, S3 or EXTENDEDS3: name the place with --tier2")
    return value.upper()


class Name(NamedTuple):
    """A setting of the original's, by all its names."""

    target: str
    """An option of segstore as a word; a setting with dots; a part of one behind an exclamation
    mark; or empty for a name that is only checked."""
    current: str
    earlier: str = ""
    """The name before the original's 0.8, which it still knows."""
    variable: str = ""
    read: Callable[[str], Any] = _text

    @property
    def sources(self) -> tuple[str, ...]:
        """Return all names."""
        return tuple(each for each in (self.current, self.earlier, self.variable) if each)


_TLS = _must_be_off("TLS")
_AUTHORIZATION = _must_be_off("authorization")

NAMES: Final[Mapping[str, tuple[Name, ...]]] = {
    SEGMENT_STORE: (
        Name("zookeeper", "pravegaservice.zk.connect.uri", "pravegaservice.zkURL", "ZK_URL"),
        Name("zookeeper", "bookkeeper.zk.connect.uri", "bookkeeper.zkAddress", "BK_ZK_URL"),
        Name("cluster", "pravegaservice.clusterName"),
        Name(
            "container_count",
            "pravegaservice.container.count",
            "pravegaservice.containerCount",
            read=_number,
        ),
        Name(
            "port",
            "pravegaservice.service.listener.port",
            "pravegaservice.listeningPort",
            read=_number,
        ),
        Name(
            "host",
            "pravegaservice.service.listener.host.nameOrIp",
            "pravegaservice.listeningIPAddress",
        ),
        Name(
            "!published_host",
            "pravegaservice.service.published.host.nameOrIp",
            "pravegaservice.publishedIPAddress",
            "PUBLISHED_ADDRESS",
        ),
        Name(
            "!published_port",
            "pravegaservice.service.published.port",
            "pravegaservice.publishedPort",
            "PUBLISHED_PORT",
            _number,
        ),
        Name(
            "!controller_uri",
            "autoScale.controller.connect.uri",
            "autoScale.controllerUri",
            "CONTROLLER_URL",
        ),
        Name("bookkeeper_ledgers", "bookkeeper.ledger.path", "bookkeeper.bkLedgerPath"),
        Name("!ensemble", "bookkeeper.ensemble.size", "bookkeeper.bkEnsembleSize", read=_number),
        Name(
            "!write_quorum",
            "bookkeeper.write.quorum.size",
            "bookkeeper.bkWriteQuorumSize",
            read=_number,
        ),
        Name(
            "!ack_quorum", "bookkeeper.ack.quorum.size", "bookkeeper.bkAckQuorumSize", read=_number
        ),
        Name(
            "segment_store.cluster.ledger_bytes_max",
            "bookkeeper.ledger.size.max",
            "bookkeeper.bkLedgerMaxSize",
            read=_number,
        ),
        Name(
            "segment_store.cluster.password",
            "bookkeeper.connect.security.auth.pwd",
            "bookkeeper.bkPass",
        ),
        Name(
            "segment_store.cluster.session_seconds",
            "pravegaservice.zk.connect.sessionTimeout.milliseconds",
            "pravegaservice.zkSessionTimeoutMs",
            read=_seconds_of_milliseconds,
        ),
        Name(
            "segment_store.cluster.parallel_starts_max",
            "pravegaservice.container.parallelStarts",
            read=_number,
        ),
        Name(
            "segment_store.cache_bytes_max",
            "pravegaservice.cache.size.max",
            "pravegaservice.cacheMaxSize",
            read=_number,
        ),
        Name(
            "segment_store.auto_scale.cooldown_seconds",
            "autoScale.cooldown.time.seconds",
            "autoScale.cooldownInSeconds",
            read=_seconds,
        ),
        Name(
            "segment_store.auto_scale.mute_seconds",
            "autoScale.mute.time.seconds",
            "autoScale.muteInSeconds",
            read=_seconds,
        ),
        Name(
            "segment_store.auto_scale.expiry_seconds",
            "autoScale.cache.expiry.seconds",
            "autoScale.cacheExpiryInSeconds",
            read=_seconds,
        ),
        Name(
            "!storage",
            "pravegaservice.storage.impl.name",
            "pravegaservice.storageImplementation",
            "TIER2_STORAGE",
            _storage_kind,
        ),
        Name("!directory", "filesystem.root", variable="NFS_MOUNT"),
        Name(
            "segment_store.hdfs.replication",
            "hdfs.replication.factor",
            "hdfs.replication",
            "HDFS_REPLICATION",
            _number,
        ),
        Name("segment_store.hdfs.block_bytes", "hdfs.block.size", "hdfs.blockSize", read=_number),
        Name("!bucket", "extendeds3.bucket", variable="EXTENDEDS3_BUCKET"),
        Name("!prefix", "extendeds3.prefix", variable="EXTENDEDS3_PREFIX"),
        Name(
            "!s3_uri",
            "extendeds3.connect.config.uri",
            "extendeds3.configUri",
            "EXTENDEDS3_CONFIGURI",
        ),
        Name("!access_key", "s3.connect.config.access.key", variable="EXTENDEDS3_ACCESS_KEY_ID"),
        Name("!secret_key", "s3.connect.config.secret.key", variable="EXTENDEDS3_SECRET_KEY"),
        Name("!bucket", "s3.bucket"),
        Name("!prefix", "s3.prefix"),
        Name("!s3_uri", "s3.connect.config.uri", "s3.configUri"),
        Name("!s3_override", "s3.connect.config.uri.override", read=_flag),
        Name("!s3_region", "s3.connect.config.region"),
        Name("", "pravegaservice.dataLog.impl.name", read=_must_be_bookkeeper),
        Name("", "pravegaservice.security.tls.enable", "pravegaservice.enableTls", read=_TLS),
        Name("", "pravegaservice.zk.connect.security.enable", "pravegaservice.secureZK", read=_TLS),
        Name("", "bookkeeper.connect.security.tls.enable", "bookkeeper.tlsEnabled", read=_TLS),
        Name(
            "",
            "autoScale.controller.connect.security.tls.enable",
            "autoScale.tlsEnabled",
            read=_TLS,
        ),
        Name(
            "",
            "autoScale.controller.connect.security.auth.enable",
            "autoScale.authEnabled",
            read=_AUTHORIZATION,
        ),
    ),
    CONTROLLER: (
        Name("zookeeper", "controller.zk.connect.uri", "controller.zkURL", "ZK_URL"),
        Name("cluster", "controller.cluster.name", "controller.service.cluster", "CLUSTER_NAME"),
        Name(
            "container_count",
            "controller.container.count",
            "controller.containerCount",
            "CONTAINER_COUNT",
            _number,
        ),
        Name(
            "port",
            "controller.service.rpc.listener.port",
            "controller.service.port",
            "CONTROLLER_SERVER_PORT",
            _number,
        ),
        Name(
            "published_address",
            "controller.service.rpc.published.host.nameOrIp",
            "controller.service.publishedRPCHost",
            "CONTROLLER_RPC_PUBLISHED_HOST",
        ),
        Name(
            "!published_port",
            "controller.service.rpc.published.port",
            "controller.service.publishedRPCPort",
            "CONTROLLER_RPC_PUBLISHED_PORT",
            _number,
        ),
        Name(
            "controller.rebalance_seconds_min",
            "controller.rebalance.interval.seconds.min",
            "controller.minRebalanceIntervalSeconds",
            "CLUSTER_MIN_REBALANCE_INTERVAL",
            _seconds,
        ),
        Name(
            "controller.session_seconds",
            "controller.zk.connect.session.timeout.milliseconds",
            "controller.sessionTimeoutMillis",
            "ZK_SESSION_TIMEOUT_MS",
            _seconds_of_milliseconds,
        ),
        Name(
            "controller.retention_period_seconds",
            "controller.retention.frequency.minutes",
            "controller.retention.frequencyMinutes",
            "RETENTION_FREQUENCY_MINUTES",
            _seconds_of_minutes,
        ),
        Name(
            "controller.watermark_period_seconds",
            "controller.watermarking.frequency.seconds",
            "controller.watermarking.frequencySeconds",
            read=_seconds,
        ),
        Name(
            "", "controller.security.tls.enable", "controller.auth.tlsEnabled", "TLS_ENABLED", _TLS
        ),
        Name(
            "",
            "controller.zk.connect.security.enable",
            "controller.secureConnection",
            "SECURE_ZK",
            _TLS,
        ),
        Name(
            "",
            "controller.security.auth.enable",
            "controller.auth.enabled",
            "AUTHORIZATION_ENABLED",
            _AUTHORIZATION,
        ),
    ),
    STANDALONE: (
        Name(
            "published_address",
            "pravegaservice.service.published.host.nameOrIp",
            "pravegaservice.publishedIPAddress",
            "HOST_IP",
        ),
        Name(
            "controller_port",
            "singlenode.controller.rpc.port",
            "singlenode.controllerPort",
            read=_number,
        ),
        Name(
            "segment_store_port",
            "singlenode.segmentStore.port",
            "singlenode.segmentstorePort",
            read=_number,
        ),
        Name("", "singlenode.security.tls.enable", "singlenode.enableTls", read=_TLS),
        Name("", "singlenode.security.auth.enable", "singlenode.enableAuth", read=_AUTHORIZATION),
    ),
}
"""The names that have a meaning, by the server that reads them."""


@dataclass(slots=True)
class Translation:
    """The settings of the original's names, in this store's names."""

    options: dict[str, Any] = field(default_factory=dict)
    """Values of options, by the options' names."""
    sources: dict[str, str] = field(default_factory=dict)
    """The name from which each option or setting comes; none for the original's defaults."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Tables as those of a settings file."""
    environment: dict[str, str] = field(default_factory=dict)
    """Variables to set."""
    needed: dict[str, str] = field(default_factory=dict)
    """Options that must be given, with the reason."""
    without_effect: list[str] = field(default_factory=list)
    """Names of the original that have no effect here."""


@dataclass(slots=True)
class _Value:
    value: Any
    source: str = ""
    """The name that has the value; empty for a default of the original's."""


def translate(server: str, environment: Mapping[str, str], own_address: str | None) -> Translation:
    """Return the settings of one kind of server that the original's names in an environment have.

    ``own_address`` is published if no name has another address, as the original does. Raises
    ``UsageError`` for values that contradict each other, cannot be read or cannot be met.
    """
    given = _collect(environment)
    found: dict[str, _Value] = {}
    for name in NAMES[server]:
        for source in name.sources:
            for text in given.get(source, ()):
                _enter(found, name, source, text)
    translation = Translation(without_effect=_names_without_effect(server, given))
    parts = {key[1:]: found.pop(key) for key in list(found) if key.startswith("!")}
    if server == SEGMENT_STORE:
        _assemble_segment_store(found, parts, own_address)
        _assemble_storage(translation, found, parts)
    elif server == CONTROLLER:
        _assemble_controller(found, parts, own_address)
    found.setdefault("host", _Value(EVERY_ADDRESS))
    for target, entry in found.items():
        if entry.source:
            translation.sources[target] = entry.source
        *tables, key = target.split(".")
        if not tables:
            translation.options[target] = entry.value
            continue
        table = translation.settings
        for each in tables:
            table = table.setdefault(each, {})
        table[key] = entry.value
    return translation


def merge_settings(
    file: Mapping[str, Any], translated: Mapping[str, Any], path: str = ""
) -> dict[str, Any]:
    """Return a settings file's tables with translated ones; ``UsageError`` if they contradict."""
    merged = dict(file)
    for key, value in translated.items():
        where = f"{path}{key}"
        if key not in merged:
            merged[key] = value
        elif isinstance(value, dict) and isinstance(merged[key], dict):
            merged[key] = merge_settings(merged[key], value, f"{where}.")
        elif merged[key] != value:
            raise UsageError(
                f"the settings file says {where} = {merged[key]!r}, and a name of the original's"
                f" {value!r}"
            )
    return merged


def _collect(environment: Mapping[str, str]) -> dict[str, list[str]]:
    """Return the values of variables and of properties, by name, without empty ones."""
    given = {name: [value.strip()] for name, value in environment.items() if value.strip()}
    try:
        words = shlex.split(environment.get(JAVA_OPTIONS, ""))
    except ValueError as error:
        raise UsageError(f"{JAVA_OPTIONS} cannot be read: {error}") from error
    for word in words:
        name, _, value = word.removeprefix("-D").partition("=")
        if word.startswith("-D") and value.strip():
            given.setdefault(name, []).append(value.strip())
    return given


def _enter(found: dict[str, _Value], name: Name, source: str, text: str) -> None:
    """Add the value of one name; ``UsageError`` if another name has another value."""
    try:
        value = name.read(text)
    except ValueError as error:
        raise UsageError(f"{source}={text} {error}") from error
    if not name.target:
        return
    earlier = found.setdefault(name.target, _Value(value, source))
    if earlier.value != value:
        raise UsageError(f"{earlier.source} says {earlier.value!r}, and {source} {value!r}")


def _names_without_effect(server: str, given: Mapping[str, list[str]]) -> list[str]:
    """Return the given names of the original that no server of this kind reads.

    Names for another kind are no mistake: one environment may be for both.
    """
    known = {source for name in NAMES[server] for source in name.sources}
    of_others = {source for names in NAMES.values() for name in names for source in name.sources}
    return sorted(
        name
        for name in given
        if name not in known
        and (
            name in VARIABLES_WITHOUT_EFFECT
            or ("." in name and name.partition(".")[0] in NAME_SPACES and name not in of_others)
        )
    )


def _assemble_segment_store(
    found: dict[str, _Value], parts: Mapping[str, _Value], own_address: str | None
) -> None:
    """Assemble the options of a segment store that are several settings in the original."""
    if "zookeeper" in found:
        host = parts.get("published_host", _Value(own_address))
        port = parts.get("published_port") or found.get("port", _Value(12345))
        if host.value is not None:
            found["publish"] = _Value(f"{host.value}:{port.value}", host.source or port.source)
    elif (uri := parts.get("controller_uri")) is not None:
        # In a cluster controllers are found in ZooKeeper.
        address = urlsplit(uri.value).netloc or uri.value
        found["controller"] = _Value(address.partition(",")[0], uri.source)
    sizes = [parts.get(each) for each in ("ensemble", "write_quorum", "ack_quorum")]
    if (first := next(filter(None, sizes), None)) is not None:
        numbers = [
            str(usual if size is None else size.value)
            for size, usual in zip(sizes, (3, 3, 2), strict=True)
        ]
        found["replicas"] = _Value("/".join(numbers), first.source)


def _assemble_storage(
    translation: Translation, found: dict[str, _Value], parts: Mapping[str, _Value]
) -> None:
    """Assemble the options for the place of tier 2."""
    kind = parts.get("storage")
    if kind is None:
        return
    if kind.value == "FILESYSTEM":
        usual = _Value("/fs/", kind.source)
        found["tier2"] = parts.get("directory", usual)
        return
    if kind.value == "HDFS":
        # HDFS_URL names the NameNode's port for programs in Java.
        translation.needed["tier2"] = (
            f"{kind.source}=HDFS: HDFS is reached by WebHDFS here, so name the place with"
            " --tier2 webhdfs://NAMENODE:9870/PATH"
        )
        return
    bucket = parts.get("bucket")
    if bucket is None:
        raise UsageError(f"{kind.source}={kind.value} needs the name of a bucket")
    prefix = parts["prefix"].value.strip("/") if "prefix" in parts else ""
    found["tier2"] = _Value(f"s3://{bucket.value}/{prefix}", bucket.source)
    keys = {
        "AWS_ACCESS_KEY_ID": parts.get("access_key"),
        "AWS_SECRET_ACCESS_KEY": parts.get("secret_key"),
    }
    uri = parts.get("s3_uri")
    overrides = "s3_override" in parts and parts["s3_override"].value
    if uri is not None and (kind.value == "EXTENDEDS3" or overrides):
        # The original's script joins the two by an ampersand that is written as %26.
        split = urlsplit(uri.value.replace("%26", "&"))
        found["s3_endpoint"] = _Value(f"{split.scheme}://{split.netloc}", uri.source)
        query = parse_qs(split.query)
        for variable, key in (
            ("AWS_ACCESS_KEY_ID", "identity"),
            ("AWS_SECRET_ACCESS_KEY", "secretKey"),
        ):
            if keys[variable] is None and key in query:
                keys[variable] = _Value(query[key][0], uri.source)
    if "s3_region" in parts:
        found["s3_region"] = parts["s3_region"]
    translation.environment.update(
        {variable: entry.value for variable, entry in keys.items() if entry is not None}
    )


def _assemble_controller(
    found: dict[str, _Value], parts: Mapping[str, _Value], own_address: str | None
) -> None:
    """Assemble the options for the address of a controller."""
    port = found["port"].value if "port" in found else 9090
    published = parts.get("published_port", _Value(port))
    if published.value != port:
        raise UsageError(
            f"{published.source} says {published.value}, but a controller is published with the"
            f" port that it listens on, which is {port}"
        )
    if "zookeeper" in found and own_address is not None:
        found.setdefault("published_address", _Value(own_address))
