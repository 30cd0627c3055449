"""The original, release 0.13.0, with everything on disk: by default four processes on one machine.

ZooKeeper, bookies, segment stores whose tier 2 is a directory, and a controller.
"""

from dataclasses import replace
from pathlib import Path

from foreign_servers.cluster import HOST, JAVA_OPTIONS, ClusterPeer, ClusterShape
from foreign_servers.durable_files import LEDGERS_PATH
from foreign_servers.jvm import LOGBACK, java_command
from foreign_servers.original_security import OriginalSecurity
from foreign_servers.peer import RunningPeer

SEGMENT_STORE = "io.pravega.segmentstore.server.host.ServiceStarter"
CONTROLLER = "io.pravega.controller.server.Main"
OPEN_TO_REFLECTION = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
"""The controller's REST server makes classes as Java 11 still let it; else it does not start."""


class OriginalDurable(ClusterPeer):
    """The original as a cluster; by default with one bookie and one segment store."""

    key = "durable"
    name = "original (durable)"

    def __init__(
        self,
        shape: ClusterShape | None = None,
        *,
        segment_store_options: tuple[str, ...] = ("-Xmx4g", "-XX:MaxDirectMemorySize=6g"),
        other_options: tuple[str, ...] = JAVA_OPTIONS,
        jvm_options: tuple[str, ...] = (),
        properties: dict[str, str] | None = None,
        secure: bool = False,
        syncs_journal: bool = True,
    ) -> None:
        """Take ``secure`` for TLS, a user and tokens on the controller and the segment stores.

        Without ``syncs_journal`` a bookie acknowledges what is in the page cache.
        """
        super().__init__(
            shape,
            java_options=(*other_options, *jvm_options),
            bookie_settings={} if syncs_journal else {"journalSyncData": "false"},
        )
        self._syncs_journal = syncs_journal
        self._is_secure = secure
        self._security: OriginalSecurity | None = None
        self._segment_store_options = (*segment_store_options, *jvm_options)
        self._properties = dict(properties or {})

    @property
    def description(self) -> str:
        """Describe the server that runs, with the properties that differ from the defaults."""
        changed = "".join(f", {name}={value}" for name, value in self._properties.items())
        shape = self.shape
        return (
            f"original 0.13.0: ZooKeeper, {_count(shape.bookies, 'bookie')} 4.14.7 with the journal"
            f" {'synced' if self._syncs_journal else 'not synced'},"
            f" {_count(shape.stores, 'segment store')}"
            f" ({' '.join(self._segment_store_options)}), controller; tier 2 on the local file"
            f" system, quorums {'/'.join(map(str, shape.replicas))}{changed}"
            f"{', with TLS, a user and tokens' if self._is_secure else ''}"
        )

    @property
    def address(self) -> str:
        """Return the address that clients are given."""
        address = super().address
        return address.replace("tcp:", "tls:") if self._is_secure else address

    def start(self, directory: Path) -> RunningPeer:
        """Start all processes; see ``ClusterPeer``. Each start has a new user and new keys."""
        if not self._is_secure:
            return super().start(directory)
        self._security = OriginalSecurity.make(directory / "security", HOST)
        self._environment = self._security.access.environment
        return replace(super().start(directory), access=self._security.access)

    def _segment_store(self, directory: Path, number: int) -> list[str]:
        ensemble, write, ack = self.shape.replicas
        port = self.store_port(number)
        properties: dict[str, object] = {
            "java.io.tmpdir": directory,
            "logback.configurationFile": LOGBACK,
            "pravega.configurationFile": (
                self._security.write_store_settings() if self._security else _empty_file(directory)
            ),
            "pravegaservice.container.count": self.shape.containers,
            "pravegaservice.service.listener.host.nameOrIp": HOST,
            "pravegaservice.service.listener.port": port,
            "pravegaservice.service.published.host.nameOrIp": HOST,
            "pravegaservice.service.published.port": port,
            "pravegaservice.zk.connect.uri": self.zookeeper,
            "pravegaservice.dataLog.impl.name": "BOOKKEEPER",
            "pravegaservice.storage.impl.name": "FILESYSTEM",
            "pravegaservice.storage.layout": "CHUNKED_STORAGE",
            "pravegaservice.admin.gateway.enable": "false",
            "pravegaservice.rest.listener.enable": "false",
            "filesystem.root": directory / "tier2",
            "bookkeeper.zk.connect.uri": self.zookeeper,
            "bookkeeper.ledger.path": LEDGERS_PATH,
            "bookkeeper.ensemble.size": ensemble,
            "bookkeeper.write.quorum.size": write,
            "bookkeeper.ack.quorum.size": ack,
            "autoScale.controller.connect.uri": self.address,
            **self._properties,
        }
        return java_command(
            SEGMENT_STORE,
            class_path=self._class_path,
            options=self._segment_store_options,
            properties=properties,
        )

    def _controller(self, directory: Path) -> list[str]:
        ports = self._chosen
        properties: dict[str, object] = {
            "java.io.tmpdir": directory,
            "logback.configurationFile": LOGBACK,
            "controller.container.count": self.shape.containers,
            "controller.zk.connect.uri": self.zookeeper,
            "controller.service.rpc.listener.port": ports.controller,
            "controller.service.rpc.published.host.nameOrIp": HOST,
            "controller.service.rpc.published.port": ports.controller,
            "controller.service.rest.listener.host.ip": HOST,
            "controller.service.rest.listener.port": ports.controller_rest,
        }
        if self._security is not None:
            properties["conf.file"] = self._security.write_controller_settings()
        return java_command(
            CONTROLLER,
            class_path=self._class_path,
            options=(*OPEN_TO_REFLECTION, *self._java_options),
            properties=properties,
        )


def _empty_file(directory: Path) -> Path:
    """Make a settings file without a setting: otherwise the original takes those of its release."""
    path = directory / "empty.properties"
    path.touch()
    return path


def _count(number: int, what: str) -> str:
    return f"one {what}" if number == 1 else f"{number} {what}s"
