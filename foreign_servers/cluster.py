"""A cluster on one machine: ZooKeeper, bookies, segment stores, a controller, each a process.

Owns: ``ClusterShape``, how many there are of each; ``ClusterPeer``, which starts and ends them. A
subclass says by which commands segment stores and controllers are started.

1. ZooKeeper and the bookies are the same for every subclass; bookies sync their journals before
   they acknowledge, unless a measurement's settings say otherwise.
2. Tier 2 is one directory that all segment stores share.
3. The original's controller listens on every interface, as it takes no address; everything else is
   on loopback.
"""

import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from foreign_servers.deadlines import scale
from foreign_servers.durable_files import write_bookie_settings, write_zookeeper_settings
from foreign_servers.jvm import LOGBACK, java_command
from foreign_servers.maven import MavenFailedError, resolve_class_path
from foreign_servers.peer import PeerFailedError, RunningPeer
from foreign_servers.processes import ServerGroup, ServerProcess
from segstore.testing.ports import free_ports

HERE = Path(__file__).parent
HOST = "127.0.0.1"
READY_SECONDS_MAX = scale(90.0)
FORMAT_SECONDS_MAX = scale(60.0)
ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
BOOKIE_SHELL = "org.apache.bookkeeper.bookie.BookieShell"
BOOKIE = "org.apache.bookkeeper.server.Main"
JAVA_OPTIONS = ("-Xmx1g",)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterShape:
    """The number of processes of each kind, and the replication of the logs."""

    bookies: int = 1
    stores: int = 1
    controllers: int = 1
    """At most one."""
    containers: int = 4
    replicas: tuple[int, int, int] = (1, 1, 1)
    """Bookies of a ledger, of an entry, and how many must have an entry."""


@dataclass(frozen=True, slots=True)
class _Ports:
    controller: int
    controller_rest: int
    zookeeper: int
    bookies: tuple[int, ...]
    stores: tuple[int, ...]


class ClusterPeer(ABC):
    """See the module. A ``Peer``, whose segment stores can be killed and started one by one."""

    key: str
    name: str
    speaks_kafka = False

    def __init__(
        self,
        shape: ClusterShape | None = None,
        *,
        java_options: tuple[str, ...] = JAVA_OPTIONS,
        bookie_settings: Mapping[str, object] = MappingProxyType({}),
    ) -> None:
        """Take ``java_options`` for ZooKeeper and the bookies, and settings of the bookies."""
        self.shape = shape or ClusterShape()
        self._java_options = java_options
        self._bookie_settings = bookie_settings
        self._class_path = ""
        self._formatted: Path | None = None
        self._ports: _Ports | None = None
        self._group = ServerGroup()
        self._stores: dict[int, ServerProcess] = {}
        self._environment: Mapping[str, str] = {}
        """Variables that the segment stores get beside ours."""

    @property
    @abstractmethod
    def description(self) -> str:
        """Return version and settings, for reports."""

    @abstractmethod
    def _segment_store(self, directory: Path, number: int) -> list[str]:
        """Return the command of a segment store."""

    @abstractmethod
    def _controller(self, directory: Path) -> list[str]:
        """Return the command of the controller."""

    # ---- Where everything is ---------------------------------------------------------------------

    @property
    def zookeeper(self) -> str:
        """Return the connect string of ZooKeeper."""
        return f"{HOST}:{self._chosen.zookeeper}"

    @property
    def address(self) -> str:
        """Return the address that clients are given."""
        return f"tcp://{HOST}:{self.controller_port}"

    @property
    def controller_port(self) -> int:
        """Return the port at which the controller listens."""
        return self._chosen.controller

    @property
    def segment_store_port(self) -> int:
        """Return the port at which the first segment store listens."""
        return self.store_port(0)

    def store_port(self, number: int) -> int:
        """Return the port at which a segment store listens."""
        return self._chosen.stores[number]

    @property
    def _chosen(self) -> _Ports:
        assert self._ports is not None, "reserve comes first"
        return self._ports

    # ---- Starting and ending ---------------------------------------------------------------------

    def prepare(self) -> None:
        """Resolve the class path, and make what bookies need in ZooKeeper for all starts to copy.

        Raises ``PeerFailedError``.
        """
        try:
            self._class_path = resolve_class_path(HERE / "artifacts" / "durable" / "pom.xml")
        except MavenFailedError as error:
            raise PeerFailedError(str(error)) from error
        self._formatted = Path(_format_zookeeper(self._class_path, self._java_options).name)

    def reserve(self) -> str:
        """Choose the ports."""
        shape = self.shape
        controller, rest, zookeeper, *ports = free_ports(3 + shape.bookies + shape.stores)
        bookies, stores = ports[: shape.bookies], ports[shape.bookies :]
        self._ports = _Ports(controller, rest, zookeeper, tuple(bookies), tuple(stores))
        return self.address

    def start(self, directory: Path) -> RunningPeer:
        """Start all processes, each as soon as it can start, and wait until all of them listen.

        ``directory`` may hold what an earlier start left there, on the same ports.
        """
        ports = self._chosen
        assert self._formatted is not None, "prepare comes first"
        if not (directory / "zookeeper").exists():
            shutil.copytree(self._formatted / "zookeeper", directory / "zookeeper")
        (directory / "tier2").mkdir(exist_ok=True)
        self._group = group = ServerGroup()
        self._stores = {}
        _start_zookeeper(group, directory, ports.zookeeper, self._class_path, self._java_options)
        bookies = [self._start_bookie(directory, number) for number in range(self.shape.bookies)]
        controllers = [
            group.start("controller", self._controller(directory), directory=directory)
            for _ in range(self.shape.controllers)
        ]
        for bookie, port in zip(bookies, ports.bookies, strict=True):
            bookie.wait_for_port(port, seconds_max=READY_SECONDS_MAX)
        for number in range(self.shape.stores):
            self.start_store(directory, number)
        for number in self._stores:
            self.wait_for_store(number)
        for controller in controllers:
            controller.wait_for_port(ports.controller, seconds_max=READY_SECONDS_MAX)
        return RunningPeer(
            address=self.address, processes=group.processes, started_epoch=group.started_epoch
        )

    def start_store(self, directory: Path, number: int) -> None:
        """Start a segment store, or start it again after its end; it may not listen yet."""
        name = f"segment-store-{number}"
        command = self._segment_store(directory, number)
        self._stores[number] = self._group.start(
            name, command, directory=directory, environment=self._environment
        )

    def wait_for_store(self, number: int) -> None:
        """Return when a segment store listens. Raises ``PeerFailedError``."""
        port = self.store_port(number)
        self._stores[number].wait_for_port(port, seconds_max=READY_SECONDS_MAX)

    def store(self, number: int) -> ServerProcess:
        """Return a segment store, to kill it or tell it to end."""
        return self._stores[number]

    def stop(self) -> None:
        """Kill all processes: they would take long to close."""
        self._group.stop(grace_seconds=0)

    def _start_bookie(self, directory: Path, number: int) -> ServerProcess:
        settings = directory / f"bookie-{number}.properties"
        write_bookie_settings(
            settings,
            data=directory / f"bookie-{number}",
            port=self._chosen.bookies[number],
            zookeeper_port=self._chosen.zookeeper,
            more=self._bookie_settings,
        )
        command = _java(
            BOOKIE,
            "--conf",
            str(settings),
            class_path=self._class_path,
            options=self._java_options,
        )
        return self._group.start(f"bookie-{number}", command, directory=directory)


@cache
def _format_zookeeper(
    class_path: str, options: tuple[str, ...]
) -> "tempfile.TemporaryDirectory[str]":
    """Make the data of a ZooKeeper with the nodes that bookies need.

    It exists until this process ends.
    """
    made = tempfile.TemporaryDirectory(prefix="formatted-zookeeper-")
    directory = Path(made.name)
    zookeeper_port, bookie_port = free_ports(2)
    group = ServerGroup()
    try:
        _start_zookeeper(group, directory, zookeeper_port, class_path, options)
        settings = directory / "bookie.properties"
        write_bookie_settings(
            settings, data=directory, port=bookie_port, zookeeper_port=zookeeper_port
        )
        command = _java(
            BOOKIE_SHELL,
            *("-conf", str(settings), "initnewcluster"),
            class_path=class_path,
            options=options,
        )
        shell = group.start("format", command, directory=directory)
        shell.wait_for_end(seconds_max=FORMAT_SECONDS_MAX)
    finally:
        group.stop(grace_seconds=5)
    return made


def _start_zookeeper(
    group: ServerGroup, directory: Path, port: int, class_path: str, options: tuple[str, ...]
) -> None:
    settings = directory / "zookeeper.properties"
    write_zookeeper_settings(settings, data=directory / "zookeeper", port=port)
    command = _java(ZOOKEEPER, str(settings), class_path=class_path, options=options)
    server = group.start("zookeeper", command, directory=directory)
    server.wait_for_port(port, seconds_max=READY_SECONDS_MAX)


def _java(main_class: str, *arguments: str, class_path: str, options: tuple[str, ...]) -> list[str]:
    return java_command(
        main_class,
        *arguments,
        class_path=class_path,
        options=options,
        properties={"logback.configurationFile": LOGBACK},
    )
