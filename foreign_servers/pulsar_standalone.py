"""Pulsar 4.0.6 in one JVM: a broker, a bookie that syncs its journal, and the metadata in RocksDB.

1. The settings are those of the release's own standalone server, but for what the ports, the
   directory and the syncs need. Events are kept after they were read, as those of a stream are.
2. With ``offloads`` a ledger of 64 MB is moved to files as soon as it is full.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from foreign_servers.deadlines import scale
from foreign_servers.jvm import java_command
from foreign_servers.maven import MavenFailedError, resolve_class_path
from foreign_servers.peer import PeerFailedError, RunningPeer
from foreign_servers.processes import ServerProcess
from segstore.testing.ports import free_ports

ARTIFACTS = Path(__file__).parent / "artifacts"
OFFLOADER = ARTIFACTS / "pulsar_offloader"
OFFLOADERS = OFFLOADER / "target" / "offloaders"
"""Where Pulsar looks for archives, by the end of their names, and unpacks them."""
HOST = "127.0.0.1"
MAIN_CLASS = "org.apache.pulsar.PulsarStandaloneStarter"
READY_SECONDS_MAX = scale(300.0)
READY = "setup completed"
"""The last words of the starter, when clients may make topics."""
LOGGING = {
    "org.slf4j.simpleLogger.defaultLogLevel": "error",
    "org.slf4j.simpleLogger.log.org.apache.pulsar.PulsarStandalone": "debug",
}
MEMORY = ("-Xms2g", "-Xmx2g", "-XX:MaxDirectMemorySize=4g", "-XX:+UseG1GC")
"""As the release has it, but for its collector, ZGC: its pages count several times as memory."""
OPEN_TO_REFLECTION = tuple(
    f"--add-opens={package}=ALL-UNNAMED"
    for package in (
        "java.base/java.io",
        "java.base/java.util.zip",
        "java.base/java.nio",
        "java.base/jdk.internal.misc",
        "java.base/jdk.internal.platform",
        "java.base/sun.net",
        "java.management/sun.management",
        "jdk.management/com.sun.management.internal",
    )
)


class PulsarStandalone:
    """Pulsar as its own quick start has it. ``properties`` change its settings."""

    speaks_kafka = False

    def __init__(
        self,
        *,
        offloads: bool = False,
        options: tuple[str, ...] = MEMORY,
        properties: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        self.key = "pulsar-offload" if offloads else "pulsar"
        self.name = "Pulsar offload" if offloads else "Pulsar"
        self._offloads = offloads
        self._options = options
        self._properties = dict(properties)
        self._class_path = ""
        self._ports: list[int] = []
        self._server: ServerProcess | None = None

    @property
    def description(self) -> str:
        """Describe the server that runs, with the properties that differ from its own."""
        tier = ", ledgers of 64 MB moved to files" if self._offloads else ""
        changed = "".join(f", {name}={value}" for name, value in self._properties.items())
        return (
            "Pulsar 4.0.6 standalone: broker, one bookie with the journal synced, metadata in"
            f" RocksDB, {' '.join(self._options)}{tier}{changed}"
        )

    def prepare(self) -> None:
        """Resolve the class path; downloads it the first time."""
        try:
            self._class_path = resolve_class_path(ARTIFACTS / "pulsar" / "pom.xml")
            if self._offloads:
                _link_offloader(Path(resolve_class_path(OFFLOADER / "pom.xml")))
        except MavenFailedError as error:
            raise PeerFailedError(str(error)) from error

    def reserve(self) -> str:
        """Choose three free ports; the address is that of the web service."""
        self._ports = free_ports(3)
        return f"http://{HOST}:{self._ports[0]}"

    def start(self, directory: Path) -> RunningPeer:
        """Start the JVM and wait until topics may be made."""
        web_port, _, bookie_port = self._ports
        settings = directory / "standalone.properties"
        settings.write_text(self._settings(directory))
        command = java_command(
            MAIN_CLASS,
            *("--config", str(settings)),
            *("--metadata-dir", str(directory / "metadata")),
            *("--bookkeeper-dir", str(directory / "bookkeeper")),
            *("--bookkeeper-port", str(bookie_port)),
            *("--no-functions-worker", "--no-stream-storage"),
            class_path=self._class_path,
            options=(*OPEN_TO_REFLECTION, *self._options),
            properties={
                "java.net.preferIPv4Stack": "true",
                "io.netty.tryReflectionSetAccessible": "true",
                **LOGGING,
            },
        )
        self._server = ServerProcess(command, directory=directory)
        self._server.wait_for_text(READY, seconds_max=READY_SECONDS_MAX)
        return RunningPeer(
            address=f"http://{HOST}:{web_port}",
            processes=self._server.processes,
            started_epoch=self._server.started_epoch,
        )

    def stop(self) -> None:
        """Kill it, as a crash would."""
        if self._server is not None:
            self._server.stop(grace_seconds=0)
            self._server = None

    def _settings(self, directory: Path) -> str:
        web_port, broker_port, _ = self._ports
        settings: dict[str, object] = {
            "clusterName": "standalone",
            "bindAddress": HOST,
            "advertisedAddress": HOST,
            "webServicePort": web_port,
            "brokerServicePort": broker_port,
            "loadManagerClassName": "org.apache.pulsar.broker.loadbalance.NoopLoadManager",
            "loadBalancerEnabled": "false",
            "managedLedgerDefaultEnsembleSize": 1,
            "managedLedgerDefaultWriteQuorum": 1,
            "managedLedgerDefaultAckQuorum": 1,
            "brokerDeleteInactiveTopicsEnabled": "false",
            "defaultRetentionTimeInMinutes": -1,
            "defaultRetentionSizeInMB": -1,
            # Those of the bookie; without the first it would choose a port itself.
            "allowEphemeralPorts": "true",
            "allowLoopback": "true",
            "listeningInterface": "lo",
            "ledgerStorageClass": "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage",
            "journalWriteData": "true",
            "journalSyncData": "true",
            "journalMaxGroupWaitMSec": 1,
            "flushInterval": 60_000,
            "gcWaitTime": 300_000,
        }
        if self._offloads:
            settings |= self._tier_settings(directory)
        settings |= self._properties
        return "".join(f"{name}={value}\n" for name, value in settings.items())

    @staticmethod
    def _tier_settings(directory: Path) -> dict[str, object]:
        return {
            "offloadersDirectory": OFFLOADERS,
            "narExtractionDirectory": OFFLOADERS,
            "managedLedgerOffloadDriver": "filesystem",
            "fileSystemURI": (directory / "tier2").as_uri(),
            "managedLedgerMaxSizePerLedgerMbytes": 64,
            "managedLedgerMaxEntriesPerLedger": 1_000_000_000,
            "managedLedgerMinLedgerRolloverTimeMinutes": 0,
            "managedLedgerOffloadAutoTriggerSizeThresholdBytes": 0,
            "managedLedgerOffloadDeletionLagMs": 0,
        }


def _link_offloader(archive: Path) -> None:
    """Give the archive the name that Pulsar looks for: it is published as a jar."""
    OFFLOADERS.mkdir(parents=True, exist_ok=True)
    link = OFFLOADERS / f"{archive.stem}.nar"
    if not link.is_symlink():
        link.symlink_to(archive)
