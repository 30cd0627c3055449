"""The files that ZooKeeper and a bookie are started with. Both listen on 127.0.0.1 alone."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

LEDGERS_PATH = "/ledgers"
"""The path of the ledgers' metadata of bookie and segment store in ZooKeeper: one level, so that
nothing has to be made above it."""
FULL_SHARE = 0.95
RESERVED_BYTES = 1024**3
"""Free bytes of a disk with which a bookie still takes writes: 5 % of a large disk are many times
as much."""


@dataclass(frozen=True, slots=True)
class JavaCertificates:
    """The files, as PEM, by which a JVM shows its certificate and checks that of others."""

    key_store: Path
    """The private key and its certificate, one behind the other."""
    ca: Path

    def ssl_settings(self) -> dict[str, object]:
        """Return ZooKeeper's settings that name them, for a server or its clients."""
        return {
            "ssl.keyStore.location": self.key_store,
            "ssl.keyStore.type": "PEM",
            "ssl.trustStore.location": self.ca,
            "ssl.trustStore.type": "PEM",
        }


def zookeeper_client_properties(certificates: JavaCertificates) -> dict[str, object]:
    """Return the system properties by which a JVM reaches ZooKeeper over TLS."""
    return {
        "zookeeper.client.secure": "true",
        "zookeeper.clientCnxnSocket": "org.apache.zookeeper.ClientCnxnSocketNetty",
        **{f"zookeeper.{key}": value for key, value in certificates.ssl_settings().items()},
    }


def write_zookeeper_settings(
    path: Path, *, data: Path, port: int, certificates: JavaCertificates | None = None
) -> None:
    """Write the settings of a single ZooKeeper server.

    Its transaction log is synced, as by default. With certificates it speaks TLS alone, to clients
    that have one of the same CA.
    """
    listening: dict[str, object] = {"clientPort": port, "clientPortAddress": "127.0.0.1"}
    if certificates is not None:
        listening = {
            "secureClientPort": port,
            "secureClientPortAddress": "127.0.0.1",
            "serverCnxnFactory": "org.apache.zookeeper.server.NettyServerCnxnFactory",
            **certificates.ssl_settings(),
        }
    _write(
        path,
        {
            "dataDir": data,
            "tickTime": 2000,
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
            **listening,
        },
    )


def write_bookie_settings(
    path: Path,
    *,
    data: Path,
    port: int,
    zookeeper_port: int,
    zookeeper_host: str = "127.0.0.1",
    ledgers_path: str = LEDGERS_PATH,
    more: Mapping[str, object] | None = None,
) -> None:
    """Write the settings of a bookie that syncs its journal before it acknowledges. ``more``
    has settings besides; the others are its defaults.

    Its journals have 256 MB in place of 2 GB. It keeps five of them that it needs no more, with
    which several bookies under load for a minute would fill a disk. To keep none of them
    (``journalMaxBackups``) is not safe: a bookie that is killed while it writes a checkpoint may
    have removed a journal that its start needs.

    It is read-only from the share on that ``find_full_share`` returns for its disk.
    """
    full_share = find_full_share(data)
    _write(
        path,
        {
            "bookiePort": port,
            "advertisedAddress": "127.0.0.1",
            "listeningInterface": "lo",
            "allowLoopback": "true",
            "metadataServiceUri": f"zk+hierarchical://{zookeeper_host}:{zookeeper_port}{ledgers_path}",
            "journalDirectories": data / "journal",
            "ledgerDirectories": data / "ledgers",
            "indexDirectories": data / "index",
            "journalSyncData": "true",
            "journalWriteData": "true",
            "journalMaxSizeMB": 256,
            "diskUsageThreshold": full_share,
            "diskUsageWarnThreshold": full_share,
            "diskUsageLwmThreshold": full_share,
            "httpServerEnabled": "false",
            "enableStatistics": "false",
            **(more or {}),
        },
    )


def find_full_share(folder: Path) -> float:
    """Return the used share of a folder's disk from which on a bookie takes no writes: 0.95, which
    is its default, or what leaves ``RESERVED_BYTES``, if that is more."""
    while not folder.exists():
        folder = folder.parent
    total = shutil.disk_usage(folder).total
    return round(max(FULL_SHARE, 1 - RESERVED_BYTES / total), 4)


def _write(path: Path, settings: dict[str, object]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
