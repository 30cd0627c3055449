"""The processes of a cluster on one machine: what each is called, and its command.

Owns: ``ClusterSettings``, the settings files of ZooKeeper and bookies, ``list_parts``, and how a
part is launched.

    zookeeper                  one server
    format                     makes once in ZooKeeper what bookies need, and ends
    bookie-0 ...               Apache BookKeeper; each syncs its journal before it acknowledges
    segment-store-0 ...        share tier 2, a directory; their logs are on the bookies
    controller-0 ...           all answer all clients

Everything listens on 127.0.0.1, the processes of a kind on one port after the other.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from deploy.one_machine.security import ClusterSecurity
from foreign_servers.durable_files import write_bookie_settings, write_zookeeper_settings
from foreign_servers.jvm import java_command
from foreign_servers.tied_processes import TIED, tied

from pravega_admin.supervisor.child_process import ChildSpec

HERE = Path(__file__).resolve().parent
LAUNCH = HERE / "launch"
FORMAT = HERE / "format.py"
HOST = "127.0.0.1"
ZOOKEEPER = "org.apache.zookeeper.server.ZooKeeperServerMain"
BOOKIE = "org.apache.bookkeeper.server.Main"
BOOKIE_SHELL = "org.apache.bookkeeper.bookie.BookieShell"
JVM_OPTIONS = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
LOG_PROPERTIES = {
    "org.slf4j.simpleLogger.defaultLogLevel": "warn",
    "org.slf4j.simpleLogger.showDateTime": "true",
    "org.slf4j.simpleLogger.dateTimeFormat": "yyyy-MM-dd HH:mm:ss.SSS",
}


@dataclass(frozen=True, slots=True)
class ClusterSettings:
    """A cluster; the ports are the first of each kind.

    ``detours`` has the hosts under which processes are dialled where that is not where they
    listen, so that a proxy can stand in between: ``segment-store-0`` for all that dial it, and
    ``segment-store-0/zookeeper`` for the ZooKeeper that this one process dials.
    """

    data_dir: Path
    name: str = "pravega-cluster"
    bookies: int = 3
    stores: int = 3
    controllers: int = 2
    containers: int = 8
    zookeeper_port: int = 2181
    bookie_port: int = 3181
    store_port: int = 12345
    controller_port: int = 9090
    detours: Mapping[str, str] = field(default_factory=dict)
    secure: bool = False
    """Speak TLS, and serve users by their rights: see ``security``."""
    program: Path = field(default_factory=lambda: Path(sys.executable).parent / "segstore")
    """What segment stores and controllers are started by. It is looked up at each start: when a
    link is changed, the next start is that of another version."""

    @property
    def zookeeper(self) -> str:
        """Return the connect string of ZooKeeper."""
        return f"{HOST}:{self.zookeeper_port}"

    def zookeeper_host_of(self, name: str) -> str:
        """Return the host at which a process dials ZooKeeper."""
        return self.detours.get(f"{name}/zookeeper", HOST)

    @property
    def ledgers_path(self) -> str:
        """Return the path in ZooKeeper of the metadata of ledgers."""
        return f"/pravega/{self.name}/bookkeeper/ledgers"

    @property
    def controller_uri(self) -> str:
        """Return the address that clients connect to, with all controllers."""
        ports = range(self.controller_port, self.controller_port + self.controllers)
        return f"{self._scheme}://" + ",".join(f"{self._clients_host}:{port}" for port in ports)

    @property
    def first_controller_uri(self) -> str:
        """Return the address of the first controller."""
        return f"{self._scheme}://{self._clients_host}:{self.controller_port}"

    @property
    def _scheme(self) -> str:
        return "tls" if self.secure else "tcp"

    @property
    def _clients_host(self) -> str:
        # The official Python client takes no IP address over TLS.
        return "localhost" if self.secure else HOST

    def ports(self) -> dict[str, list[int]]:
        """Return all ports, by the option that chooses the first of them."""
        return {
            "--zookeeper-port": [self.zookeeper_port],
            "--bookie-port": _in_a_row(self.bookie_port, self.bookies),
            "--store-port": _in_a_row(self.store_port, self.stores),
            "--controller-port": _in_a_row(self.controller_port, self.controllers),
        }


def write_settings_files(
    settings: ClusterSettings, security: ClusterSecurity | None = None
) -> None:
    """Make the directories of all parts, and write what ZooKeeper and bookies are started with."""
    for folder in (settings.data_dir / "log", settings.data_dir / "tier-2"):
        folder.mkdir(parents=True, exist_ok=True)
    write_zookeeper_settings(
        settings.data_dir / "zookeeper.properties",
        data=settings.data_dir / "zookeeper",
        port=settings.zookeeper_port,
        certificates=None if security is None else security.java_certificates,
    )
    for number, port in enumerate(_in_a_row(settings.bookie_port, settings.bookies)):
        write_bookie_settings(
            bookie_settings_file(settings, number),
            # A bookie knows its files by these names: relative ones let the directory be moved.
            data=Path(f"bookie-{number}"),
            port=port,
            zookeeper_host=settings.zookeeper_host_of(f"bookie-{number}"),
            zookeeper_port=settings.zookeeper_port,
            ledgers_path=settings.ledgers_path,
            more=None if security is None else security.bookie_settings,
        )


def bookie_settings_file(settings: ClusterSettings, number: int) -> Path:
    """Return the settings file that a bookie is started with."""
    return settings.data_dir / f"bookie-{number}.properties"


def list_parts(
    settings: ClusterSettings, class_path: str, security: ClusterSecurity | None = None
) -> list[ChildSpec]:
    """List all processes, each after those that it needs; they are ended in the reverse order."""
    data_dir = settings.data_dir
    properties = {} if security is None else security.java_properties
    java = partial(_java, class_path, properties)
    zookeeper = java(ZOOKEEPER, data_dir / "zookeeper.properties")
    parts = [
        _part(settings, "zookeeper", zookeeper, ready_port=settings.zookeeper_port),
        _part(settings, "format", _format(settings, java, security), once=True),
    ]
    for number, port in enumerate(_in_a_row(settings.bookie_port, settings.bookies)):
        command = java(BOOKIE, "--conf", bookie_settings_file(settings, number))
        parts.append(_part(settings, f"bookie-{number}", command, ready_port=port))
    servers = [] if security is None else [f"--config={security.settings_file}"]
    for number, port in enumerate(_in_a_row(settings.store_port, settings.stores)):
        name = f"segment-store-{number}"
        options = [*servers, f"--tier2={data_dir / 'tier-2'}"]
        if name in settings.detours:
            options.append(f"--publish={settings.detours[name]}:{port}")
        command = _segstore(settings, "server", name, port, *options)
        parts.append(_part(settings, name, command))
    for number, port in enumerate(_in_a_row(settings.controller_port, settings.controllers)):
        name = f"controller-{number}"
        command = _segstore(settings, "controller", name, port, *servers)
        parts.append(_part(settings, name, command))
    return parts


def _format(
    settings: ClusterSettings, java: Callable[..., list[str]], security: ClusterSecurity | None
) -> list[str]:
    """Return the command that makes the nodes in ZooKeeper that bookies need."""
    bookie = bookie_settings_file(settings, 0)
    command = java(BOOKIE_SHELL, "-conf", bookie, "initnewcluster")
    tls = {} if security is None else security.own_tls
    options = [f"--{name}={path}" for name, path in tls.items()]
    where = [settings.zookeeper, settings.ledgers_path]
    return [sys.executable, str(FORMAT), *options, *where, *command]


def _part(
    settings: ClusterSettings,
    name: str,
    command: Sequence[str],
    *,
    ready_port: int | None = None,
    once: bool = False,
) -> ChildSpec:
    log = str(settings.data_dir / "log" / f"{name}.log")
    launched = launched_command(log, command, ready_port=ready_port)
    return ChildSpec(name, launched, log_path=log, once=once)


def launched_command(
    log: str, command: Sequence[str], *, ready_port: int | None = None
) -> tuple[str, ...]:
    """Return the command by which this process, the supervisor, starts a part with this log.

    The part ends with the supervisor. With ``ready_port`` it is ready when that port is open.
    """
    ready = "-" if ready_port is None else str(ready_port)
    return tuple(tied([str(LAUNCH), str(TIED), log, ready, *command]))


def _java(
    class_path: str, properties: Mapping[str, object], main_class: str, *arguments: object
) -> list[str]:
    return java_command(
        main_class,
        *map(str, arguments),
        class_path=class_path,
        options=JVM_OPTIONS,
        properties={**LOG_PROPERTIES, **properties},
    )


def _segstore(
    settings: ClusterSettings, verb: str, name: str, port: int, *options: str
) -> list[str]:
    return [
        str(settings.program),
        verb,
        f"--zookeeper={settings.zookeeper_host_of(name)}:{settings.zookeeper_port}",
        f"--cluster={settings.name}",
        f"--container-count={settings.containers}",
        f"--host={HOST}",
        f"--port={port}",
        "--log-format=text",
        *options,
    ]


def _in_a_row(first: int, count: int) -> list[int]:
    return list(range(first, first + count))
