"""Kafka 3.9.0, one node that is broker and controller (KRaft), with or without an fsync a batch."""

import uuid
from base64 import urlsafe_b64encode
from pathlib import Path

from foreign_servers.deadlines import scale
from foreign_servers.jvm import java_command
from foreign_servers.maven import MavenFailedError, resolve_class_path
from foreign_servers.peer import PeerFailedError, RunningPeer
from foreign_servers.processes import ServerGroup
from segstore.testing.ports import free_ports

HERE = Path(__file__).parent
READY_SECONDS_MAX = scale(60.0)
FORMAT_SECONDS_MAX = scale(60.0)
SERVER = "kafka.Kafka"
STORAGE_TOOL = "kafka.tools.StorageTool"
QUIET = {"org.slf4j.simpleLogger.defaultLogLevel": "error"}


class KafkaBroker:
    """Kafka as its own quick start has it. ``fsync``: every batch is on disk before its ack."""

    speaks_kafka = True

    def __init__(
        self, *, fsync: bool, options: tuple[str, ...] = ("-Xmx1g", "-Xms1g", "-XX:+UseG1GC")
    ) -> None:
        self.key = "kafka-fsync" if fsync else "kafka"
        self.name = "Kafka fsync" if fsync else "Kafka"
        self._fsync = fsync
        self._options = options
        self._class_path = ""
        self._ports: list[int] = []
        self._group = ServerGroup()

    @property
    def description(self) -> str:
        """Describe the server that runs."""
        flush = "log.flush.interval.messages=1" if self._fsync else "no fsync, as by default"
        return f"Kafka 3.9.0, one KRaft node, {flush}, {' '.join(self._options)}"

    def prepare(self) -> None:
        """Resolve the class path; downloads it the first time."""
        try:
            self._class_path = resolve_class_path(HERE / "artifacts" / "kafka" / "pom.xml")
        except MavenFailedError as error:
            raise PeerFailedError(str(error)) from error

    def reserve(self) -> str:
        """Choose two free ports."""
        self._ports = free_ports(2)
        return f"127.0.0.1:{self._ports[0]}"

    def start(self, directory: Path) -> RunningPeer:
        """Format the log directory, start the server and wait for its port."""
        port, controller_port = self._ports
        settings = directory / "server.properties"
        settings.write_text(self._settings(directory, port, controller_port))
        self._group = group = ServerGroup()
        # The tool takes an id that begins with a dash for an option.
        random_bytes = uuid.uuid4().bytes
        random_bytes = bytes([random_bytes[0] & 0x7F]) + random_bytes[1:]
        cluster_id = urlsafe_b64encode(random_bytes).decode().rstrip("=")
        arguments = ("format", "-t", cluster_id, "-c", str(settings))
        tool = group.start(
            "format",
            java_command(STORAGE_TOOL, *arguments, class_path=self._class_path, properties=QUIET),
            directory=directory,
        )
        tool.wait_for_end(seconds_max=FORMAT_SECONDS_MAX)
        server = group.start(
            "kafka",
            java_command(
                SERVER,
                str(settings),
                class_path=self._class_path,
                options=self._options,
                properties=QUIET,
            ),
            directory=directory,
        )
        server.wait_for_port(port, seconds_max=READY_SECONDS_MAX)
        return RunningPeer(
            address=f"127.0.0.1:{port}",
            processes=group.processes,
            started_epoch=server.started_epoch,
        )

    def stop(self) -> None:
        """Kill it: its data goes anyway."""
        self._group.stop(grace_seconds=0)

    def _settings(self, directory: Path, port: int, controller_port: int) -> str:
        settings: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{port}",
            "controller.listener.names": "CONTROLLER",
            "log.dirs": directory / "logs",
            "offsets.topic.replication.factor": 1,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
        }
        if self._fsync:
            settings["log.flush.interval.messages"] = 1
        return "".join(f"{name}={value}\n" for name, value in settings.items())
