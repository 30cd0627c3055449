"""Our own standalone server: every acknowledged append is on disk."""

import sys
from pathlib import Path

from benchmarks.peers.api import PeerFailedError, RunningPeer
from benchmarks.peers.processes import ServerProcess, free_ports

READY_SECONDS_MAX = 30.0


class SegstoreStandalone:
    """`segstore standalone` as installed beside the running interpreter, with its defaults."""

    name = "segstore"

    def __init__(self, *, options: tuple[str, ...] = ()) -> None:
        self._options = options
        self._command = Path(sys.executable).parent / "segstore"
        self._ports: list[int] = []
        self._server: ServerProcess | None = None

    @property
    def description(self) -> str:
        """What is run, with the options that differ from the defaults."""
        options = f" with {' '.join(self._options)}" if self._options else ""
        return f"segstore standalone, journal and tier 2 on the local file system{options}"

    def prepare(self) -> None:
        """Check that the command is installed."""
        if not self._command.exists():
            raise PeerFailedError(f"{self._command} is not installed")

    def reserve(self) -> str:
        """Choose two free ports."""
        self._ports = free_ports(2)
        return f"tcp://127.0.0.1:{self._ports[0]}"

    def start(self, directory: Path) -> RunningPeer:
        """Start all processes and wait for the controller port."""
        controller_port, segment_store_port = self._ports
        command = [
            str(self._command),
            "standalone",
            *("--data-dir", str(directory / "data")),
            *("--controller-port", str(controller_port)),
            *("--segment-store-port", str(segment_store_port)),
            *("--host", "127.0.0.1"),
            *self._options,
        ]
        self._server = ServerProcess(command, directory=directory)
        self._server.wait_for_port(controller_port, seconds_max=READY_SECONDS_MAX)
        return RunningPeer(
            controller_uri=f"tcp://127.0.0.1:{controller_port}",
            processes=self._server.processes,
            started_epoch=self._server.started_epoch,
        )

    def stop(self) -> None:
        """End all processes."""
        if self._server is not None:
            self._server.stop()
            self._server = None
