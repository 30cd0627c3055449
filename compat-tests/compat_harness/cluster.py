"""A cluster under test, as ``make cluster`` runs it: ZooKeeper, bookies, stores, controllers.

Owns: ``Cluster``: starting it on free ports, ending it, and what is done to single processes.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from foreign_servers.deadlines import scale
from foreign_servers.pauses import pause_process
from foreign_servers.tied_processes import tied
from kazoo.client import KazooClient

from compat_harness.server import HOST, ServerError
from pravega_cluster.nodes import find_paths
from pravega_cluster.records import decode_map
from segstore.testing.ports import free_neighbours

ROOT = Path(__file__).resolve().parents[2]
READY_SECONDS_MAX = scale(180.0)
STOP_SECONDS_MAX = scale(120.0)
SHARED_SECONDS_MAX = scale(60.0)
POLL_SECONDS = 0.05
STORES = 3
CONTROLLERS = 2
BOOKIES = 3


class Cluster:
    """A context manager; processes are known by the names of their pid files.

    Each store has containers when its block begins: where a store registered late, containers move
    some seconds after the start, and a test would see failures that it did not bring about.

    ``python`` runs ``make cluster``'s program in ``root``: those of another version, or this one's.
    """

    def __init__(
        self,
        directory: Path,
        options: Sequence[str] = (),
        *,
        name: str = "cluster",
        first_port: int | None = None,
        environment: Mapping[str, str] | None = None,
        python: Path | None = None,
        root: Path = ROOT,
    ) -> None:
        self._python, self._root = python or Path(sys.executable), root
        self.data_dir = directory / name
        self._output = directory / f"{name}.log"
        # One run of ports that are free now: they are all taken at about the same time.
        first = first_port or free_neighbours(1 + BOOKIES + STORES + CONTROLLERS)
        self.first_port = first
        self._environment = environment
        self.zookeeper = f"{HOST}:{first}"
        self._store_port = first + 1 + BOOKIES
        self.controller_port = self._store_port + STORES
        self._options = [
            f"--data-dir={self.data_dir}",
            f"--zookeeper-port={first}",
            f"--bookie-port={first + 1}",
            f"--store-port={self._store_port}",
            f"--controller-port={self.controller_port}",
            *options,
        ]
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def controller_uris(self) -> str:
        """Return all controllers, in the form that the Java client takes."""
        ports = range(self.controller_port, self.controller_port + CONTROLLERS)
        return "tcp://" + ",".join(f"{HOST}:{port}" for port in ports)

    @property
    def controller_uri(self) -> str:
        """Return the address of the first controller."""
        return f"tcp://{HOST}:{self.controller_port}"

    @property
    def zookeeper_options(self) -> dict[str, Any]:
        """Return the options by which kazoo reaches ZooKeeper."""
        return {}

    def port_of(self, name: str) -> int:
        """Return the port at which a part listens."""
        kind, _, number = name.rpartition("-")
        first = {
            "": self.first_port,
            "bookie": self.first_port + 1,
            "segment-store": self._store_port,
            "controller": self.controller_port,
        }[kind]
        return first + int(number) if kind else first

    def __enter__(self) -> Cluster:
        self.start()
        try:
            self.wait_until_shared()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> float:
        """Start everything and wait until it is ready; the seconds that took."""
        began = time.monotonic()
        with self._output.open("ab") as output:
            position = output.tell()
            self._process = subprocess.Popen(
                tied([str(self._python), "-m", "deploy.one_machine", *self._options]),
                cwd=self._root,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
            )
        ready = f"cluster is ready: {self.controller_uri}\n".encode()
        while ready not in self._output.read_bytes()[position:]:
            if self._process.poll() is not None or time.monotonic() - began > READY_SECONDS_MAX:
                self.stop()
                raise ServerError(f"the cluster is not ready:\n{self.tell()}")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - began

    def stop(self) -> None:
        """End everything as Ctrl-C does, or by force if that takes too long."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                self._process.wait(STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                # The others die with it.
                self._process.kill()
        self._process.wait()
        self._process = None

    def kill_all(self) -> None:
        """Kill everything at once: all processes die with their supervisor."""
        assert self._process is not None
        pids = [self.pid_of(path.stem) for path in (self.data_dir / "run").glob("*.pid")]
        self._process.kill()
        self._process.wait()
        self._process = None
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while any(pid is not None and _is_alive(pid) for pid in pids):
            assert time.monotonic() < deadline
            time.sleep(POLL_SECONDS)

    def pid_of(self, name: str) -> int | None:
        """Return the process that runs a part now."""
        try:
            return int((self.data_dir / "run" / f"{name}.pid").read_text())
        except (FileNotFoundError, ValueError):
            return None

    def kill(self, name: str) -> int:
        """Kill a process as ``kill -9`` does; its id."""
        pid = self.pid_of(name)
        assert pid is not None, name
        os.kill(pid, signal.SIGKILL)
        return pid

    def pause(self, name: str) -> int:
        """Stop a process without ending it: it holds its connections and is silent."""
        pid = self.pid_of(name)
        assert pid is not None, name
        pause_process(pid)
        return pid

    def stores_in_map(self) -> list[str]:
        """Return the segment stores that have containers, by the names of their pid files."""
        client = KazooClient(hosts=self.zookeeper, **self.zookeeper_options)
        client.start()
        try:
            data, _ = client.get(find_paths("pravega-cluster").container_map)
        finally:
            client.stop()
            client.close()
        numbers = [host.port - self._store_port for host, each in decode_map(data).items() if each]
        return [f"segment-store-{number}" for number in sorted(numbers)]

    def wait_until_shared(self) -> None:
        """Wait until each store has containers."""
        wanted = [f"segment-store-{number}" for number in range(STORES)]
        deadline = time.monotonic() + SHARED_SECONDS_MAX
        while self.stores_in_map() != wanted:
            if time.monotonic() > deadline:
                raise ServerError(f"not every store has containers:\n{self.tell()}")
            time.sleep(4 * POLL_SECONDS)

    def tell(self) -> str:
        """Return what the cluster printed, and the ends of the logs."""
        parts = [self._output.read_text(errors="replace")[-3000:]]
        for log in sorted((self.data_dir / "log").glob("*.log")):
            parts.append(f"---- {log.name}\n{log.read_text(errors='replace')[-1500:]}")
        return "\n".join(parts)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
