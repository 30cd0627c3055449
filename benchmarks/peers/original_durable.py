"""The original, release 0.13.0, with everything on disk: four processes on one machine.

ZooKeeper, one bookie whose journal is synced before it acknowledges, a segment store whose tier 2
is a directory, and a controller. The controller's gRPC listener takes no address and listens on
every interface; all others are on loopback.
"""

import shutil
import tempfile
import weakref
from dataclasses import dataclass
from pathlib import Path

from benchmarks.maven import MavenFailedError, resolve_class_path
from benchmarks.peers.api import PeerFailedError, RunningPeer
from benchmarks.peers.durable_files import (
    LEDGERS_PATH,
    write_bookie_settings,
    write_zookeeper_settings,
)
from benchmarks.peers.jvm import LOGBACK, java_command
from benchmarks.peers.processes import ServerGroup, free_ports

HERE = Path(__file__).parent
READY_SECONDS_MAX = 90.0
FORMAT_SECONDS_MAX = 60.0
ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
BOOKIE_SHELL = "org.apache.bookkeeper.bookie.BookieShell"
BOOKIE = "org.apache.bookkeeper.server.Main"
SEGMENT_STORE = "io.pravega.segmentstore.server.host.ServiceStarter"
CONTROLLER = "io.pravega.controller.server.Main"
OPEN_TO_REFLECTION = ("--add-opens", "java.base/java.lang=ALL-UNNAMED")
"""The controller's REST server makes classes as Java 11 still let it; else it does not start."""


@dataclass(frozen=True, slots=True)
class _Ports:
    controller: int
    controller_rest: int
    segment_store: int
    bookie: int
    zookeeper: int


class OriginalDurable:
    """The original as four processes. Ensemble, write and ack quorum are one bookie."""

    key = "durable"
    name = "original (durable)"
    speaks_kafka = False

    def __init__(
        self,
        *,
        segment_store_options: tuple[str, ...] = ("-Xmx4g", "-XX:MaxDirectMemorySize=6g"),
        other_options: tuple[str, ...] = ("-Xmx1g",),
        jvm_options: tuple[str, ...] = (),
        properties: dict[str, str] | None = None,
    ) -> None:
        self._segment_store_options = (*segment_store_options, *jvm_options)
        self._other_options = (*other_options, *jvm_options)
        self._properties = dict(properties or {})
        self._class_path = ""
        self._formatted: Path | None = None
        self._ports: _Ports | None = None
        self._group = ServerGroup()

    @property
    def description(self) -> str:
        """What is run, with the properties that differ from the defaults."""
        changed = "".join(f", {name}={value}" for name, value in self._properties.items())
        return (
            "original 0.13.0: ZooKeeper, one bookie 4.14.7 with its journal synced, segment store"
            f" ({' '.join(self._segment_store_options)}), controller; tier 2 on the local file"
            f" system, quorums of one{changed}"
        )

    def prepare(self) -> None:
        """Resolve the class path, and format a bookkeeping cluster for all starts to copy."""
        try:
            self._class_path = resolve_class_path(HERE / "durable" / "pom.xml")
        except MavenFailedError as error:
            raise PeerFailedError(str(error)) from error
        if self._formatted is None:
            self._formatted = Path(tempfile.mkdtemp(prefix="formatted-zookeeper-"))
            weakref.finalize(self, shutil.rmtree, self._formatted, ignore_errors=True)
            self._format(self._formatted)

    def _format(self, directory: Path) -> None:
        zookeeper_port, bookie_port = free_ports(2)
        group = ServerGroup()
        try:
            self._start_zookeeper(group, directory, zookeeper_port)
            settings = directory / "bookie.properties"
            write_bookie_settings(
                settings, data=directory, port=bookie_port, zookeeper_port=zookeeper_port
            )
            shell = group.start(
                "format",
                self._java(BOOKIE_SHELL, "-conf", str(settings), "initnewcluster"),
                directory=directory,
            )
            shell.wait_for_end(seconds_max=FORMAT_SECONDS_MAX)
        finally:
            group.stop(grace_seconds=5)

    def reserve(self) -> str:
        """Choose the ports."""
        self._ports = _Ports(*free_ports(5))
        return f"tcp://127.0.0.1:{self._ports.controller}"

    def start(self, directory: Path) -> RunningPeer:
        """Start the four processes, each as soon as it can start, and wait for the controller.

        ``directory`` may hold what an earlier start left there, on the same ports.
        """
        ports = self._ports
        assert ports is not None, "reserve comes first"
        assert self._formatted is not None, "prepare comes first"
        if not (directory / "zookeeper").exists():
            shutil.copytree(self._formatted / "zookeeper", directory / "zookeeper")
        (directory / "empty.properties").touch()
        self._group = group = ServerGroup()
        self._start_zookeeper(group, directory, ports.zookeeper)
        settings = directory / "bookie.properties"
        write_bookie_settings(
            settings,
            data=directory / "bookie",
            port=ports.bookie,
            zookeeper_port=ports.zookeeper,
        )
        bookie = group.start(
            "bookie", self._java(BOOKIE, "--conf", str(settings)), directory=directory
        )
        controller = group.start(
            "controller", self._controller(directory, ports), directory=directory
        )
        bookie.wait_for_port(ports.bookie, seconds_max=READY_SECONDS_MAX)
        segment_store = group.start(
            "segment-store", self._segment_store(directory, ports), directory=directory
        )
        segment_store.wait_for_port(ports.segment_store, seconds_max=READY_SECONDS_MAX)
        controller.wait_for_port(ports.controller, seconds_max=READY_SECONDS_MAX)
        return RunningPeer(
            address=f"tcp://127.0.0.1:{ports.controller}",
            processes=group.processes,
            started_epoch=group.started_epoch,
        )

    @property
    def segment_store_port(self) -> int:
        """Where the segment store of the last start listens."""
        assert self._ports is not None, "reserve comes first"
        return self._ports.segment_store

    def stop(self) -> None:
        """Kill all processes: they would take long to close."""
        self._group.stop(grace_seconds=0)

    def _start_zookeeper(self, group: ServerGroup, directory: Path, port: int) -> None:
        settings = directory / "zookeeper.properties"
        write_zookeeper_settings(settings, data=directory / "zookeeper", port=port)
        server = group.start("zookeeper", self._java(ZOOKEEPER, str(settings)), directory=directory)
        server.wait_for_port(port, seconds_max=READY_SECONDS_MAX)

    def _java(self, main_class: str, *arguments: str) -> list[str]:
        return java_command(
            main_class,
            *arguments,
            class_path=self._class_path,
            options=self._other_options,
            properties={"logback.configurationFile": LOGBACK},
        )

    def _segment_store(self, directory: Path, ports: _Ports) -> list[str]:
        zookeeper = f"127.0.0.1:{ports.zookeeper}"
        properties: dict[str, object] = {
            "java.io.tmpdir": directory,
            "logback.configurationFile": LOGBACK,
            "pravega.configurationFile": directory / "empty.properties",
            "pravegaservice.container.count": 4,
            "pravegaservice.service.listener.host.nameOrIp": "127.0.0.1",
            "pravegaservice.service.listener.port": ports.segment_store,
            "pravegaservice.service.published.host.nameOrIp": "127.0.0.1",
            "pravegaservice.service.published.port": ports.segment_store,
            "pravegaservice.zk.connect.uri": zookeeper,
            "pravegaservice.dataLog.impl.name": "BOOKKEEPER",
            "pravegaservice.storage.impl.name": "FILESYSTEM",
            "pravegaservice.storage.layout": "CHUNKED_STORAGE",
            "pravegaservice.admin.gateway.enable": "false",
            "pravegaservice.rest.listener.enable": "false",
            "filesystem.root": directory / "tier2",
            "bookkeeper.zk.connect.uri": zookeeper,
            "bookkeeper.ledger.path": LEDGERS_PATH,
            "bookkeeper.ensemble.size": 1,
            "bookkeeper.write.quorum.size": 1,
            "bookkeeper.ack.quorum.size": 1,
            "autoScale.controller.connect.uri": f"tcp://127.0.0.1:{ports.controller}",
            **self._properties,
        }
        return java_command(
            SEGMENT_STORE,
            class_path=self._class_path,
            options=self._segment_store_options,
            properties=properties,
        )

    def _controller(self, directory: Path, ports: _Ports) -> list[str]:
        properties: dict[str, object] = {
            "java.io.tmpdir": directory,
            "logback.configurationFile": LOGBACK,
            "controller.container.count": 4,
            "controller.zk.connect.uri": f"127.0.0.1:{ports.zookeeper}",
            "controller.service.rpc.listener.port": ports.controller,
            "controller.service.rpc.published.host.nameOrIp": "127.0.0.1",
            "controller.service.rpc.published.port": ports.controller,
            "controller.service.rest.listener.host.ip": "127.0.0.1",
            "controller.service.rest.listener.port": ports.controller_rest,
        }
        return java_command(
            CONTROLLER,
            class_path=self._class_path,
            options=(*OPEN_TO_REFLECTION, *self._other_options),
            properties=properties,
        )
