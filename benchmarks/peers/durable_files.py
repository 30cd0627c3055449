"""The files that ZooKeeper and a bookie are started with. Both listen on 127.0.0.1 alone."""

from pathlib import Path

LEDGERS_PATH = "/ledgers"
"""The path of the ledgers' metadata of bookie and segment store in ZooKeeper: one level, so that
nothing has to be made above it."""


def write_zookeeper_settings(path: Path, *, data: Path, port: int) -> None:
    """Write the settings of a single ZooKeeper server.

    Its transaction log is synced, as by default.
    """
    _write(
        path,
        {
            "dataDir": data,
            "clientPort": port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": 2000,
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
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
) -> None:
    """Write the settings of a bookie that syncs its journal before it acknowledges. The other
    settings are its defaults.

    Its journals have 256 MB in place of 2 GB. It keeps five of them that it needs no more, with
    which several bookies under load for a minute would fill a disk. To keep none of them
    (``journalMaxBackups``) is not safe: a bookie that is killed while it writes a checkpoint may
    have removed a journal that its start needs.
    """
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
            "httpServerEnabled": "false",
            "enableStatistics": "false",
        },
    )


def _write(path: Path, settings: dict[str, object]) -> None:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
