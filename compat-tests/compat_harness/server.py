"""The server under test, as its users run it: a process of its own with a data directory.

Owns: starting, stopping and killing it. Servers listen on 127.0.0.1, on ports that were free.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied

from segstore.testing.ports import free_neighbours

TARGET_VARIABLE = "SEGSTORE_COMPAT_TARGET"
"""The environment variable that names a running server to test instead of one of our own."""

HOST = "127.0.0.1"
START_SECONDS_MAX = scale(60.0)
STOP_SECONDS_MAX = scale(60.0)
POLL_SECONDS = 0.02
LOG_TAIL_LINES = 40

SEGMENT_STORE = "segment-store-0"
CONTROLLER = "controller"
SECOND_CONTROLLER = "controller-1"


class ServerError(Exception):
    """The server did not do what it was asked to."""


def accepts(port: int) -> bool:
    """Return whether a process listens on the port."""
    try:
        socket.create_connection((HOST, port), timeout=1.0).close()
    except OSError:
        return False
    return True


class Server:
    """``segstore standalone`` in a directory; a context manager that starts and stops it.

    ``environment`` is that of its processes; None for the present one.

    It keeps its ports for life, so that clients find it again after ``restart``. It may have a
    second controller, and ``stores`` segment stores, up to ``stores_max``, from the next start on.
    """

    def __init__(
        self,
        directory: Path,
        options: Sequence[str] = (),
        *,
        controllers: int = 1,
        stores_max: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        assert controllers in (1, 2)
        self.stores = 1
        self._stores_max = stores_max
        self._environment = environment
        self._options = [f"--controllers={controllers}", *options]
        self.data_dir = directory / "data"
        self.log_path = directory / "server.log"
        self.controller_port = free_neighbours(controllers)
        self.segment_store_port = self.controller_port
        controller_ports = range(self.controller_port, self.controller_port + controllers)
        while any(self.segment_store_port + each in controller_ports for each in range(stores_max)):
            self.segment_store_port = free_neighbours(stores_max)
        self._controllers = dict(
            zip((CONTROLLER, SECOND_CONTROLLER), controller_ports, strict=False)
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def _ports(self) -> dict[str, int]:
        """Return the port of each server process, by the process's name."""
        stores = {
            f"segment-store-{each}": self.segment_store_port + each for each in range(self.stores)
        }
        return {**stores, **self._controllers}

    @property
    def controller_uri(self) -> str:
        """Return the address of the first controller."""
        return f"tcp://{HOST}:{self.controller_port}"

    @property
    def controller_uris(self) -> str:
        """Return all controllers, in the form that the Java client takes."""
        return "tcp://" + ",".join(f"{HOST}:{port}" for port in self._controllers.values())

    def __enter__(self) -> Server:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> float:
        """Start it and wait until it is ready; the seconds that took."""
        assert 1 <= self.stores <= self._stores_max
        started = time.monotonic()
        with self.log_path.open("ab") as log:
            log_start = log.tell()
            self._process = self._spawn(log)
        try:
            self._wait_until_ready(started, log_start)
        except BaseException:
            self.kill_all()
            raise
        return time.monotonic() - started

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        executable = Path(sys.executable).parent / "segstore"
        if not executable.exists():
            raise ServerError(f"{executable} is missing: run make build")
        command = [
            str(executable),
            "standalone",
            f"--data-dir={self.data_dir}",
            f"--host={HOST}",
            f"--controller-port={self.controller_port}",
            f"--segment-store-port={self.segment_store_port}",
            f"--stores={self.stores}",
            *self._options,
        ]
        return subprocess.Popen(
            tied(command),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=self._environment,
        )

    def _wait_until_ready(self, started: float, log_start: int) -> None:
        while True:
            if self._running().poll() is not None:
                raise ServerError(f"the server ended at its start:\n{self.log_tail()}")
            with self.log_path.open("rb") as log:
                log.seek(log_start)
                said_ready = re.search(rb"\bready\b", log.read()) is not None
            if said_ready and all(accepts(port) for port in self._ports.values()):
                return
            if time.monotonic() - started > START_SECONDS_MAX:
                raise ServerError(f"not ready after {START_SECONDS_MAX:.0f} s:\n{self.log_tail()}")
            time.sleep(POLL_SECONDS)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise ServerError("the server was not started")
        return self._process

    def stop(self) -> None:
        """Ask it to end and wait until it has; an ``ServerError`` if it did not end well."""
        process, self._process = self._process, None
        if process is None:
            return
        process.terminate()
        try:
            code = process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process = process
            self.kill_all()
            raise ServerError(
                f"still running {STOP_SECONDS_MAX:.0f} s after SIGTERM:\n{self.log_tail()}"
            ) from None
        if code not in (0, 128 + signal.SIGTERM, -signal.SIGTERM):
            raise ServerError(f"ended with exit code {code}:\n{self.log_tail()}")

    def restart(self) -> float:
        """Stop it the gentle way and start it again; the seconds until it was ready."""
        self.stop()
        return self.start()

    def recover(self) -> str:
        """Run ``segstore recover --yes`` while nothing else runs; return what it says."""
        executable = Path(sys.executable).parent / "segstore"
        done = subprocess.run(
            [str(executable), "recover", "--yes", f"--data-dir={self.data_dir}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=START_SECONDS_MAX,
        )
        said = done.stdout + done.stderr
        if done.returncode:
            raise ServerError(f"recover ended with exit code {done.returncode}:\n{said}")
        return said

    def pid(self, child: str) -> int:
        """Return the process id of a child: ``SEGMENT_STORE``, or one of the controllers."""
        return int((self.data_dir / "run" / f"{child}.pid").read_text())

    def kill(self, *children: str) -> dict[str, int]:
        """Kill the children with kill -9, so that the supervisor starts them again.

        Return their old ids.
        """
        killed = {child: self.pid(child) for child in children}
        for pid in killed.values():
            os.kill(pid, signal.SIGKILL)
        return killed

    def kill_segment_store(self) -> dict[str, int]:
        return self.kill(SEGMENT_STORE)

    def kill_controller(self) -> dict[str, int]:
        return self.kill(CONTROLLER)

    def kill_all(self) -> None:
        """Kill everything with kill -9, the supervisor first, so that nothing runs again before
        ``start``."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for child in self._ports:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, ValueError):
                os.kill(self.pid(child), signal.SIGKILL)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while any(accepts(port) for port in self._ports.values()):
            if time.monotonic() > deadline:
                raise ServerError("somebody still listens after everything was killed")
            time.sleep(POLL_SECONDS)

    def wait_until_back(self, killed: dict[str, int]) -> float:
        """Wait until new processes of the killed children take connections; the seconds it took."""
        started = time.monotonic()
        for child, old_pid in killed.items():
            while not self._is_back(child, old_pid):
                if self._running().poll() is not None:
                    raise ServerError(f"the supervisor ended:\n{self.log_tail()}")
                if time.monotonic() - started > START_SECONDS_MAX:
                    raise ServerError(
                        f"{child} not back after {START_SECONDS_MAX:.0f} s:\n{self.log_tail()}"
                    )
                time.sleep(POLL_SECONDS)
        return time.monotonic() - started

    def _is_back(self, child: str, old_pid: int) -> bool:
        try:
            pid = self.pid(child)
        except (FileNotFoundError, ValueError):
            return False
        return pid != old_pid and accepts(self._ports[child])

    def log_tail(self) -> str:
        lines = self.log_path.read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])
