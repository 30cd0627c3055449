"""The settings of a segment store process.

Owns: ``SegmentStoreConfig`` and its sections, with their defaults.

Invariants:
1. Units are part of the names; every bound has a default.
2. Bounds that would stand in each other's way are refused here, before anything is opened.
3. Sections are plain values: a class that uses one gets it in its constructor.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from segstore.tables.settings import TableSettings
from segstore.tiers.hdfs.settings import HdfsSettings
from segstore.tiers.journal.settings import JournalSettings
from segstore.tiers.s3.settings import S3Settings

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB

HELD_BYTES_MAX = 256 * MIB
JOURNAL_FILES_MIN = 8
"""Minimum number of files of a journal. A quarter of it then has two files: a container that
holds one does not flush all the time."""
SEGMENT_CHECKPOINT_BYTES = 512
"""Bytes of a segment in a checkpoint: a name of 300 bytes, numbers and core attributes."""
ATTRIBUTE_CHECKPOINT_BYTES = 25
CACHE_BYTES_MIN = 8 * MIB
EVERY_ADDRESS = frozenset({"", "0.0.0.0", "::"})
"""Hosts that stand for all addresses of the machine; other machines reach none by them."""


class ConnectionSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bounds of one client connection, and of all of them together."""

    connections_max: int = 15_000
    """Maximum number of connections; further ones are refused. Fewer where the process may not open
    so many files."""
    backlog: int = 1_000
    receive_bytes: int = 256 * KIB
    """Size of the receive buffer that all connections share."""
    bulk_bytes_beside_readers: int = 512 * KIB
    """Maximum number of bytes that are received at once, while readers are behind, from connections
    that send much: readers get their share of the event loop. 0 for no bound."""
    commands_per_turn: int = 200
    """Maximum number of commands of one connection that are started before other connections are
    served."""
    first_command_seconds_max: float = 30.0
    """Time, in seconds, after which a connection that has not sent a whole command is closed."""
    requests_max: int = 1_000
    """Maximum number of requests of one connection that are being served; more are left in the
    socket."""
    large_replies_max: int = 8
    """Maximum number of table reads of one connection that are answered at the same time; of each
    container, one more may be."""
    parked_reads_max: int = 16_384
    """Maximum number of tail reads of one connection that wait; it is closed when it asks for more.
    """
    reply_age_seconds_min: float = 0.0008
    """Minimum age, in seconds, of a request when its short reply (to a read that has all there is,
    or a refusal) is sent: sooner, the official clients may not be ready for it. 0 for at once."""
    send_bytes_pause: int = 8 * MIB
    """Number of unsent reply bytes of one connection from which on no further request of it is
    started."""
    buffer_bytes_total_max: int = 80 * MIB
    """Bytes of all connections in buffers: half for unsent replies, half for commands that are long
    and not complete. Replies to reads become shorter, and long commands wait, before it is reached.
    """
    stalled_seconds_max: float = 10.0
    """Maximum time, in seconds, in which a command may make no progress; the connection ends then.
    It also ends when its peer accepts none of its replies for so long, while those of all
    connections fill half of their share."""
    outstanding_bytes_free: int = 1 * MIB
    """Number of outstanding append bytes that a connection may have whatever the others do."""
    outstanding_bytes_max: int = 128 * MIB
    """Maximum number of outstanding append bytes of one connection; it becomes less as the total
    grows."""
    outstanding_bytes_total_max: int = 512 * MIB
    """Maximum number of outstanding append bytes of all connections, divided among the containers;
    each container may have one command beyond."""

    def __post_init__(self) -> None:
        """Refuse, with a ``ValueError``, what would end every connection."""
        if self.stalled_seconds_max <= 0:
            raise ValueError("stalled_seconds_max has to be more than 0")
        if self.bulk_bytes_beside_readers < 0:
            raise ValueError("bulk_bytes_beside_readers has to be 0 or more")
        if not 0 <= self.reply_age_seconds_min <= 1:
            raise ValueError("reply_age_seconds_min has to be from 0 to 1")


class ThrottleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings that slow writers down, and stop them, while tier 2 falls behind."""

    delay_seconds_max: float = 1.0
    """Maximum delay, in seconds, before each batch of writes of a container, just below a bound."""
    operations_max: int = 250_000
    """Maximum number of operations of one container that tier 2 does not have; about 150 bytes
    each."""
    attributes_dirty_max: int = 131_072
    """Maximum number of changed attributes of one container that tier 2 does not have; about 250
    bytes each."""
    batching_seconds_max: float = 0.0
    """Maximum wait, in seconds, for more to write to tier 1 together. 0 for none: a journal on the
    local disk loses by any wait. The original's bound, for a replicated log, is 0.05."""


class AutoScaleSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for measuring the load of segments, for their streams' scaling policies. The
    defaults are the original's; a demonstration divides all of them by the same number."""

    sample_seconds: float = 5.0
    """Interval, in seconds, between samples of the lengths and event counts of segments."""
    window_seconds: tuple[float, float, float, float] = (120.0, 300.0, 600.0, 1200.0)
    """Lengths, in seconds, of the windows over which rates are averaged. A rush in the first three
    splits a segment; a segment that is idle in all four is to be merged."""
    cooldown_seconds: float = 600.0
    """Minimum time, in seconds, for which a segment is known before anything is asked for it."""
    mute_seconds: float = 600.0
    """Time, in seconds, for which nothing more is asked for a segment after something was."""
    expiry_seconds: float = 1200.0
    """Time without a write, in seconds, after which a segment is called silent, and not measured
    until the next write."""

    def __post_init__(self) -> None:
        """Refuse, with a ``ValueError``, what could not be measured."""
        if self.sample_seconds <= 0:
            raise ValueError("sample_seconds has to be more than 0")
        if self.window_seconds[0] <= 0 or list(self.window_seconds) != sorted(self.window_seconds):
            raise ValueError("window_seconds have to be more than 0 and ascending")
        if min(self.cooldown_seconds, self.mute_seconds, self.expiry_seconds) < 0:
            raise ValueError("cooldown_seconds, mute_seconds, expiry_seconds have to be 0 or more")


class ScrubSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Settings for a running store's search for damage in tier 2."""

    bytes_per_second: int = 4 * MIB
    """Maximum number of bytes per second that are read of tier 2 to check it, for all containers
    together; 0 for none."""
    pass_seconds_min: float = 86_400.0
    """Minimum time, in seconds, between the beginnings of two checks of everything."""

    def __post_init__(self) -> None:
        """Refuse, with a ``ValueError``, what would not leave the store alone."""
        if self.bytes_per_second < 0 or self.pass_seconds_min < 1:
            raise ValueError("scrub needs bytes_per_second from 0 and pass_seconds_min from 1 on")


class ClusterSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment store's place in a cluster. Names and numbers are the original's by default."""

    zookeeper: str
    """Addresses of the ZooKeeper servers: ``host:port`` of each, with commas between them."""
    name: str = "pravega-cluster"
    published: tuple[str, int] | None = None
    """Address at which clients and other hosts reach the store; the one where it listens when None.
    """
    session_seconds: float = 10.0
    """Time, in seconds, after which a store that ZooKeeper has not heard of counts as ended for the
    others."""
    ledgers_root: str | None = None
    """Path in ZooKeeper of the bookies; ``/pravega/<name>/bookkeeper/ledgers`` when None."""
    replicas: tuple[int, int, int] = (3, 3, 2)
    """Number of bookies of a ledger, number of bookies of an entry, and how many of these must have
    the entry before it is durable."""
    racks: dict[str, str] = {}
    """The rack of each bookie, by its id or its host: a ledger is made on as many as possible."""
    password: str = ""
    """Password of the ledgers."""
    ledger_bytes_max: int = 1 * GIB
    """Number of bytes of a ledger after which a log continues in another one: ledgers are freed as
    a whole."""
    parallel_starts_max: int = 16
    """Maximum number of containers that are recovered at the same time."""
    hand_over_seconds_max: float = 30.0
    """Maximum time, in seconds, that a store that is told to end waits until others have its
    containers."""

    def __post_init__(self) -> None:
        """Refuse, with a ``ValueError``, what no log can be kept with."""
        ensemble, write, ack = self.replicas
        if not 1 <= ack <= write <= ensemble:
            raise ValueError(
                f"replicas {ensemble}/{write}/{ack} have to be: bookies of a ledger, of those that"
                " get an entry, of those that must have it"
            )
        if self.parallel_starts_max < 1:
            raise ValueError("parallel_starts_max has to be at least 1")


class SegmentStoreConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A segment store process."""

    host: str = "127.0.0.1"
    port: int = 12345
    data_dir: Path
    container_count: int = 4
    """Number of containers of the whole cluster; the same in the controller."""
    container_ids: tuple[int, ...] | None = None
    """Containers that this process hosts; all of them when None."""
    start_seconds_max: float = 10.0
    """Time, in seconds, after which the listener opens even if some container is still recovering.
    """
    restart_seconds_min: float = 0.5
    """Pause before a failed container is recovered; doubles with every failure in a row."""
    restart_seconds_max: float = 30.0
    drain_seconds: float = 5.0
    """Maximum time, in seconds, that a shutdown waits for requests in flight."""
    cache_bytes_max: int = 512 * MIB
    """Maximum memory, in bytes, for segments' bytes and pages of attributes, shared by all
    containers."""
    attribute_pages_percent: int = 12
    """Percentage of that memory which is for pages of attribute indexes."""
    attributes_cached_max: int = 65_536
    """Maximum number of attributes of one container in memory, besides those whose last change tier
    2 does not have."""
    attributes_cached_segment_max: int = 4_096
    """Maximum number of attributes of one segment in memory, besides those whose last change tier 2
    does not have."""
    active_segments_max: int = 2_500
    """Maximum number of segments of one container in memory; beyond it those that are unused for
    longest are evicted."""
    active_segment_seconds: float = 60.0
    """Time without use, in seconds, after which a segment is evicted, however few there are (the
    original's time)."""
    journal_file_bytes: int = 64 * MIB
    """Length of one journal file; a multiple of 4 KiB."""
    journal_bytes_max: int = 8 * GIB
    """Maximum number of bytes in the journal that tier 2 does not have; appends wait above it."""
    journal_interval_seconds_min: float = 0.0
    """Minimum time, in seconds, between the beginnings of two writes of a journal; at most 0.1, and
    0 for none. More makes fewer writes of more events each, so an event takes less CPU and is
    acknowledged later. Not for logs on bookies."""
    storage_dir: Path | None = None
    """Directory where tier 2 keeps its chunks; inside the data directory when None."""
    tier2: str | None = None
    """Location of tier 2: ``s3://BUCKET/PREFIX`` where chunks are objects in S3,
    ``webhdfs://HOST:PORT/PATH`` where they are files in HDFS; files in ``storage_dir`` when None.
    """
    s3: S3Settings = S3Settings()
    hdfs: HdfsSettings = HdfsSettings()
    connections: ConnectionSettings = ConnectionSettings()
    tables: TableSettings = TableSettings()
    throttling: ThrottleSettings = ThrottleSettings()
    scrub: ScrubSettings = ScrubSettings()
    controller: tuple[str, int] | None = None
    """Address of a controller that is told of segments that should be split or merged. When None
    none is told, or in a cluster one of the controllers that have registered."""
    cluster: ClusterSettings | None = None
    """The cluster that the store is a member of: it hosts the containers that it is given, and
    their logs are on bookies. Without one it hosts ``container_ids`` and has journals."""
    auto_scale: AutoScaleSettings = AutoScaleSettings()

    def __post_init__(self) -> None:
        """Refuse, with a ``ValueError``, what would stand still for ever under load."""
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
        """Return how long a checkpoint of one container may become, with segments of usual
        names."""
        return (
            self.active_segments_max * SEGMENT_CHECKPOINT_BYTES
            + self.throttling.attributes_dirty_max * ATTRIBUTE_CHECKPOINT_BYTES
        )

    @property
    def log_bytes_max(self) -> int:
        """Return the bytes in the journal at which writers stop; the rest is for operations that
        free room."""
        return self.journal_bytes_max * 3 // 4

    @property
    def held_bytes_max(self) -> int:
        """Return the bytes of the journal above which a container flushes and writes a checkpoint:
        well before writers are slowed down because of the journal."""
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
