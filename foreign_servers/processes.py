"""Starting a server's processes, waiting for them, and ending everything they started.

1. A process is the leader of a new session, so that all its descendants can be found and ended by
   their ids.
2. Both output streams of a process go to one log file in the server's directory; a failure quotes
   its end.
3. A server dies with the process that started it, not with the thread.
"""

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from foreign_servers.peer import PeerFailedError
from foreign_servers.process_tree import ProcessTree
from foreign_servers.tied_processes import start_from_any_thread, tied

STOP_SECONDS_MAX = 10.0
POLL_SECONDS = 0.01


class ServerProcess:
    """A process of a server with everything it starts. It logs to ``<name>.log``."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        directory: Path,
        name: str = "server",
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Take ``environment``, variables that the process gets beside ours."""
        self.log = directory / f"{name}.log"
        self.started_epoch = time.time()
        with self.log.open("wb") as log:
            self._process = start_from_any_thread(
                lambda: subprocess.Popen(
                    tied(command),
                    cwd=directory,
                    env={**os.environ, **environment},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )
        self.processes = ProcessTree(frozenset({self._process.pid}))

    @property
    def has_ended(self) -> bool:
        """Return whether the first process has ended, by itself or killed."""
        return self._process.poll() is not None

    def wait_for_port(self, port: int, *, seconds_max: float) -> None:
        """Return when 127.0.0.1 accepts on this port. Raises PeerFailedError."""
        deadline = time.monotonic() + seconds_max
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                return
            self._check(deadline, f"port {port} did not accept in {seconds_max:g} s")

    def wait_for_text(self, text: str, *, seconds_max: float) -> None:
        """Return when the log holds this text. Raises PeerFailedError."""
        deadline = time.monotonic() + seconds_max
        while text not in self.log.read_text(errors="replace"):
            self._check(deadline, f"the log did not say {text!r} in {seconds_max:g} s")

    def wait_for_end(self, *, seconds_max: float) -> None:
        """Return when the process has ended well. Raises PeerFailedError."""
        try:
            status = self._process.wait(seconds_max)
        except subprocess.TimeoutExpired as error:
            complaint = f"did not end in {seconds_max:g} s: {self._log_end()}"
            raise PeerFailedError(complaint) from error
        if status != 0:
            raise PeerFailedError(f"exited with {status}: {self._log_end()}")

    def send(self, what: signal.Signals) -> None:
        """Send the first process a signal."""
        self._process.send_signal(what)

    def kill(self) -> None:
        """Kill everything of this server at once, as a crash would, and wait for the end."""
        self.stop(grace_seconds=0)

    def _check(self, deadline: float, complaint: str) -> None:
        if self.has_ended:
            raise PeerFailedError(f"exited with {self._process.returncode}: {self._log_end()}")
        if time.monotonic() > deadline:
            raise PeerFailedError(f"{complaint}: {self._log_end()}")
        time.sleep(POLL_SECONDS)

    def _log_end(self) -> str:
        return self.log.read_text(errors="replace")[-1000:].strip() or "(empty log)"

    def stop(self, *, grace_seconds: float = STOP_SECONDS_MAX) -> None:
        """Ask the first process to end, and kill what is left after the grace."""
        if grace_seconds > 0:
            self._process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace_seconds)
        deadline = time.monotonic() + STOP_SECONDS_MAX
        while left := self.processes.process_ids():
            if time.monotonic() > deadline:
                raise PeerFailedError(f"processes {left} do not end")
            for process_id in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process_id, signal.SIGKILL)
            self._process.poll()
            time.sleep(POLL_SECONDS)
        self._process.wait()


class ServerGroup:
    """The processes that one server consists of, started one by one and ended in reverse."""

    def __init__(self) -> None:
        self._servers: list[ServerProcess] = []

    @property
    def processes(self) -> ProcessTree:
        """Return all processes of the group."""
        ids = (server.processes.session_ids for server in self._servers)
        return ProcessTree(frozenset().union(*ids))

    @property
    def started_epoch(self) -> float:
        """Return the time when the first process was started."""
        return self._servers[0].started_epoch

    def start(
        self,
        name: str,
        command: Sequence[str],
        *,
        directory: Path,
        environment: Mapping[str, str] = MappingProxyType({}),
    ) -> ServerProcess:
        """Start one more process, with these variables beside ours."""
        server = ServerProcess(command, directory=directory, name=name, environment=environment)
        self._servers.append(server)
        return server

    def stop(self, *, grace_seconds: float = STOP_SECONDS_MAX) -> None:
        """End every process with what it started. May be called again."""
        while self._servers:
            self._servers.pop().stop(grace_seconds=grace_seconds)
