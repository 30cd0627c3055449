"""The original's standalone server, release 0.13.0: one JVM, everything in memory, nothing on disk.

Its gRPC listener takes no address and listens on every interface; its others are on loopback.
"""

from pathlib import Path

from foreign_servers.deadlines import scale
from foreign_servers.jvm import say_temporary_directory
from foreign_servers.maven import MavenFailedError, resolve_class_path
from foreign_servers.peer import PeerFailedError, RunningPeer
from foreign_servers.processes import ServerProcess
from segstore.testing.ports import free_ports

HERE = Path(__file__).parent
MAIN_CLASS = "io.pravega.local.LocalPravegaEmulator"
READY_SECONDS_MAX = scale(60.0)


class OriginalStandalone:
    """The original in one JVM. `heap` is its -Xmx; the release's own script gives it 4g."""

    key = "ram"
    name = "original (RAM)"
    speaks_kafka = False

    def __init__(
        self,
        *,
        heap: str = "4g",
        jvm_options: tuple[str, ...] = (),
        properties: dict[str, str] | None = None,
    ) -> None:
        self._jvm_options = (f"-Xmx{heap}", *jvm_options)
        self._properties = dict(properties or {})
        self._class_path = ""
        self._ports: list[int] = []
        self._server: ServerProcess | None = None

    @property
    def description(self) -> str:
        """Describe the server that runs, with the properties that differ from the defaults."""
        changed = "".join(f", {name}={value}" for name, value in self._properties.items())
        jvm = " ".join(self._jvm_options)
        return f"original standalone 0.13.0, in memory, nothing on disk, {jvm}{changed}"

    def prepare(self) -> None:
        """Resolve the class path; downloads it the first time."""
        try:
            self._class_path = resolve_class_path(HERE / "artifacts" / "original" / "pom.xml")
        except MavenFailedError as error:
            raise PeerFailedError(str(error)) from error

    def reserve(self) -> str:
        """Choose three free ports."""
        self._ports = free_ports(3)
        return f"tcp://127.0.0.1:{self._ports[0]}"

    def start(self, directory: Path) -> RunningPeer:
        """Start the JVM and wait for the controller port."""
        controller_port, segment_store_port, zookeeper_port = self._ports
        (directory / "empty.properties").touch()
        properties = {
            "java.io.tmpdir": str(directory),
            "logback.configurationFile": str(HERE / "logback.xml"),
            "singlenode.configurationFile": str(directory / "empty.properties"),
            "singlenode.controller.rpc.port": str(controller_port),
            "singlenode.segmentStore.port": str(segment_store_port),
            "singlenode.zk.port": str(zookeeper_port),
            "singlenode.controller.rest.enable": "false",
            "singlenode.admin.gateway.enable": "false",
            "pravegaservice.service.listener.host.nameOrIp": "127.0.0.1",
            "pravegaservice.service.published.host.nameOrIp": "127.0.0.1",
            **self._properties,
        }
        command = ["java", say_temporary_directory(), *self._jvm_options]
        command += [f"-D{name}={value}" for name, value in properties.items()]
        command += ["-cp", self._class_path, MAIN_CLASS]
        self._server = ServerProcess(command, directory=directory)
        self._server.wait_for_port(controller_port, seconds_max=READY_SECONDS_MAX)
        return RunningPeer(
            address=f"tcp://127.0.0.1:{controller_port}",
            processes=self._server.processes,
            started_epoch=self._server.started_epoch,
        )

    def stop(self) -> None:
        """Kill the JVM: it has nothing to save, and would take seconds to close."""
        if self._server is not None:
            self._server.stop(grace_seconds=0)
            self._server = None
