"""A shell that takes the commands of a guide, in the order in which the guide prints them.

Owns: ``read_steps``, and ``GuideShell``: the guide's directory, environment and servers.

A command runs as it stands there, but for its ports: tests use free ones. A server runs in the
background until the guide starts another one; a command without an end (``--follow``, ``tail -f``)
is interrupted once it has had time to begin. Who is asked for a password types ``PASSWORD``.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from foreign_servers.deadlines import scale
from foreign_servers.tied_processes import tied

from compat_harness.server import HOST
from segstore.testing.ports import free_neighbours

COMMAND_SECONDS_MAX = scale(300.0)
START_SECONDS_MAX = scale(60.0)
STOP_SECONDS_MAX = scale(60.0)
ENDLESS_SECONDS = 2.0
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
ENDLESS = re.compile(r"--follow|\btail -f\b|^while ")
HEADING = re.compile(r"^##+ (.*)$", re.MULTILINE)
SETTINGS_FILE = re.compile(r"# (\S+\.toml)\n")
"""The first line of settings that a guide lets its readers write into a file."""
PROGRAM = "program.py"
"""The file into which a program of a guide is written."""
PASSWORD = "the password of every user"
ASKS = re.compile(r"^segstore user (add|passwd) (?!.*--password-)|^curl .*--user \w+ ")
"""Commands that ask for a password at the terminal, whatever the environment says."""
SERVER = re.compile(r"^(?:\S+/)?segstore (standalone|server|controller)\b")
"""A command that starts a server, also by the path of its environment."""
PLACES = 4
"""Maximum number of servers of a kind side by side."""


def _server_of(command: str) -> str:
    """Return which server a command starts; an empty text if it starts none."""
    found = SERVER.match(command)
    return found[1] if found else ""


@dataclass
class Step:
    """A command or a piece of code, its language, and the output that the guide shows for it."""

    kind: str
    text: str
    expected: list[str] = field(default_factory=list)
    heading: str = ""
    """The heading of its part of the guide; none before the first."""


def read_steps(guide: Path) -> list[Step]:
    """Return the commands, the settings files and the Python of a guide in their order.

    Blocks of output belong to the step before them; commands that root gives have a kind of their
    own.
    """
    steps: list[Step] = []
    text = guide.read_text()
    for fence in FENCE.finditer(text):
        language, block = fence.groups()
        heading = (HEADING.findall(text, 0, fence.start()) or [""])[-1]
        if language == "python" or (language == "toml" and SETTINGS_FILE.match(block)):
            steps.append(Step(language, block, heading=heading))
        elif language in ("console", "text"):
            for line in block.splitlines():
                if language == "console" and line.startswith("$ "):
                    steps.append(Step(language, line.removeprefix("$ "), heading=heading))
                elif language == "console" and line.startswith("# "):
                    steps.append(Step("root", line.removeprefix("# "), heading=heading))
                elif steps:
                    steps[-1].expected.append(line)
    return steps


class GuideShell:
    """A context manager: a directory, the variables that were exported, and the servers."""

    def __init__(self, directory: Path, variables: Mapping[str, str] | None = None) -> None:
        self.directory = directory
        first = free_neighbours(2 * PLACES)
        self._ports = {9090 + place: first + place for place in range(PLACES)}
        self._ports |= {12345 + place: first + PLACES + place for place in range(PLACES)}
        self.controller_uri = f"tcp://{HOST}:{self._ports[9090]}"
        self.environment = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SEGSTORE_CONTROLLER": self.controller_uri,
            **(variables or {}),
        }
        self._servers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> GuideShell:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def take(self, command: str) -> str:
        """Run a command to its end, or start it if it has none; return what it printed."""
        command = self.with_free_ports(command)
        if command.startswith("export "):
            self._export(command)
            return ""
        if SERVER.match(command):
            self.start_server(command)
            return ""
        if ENDLESS.search(command):
            return self._run_and_interrupt(command)
        if ASKS.search(command):
            return self._run_at_terminal(command)
        return self.run(command)

    def with_free_ports(self, command: str) -> str:
        """Return the command with the ports of this test in place of the usual ones."""
        for usual, port in self._ports.items():
            command = re.sub(rf"(?<![\w.]){usual}(?!\w)", str(port), command)
        if _server_of(command) == "standalone":
            command += f" --controller-port {self._ports[9090]}"
            command += f" --segment-store-port {self._ports[12345]}"
        return command

    def write_settings(self, text: str) -> None:
        """Write settings into the file that their first line names."""
        found = SETTINGS_FILE.match(text)
        assert found is not None, text
        (self.directory / found[1]).write_text(text)

    def run(self, command: str) -> str:
        """Run a command to its end and return what it printed; it has to succeed."""
        done = subprocess.run(
            ["bash", "-o", "pipefail", "-c", command],
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
            check=False,
        )
        assert done.returncode == 0, f"{command}\nexit code {done.returncode}\n{done.stdout}"
        return done.stdout

    def run_python(self, text: str) -> str:
        """Run a program to its end and return what it printed; it has to succeed."""
        program = self.directory / PROGRAM
        program.write_text(self.with_free_ports(text))
        return self.run(f"{shlex.quote(sys.executable)} {PROGRAM}")

    def _run_at_terminal(self, command: str) -> str:
        """Run a command at a terminal, and type the password wherever it asks for one."""
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.directory)
            os.execvpe("bash", ["bash", "-c", command], self.environment)
        printed, answered = b"", 0
        try:
            while True:
                ready, _, _ = select.select([terminal], [], [], COMMAND_SECONDS_MAX)
                assert ready, f"{command}\nis silent\n{printed.decode()}"
                try:
                    data = os.read(terminal, 4096)
                except OSError:  # Linux says so when nobody has the terminal open any more
                    break
                printed += data
                if printed[answered:].rstrip().endswith(b":"):
                    answered = len(printed)
                    os.write(terminal, f"{PASSWORD}\n".encode())
                if not data:
                    break
        finally:
            os.close(terminal)
            code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert PASSWORD not in printed.decode(), "a terminal does not show what is typed"
        assert code == 0, f"{command}\nexit code {code}\n{printed.decode()}"
        return printed.decode().replace("\r\n", "\n")

    def start_server(self, command: str) -> None:
        """Start a server, after those that had its data directory have ended, and wait for it."""
        if _server_of(command) != "controller":
            self.stop_servers()
        log = self.directory.with_name(f"{self.directory.name}-server-{len(self._servers)}.log")
        with log.open("wb") as output:
            server = subprocess.Popen(
                tied(shlex.split(command)),
                cwd=self.directory,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._servers.append(server)
        deadline = time.monotonic() + START_SECONDS_MAX
        while not self._listens(command, log):
            assert server.poll() is None, f"{command}\n{log.read_text()}"
            assert time.monotonic() < deadline, f"{command}\n{log.read_text()}"
            time.sleep(0.1)

    def _listens(self, command: str, log: Path) -> bool:
        if _server_of(command) == "standalone":
            return "segstore is ready in" in log.read_text()
        port = int(re.findall(r"--port (\d+)", command)[0])
        with socket.socket() as probe:
            return probe.connect_ex((HOST, port)) == 0

    def stop_servers(self) -> None:
        """End all servers as Ctrl-C does, the youngest first."""
        while self._servers:
            server = self._servers.pop()
            server.terminate()
            try:
                server.wait(STOP_SECONDS_MAX)
            finally:
                server.kill()

    def close(self) -> None:
        """End everything that was started."""
        self.stop_servers()

    def _export(self, command: str) -> None:
        """Keep the variables that a command exports."""
        done = subprocess.run(
            ["bash", "-c", f"{command}; env --null"],
            cwd=self.directory,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        fields = (line.partition("=") for line in done.stdout.split("\0") if line)
        self.environment = {name: value for name, _, value in fields}

    @contextmanager
    def running_beside(self, command: str) -> Iterator[None]:
        """Run a command without an end in another terminal during the block."""
        running = self._start_endless(command)
        try:
            yield
        finally:
            os.killpg(running.pid, signal.SIGKILL)
            running.communicate()

    def _start_endless(self, command: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            tied(["bash", "-c", command]),
            cwd=self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _run_and_interrupt(self, command: str) -> str:
        """Run a command without an end for a moment, and press Ctrl-C; return what it printed."""
        running = self._start_endless(command)
        try:
            printed, _ = running.communicate(timeout=ENDLESS_SECONDS)
            raise AssertionError(f"{command}\nended with {running.returncode}\n{printed}")
        except subprocess.TimeoutExpired:
            os.killpg(running.pid, signal.SIGINT)
            try:
                printed, _ = running.communicate(timeout=STOP_SECONDS_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(running.pid, signal.SIGKILL)
                printed, _ = running.communicate()
                raise AssertionError(f"{command}\ndoes not end\n{printed}") from None
        assert running.returncode in (0, 130, -signal.SIGINT), f"{command}\n{printed}"
        assert "internal error" not in printed, printed
        return printed
