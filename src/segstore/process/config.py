"""The settings of a segment store process.

Owns: ``SegmentStoreConfig`` and its sections, with their defaults. The name of a setting ends with
its unit. A section is a plain value that is passed to the constructor of the class that uses it.

Invariants:
1. When two bounds would make the store wait for ever, the configuration raises ``ValueError``
   before anything is opened. Held by ``test_a_configuration_that_could_stand_still_is_refused``.
2. When a setting is added, this file is the only one that changes: it has the setting's name, type,
   default and docstring, and ``Meta`` has its option and its name in the original. Held by
   ``test_a_setting_is_one_file``. ``pravega_admin.serving.declarations`` reads and explains these.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from pravega_security.tls import TlsSettings
from segstore.process.tier_two_vendors import VendorSettings
from segstore.tables.settings import TableSettings
from zookeeper_client.tls_settings import ZooKeeperTlsSettings

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

HELD_BYTES_MAX = 256 * MIB
JOURNAL_FILES_MIN = 8
"""Minimum number of files of a journal. A quarter of the journal then has two files, so that a
container that keeps one file in use does not flush all the time."""
JOURNAL_FILE_BYTES_MIN = 384 * KIB
"""Minimum length, in bytes, of a journal file."""
JOURNAL_INTERVAL_SECONDS_MAX = 0.1
"""Maximum of ``journal_interval_seconds_min``, in seconds. Both are the journal's own bounds, whose
import takes long."""
SEGMENT_CHECKPOINT_BYTES = 512
"""Bytes of a segment in a checkpoint: a name of 300 bytes, numbers and core attributes."""
ATTRIBUTE_CHECKPOINT_BYTES = 25
CACHE_BYTES_MIN = 8 * MIB
EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})
"""Hosts that mean all addresses of the machine; other machines cannot connect to them."""


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one client connection, and of all of them together."""

    connections_max: Annotated[int, Meta(ge=1)] = 15_000
    """Maximum number of connections; further ones are refused. It is lower if the process may not
    open that many files."""
    backlog: Annotated[int, Meta(ge=1)] = 1_000
    """Maximum number of connections that the system keeps until they are accepted."""
    receive_bytes: Annotated[int, Meta(ge=4 * KIB)] = 256 * KIB
    """Size of the receive buffer that all connections share."""
    bulk_bytes_beside_readers: Annotated[int, Meta(ge=0)] = 512 * KIB
    """Maximum number of bytes that are received at once from a connection that sends much, while
    readers are behind: so readers get their share of the event loop. 0 for no bound."""
    commands_per_turn: Annotated[int, Meta(ge=1)] = 200
    """Maximum number of commands of one connection that are started before other connections are
    served."""
    first_command_seconds_max: Annotated[float, Meta(gt=0)] = 30.0
    """Time, in seconds, after which a connection that has not sent a whole command is closed."""
    requests_max: Annotated[int, Meta(ge=1)] = 1_000
    """Maximum number of requests of one connection that are being served; more are left in the
    socket."""
    large_replies_max: Annotated[int, Meta(ge=1)] = 8
    """Maximum number of table reads of one connection that are answered at the same time; one more
    may be answered for each container."""
    parked_reads_max: Annotated[int, Meta(ge=1)] = 16_384
    """Maximum number of tail reads of one connection that wait; it is closed when it asks for more.
    """
    reply_age_seconds_min: Annotated[float, Meta(ge=0, le=1)] = 0.0008
    """Minimum time, in seconds, between a request and a short reply to it, which is a refusal or
    the last bytes of a segment: the official clients may not be ready for an earlier reply. 0 to
    reply at once."""
    send_bytes_pause: Annotated[int, Meta(ge=1)] = 8 * MIB
    """Number of unsent reply bytes of one connection at which its further requests wait."""
    buffer_bytes_total_max: Annotated[int, Meta(ge=1)] = 160 * MIB
    """Maximum number of bytes in the buffers of all connections: half for unsent replies, a quarter
    for long replies that are being made, a quarter for long commands that are not complete. Before
    it is reached, replies to reads become shorter, and long replies and commands wait."""
    stalled_seconds_max: Annotated[float, Meta(gt=0)] = 10.0
    """Maximum time, in seconds, in which a command may make no progress; then its connection is
    closed. A connection is also closed when its peer accepts no reply for that long while the
    unsent replies of all connections fill an eighth of ``buffer_bytes_total_max``."""
    outstanding_bytes_free: Annotated[int, Meta(ge=0)] = 1 * MIB
    """Number of outstanding append bytes that a connection may always have, however many the other
    connections have."""
    outstanding_bytes_max: Annotated[int, Meta(ge=1)] = 128 * MIB
    """Maximum number of outstanding append bytes of one connection; it becomes lower while the
    total grows."""
    outstanding_bytes_total_max: Annotated[int, Meta(ge=1)] = 512 * MIB
    """Maximum number of outstanding append bytes of all connections, divided among the containers;
    each container may exceed its share by one command."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for settings with which every connection would end."""
        if self.stalled_seconds_max <= 0:
            raise ValueError("stalled_seconds_max has to be more than 0")
        if self.bulk_bytes_beside_readers < 0:
            raise ValueError("bulk_bytes_beside_readers has to be 0 or more")
        if not 0 <= self.reply_age_seconds_min <= 1:
            raise ValueError("reply_age_seconds_min has to be from 0 to 1")


class ThrottleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that slow writers down, and stop them, while tier 2 falls behind."""

    delay_seconds_max: Annotated[float, Meta(ge=0)] = 1.0
    """Maximum delay, in seconds, before each batch of writes of a container; it applies just below
    a bound."""
    operations_max: Annotated[int, Meta(ge=1)] = 250_000
    """Maximum number of operations of one container that tier 2 does not have; about 150 bytes
    each."""
    attributes_dirty_max: Annotated[int, Meta(ge=1)] = 131_072
    """Maximum number of changed attributes of one container that tier 2 does not have; about 250
    bytes each."""
    batching_seconds_max: Annotated[float, Meta(ge=0)] = 0.0
    """Maximum time, in seconds, that a write to tier 1 waits for more operations, so that they are
    written together. 0 for no wait, because a wait only slows a journal on a local disk down. The
    original's maximum, for a replicated log, is 0.05."""


class AutoScaleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for measuring the load of segments, which scaling policies of streams need. The
    defaults are the original's; a demonstration divides all of them by the same number."""

    sample_seconds: Annotated[float, Meta(gt=0)] = 5.0
    """Interval, in seconds, between samples of the lengths and event counts of segments."""
    window_seconds: tuple[float, float, float, float] = (120.0, 300.0, 600.0, 1200.0)
    """Lengths, in seconds, of the windows over which rates are averaged. A segment is split when it
    is too busy in one of the first three, and merged when it is idle in all four."""
    cooldown_seconds: Annotated[
        float,
        Meta(
            ge=0, extra={"original": "autoScale.cooldown.time.seconds autoScale.cooldownInSeconds"}
        ),
    ] = 600.0
    """Minimum time, in seconds, for which a segment is measured before the controller is asked to
    split or merge it."""
    mute_seconds: Annotated[
        float, Meta(ge=0, extra={"original": "autoScale.mute.time.seconds autoScale.muteInSeconds"})
    ] = 600.0
    """Minimum time, in seconds, between two requests to the controller to split or merge the same
    segment."""
    expiry_seconds: Annotated[
        float,
        Meta(
            ge=0,
            extra={"original": "autoScale.cache.expiry.seconds autoScale.cacheExpiryInSeconds"},
        ),
    ] = 1200.0
    """Time without a write, in seconds, after which a segment is reported as silent, and is not
    measured until the next write."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for times with which no rate can be measured."""
        if self.sample_seconds <= 0:
            raise ValueError("sample_seconds has to be more than 0")
        if self.window_seconds[0] <= 0 or list(self.window_seconds) != sorted(self.window_seconds):
            raise ValueError("window_seconds have to be more than 0 and ascending")
        if min(self.cooldown_seconds, self.mute_seconds, self.expiry_seconds) < 0:
            raise ValueError("cooldown_seconds, mute_seconds, expiry_seconds have to be 0 or more")


class ScrubSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for a running store's search for damage in tier 2."""

    bytes_per_second: Annotated[int, Meta(ge=0)] = 4 * MIB
    """Maximum number of bytes per second that are read from tier 2 to check them, for all
    containers together; 0 to check nothing."""
    pass_seconds_min: Annotated[float, Meta(ge=1)] = 86_400.0
    """Minimum time, in seconds, between the beginnings of two checks of everything."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for settings with which the search would never pause."""
        if self.bytes_per_second < 0 or self.pass_seconds_min < 1:
            raise ValueError("scrub needs bytes_per_second from 0 and pass_seconds_min from 1 on")


class BookieTlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The certificates of connections to bookies. The files are read for each connection."""

    ca: Path | None = None
    """Path of the certificates, in PEM, with which the bookies are checked; the system's when None.
    """
    certificate: Path | None = None
    """Path of the certificate, in PEM, that is shown to the bookies, followed by those between it
    and its CA; they want one if their ``tlsClientAuthentication`` is ``true``."""
    key: Path | None = None
    """Path of the private key, in PEM, of that certificate."""
    checks_host: bool = True
    """True if a bookie's certificate must have the host by which it is reached."""

    def __post_init__(self) -> None:
        """Refuse, with a ``ValueError``, half a pair."""
        if (self.certificate is None) != (self.key is None):
            raise ValueError("a certificate and its key are set together")


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment store's place in a cluster. Names and numbers are the original's by default."""

    zookeeper: str
    """Addresses of the ZooKeeper servers: ``host:port`` of each, with commas between them."""
    name: str = "pravega-cluster"
    """The name of the cluster: its nodes are below ``/pravega/<name>``."""
    published: tuple[str, int] | None = None
    """Address at which clients and other hosts reach the store; None for the address on which it
    listens."""
    session_seconds: Annotated[
        float,
        Meta(
            gt=0,
            extra={
                "original": "pravegaservice.zk.connect.sessionTimeout.milliseconds"
                " pravegaservice.zkSessionTimeoutMs",
                "value": "seconds_of_milliseconds",
            },
        ),
    ] = 10.0
    """Time, in seconds, without a message from a store to ZooKeeper, after which the other servers
    take the store for dead."""
    ledgers_root: str | None = None
    """Path in ZooKeeper of the bookies; ``/pravega/<name>/bookkeeper/ledgers`` when None."""
    replicas: tuple[int, int, int] = (3, 3, 2)
    """Number of bookies of a ledger, number of bookies of an entry, and how many of these must have
    the entry before it is durable."""
    racks: dict[str, str] = {}
    """The rack of each bookie, by its id or its host: the bookies of a ledger are on as many racks
    as possible."""
    password: Annotated[
        str, Meta(extra={"original": "bookkeeper.connect.security.auth.pwd bookkeeper.bkPass"})
    ] = ""
    """Password of the ledgers."""
    ledger_bytes_max: Annotated[
        int, Meta(ge=1, extra={"original": "bookkeeper.ledger.size.max bookkeeper.bkLedgerMaxSize"})
    ] = 1 * GIB
    """Number of bytes of a ledger after which a log continues in another one: only whole ledgers
    can be freed."""
    parallel_starts_max: Annotated[
        int, Meta(ge=1, extra={"original": "pravegaservice.container.parallelStarts"})
    ] = 16
    """Maximum number of containers that are recovered at the same time."""
    hand_over_seconds_max: Annotated[float, Meta(ge=0)] = 30.0
    """Maximum time, in seconds, that a store which is being stopped waits for other stores to take
    its containers."""
    zookeeper_tls: ZooKeeperTlsSettings | None = None
    """TLS to the ZooKeeper servers; None to connect without TLS."""
    bookie_tls: BookieTlsSettings | None = None
    """TLS to the bookies; None to connect without TLS."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for settings with which no log can be kept."""
        ensemble, write, ack = self.replicas
        if not 1 <= ack <= write <= ensemble:
            raise ValueError(
                f"replicas {ensemble}/{write}/{ack} have to be: bookies of a ledger, of those that"
                " get an entry, of those that must have it"
            )
        if self.parallel_starts_max < 1:
            raise ValueError("parallel_starts_max has to be at least 1")


class SegmentStoreConfig(VendorSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a segment store process. Each vendor of tier 2 has a section, too."""

    host: Annotated[
        str,
        Meta(
            extra={
                "option": "--host",
                "metavar": "ADDRESS",
                "original": "pravegaservice.service.listener.host.nameOrIp"
                " pravegaservice.listeningIPAddress",
            }
        ),
    ] = "127.0.0.1"
    """The address to listen on."""
    port: Annotated[
        int,
        Meta(
            ge=1,
            le=65535,
            extra={
                "option": "--port",
                "original": "pravegaservice.service.listener.port pravegaservice.listeningPort",
            },
        ),
    ] = 12345
    """Port to listen on."""
    data_dir: Annotated[Path, Meta(extra={"option": "--data-dir", "variable": "SEGSTORE_DATA_DIR"})]
    """Directory where all data is kept."""
    container_count: Annotated[
        int,
        Meta(
            ge=1,
            extra={
                "option": "--container-count",
                "original": "pravegaservice.container.count pravegaservice.containerCount",
            },
        ),
    ] = 4
    """Number of containers of the whole store, the same in all its servers. It never changes."""
    container_ids: tuple[int, ...] | None = None
    """Containers that this process hosts; all of them when None."""
    start_seconds_max: Annotated[float, Meta(ge=0)] = 10.0
    """Time, in seconds, after which clients can connect even if containers are still recovering."""
    restart_seconds_min: Annotated[float, Meta(gt=0)] = 0.5
    """Pause, in seconds, before a failed container is recovered; it doubles with each further
    failure."""
    restart_seconds_max: Annotated[float, Meta(gt=0)] = 30.0
    """Maximum pause, in seconds, before a failed container is recovered."""
    drain_seconds: Annotated[float, Meta(ge=0)] = 5.0
    """Maximum time, in seconds, that a shutdown waits for requests in flight."""
    cache_bytes_max: Annotated[
        int,
        Meta(
            ge=CACHE_BYTES_MIN,
            extra={"original": "pravegaservice.cache.size.max pravegaservice.cacheMaxSize"},
        ),
    ] = 512 * MIB
    """Maximum memory, in bytes, for segments' bytes and pages of attributes, shared by all
    containers."""
    attribute_pages_percent: Annotated[int, Meta(ge=0, le=50)] = 12
    """Percentage of ``cache_bytes_max`` that is for pages of attribute indexes."""
    attributes_cached_max: Annotated[int, Meta(ge=1)] = 65_536
    """Maximum number of attributes of one container in memory, not counting those whose last change
    tier 2 does not have."""
    attributes_cached_segment_max: Annotated[int, Meta(ge=1)] = 4_096
    """Maximum number of attributes of one segment in memory, not counting those whose last change
    tier 2 does not have."""
    active_segments_max: Annotated[int, Meta(ge=1)] = 2_500
    """Maximum number of segments of one container in memory; above it, the segments that were
    unused for the longest time are evicted."""
    active_segment_seconds: Annotated[float, Meta(gt=0)] = 60.0
    """Time without use, in seconds, after which a segment is evicted, however few segments are in
    memory (the original's time)."""
    journal_file_bytes: Annotated[int, Meta(ge=JOURNAL_FILE_BYTES_MIN)] = 64 * MIB
    """Length of one journal file; a multiple of 4 KiB."""
    journal_bytes_max: Annotated[int, Meta(ge=JOURNAL_FILES_MIN * JOURNAL_FILE_BYTES_MIN)] = 8 * GIB
    """Maximum number of bytes in the journal that tier 2 does not have; appends wait above it. It
    has room for eight journal files, and more for many containers."""
    journal_interval_seconds_min: Annotated[float, Meta(ge=0, le=JOURNAL_INTERVAL_SECONDS_MAX)] = (
        0.0
    )
    """Minimum time, in seconds, between the beginnings of two writes of a journal; at most 0.1, and
    0 for none. A longer time makes fewer and larger writes: an event takes less CPU, but is
    acknowledged later. Not for logs on bookies."""
    storage_dir: Path | None = None
    """Directory where tier 2 keeps its chunks; inside the data directory when None."""
    tier2: Annotated[
        str | None, Meta(extra={"option": "--tier2", "variable": "SEGSTORE_TIER2"})
    ] = None
    """Location of tier 2, such as ``s3://BUCKET/PREFIX``; files in ``storage_dir`` when None."""
    connections: ConnectionSettings = ConnectionSettings()
    tables: TableSettings = TableSettings()
    throttling: ThrottleSettings = ThrottleSettings()
    scrub: ScrubSettings = ScrubSettings()
    controller: Annotated[
        tuple[str, int] | None, Meta(extra={"option": "--controller", "metavar": "HOST:PORT"})
    ] = None
    """Address of the controller to which the store reports segments that should be split or merged.
    When None, a store in a cluster reports to a controller that has registered, and any other store
    reports to none."""
    controller_ca: Path | None = None
    """File with the certificates of CAs, as PEM. With it, the store connects to controllers by TLS,
    and they need a certificate of one of these CAs; so do other segment stores if ``tls`` is set.
    Without it, the store connects to controllers without TLS."""
    tls: TlsSettings | None = None
    """TLS on the port. Without it the port is for clients without TLS."""
    cluster: ClusterSettings | None = None
    """The cluster that the store is a member of: the store hosts the containers that the map of the
    cluster assigns to it, and their logs are on bookies. When None, the store hosts
    ``container_ids``, and their logs are in journals."""
    auto_scale: AutoScaleSettings = AutoScaleSettings()
    token_keys: Path | None = None
    """File with the keys that sign delegation tokens, made by ``segstore token create``;
    controllers have the same keys. With it, each request needs a token. When None, no token is
    checked."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for settings with which the store would wait for ever under load."""
        if self.journal_bytes_max < JOURNAL_FILES_MIN * self.journal_file_bytes:
            raise ValueError(
                f"journal_bytes_max has to be at least {JOURNAL_FILES_MIN} journal files of"
                f" {self.journal_file_bytes} bytes, not {self.journal_bytes_max} bytes"
            )
        if self.cluster is None:
            self._check_journal_of_containers()
        elif self.cluster.published is None and self.host in EVERY_ADDRESS:
            raise ValueError(
                f"a member of a cluster that listens on {self.host} has to publish where others"
                " reach it: --publish HOST:PORT"
            )
        if self.cache_bytes_max < CACHE_BYTES_MIN:
            raise ValueError(f"cache_bytes_max has to be at least {CACHE_BYTES_MIN}")
        settings = self.throttling
        if min(settings.operations_max, settings.attributes_dirty_max) < 1:
            raise ValueError("what throttling allows at most has to be at least 1")
        if min(settings.delay_seconds_max, settings.batching_seconds_max) < 0:
            raise ValueError("delays of throttling have to be 0 or more")

    def _check_journal_of_containers(self) -> None:
        # Importing the journal takes long, and a command that only prints help does not need it.
        from segstore.tiers.journal.settings import JournalSettings

        journal = JournalSettings(
            file_bytes=self.journal_file_bytes,
            journal_bytes_max=self.journal_bytes_max,
            interval_seconds_min=self.journal_interval_seconds_min,
        )
        count = len(self.hosted_containers)
        if count > journal.container_count_max:
            raise ValueError(
                f"a journal of up to {journal.file_count_max} files has room for"
                f" {max(0, journal.container_count_max)} containers, not for {count}:"
                " journal_file_bytes has to be greater, or journal_bytes_max smaller"
            )
        needed = count * self.checkpoint_bytes_max
        if needed > self.journal_bytes_max - self.log_bytes_max:
            raise ValueError(
                f"journal_bytes_max has to be at least {4 * needed} for {count} containers, not"
                f" {self.journal_bytes_max}: a quarter of it is for their checkpoints, without"
                " which a full journal is never freed"
            )

    @property
    def checkpoint_bytes_max(self) -> int:
        """Return the maximum length, in bytes, of one container's checkpoint, for segments with
        names of usual length."""
        return (
            self.active_segments_max * SEGMENT_CHECKPOINT_BYTES
            + self.throttling.attributes_dirty_max * ATTRIBUTE_CHECKPOINT_BYTES
        )

    @property
    def log_bytes_max(self) -> int:
        """Return the number of bytes in the journal at which writers stop. The rest of the journal
        is for operations that free space."""
        return self.journal_bytes_max * 3 // 4

    @property
    def held_bytes_max(self) -> int:
        """Return the number of bytes in the journal above which a container flushes and writes a
        checkpoint. It is well below the number at which writers are slowed down."""
        return min(HELD_BYTES_MAX, self.journal_bytes_max // 4)

    def bounded_connections(self, count_max: int) -> ConnectionSettings:
        """Return the connections' settings for at most ``count_max`` connections.

        The memory for the cache bounds what these may hold together.
        """
        settings = self.connections
        total = min(settings.outstanding_bytes_total_max, self.cache_bytes_max // 16)
        return msgspec.structs.replace(
            settings,
            connections_max=min(settings.connections_max, count_max),
            outstanding_bytes_total_max=total,
            outstanding_bytes_max=min(settings.outstanding_bytes_max, total // 2),
            outstanding_bytes_free=min(settings.outstanding_bytes_free, total // 16),
        )

    @property
    def hosted_containers(self) -> tuple[int, ...]:
        """Return the numbers of the containers that this process hosts."""
        if self.container_ids is None:
            return tuple(range(self.container_count))
        return self.container_ids
