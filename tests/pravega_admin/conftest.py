"""A standalone store in real processes, for the tests of the command line."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from segstore.testing.ports import free_ports

HERE = Path(__file__).parent
READY_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests that use the fixtures of this module: they start stores."""
    for item in items:
        if isinstance(item, pytest.Function) and HERE in item.path.parents:
            shared = "store" in item.fixturenames and not hasattr(item.module, "store")
            if shared or "new_store" in item.fixturenames:
                item.add_marker(pytest.mark.processes)


class Standalone:
    """``segstore standalone`` as a user starts it."""

    def __init__(self, data_dir: Path) -> None:
        self.data_dir = data_dir
        self.settings: Path | None = None
        self.http_port: int | None = None
        self.is_secure = False
        self.descriptor_limits: str | None = None
        self.controller_port, self.segment_store_port = free_ports(2)
        self.output: list[str] = []
        self.log = data_dir.parent / f"{data_dir.name}.log"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def controller(self) -> str:
        return f"tcp://127.0.0.1:{self.controller_port}"

    @property
    def command(self) -> list[str]:
        limits = self.descriptor_limits
        return [
            *(() if limits is None else ("prlimit", f"--nofile={limits}")),
            *(sys.executable, "-m", "pravega_admin", "standalone"),
            *("--data-dir", str(self.data_dir)),
            *("--controller-port", str(self.controller_port)),
            *("--segment-store-port", str(self.segment_store_port)),
            *("--log-file", str(self.log)),
            *(() if self.settings is None else ("--config", str(self.settings))),
            *(() if self.http_port is None else ("--http-port", str(self.http_port))),
            *(("--secure",) if self.is_secure else ()),
        ]

    def start(self) -> None:
        """Start it and wait until it says that it is ready."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE)
        assert self.process.stdout is not None
        deadline = time.monotonic() + READY_SECONDS_MAX
        text = b""
        while b"ready" not in text or not text.endswith(b"\n"):
            left = max(0.0, deadline - time.monotonic())
            readable, _, _ = select.select([self.process.stdout], [], [], left)
            data = os.read(self.process.stdout.fileno(), 4096) if readable else b""
            assert data, f"not ready; the log says:\n{self.log.read_text()}"
            text += data
        self.output = text.decode().splitlines()

    def pid_of(self, part: str) -> int:
        """Return the process that runs a part now; wait for one that is being started again."""
        path = self.data_dir / "run" / f"{part}.pid"
        deadline = time.monotonic() + READY_SECONDS_MAX
        while True:
            try:
                return int(path.read_text())
            except (FileNotFoundError, ValueError):
                assert time.monotonic() < deadline, f"no {part} runs"
                time.sleep(0.01)

    def kill(self, part: str) -> int:
        """Kill one of the processes with kill -9; return its id.

        The file of a process that has just ended by itself names it until the next one runs.
        """
        while True:
            pid = self.pid_of(part)
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                return pid
            time.sleep(0.01)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Signal the supervisor and wait for its end; its exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        try:
            return self.process.wait(STOP_SECONDS_MAX)
        finally:
            self.close()

    def close(self) -> None:
        """End it for certain."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """A store that the tests of a module share."""
    standalone = Standalone(tmp_path_factory.mktemp("store") / "data")
    standalone.start()
    try:
        yield standalone
    finally:
        standalone.close()


@pytest.fixture
def new_store(tmp_path: Path) -> Iterator[Callable[[], Standalone]]:
    """Makes stores, not yet started, that all have the same data directory."""
    made: list[Standalone] = []

    def make() -> Standalone:
        made.append(Standalone(tmp_path / "data"))
        return made[-1]

    yield make
    for standalone in made:
        standalone.close()
